"""Event source mappings: messages of SQS queues, received in batches and deleted once they are handled."""
