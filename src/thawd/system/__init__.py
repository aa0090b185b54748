"""Threads and folders of the operating system: pools that start all threads first, and files that survive a crash."""
