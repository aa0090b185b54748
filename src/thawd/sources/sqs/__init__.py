"""Runs event source mappings: receives messages from SQS queues in batches, and deletes messages that were handled.

Reading order: `source` (invokes functions for mappings), `receiver` (receives, holds and deletes messages), `batch`
(batches and figures, which both use), `records` (makes Lambda's event from messages), `client` (calls SQS with boto3).
"""
