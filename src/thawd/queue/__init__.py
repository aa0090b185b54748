"""Asynchronous invocations: stored events are leased, run, retried, and delivered or kept as dead letters.

Reading order: `invoker` (leases events and runs them), `lane` (the leased and running events of one function),
`outcome_delivery` (delivers outcomes and ends events), `upkeep` (deletes old dead letters, measures the queue),
`operator_view` (lists, redrives and removes dead letters for operators). `thawd.stores.events` stores the events.
"""
