"""Below every other room: `threads` (pools that cannot fail a running server), `folders` (files and folders that are on
the disk with their names), `retry` (back-off, timed waits, a lasting trouble reported once).
"""
