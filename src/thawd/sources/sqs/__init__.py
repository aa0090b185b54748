"""Event source mappings: messages of SQS queues are received in batches, and deleted once a function has handled them.

Reading order: `source` (one mapping, and all of them), `receiver` (receives, holds and deletes messages), `batch` (what
they share), `records` (messages as Lambda's event), `client` (SQS by boto3).
"""
