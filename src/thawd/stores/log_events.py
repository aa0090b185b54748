"""Stores log groups, their streams, and the events that clients put into them, in the state file.

What functions print is in files (`thawd.telemetry.logs`). This module stores the rest: what the Logs API has created or
set, and the events of ``PutLogEvents``, which have times of their own and so are ordered by an index.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from thawd.stores import sqlite_file
from thawd.stores.database import APPLICATION_ID, Database, Work

EVENT_OVERHEAD_BYTES = 26
"""Each event counts as the length of its message plus these bytes. Source: CloudWatch Logs, PutLogEvents."""
_CHUNK_ROWS = 1000
_CHUNK_BYTES = 1 << 20
_TRIM_ROWS = 1000
_BUSY_S = 5.0

SCHEMA = """
CREATE TABLE log_groups (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    document BLOB NOT NULL,
    bytes INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE log_streams (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    log_group INTEGER NOT NULL,
    name TEXT NOT NULL,
    created_ms INTEGER NOT NULL,
    first_ms INTEGER,
    last_ms INTEGER,
    ingested_ms INTEGER,
    UNIQUE (log_group, name)
) STRICT;
CREATE TABLE log_events (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    log_group INTEGER NOT NULL,
    stream INTEGER NOT NULL,
    time_ms INTEGER NOT NULL,
    ingested_ms INTEGER NOT NULL,
    message BLOB NOT NULL
) STRICT;
CREATE INDEX log_events_by_group ON log_events (log_group, time_ms, id);
CREATE INDEX log_events_by_stream ON log_events (stream, time_ms, id);
CREATE TABLE log_deliveries (
    log_group INTEGER NOT NULL,
    filter TEXT NOT NULL,
    position BLOB NOT NULL,
    PRIMARY KEY (log_group, filter)
) STRICT, WITHOUT ROWID;
"""


class GroupRow(NamedTuple):
    """A log group: its id, its name, its document (JSON), and the bytes of its stored events."""

    id: int
    name: str
    document: bytes
    stored_bytes: int


class StreamRow(NamedTuple):
    """A log stream that a client created.

    Attributes:
        id: identifies the stream.
        name: its name in the group.
        created_ms: when it was created, milliseconds since 1970.
        first_ms: time of its first event; None: it has none. The times of events, not of their arrival.
        last_ms: time of its last event.
        ingested_ms: when its last event arrived.
    """

    id: int
    name: str
    created_ms: int
    first_ms: int | None
    last_ms: int | None
    ingested_ms: int | None


class StoredEvent(NamedTuple):
    """An event of ``PutLogEvents``. Events are ordered by `time_ms`, then by `id`, the order of their arrival."""

    time_ms: int
    id: int
    stream: str
    ingested_ms: int
    message: bytes


class Key(NamedTuple):
    """A boundary between stored events: events at or before it, and events after it."""

    time_ms: int
    id: int


FIRST = Key(-1, 0)
LAST = Key(1 << 62, 0)
_Query = Callable[["StoredEvent | None"], tuple[str, Sequence[int]]]
_EVENT = (
    "SELECT e.time_ms, e.id, s.name, e.ingested_ms, e.message FROM log_events e JOIN log_streams s ON s.id = e.stream"
)


class LogStore:
    """The tables of log groups, streams and events in the state file.

    Attributes:
        reading: reads streams and events.
    """

    def __init__(self, db: Database) -> None:
        self._db = db
        self.reading = LogReading(db.read_now)

    async def groups(self) -> list[GroupRow]:
        """All groups.

        Raises:
            StoreError: they cannot be read.
        """
        rows = await self._db.read(
            lambda connection: connection.execute("SELECT id, name, document, bytes FROM log_groups").fetchall()
        )
        return [GroupRow(*row) for row in rows]

    async def put_group(self, name: str, document: bytes) -> int:
        """Create a group, or replace the document of an existing one; returns its id. Durable when this returns.

        Raises:
            StoreError: the group could not be stored.
        """

        def work(connection: sqlite3.Connection) -> int:
            connection.execute(
                "INSERT INTO log_groups (name, document) VALUES (?, ?) "
                "ON CONFLICT (name) DO UPDATE SET document = excluded.document",
                (name, document),
            )
            (identifier,) = connection.execute("SELECT id FROM log_groups WHERE name = ?", (name,)).fetchone()
            return int(identifier)

        return await self._db.write(work)

    async def delete_group(self, group: int) -> None:
        """Remove a group with everything in it. Durable when this returns.

        Raises:
            StoreError: the group could not be removed.
        """

        def work(connection: sqlite3.Connection) -> None:
            for table in ("log_events", "log_streams", "log_deliveries"):
                connection.execute(f"DELETE FROM {table} WHERE log_group = ?", (group,))
            connection.execute("DELETE FROM log_groups WHERE id = ?", (group,))

        await self._db.write(work)

    async def create_stream(self, group: int, name: str, *, now_ms: int) -> bool:
        """Create a stream; returns False if the group has one with this name. Durable when this returns.

        Raises:
            StoreError: the stream could not be stored.
        """

        def work(connection: sqlite3.Connection) -> bool:
            made = connection.execute(
                "INSERT OR IGNORE INTO log_streams (log_group, name, created_ms) VALUES (?, ?, ?)",
                (group, name, now_ms),
            )
            return made.rowcount > 0

        return await self._db.write(work)

    async def delete_stream(self, group: int, name: str) -> bool:
        """Remove a stream with its events; returns whether there was one. Durable when this returns.

        Raises:
            StoreError: the stream could not be removed.
        """

        def work(connection: sqlite3.Connection) -> bool:
            row = connection.execute(
                "SELECT id FROM log_streams WHERE log_group = ? AND name = ?", (group, name)
            ).fetchone()
            if row is None:
                return False
            _delete_events(connection, group, "stream = ?", row)
            connection.execute("DELETE FROM log_streams WHERE id = ?", row)
            return True

        return await self._db.write(work)

    async def put_events(
        self, group: int, stream: str, events: Sequence[tuple[int, bytes]], *, now_ms: int, most_bytes: int
    ) -> bool:
        """Store events; returns False if the group has no such stream. Durable when this returns.

        If the group then has more than `most_bytes`, its oldest events are removed.

        Args:
            group: id of the group.
            stream: name of the stream.
            events: pairs of time (milliseconds since 1970) and message.
            now_ms: the present time.
            most_bytes: most bytes that all stored events of the group may have.

        Raises:
            StoreError: the events could not be stored.
        """
        size = sum(len(message) + EVENT_OVERHEAD_BYTES for _, message in events)

        def work(connection: sqlite3.Connection) -> bool:
            row = connection.execute(
                "SELECT id FROM log_streams WHERE log_group = ? AND name = ?", (group, stream)
            ).fetchone()
            if row is None:
                return False
            connection.executemany(
                "INSERT INTO log_events (log_group, stream, time_ms, ingested_ms, message) VALUES (?, ?, ?, ?, ?)",
                [(group, row[0], time_ms, now_ms, message) for time_ms, message in events],
            )
            first, last = min(event[0] for event in events), max(event[0] for event in events)
            connection.execute(
                "UPDATE log_streams SET first_ms = min(coalesce(first_ms, ?1), ?1), "
                "last_ms = max(coalesce(last_ms, ?2), ?2), ingested_ms = ?3 WHERE id = ?4",
                (first, last, now_ms, row[0]),
            )
            connection.execute("UPDATE log_groups SET bytes = bytes + ? WHERE id = ?", (size, group))
            _trim(connection, group, most_bytes)
            return True

        return await self._db.write(work)

    async def expire(self, group: int, before_ms: int) -> None:
        """Remove the events of a group from before `before_ms`, milliseconds since 1970.

        Raises:
            StoreError: the events could not be removed.
        """

        def has_any(connection: sqlite3.Connection) -> bool:
            found = "SELECT 1 FROM log_events WHERE log_group = ? AND time_ms < ? LIMIT 1"
            return connection.execute(found, (group, before_ms)).fetchone() is not None

        def work(connection: sqlite3.Connection) -> None:
            _delete_events(connection, group, "log_group = ? AND time_ms < ?", (group, before_ms))

        if await self._db.read(has_any):
            await self._db.write(work)

    async def positions(self) -> dict[tuple[int, str], bytes]:
        """How far subscription filters have delivered, by group and name of the filter.

        Raises:
            StoreError: the positions cannot be read.
        """
        rows = await self._db.read(
            lambda connection: connection.execute("SELECT log_group, filter, position FROM log_deliveries").fetchall()
        )
        return {(group, name): position for group, name, position in rows}

    async def save_position(self, group: int, name: str, position: bytes | None) -> None:
        """Store how far a subscription filter has delivered; None removes the position. Durable when this returns.

        Raises:
            StoreError: the position could not be stored.
        """

        def work(connection: sqlite3.Connection) -> None:
            if position is None:
                connection.execute("DELETE FROM log_deliveries WHERE log_group = ? AND filter = ?", (group, name))
            else:
                connection.execute("INSERT OR REPLACE INTO log_deliveries VALUES (?, ?, ?)", (group, name, position))

        await self._db.write(work)


class LogReading:
    """Reads streams and events. All methods block; call them in a thread.

    Args:
        read: runs an operation on a snapshot of the state file, and returns its value.
    """

    def __init__(self, read: Callable[[Work[Any]], Any]) -> None:
        self._read = read

    def size(self, group: int) -> int:
        """Bytes of the group's stored events."""
        (found,) = self._read(
            lambda connection: connection.execute(
                "SELECT coalesce((SELECT bytes FROM log_groups WHERE id = ?), 0)", (group,)
            ).fetchone()
        )
        return int(found)

    def last_id(self, group: int) -> int:
        """The id of the event of the group that arrived last; 0: there is none."""
        (found,) = self._read(
            lambda connection: connection.execute(
                "SELECT coalesce(max(id), 0) FROM log_events WHERE log_group = ?", (group,)
            ).fetchone()
        )
        return int(found)

    def streams(self, group: int, *, prefix: str = "") -> list[StreamRow]:
        """The streams of a group whose names begin with `prefix`, by name."""

        def work(connection: sqlite3.Connection) -> list[StreamRow]:
            columns = "id, name, created_ms, first_ms, last_ms, ingested_ms"
            query = f"SELECT {columns} FROM log_streams WHERE log_group = ? AND substr(name, 1, ?) = ? ORDER BY name"
            return [StreamRow(*row) for row in connection.execute(query, (group, len(prefix), prefix))]

        found: list[StreamRow] = self._read(work)
        return found

    def stream(self, group: int, name: str) -> StreamRow | None:
        """The stream of a group with this name; None: there is none."""

        def work(connection: sqlite3.Connection) -> StreamRow | None:
            columns = "id, name, created_ms, first_ms, last_ms, ingested_ms"
            query = f"SELECT {columns} FROM log_streams WHERE log_group = ? AND name = ?"
            row = connection.execute(query, (group, name)).fetchone()
            return None if row is None else StreamRow(*row)

        found: StreamRow | None = self._read(work)
        return found

    def forward(self, group: int, after: Key, *, start_ms: int = 0, stream: int | None = None) -> Iterator[StoredEvent]:
        """Yield the events after a boundary, in the order of their times.

        Args:
            group: id of the group.
            after: the boundary.
            start_ms: events from before this time are left out, milliseconds since 1970.
            stream: id of the stream whose events are wanted; None: events of all streams.
        """
        yield from _chunks(self._read, _forward_query(group, after, start_ms=start_ms, stream=stream))

    def backward(self, group: int, until: Key, *, stream: int | None = None) -> Iterator[StoredEvent]:
        """Yield the events up to a boundary, the last first."""
        where, value = ("e.log_group", group) if stream is None else ("e.stream", stream)

        def query(last: StoredEvent | None) -> tuple[str, Sequence[int]]:
            bound = until if last is None else Key(last.time_ms, last.id - 1)
            return (
                f"{_EVENT} WHERE {where} = ? AND (e.time_ms, e.id) <= (?, ?) ORDER BY e.time_ms DESC, e.id DESC",
                (value, *bound),
            )

        yield from _chunks(self._read, query)

    def arrived(self, group: int, after: int) -> Iterator[StoredEvent]:
        """Yield the events that arrived after the event with the id `after`, in the order of their arrival."""

        def query(last: StoredEvent | None) -> tuple[str, Sequence[int]]:
            bound = after if last is None else last.id
            return f"{_EVENT} WHERE e.id > ? AND +e.log_group = ? ORDER BY e.id", (bound, group)

        yield from _chunks(self._read, query)


@contextlib.contextmanager
def reading_elsewhere(path: Path) -> Iterator[LogReading]:
    """Read the log events of a state file that another process has open; blocks.

    Raises:
        StoreError: the file cannot be read.
    """
    connection = sqlite_file.open_foreign(
        path, application_id=APPLICATION_ID, newest_version=1 << 30, busy_timeout_s=_BUSY_S
    )
    with contextlib.closing(connection):
        yield LogReading(lambda work: work(connection))


def _forward_query(group: int, after: Key, *, start_ms: int, stream: int | None) -> _Query:
    where, value = ("e.log_group", group) if stream is None else ("e.stream", stream)

    def query(last: StoredEvent | None) -> tuple[str, Sequence[int]]:
        bound = max(after, Key(start_ms, -1)) if last is None else Key(last.time_ms, last.id)
        return (
            f"{_EVENT} WHERE {where} = ? AND (e.time_ms, e.id) > (?, ?) ORDER BY e.time_ms, e.id",
            (value, *bound),
        )

    return query


def _chunks(read: Callable[[Work[Any]], Any], query: _Query) -> Iterator[StoredEvent]:
    """Yield the rows of a query, read in chunks of limited size, so that other reads need not wait for long.

    Args:
        read: see `LogReading`.
        query: returns the SQL text and its parameters, for the rows after an event; None: for all rows.
    """
    last: StoredEvent | None = None
    while True:
        text, parameters = query(last)

        def work(
            connection: sqlite3.Connection, text: str = text, parameters: Sequence[int] = parameters
        ) -> list[StoredEvent]:
            found: list[StoredEvent] = []
            size = 0
            for row in connection.execute(f"{text} LIMIT {_CHUNK_ROWS}", parameters):
                found.append(StoredEvent(*row))
                size += len(row[4])
                if size >= _CHUNK_BYTES:
                    break
            return found

        chunk = read(work)
        if not chunk:
            return
        yield from chunk
        last = chunk[-1]


def _trim(connection: sqlite3.Connection, group: int, most_bytes: int) -> None:
    """Remove the oldest events of a group until it has at most `most_bytes`."""
    while True:
        (size,) = connection.execute("SELECT bytes FROM log_groups WHERE id = ?", (group,)).fetchone()
        if size <= most_bytes:
            return
        if not _has_events(connection, group):
            return
        oldest = "id IN (SELECT id FROM log_events WHERE log_group = ? ORDER BY time_ms, id LIMIT ?)"
        _delete_events(connection, group, oldest, (group, _TRIM_ROWS))


def _has_events(connection: sqlite3.Connection, group: int) -> bool:
    found = connection.execute("SELECT 1 FROM log_events WHERE log_group = ? LIMIT 1", (group,))
    return found.fetchone() is not None


def _delete_events(connection: sqlite3.Connection, group: int, which: str, parameters: Sequence[int]) -> None:
    counted = f"SELECT coalesce(sum(length(message) + {EVENT_OVERHEAD_BYTES}), 0) FROM log_events WHERE {which}"
    (size,) = connection.execute(counted, parameters).fetchone()
    connection.execute(f"DELETE FROM log_events WHERE {which}", parameters)
    connection.execute("UPDATE log_groups SET bytes = bytes - ? WHERE id = ?", (size, group))
