"""Asynchronous invocations: stored events are leased, run, retried, and delivered or kept as dead letters.

The durable queue itself, with the record of each event's attempts, is `thawd.stores.events.event_queue`.

- `invoker`: leases events and runs them
- `lane`: the leased and running events of one function
- `event_invocation`: the invocation that runs a stored event
- `retry_waits`: how long an event waits after a failed attempt
- `refusals`: why an event must not run
- `suspects`: events that were interrupted, and perhaps made servers die
- `outcome_delivery`: delivers outcomes and ends events
- `maintenance`: deletes old dead letters, shrinks the state file, counts events
- `operator_view`: lists, redrives and removes dead letters for operators
"""
