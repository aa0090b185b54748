"""Bucket events: objects that are written to or removed from local folders and remote buckets.

The catalog, in the state file, has a record of each object that was found. For folders: `watcher` (decides what to
check, and when), `inotify`, `scan`, `pending` and `session` (find and keep what to check), `files` (decides whether a
file is complete), `recorder` (records objects and queues events). For remote buckets: `remote` (watches by listing),
`remote_notifications` (watches through SQS). For both, `object_events` and `s3_event` make the events.
"""
