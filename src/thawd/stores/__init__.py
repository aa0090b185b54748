"""Everything durable: `events/` (the asynchronous queue), `objects/` (buckets), `tables/`, code, the control plane.

The only package that imports sqlite3, psycopg and obstore. Callers see structs, awaitables and
`thawd.errors.StoreError`.
"""
