"""Stores data that outlives the server: `events/` (the asynchronous queue), `objects/` (buckets), `tables/`.

The modules directly in this package store code, schedules and what was created through the Lambda API. Snapshots are
stored by another package, `thawd.snapshot.store`.

In the platform, only this package imports sqlite3, psycopg and obstore. (`thawd.models`, which runs inside functions,
imports obstore, too.) Its callers see structs, awaitables and `thawd.errors.StoreError`.
"""
