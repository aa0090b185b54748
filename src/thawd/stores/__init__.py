"""Stores data that outlives the server: `events/` (the asynchronous queue), `objects/` (buckets), `tables/`.

The modules directly in this package store code, schedules and what was created through the Lambda API. Snapshots are
stored by another package, `thawd.snapshot.store`.

Only this package imports sqlite3, psycopg and obstore. Its callers see structs, awaitables and
`thawd.errors.StoreError`.
"""
