"""Asynchronous invocations: stored events are leased, run, retried, and delivered or kept as dead letters.

Reading order: `invoker` (leases events and runs them), `outcomes` (what follows a result), `lane` (one function's
turn), `upkeep` (ages and limits), `desk` (what people ask for: list, redrive, purge). `thawd.stores.events` keeps the
events.
"""
