"""Event sources: buckets, SQS queues and schedules, which invoke functions without a caller that waits for the answer.

Buckets and schedules store an event, and the asynchronous queue invokes the function afterwards. An SQS queue itself
keeps its messages until a function has handled them, so `sqs` invokes the function directly.

- `mapping_pollers`: event source mappings: starts and stops the poller of each queue and stream
- `sqs`: polls SQS queues
- `streams`: polls Kinesis and DynamoDB streams: shards, iterators, positions
- `buckets`: watches local folders and remote buckets
- `schedules`: runs schedules of thawd.toml
- `provisioned_schedules`: schedules of provisioned concurrency
- `progress`: the figures of a source for operators
- `aws_calls`: calls AWS with boto3 on threads
"""
