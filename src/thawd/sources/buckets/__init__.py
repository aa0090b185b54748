"""Bucket events: objects that are written to or removed from folders of this machine and remote buckets.

Folders: `watcher` (what is looked at, and when), `inotify`, `scan`, `pending` and `session` (where to look), `files`
(is a file complete), `recorder` (records objects and queues events). Remote buckets: `remote` by listing,
`remote_notifications` by SQS. `object_events` and `s3_event` make the events of both.
"""
