"""Everything durable: events, the catalogs of functions and objects, code, tables.

The only package that imports sqlite3, psycopg and obstore. Callers see structs, awaitables and
`thawd.errors.StoreError`.
"""
