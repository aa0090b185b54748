"""Everything durable: the event queue, the catalog of objects, packages, tables.

The only package that imports sqlite3. Callers see structs, awaitables and `thawd.errors.StoreError`.
"""
