"""Stores data that outlives the server: `events/` (the asynchronous queue), `objects/` (buckets), `tables/`.

The package's own modules store code, schedules and what was created through the Lambda API. `thawd.snapshot.store`
stores snapshots.

Only this package imports sqlite3, psycopg and obstore. Its callers see structs, awaitables and
`thawd.errors.StoreError`.
"""
