"""Bucket events: objects that are written to or removed from local folders and remote buckets.

The catalog, in the state file, has a record of each object that was found.

- `watcher`: watches a folder: decides which files to check, and when
- `watch_session`, `inotify`, `scan`, `pending`: the parts of a watch: the kernel's notices, scans, and the keys to
  check
- `files`: decides whether a file is complete
- `recorder`: records objects and queues their events
- `remote`: watches a remote bucket by listing it
- `remote_notifications`: watches a remote bucket through its notifications in an SQS queue
- `remote_sources`, `remote_stores`: the watchers of all remote buckets; the stores that they record into
- `notification_rules`: which events of an object invoke a function
- `object_events`, `s3_event`: events of objects; their JSON form for functions
"""
