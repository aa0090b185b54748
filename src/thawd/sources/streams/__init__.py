"""Runs event source mappings of Kinesis and DynamoDB streams: passes records to functions in order, shard by shard.

Reading order: `source` (finds the shards of a stream), `shard` (reads one shard and stores how far it is processed),
`batch` (one batch: retries, halves, discards), `records` (makes Lambda's event), `client` (calls Kinesis and DynamoDB
Streams with boto3).
"""
