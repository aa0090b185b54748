"""Stores all durable data: `events/` (the asynchronous queue), `objects/` (buckets), `tables/`, code, control plane.

Only this package imports sqlite3, psycopg and obstore. Its callers see structs, awaitables and
`thawd.errors.StoreError`.
"""
