"""The durable queue of asynchronous events.

`queue` stores events and leases them, `outbox` holds outcomes that wait for their destination, `dead_letters` the
events that failed for good. `event_rows` has the rows they share.
"""
