"""Event sources: buckets, SQS queues and schedules, which invoke functions without a caller that waits for the answer.

Buckets and schedules store an event, and the asynchronous queue invokes the function afterwards. An SQS queue itself
keeps its messages until a function has handled them, so `sqs` invokes the function directly.
"""
