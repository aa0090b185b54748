"""The durable queue of asynchronous events. `thawd.queue` decides which events run; this package stores the decisions.

- `event_queue`: stores events, leases them, and records attempts and retries
- `leases`, `batches`, `running_marks`: leases in memory; events stored together; marks of running events
- `copies`, `copied_events`: copies of events outside this machine, and events that come from such copies
- `event_rows`: the rows of the state file
- `outbox`: outcomes that wait to be delivered
- `dead_letters`, `removals`: events that failed for good; removals of them, which can be undone
"""
