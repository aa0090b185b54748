"""Asynchronous invocations: stored events are leased, run, retried, and delivered or kept as dead letters.

Reading order: `invoker` (leases events and runs them), `lane` (one function's events that are leased or run),
`outcome_delivery` (delivers outcomes and ends events), `upkeep` (retention, figures), `operator_view` (operators
list, redrive and remove dead letters). `thawd.stores.events` stores the events.
"""
