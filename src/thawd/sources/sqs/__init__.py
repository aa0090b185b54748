"""Runs event source mappings: receives messages from SQS queues in batches, and deletes messages that were handled.

- `source`: invokes functions for a mapping
- `receiver`: receives and deletes messages, and extends their visibility timeouts
- `batch`: one batch, and its figures
- `lambda_event`: makes Lambda's event from messages
- `client`: calls SQS with boto3
"""
