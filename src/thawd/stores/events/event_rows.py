"""Events as rows of the state file: defines the rows, and inserts, reads, deletes and counts them.

The functions that use the database take a connection. `thawd.stores.events.event_queue` runs the transactions and keeps
the leases.
"""

from __future__ import annotations

import functools
import itertools
import sqlite3
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from thawd.stores import clock
from thawd.stores.schema import QUEUED

# Most rows in one statement. A row has up to nine values, and old SQLite versions allow 999 values in a statement.
_AT_ONCE = 100
# Events are read with their payloads, 16 rows at a time, until the payloads reach this size, so that the memory in use
# stays small even if all payloads are large.
_READ_AT_ONCE = 16
_READ_BYTES = 4 * 1024 * 1024
# Most characters stored of an error's text, because a handler may raise an error of several megabytes at each attempt.
_ERROR_KEPT = 32 * 1024
COLUMNS = (
    "e.id, e.function, e.accepted_at, e.attempts, e.request_id, e.source, e.row_key, e.client_context, e.trace_id, "
    "p.body, e.qualifier, e.interruptions, e.tenant"
)
"""The columns that `event_of` needs, of ``events e`` joined with ``payloads p``."""


class NewEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event to be accepted.

    Attributes:
        function: the function to invoke.
        payload: the event, JSON text in UTF-8.
        request_id: the same on every attempt.
        source: ``invoke``, or the kind and name of a source, for example ``bucket:uploads``.
        row_key: if the destination is a table, the key under which the result is stored; None: the request id.
        client_context: JSON text of the caller's client context, or None.
        trace_id: X-Ray trace header, or None.
        qualifier: version or alias to invoke; None: ``$LATEST``.
        tenant_id: the tenant that the event names, or None.
    """

    function: str
    payload: bytes
    request_id: str
    source: str = "invoke"
    row_key: str | None = None
    client_context: str | None = None
    trace_id: str | None = None
    qualifier: str | None = None
    tenant_id: str | None = None


class Event(NewEvent, frozen=True, kw_only=True):
    """An event taken from the queue.

    Attributes:
        id: a number; an event that is accepted later has a larger one.
        attempts: number of attempts that have ended.
        accepted_at: when the event was accepted, seconds since the epoch.
        interruptions: how often the server died while the event ran.
    """

    id: int
    attempts: int
    accepted_at: float
    interruptions: int = 0


@dataclass(frozen=True, slots=True)
class Depth:
    """How many events a function has in each state.

    Attributes:
        queued: events that wait to run.
        leased: events that were taken from the queue to be run, and have not ended.
        dead: dead letters.
        delivering: events that have run, with an outcome that waits to be delivered.
    """

    queued: int = 0
    leased: int = 0
    dead: int = 0
    delivering: int = 0


@dataclass(frozen=True, slots=True)
class Flow:
    """Counts of a function's events since the state file was created.

    Attributes:
        accepted: events stored.
        done: events that were deleted when they had ended.
        retried: attempts that failed and were followed by another.
        buried: events that became dead letters.
    """

    accepted: int = 0
    done: int = 0
    retried: int = 0
    buried: int = 0


def as_accepted(event: NewEvent, event_id: int, accepted_at: float) -> Event:
    """The event as `EventQueue.lease` would return it right after it was accepted."""
    return Event(
        id=event_id,
        accepted_at=accepted_at,
        attempts=0,
        function=event.function,
        payload=event.payload,
        request_id=event.request_id,
        source=event.source,
        row_key=event.row_key,
        client_context=event.client_context,
        trace_id=event.trace_id,
        qualifier=event.qualifier,
        tenant_id=event.tenant_id,
    )


def insert(connection: sqlite3.Connection, events: Iterable[NewEvent], *, now: float | None = None) -> None:
    """Accept `events` inside a transaction of the state file.

    For example, events about objects are accepted in the transaction that records these objects.

    Args:
        connection: the transaction's connection.
        events: the events to accept.
        now: the time of acceptance, seconds since the epoch; None: the current time.
    """
    accepted_at = clock.now() if now is None else now
    timed = [(event, accepted_at) for event in events]
    if timed:
        insert_all(connection, timed)


def insert_all(connection: sqlite3.Connection, timed: Sequence[tuple[NewEvent, float]]) -> int:
    """Accept events, each with its time of acceptance. Returns the id of the first; the ids of the others follow it."""
    first_id = 0
    for first in range(0, len(timed), _AT_ONCE):
        part = timed[first : first + _AT_ONCE]
        # The ids of the inserted rows have no gaps, because nothing else writes during the transaction.
        last_id = _insert_events(connection, part)
        numbers = range(last_id - len(part) + 1, last_id + 1)
        first_id = first_id or numbers[0]
        insert_rows(
            connection, "payloads", [(number, event.payload) for number, (event, _) in zip(numbers, part, strict=True)]
        )
    counts = Counter([event.function for event, _ in timed]).items()
    for function, count in counts:
        connection.execute(
            "INSERT INTO depths VALUES (?, ?, ?) "
            "ON CONFLICT (function, state) DO UPDATE SET count = count + excluded.count",
            (function, QUEUED, count),
        )
    count_flow(connection, "accepted", counts)
    return first_id


def _insert_events(connection: sqlite3.Connection, timed: Sequence[tuple[NewEvent, float]]) -> int:
    """Insert up to `_AT_ONCE` rows into the table ``events``; returns the id of the last.

    Columns without a value in all these events are left out: Python's sqlite3 takes longer to bind None than a text,
    because it looks for an adapter for each None. Most events have no value in most of these columns.
    """
    events = [event for event, _ in timed]
    columns: list[tuple[str, Sequence[Any]]] = [
        ("function", [event.function for event in events]),
        ("accepted_at", [at for _, at in timed]),
        ("request_id", [event.request_id for event in events]),
        ("source", [event.source for event in events]),
    ]
    optional: list[tuple[str, list[str | None]]] = [
        ("row_key", [event.row_key for event in events]),
        ("client_context", [event.client_context for event in events]),
        ("trace_id", [event.trace_id for event in events]),
        ("qualifier", [event.qualifier for event in events]),
        ("tenant", [event.tenant_id for event in events]),
    ]
    columns += [(name, values) for name, values in optional if values.count(None) < len(values)]
    names, values = zip(*columns, strict=True)
    return insert_rows(connection, f"events ({', '.join(names)})", list(zip(*values, strict=True)))


def insert_rows(connection: sqlite3.Connection, into: str, rows: Sequence[Sequence[Any]]) -> int:
    """Insert up to `_AT_ONCE` rows with one statement; returns the id of the last.

    `executemany` would be slower: it releases the interpreter's lock (GIL) for each row, and the event loop's thread
    then takes the lock. The next row would have to wait until that thread releases the lock again.
    """
    cursor = connection.execute(_insertion(into, len(rows), len(rows[0])), list(itertools.chain.from_iterable(rows)))
    return cursor.lastrowid or 0


@functools.lru_cache(512)
def _insertion(into: str, rows: int, columns: int) -> str:
    row = f"({', '.join('?' * columns)})"
    return f"INSERT INTO {into} VALUES {', '.join([row] * rows)}"


def delete(connection: sqlite3.Connection, ids: Sequence[int]) -> Counter[str]:
    """Remove events in any state; returns how many of each function existed."""
    functions: Counter[str] = Counter()
    for part in _parts(ids):
        among = f"id IN ({', '.join('?' * len(part))})"
        functions.update(
            dict(connection.execute(f"SELECT function, count(*) FROM events WHERE {among} GROUP BY function", part))
        )
        connection.execute(f"DELETE FROM events WHERE {among}", part)
    return functions


def delete_of(connection: sqlite3.Connection, function: str, ids: Sequence[int]) -> Counter[str]:
    """`delete` for events that all belong to one function."""
    deleted = 0
    for part in _parts(ids):
        among = f"id IN ({', '.join('?' * len(part))})"
        deleted += connection.execute(f"DELETE FROM events WHERE {among}", part).rowcount
    return Counter({function: deleted})


def _parts(ids: Sequence[int]) -> Iterable[Sequence[int]]:
    return (ids[first : first + _AT_ONCE] for first in range(0, len(ids), _AT_ONCE))


def count_flow(connection: sqlite3.Connection, what: str, counts: Iterable[tuple[str, int]]) -> None:
    """Add counts, by function, to the column `what` of the table ``flow``; see `Flow`."""
    for function, count in counts:
        connection.execute(
            f"INSERT INTO flow (function, {what}) VALUES (?, ?) "
            f"ON CONFLICT (function) DO UPDATE SET {what} = {what} + excluded.{what}",
            (function, count),
        )


def read(connection: sqlite3.Connection, ids: Iterable[int]) -> list[Event]:
    """Read these events, in this order, until their payloads reach `_READ_BYTES`; at least one event."""
    wanted = list(ids)
    events: list[Event] = []
    size = 0
    for first in range(0, len(wanted), _READ_AT_ONCE):
        part = wanted[first : first + _READ_AT_ONCE]
        rows = connection.execute(
            f"SELECT {COLUMNS} FROM events e JOIN payloads p ON p.event = e.id "
            f"WHERE e.id IN ({', '.join('?' * len(part))})",
            part,
        ).fetchall()
        found = {row[0]: row for row in rows}
        for event_id in part:
            events.append(event_of(found[event_id]))
            size += len(found[event_id][9])
            if size >= _READ_BYTES:
                return events
    return events


def kept(error: str) -> str:
    """An error's text as it is stored: very long texts are cut off."""
    return error if len(error) <= _ERROR_KEPT else f"{error[:_ERROR_KEPT]}… ({len(error):,} characters in total)"


def functions_in(connection: sqlite3.Connection, state: int) -> list[str]:
    """Names of the functions that have events in a state."""
    rows = connection.execute("SELECT function FROM depths WHERE state = ? AND count > 0", (state,)).fetchall()
    return [row[0] for row in rows]


def event_of(row: Sequence[Any]) -> Event:
    """The event in a row that begins with `COLUMNS`."""
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
        interruptions=row[11],
        tenant_id=row[12],
    )
