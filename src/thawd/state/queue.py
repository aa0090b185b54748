"""The durable queue of asynchronous events: accepted means on the disk, and it stays there until it is dealt with.

Delivery is at least once: an event leased when the process dies is queued again by `EventQueue.recover`. An attempt
counts when it ends, not when it begins, so a crash of the server uses up no retries; an event whose handler takes the
whole server down would therefore come back for ever. Guarding against such poison is not done here.

Whom to invoke, when to retry and when to give up is the dispatcher's business; this module keeps the books.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from thawd.state.database import Database
from thawd.state.schema import DEAD, LEASED, QUEUED

# Most waiting events made ready by one lease, so that no lease takes long when a great many come due at once.
_PROMOTED_AT_ONCE = 1000
_COLUMNS = (
    "e.id, e.function, e.accepted_at, e.attempts, e.request_id, e.source, e.row_key, e.client_context, e.trace_id, "
    "p.body, e.qualifier"
)


class NewEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event to be accepted.

    Attributes:
        function: the function it is for.
        payload: the event, JSON text in UTF-8.
        request_id: the same on every attempt.
        source: ``invoke``, or ``bucket:`` and the bucket's name.
        row_key: key under which a table that is a destination stores its result; None: the request id is used.
        client_context: JSON text of the caller's client context, or None.
        trace_id: X-Ray trace header, or None.
        qualifier: version or alias that it is for; None: ``$LATEST``.
    """

    function: str
    payload: bytes
    request_id: str
    source: str = "invoke"
    row_key: str | None = None
    client_context: str | None = None
    trace_id: str | None = None
    qualifier: str | None = None


class Event(NewEvent, frozen=True, kw_only=True):
    """An event taken from the queue.

    Attributes:
        id: its place in the order of acceptance.
        attempts: attempts that have ended.
        accepted_at: when it was accepted, seconds since the epoch.
    """

    id: int
    attempts: int
    accepted_at: float


class DeadLetter(Event, frozen=True, kw_only=True):
    """An event given up.

    Attributes:
        error: what was wrong with the last attempt.
        condition: ``RetriesExhausted`` or ``EventAgeExceeded``.
        buried_at: when it was given up, seconds since the epoch.
    """

    error: str
    condition: str
    buried_at: float


@dataclass(frozen=True, slots=True)
class Depth:
    """How many events of a function are waiting, being worked on, and given up."""

    queued: int = 0
    leased: int = 0
    dead: int = 0


def insert(connection: sqlite3.Connection, events: Iterable[NewEvent], *, now: float) -> None:
    """Accept `events` inside a transaction of the state file, for example together with the objects they are about."""
    for event in events:
        row = connection.execute(
            "INSERT INTO events (function, accepted_at, request_id, source, row_key, client_context, trace_id, "
            "qualifier) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                event.function,
                now,
                event.request_id,
                event.source,
                event.row_key,
                event.client_context,
                event.trace_id,
                event.qualifier,
            ),
        ).lastrowid
        connection.execute("INSERT INTO payloads VALUES (?, ?)", (row, event.payload))


class EventQueue:
    """The queue in the state file. Times are seconds since the epoch; a ``now`` left out is the clock's."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def put(self, events: Sequence[NewEvent], *, now: float | None = None) -> None:
        """Accept `events`, all or none; when this returns they are durable.

        Raises:
            StoreError: they could not be stored.
        """
        accepted_at = _or_clock(now)
        await self._db.write(lambda connection: insert(connection, events, now=accepted_at))

    async def lease(self, function: str, *, limit: int, now: float | None = None) -> list[Event]:
        """Take up to `limit` due events of `function`, those accepted first first. The cost grows with `limit` only.

        Order is exact among up to 1,000 retries that come due at once; of more, those due first come first.

        Raises:
            StoreError: they could not be marked as taken.
        """
        at = _or_clock(now)

        def work(connection: sqlite3.Connection) -> list[Event]:
            connection.execute(
                "UPDATE events SET available_at = 0 WHERE id IN (SELECT id FROM events WHERE function = ? "
                "AND state = ? AND available_at > 0 AND available_at <= ? ORDER BY available_at LIMIT ?)",
                (function, QUEUED, at, _PROMOTED_AT_ONCE),
            )
            rows = connection.execute(
                f"SELECT {_COLUMNS} FROM events e JOIN payloads p ON p.event = e.id "
                "WHERE e.function = ? AND e.state = ? AND e.available_at = 0 ORDER BY e.id LIMIT ?",
                (function, QUEUED, limit),
            ).fetchall()
            _set_state(connection, LEASED, [row[0] for row in rows])
            return [_event(row) for row in rows]

        return await self._db.write(work)

    async def done(self, ids: Iterable[int]) -> None:
        """Forget events: they have been dealt with. Unknown ids are passed over; dead letters go as well.

        Raises:
            StoreError: it could not be noted; they would be delivered again after a restart.
        """
        keys = [(event_id,) for event_id in ids]
        await self._db.write(
            lambda connection: _nothing(connection.executemany("DELETE FROM events WHERE id = ?", keys))
        )

    async def retry(self, event_id: int, *, at: float, error: str, counts: bool = True) -> None:
        """Put a leased event back, to be tried again at or after `at`.

        Args:
            event_id: the event.
            at: when it comes due, seconds since the epoch.
            error: why the attempt failed.
            counts: whether this was an attempt; a throttle or a failure of the platform is none.

        Raises:
            StoreError: it could not be noted.
        """
        await self._db.write(
            lambda connection: _nothing(
                connection.execute(
                    "UPDATE events SET state = ?, available_at = ?, attempts = attempts + ?, error = ? "
                    "WHERE id = ? AND state = ?",
                    (QUEUED, max(at, 0.0), int(counts), error, event_id, LEASED),
                )
            )
        )

    async def bury(
        self, event_id: int, *, error: str, condition: str, counts: bool = True, now: float | None = None
    ) -> None:
        """Give a leased event up; it is kept, with its payload and `error`, until `done` is called for it.

        Args:
            event_id: the event.
            error: why the last attempt failed.
            condition: ``RetriesExhausted`` or ``EventAgeExceeded``.
            counts: whether an attempt was made since it was leased.
            now: when, seconds since the epoch.

        Raises:
            StoreError: it could not be noted.
        """
        at = _or_clock(now)
        await self._db.write(
            lambda connection: _nothing(
                connection.execute(
                    "UPDATE events SET state = ?, available_at = ?, attempts = attempts + ?, error = ?, condition = ? "
                    "WHERE id = ? AND state = ?",
                    (DEAD, at, int(counts), error, condition, event_id, LEASED),
                )
            )
        )

    async def dead_letters(self, function: str, *, after: int = 0, limit: int = 100) -> list[DeadLetter]:
        """Events of `function` that were given up, in the order of acceptance, from after the id `after`.

        Raises:
            StoreError: they could not be read.
        """

        def work(connection: sqlite3.Connection) -> list[DeadLetter]:
            rows = connection.execute(
                f"SELECT {_COLUMNS}, e.error, e.condition, e.available_at FROM events e "
                "JOIN payloads p ON p.event = e.id WHERE e.id IN "
                "(SELECT id FROM events WHERE function = ? AND state = ? AND id > ? ORDER BY id LIMIT ?) ORDER BY e.id",
                (function, DEAD, after, limit),
            ).fetchall()
            return [
                DeadLetter(**msgspec.structs.asdict(_event(row)), error=row[11], condition=row[12], buried_at=row[13])
                for row in rows
            ]

        return await self._db.read(work)

    async def recover(self) -> int:
        """Queue again what was leased when the process before this one ended; how many there were. Call once, first.

        Raises:
            StoreError: it could not be noted.
        """

        def work(connection: sqlite3.Connection) -> int:
            functions = connection.execute("SELECT function FROM depths WHERE state = ?", (LEASED,)).fetchall()
            return sum(
                connection.execute(
                    "UPDATE events SET state = ?, available_at = 0 WHERE function = ? AND state = ?",
                    (QUEUED, function, LEASED),
                ).rowcount
                for (function,) in functions
            )

        return await self._db.write(work)

    async def depth(self) -> dict[str, Depth]:
        """Numbers of events by function; functions without any are left out. The cost grows with functions only.

        Raises:
            StoreError: they could not be read.
        """
        counts: dict[str, dict[int, int]] = {}
        rows = await self._db.read(
            lambda connection: connection.execute("SELECT function, state, count FROM depths").fetchall()
        )
        for function, state, count in rows:
            if count:
                counts.setdefault(function, {})[state] = count
        return {
            function: Depth(of.get(QUEUED, 0), of.get(LEASED, 0), of.get(DEAD, 0)) for function, of in counts.items()
        }

    async def next_due(self, function: str, *, now: float | None = None) -> float | None:
        """When the next queued event of `function` may be leased: `now` if one is due, a later time, or None.

        Raises:
            StoreError: it could not be read.
        """
        at = _or_clock(now)
        (first,) = await self._db.read(
            lambda connection: connection.execute(
                "SELECT min(available_at) FROM events WHERE function = ? AND state = ?", (function, QUEUED)
            ).fetchone()
        )
        return None if first is None else max(first, at)


def _or_clock(now: float | None) -> float:
    return time.time() if now is None else now


def _nothing(_cursor: sqlite3.Cursor) -> None:
    """A cursor must not leave the writer's thread."""


def _set_state(connection: sqlite3.Connection, state: int, ids: Sequence[int]) -> None:
    connection.executemany("UPDATE events SET state = ? WHERE id = ?", [(state, event_id) for event_id in ids])


def _event(row: tuple[Any, ...]) -> Event:
    return Event(
        id=row[0],
        function=row[1],
        accepted_at=row[2],
        attempts=row[3],
        request_id=row[4],
        source=row[5],
        row_key=row[6],
        client_context=row[7],
        trace_id=row[8],
        payload=row[9],
        qualifier=row[10],
    )
