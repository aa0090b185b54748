"""The durable queue of asynchronous events.

`queue` stores events and leases them, `outbox` stores outcomes that wait for their destination, and `dead_letters`
stores the events that failed for good. `event_rows` defines the rows that the others share.
"""
