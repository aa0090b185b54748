"""Events of the state file that have copies: which copies must follow a change, and events that come from copies.

All functions run inside a transaction of the state file. `thawd.stores.cluster.copier` calls them.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from thawd.stores.events.event_rows import NewEvent, count_flow, insert_rows

# Most values in one statement; SQLite 3.31 and older allow 999.
_AT_ONCE = 500
# The columns of `Progress`, in the order of its fields.
_PROGRESS = (
    "e.state, e.available_at, e.accepted_at, e.attempts, e.interruptions, e.error, e.condition, d.document, d.since, "
    "d.tries"
)


class Progress(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What has happened to an event since it was accepted. The fields are columns of the state file.

    Attributes:
        state: `thawd.stores.schema.QUEUED`, ``DEAD`` or ``DELIVERING``.
        available_at: when the event or its outcome is due, or when it became a dead letter, seconds since the epoch.
        accepted_at: when the event was accepted, or last redriven, seconds since the epoch.
        attempts: number of attempts that have ended.
        interruptions: how often a server died while the event ran.
        error: why the last attempt failed, or None.
        condition: why it is a dead letter, or None.
        outcome: an outcome that waits to be delivered, or None.
        since: when the outcome was stored, seconds since the epoch.
        tries: how many deliveries of the outcome have failed.
    """

    state: int
    available_at: float
    accepted_at: float
    attempts: int = 0
    interruptions: int = 0
    error: str | None = None
    condition: str | None = None
    outcome: bytes | None = None
    since: float = 0.0
    tries: int = 0


class Change(msgspec.Struct, frozen=True):
    """A change of an event that its copy must follow.

    Attributes:
        number: identifies the change.
        key: the copy's key.
        progress: what the copy must say; None: the event has ended, so the copy must go.
    """

    number: int
    key: str
    progress: Progress | None


class CopiedEvent(msgspec.Struct, frozen=True):
    """An event that comes from a copy.

    Attributes:
        key: the copy's key.
        event: the event as it was accepted.
        progress: what has happened to it since.
    """

    key: str
    event: NewEvent
    progress: Progress


def changes(connection: sqlite3.Connection, limit: int) -> list[Change]:
    """Up to `limit` changes that the copies have not followed yet, oldest first."""
    rows = connection.execute(
        f"SELECT c.change, c.copy_key, {_PROGRESS} FROM copy_changes c LEFT JOIN events e ON e.id = c.event AND "
        "e.copy_key = c.copy_key LEFT JOIN deliveries d ON d.event = e.id ORDER BY c.change LIMIT ?",
        (limit,),
    )
    return [Change(row[0], row[1], None if row[2] is None else _progress(row[2:])) for row in rows]


def _progress(values: Sequence[Any]) -> Progress:
    state, available_at, accepted_at, attempts, interruptions, error, condition, outcome, since, tries = values
    return Progress(
        state=state,
        available_at=available_at,
        accepted_at=accepted_at,
        attempts=attempts,
        interruptions=interruptions,
        error=error,
        condition=condition,
        outcome=outcome,
        since=since or 0.0,
        tries=tries or 0,
    )


def progress_of(connection: sqlite3.Connection, event_id: int) -> tuple[str, Progress] | None:
    """The key of an event's copy, and the event's progress; None: there is no such event, or it has no copy."""
    row = connection.execute(
        f"SELECT e.copy_key, {_PROGRESS} FROM events e LEFT JOIN deliveries d ON d.event = e.id "
        "WHERE e.id = ? AND e.copy_key IS NOT NULL",
        (event_id,),
    ).fetchone()
    return None if row is None else (row[0], _progress(row[1:]))


def followed(connection: sqlite3.Connection, numbers: Sequence[int]) -> None:
    """Forget changes that the copies have followed. If an event changed again, that change has another number."""
    for part in _parts(numbers):
        connection.execute(f"DELETE FROM copy_changes WHERE change IN ({', '.join('?' * len(part))})", part)


def missing(connection: sqlite3.Connection, keys: Sequence[str]) -> list[str]:
    """Those of the copies `keys` that belong to no event of the state file, and to none that has just ended."""
    found: set[str] = set()
    for part in _parts(keys):
        marks = ", ".join("?" * len(part))
        for table in ("events", "copy_changes"):
            found.update(
                row[0] for row in connection.execute(f"SELECT copy_key FROM {table} WHERE copy_key IN ({marks})", part)
            )
    return [key for key in keys if key not in found]


def copied(connection: sqlite3.Connection, after: str, limit: int) -> list[tuple[str, NewEvent, Progress]]:
    """Up to `limit` events that have copies, with keys above `after`, in the order of the keys."""
    rows = connection.execute(
        "SELECT e.copy_key, e.function, p.body, e.request_id, e.source, e.row_key, e.client_context, e.trace_id, "
        f"e.qualifier, e.tenant, {_PROGRESS} FROM events e JOIN payloads p ON p.event = e.id "
        "LEFT JOIN deliveries d ON d.event = e.id WHERE e.copy_key > ? ORDER BY e.copy_key LIMIT ?",
        (after, limit),
    )
    return [(row[0], NewEvent(**dict(zip(_FIELDS, row[1:10], strict=True))), _progress(row[10:])) for row in rows]


def keys(connection: sqlite3.Connection, after: str, limit: int) -> list[str]:
    """Up to `limit` keys of events that have copies, above `after`, in order."""
    query = "SELECT copy_key FROM events WHERE copy_key > ? ORDER BY copy_key LIMIT ?"
    return [row[0] for row in connection.execute(query, (after, limit))]


_FIELDS = (
    *("function", "payload", "request_id", "source", "row_key", "client_context", "trace_id", "qualifier"),
    "tenant_id",
)


def add(connection: sqlite3.Connection, copies: Iterable[CopiedEvent]) -> set[str]:
    """Store events that come from copies, except those that the state file has already. Returns their functions."""
    depths: Counter[tuple[str, int]] = Counter()
    for copy in copies:
        if not missing(connection, [copy.key]):
            continue
        event, progress = copy.event, copy.progress
        event_id = insert_rows(
            connection,
            "events (function, state, available_at, accepted_at, attempts, request_id, source, row_key, "
            "client_context, trace_id, error, condition, qualifier, interruptions, tenant, copy_key)",
            [
                (
                    *(event.function, progress.state, progress.available_at, progress.accepted_at, progress.attempts),
                    *(event.request_id, event.source, event.row_key, event.client_context, event.trace_id),
                    *(progress.error, progress.condition, event.qualifier, progress.interruptions, event.tenant_id),
                    copy.key,
                )
            ],
        )
        insert_rows(connection, "payloads", [(event_id, event.payload)])
        if progress.outcome is not None:
            insert_rows(connection, "deliveries", [(event_id, progress.outcome, progress.since, progress.tries)])
        depths[event.function, progress.state] += 1
    for (function, state), count in depths.items():
        connection.execute(
            "INSERT INTO depths VALUES (?, ?, ?) "
            "ON CONFLICT (function, state) DO UPDATE SET count = count + excluded.count",
            (function, state, count),
        )
        count_flow(connection, "accepted", [(function, count)])
    return {function for function, _ in depths}


def remove_moved(connection: sqlite3.Connection, keys: Sequence[str]) -> list[int]:
    """Remove events that another machine has taken over; returns their ids. Their copies stay."""
    ids = [
        row[0]
        for part in _parts(keys)
        for row in connection.execute(
            f"DELETE FROM events WHERE copy_key IN ({', '.join('?' * len(part))}) RETURNING id", part
        )
    ]
    for part in _parts(keys):
        connection.execute(f"DELETE FROM copy_changes WHERE copy_key IN ({', '.join('?' * len(part))})", part)
    return ids


def _parts(items: Sequence[Any]) -> Iterable[Sequence[Any]]:
    return (items[first : first + _AT_ONCE] for first in range(0, len(items), _AT_ONCE))
