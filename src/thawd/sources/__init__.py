"""Where events come from besides a call: buckets, SQS queues, schedules.

Every source stores an event first; the queue invokes the function afterwards.
"""
