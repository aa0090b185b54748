"""The durable queue of asynchronous events.

`queue` stores events and leases them, `outbox` stores outcomes that wait to be sent, and `dead_letters`
stores the events that failed for good. `event_rows` defines the rows that the others share.
"""
