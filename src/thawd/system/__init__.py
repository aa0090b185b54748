"""Helpers that all other packages may use, and that use none of them.

`threads` (pools that start all their threads immediately), `folders` (files and folders that survive a crash), `retry`
(back-off, waits with a time limit, reporting a lasting problem only once), `flag` (a flag that coroutines wait for),
`boot` (the id of the machine's current boot), `decoded_types` (types of documents that several threads decode).
"""
