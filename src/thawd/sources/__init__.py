"""Event sources: buckets, SQS queues, schedules.

Buckets and schedules store an event, and the asynchronous queue invokes the function afterwards. An SQS queue keeps its
messages until a function has handled them, so `sqs` invokes the function itself.
"""
