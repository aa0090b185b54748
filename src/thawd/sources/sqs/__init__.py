"""Event source mappings: receive messages of SQS queues in batches, and delete them once a function has handled them.

Reading order: `source` (invokes functions for mappings), `receiver` (receives, holds and deletes messages), `batch`
(batches and figures, which both use), `records` (makes Lambda's event from messages), `client` (calls SQS with boto3).
"""
