"""The catalog of objects: the content of each bucket when thawd last looked at it.

A change of the catalog and the events that it causes are stored in one transaction, so that a crash neither loses nor
repeats an event. A change is stored only if the record is still the one with which the caller compared the object:
if two callers have seen the same change, only one of them stores it.

`thawd.sources.buckets` compares files and remote objects with the catalog. Memory use does not grow with the number of
objects.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from thawd.stores import clock
from thawd.stores.database import Database
from thawd.stores.events.event_rows import NewEvent, insert

_COLUMNS = "key, inode, size, mtime_ns, ctime_ns, etag, sequencer"


class ObjectRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An object as it was when it was recorded.

    Attributes:
        key: path within the bucket's folder, with ``/``, as the bytes that the file system has; of a remote object, its
            complete key.
        inode: inode number of the file; 0 for a remote object.
        size: bytes.
        mtime_ns: last modification, nanoseconds since the epoch.
        ctime_ns: last change of content or metadata, nanoseconds since the epoch; 0 for a remote object.
        etag: MD5 of a file's content, 32 hexadecimal digits; of a remote object, a mark from the store, such as its
            ETag, that changes with the content.
        sequencer: a number that grows with every recorded change; 0 in a record that is not stored yet.
    """

    key: bytes
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int
    etag: str
    sequencer: int = 0


class ObjectChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change of one key.

    Attributes:
        key: the key.
        expected: sequencer of the record that the object was compared with; 0: there was none.
        now: the object as it is now; None: it no longer exists.
        announce: whether the change causes events; False for example when only times changed.
    """

    key: bytes
    expected: int
    now: ObjectRecord | None
    announce: bool


EventsFor = Callable[[ObjectChange, int], Sequence[NewEvent]]
"""Makes the events that a change causes, from the change and its sequencer.

It must have no side effects, because it may be called twice for the same change.
"""


@dataclass(slots=True)
class AppliedChanges:
    """The result of a batch of changes.

    Attributes:
        conflicts: keys whose record is not the expected one. Their changes were not stored; compare the objects again.
        functions: functions that have new events.
        events: number of events queued.
    """

    conflicts: list[bytes] = field(default_factory=list)
    functions: set[str] = field(default_factory=set)
    events: int = 0


class ObjectCatalog:
    """The catalog in the state file."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def lookup(self, bucket: str, keys: Sequence[bytes]) -> dict[bytes, ObjectRecord]:
        """The records of `keys`, by key; keys without a record are left out.

        Raises:
            StoreError: the records could not be read.
        """

        def work(connection: sqlite3.Connection) -> dict[bytes, ObjectRecord]:
            found = {}
            for key in keys:
                row = connection.execute(
                    f"SELECT {_COLUMNS} FROM objects WHERE bucket = ? AND key = ?", (bucket, key)
                ).fetchone()
                if row is not None:
                    found[key] = _record(row)
            return found

        return await self._db.read(work)

    async def apply(
        self, bucket: str, changes: Sequence[ObjectChange], *, events_for: EventsFor, now: float | None = None
    ) -> AppliedChanges:
        """Record `changes` and queue their events, in one transaction.

        Args:
            bucket: the bucket's name.
            changes: the changes, at most one of each key.
            events_for: makes the events of each change with `announce`.
            now: when the events are accepted, seconds since the epoch; None: the current time.

        Raises:
            StoreError: storing failed; no change was recorded and no event queued.
        """
        at = clock.now() if now is None else now
        return await self._db.write(lambda connection: _apply(connection, bucket, changes, events_for, at))

    async def page(
        self, bucket: str, *, prefix: bytes = b"", start: bytes = b"", limit: int = 1000
    ) -> list[ObjectRecord]:
        """Up to `limit` records with keys that begin with `prefix`, from the key `start` on, in byte order of the keys.

        Raises:
            StoreError: the records could not be read.
        """
        sql = f"SELECT {_COLUMNS} FROM objects WHERE bucket = ? AND key >= ?"
        values: list[Any] = [bucket, max(prefix, start)]
        end = successor(prefix)
        if end is not None:
            sql += " AND key < ?"
            values.append(end)
        sql += " ORDER BY key LIMIT ?"
        values.append(limit)
        rows = await self._db.read(lambda connection: connection.execute(sql, values).fetchall())
        return [_record(row) for row in rows]

    async def count(self, bucket: str) -> int:
        """How many objects of `bucket` are recorded. This takes about 50 ns for each object.

        Raises:
            StoreError: the number could not be read.
        """
        (number,) = await self._db.read(
            lambda connection: connection.execute("SELECT count(*) FROM objects WHERE bucket = ?", (bucket,)).fetchone()
        )
        return int(number)


def _apply(
    connection: sqlite3.Connection,
    bucket: str,
    changes: Sequence[ObjectChange],
    events_for: EventsFor,
    now: float,
) -> AppliedChanges:
    applied = AppliedChanges()
    events: list[NewEvent] = []
    (last,) = connection.execute("SELECT last FROM sequencer").fetchone()
    for change in changes:
        row = connection.execute(
            "SELECT sequencer FROM objects WHERE bucket = ? AND key = ?", (bucket, change.key)
        ).fetchone()
        if (row[0] if row else 0) != change.expected:
            applied.conflicts.append(change.key)
            continue
        # Sequencers must always grow. The clock ensures this if the state file was lost, and the last sequencer ensures
        # it if the clock was set back.
        last = max(last + 1, time.time_ns())
        _store(connection, bucket, change, last)
        if change.announce:
            events.extend(events_for(change, last))
    connection.execute("UPDATE sequencer SET last = ?", (last,))
    insert(connection, events, now=now)
    applied.functions = {event.function for event in events}
    applied.events = len(events)
    return applied


def _store(connection: sqlite3.Connection, bucket: str, change: ObjectChange, sequencer: int) -> None:
    now = change.now
    if now is None:
        connection.execute("DELETE FROM objects WHERE bucket = ? AND key = ?", (bucket, change.key))
        return
    connection.execute(
        "INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (bucket, change.key, signed(now.inode), now.size, now.mtime_ns, now.ctime_ns, now.etag, sequencer),
    )


def _record(row: tuple[Any, ...]) -> ObjectRecord:
    return ObjectRecord(
        key=row[0],
        inode=row[1] & 0xFFFF_FFFF_FFFF_FFFF,
        size=row[2],
        mtime_ns=row[3],
        ctime_ns=row[4],
        etag=row[5],
        sequencer=row[6],
    )


def signed(inode: int) -> int:
    """An unsigned 64-bit inode number as a signed integer, which SQLite can store."""
    return inode - (1 << 64) if inode >= 1 << 63 else inode


def successor(prefix: bytes) -> bytes | None:
    """The smallest byte string that is greater than all byte strings with this prefix; None when there is none."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else None
