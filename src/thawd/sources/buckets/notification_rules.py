"""Decides which functions are invoked when an object is created or removed: by event type, prefix and suffix.

No side effects.
Source: Amazon S3 user guide, "Configuring event notifications using object key name filtering".
"""

from __future__ import annotations

from collections.abc import Sequence

from thawd.resources import Notification


def functions_for(notifications: Sequence[Notification], *, key: bytes, event_name: str) -> list[str]:
    """Return the functions to invoke, in configuration order, each of them once even if several notifications match.

    Args:
        notifications: the notifications of the bucket.
        key: the object's raw key. Prefix and suffix are compared with it, not with its URL-encoded form.
        event_name: the event, for example ``ObjectCreated:Put``.
    """
    return list(dict.fromkeys(one.function for one in notifications if wants(one, event_name, key)))


def wants(notification: Notification, event_name: str, key: bytes) -> bool:
    """Return whether the notification covers this event of the object `key`."""
    return (
        any(_covers(pattern.removeprefix("s3:"), event_name) for pattern in notification.events)
        and key.startswith(notification.prefix.encode())
        and key.endswith(notification.suffix.encode())
    )


def _covers(pattern: str, event_name: str) -> bool:
    """Return whether an S3 event type, which may end with a star, covers the event."""
    return event_name.startswith(pattern[:-1]) if pattern.endswith("*") else event_name == pattern
