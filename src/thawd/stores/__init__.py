"""Stores what outlives the server, except snapshots: `events/` (the asynchronous queue), `objects/` (buckets), `tables/`.

Modules of the package itself store code, schedules and the functions that were created through the API.

Only this package imports sqlite3, psycopg and obstore. Its callers see structs, awaitables and
`thawd.errors.StoreError`.
"""
