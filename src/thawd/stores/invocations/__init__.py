"""Stores records of invocations in a file of its own, ``records.db`` in the data folder.

- `record_rows`: what a record contains, and the file's schema.
- `record_file`: opens the file, writes batches of records, and keeps the file within its limits.
- `record_queries`: finds records: lists, single invocations, counts by minute.
- `handler_calls`: stores, finds and removes what the handlers of traced invocations called.
"""
