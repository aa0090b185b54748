"""Below every other room: `threads` (pools that start all threads first), `folders` (files and folders that survive a
crash), `retry` (back-off, timed waits, a lasting trouble reported once).
"""
