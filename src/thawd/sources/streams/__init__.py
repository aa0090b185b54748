"""Runs event source mappings of Kinesis and DynamoDB streams: passes records to functions in order, shard by shard.

- `source`: finds the shards of a stream
- `shard`: reads one shard, and stores the position up to which it is processed
- `batch`: one batch: retries, halves, discards
- `windows`: tumbling windows
- `lambda_event`: makes Lambda's event from records
- `client`: calls Kinesis and DynamoDB Streams with boto3
"""
