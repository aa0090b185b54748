"""Events as rows of the state file: defines the rows, and inserts, reads, deletes and counts them.

The functions that use the database take a connection. `thawd.stores.events.event_queue` runs the transactions and keeps
the leases.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
import sqlite3
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from thawd.stores import clock
from thawd.stores.schema import QUEUED, count_waiting

# Most rows in one statement. A row has up to ten values, and SQLite 3.31 and older allow 999 values in a statement.
_AT_ONCE = 99
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


_OPTIONAL_COLUMNS = ("row_key", "client_context", "trace_id", "qualifier", "tenant")
_optional = operator.attrgetter("row_key", "client_context", "trace_id", "qualifier", "tenant_id")
_NO_OPTIONAL = (None,) * len(_OPTIONAL_COLUMNS)


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


def insert(
    connection: sqlite3.Connection,
    events: Iterable[NewEvent],
    *,
    now: float | None = None,
    keys: Sequence[str] | None = None,
) -> None:
    """Accept `events` inside a transaction of the state file.

    For example, events about objects are accepted in the transaction that records these objects.

    Args:
        connection: the transaction's connection.
        events: the events to accept.
        now: the time of acceptance, seconds since the epoch; None: the current time.
        keys: keys of the events' copies in the cluster's database; None: there are no copies.
    """
    accepted_at = clock.now() if now is None else now
    timed = [(event, accepted_at) for event in events]
    if timed:
        insert_all(connection, timed, keys)


def insert_groups(
    connection: sqlite3.Connection,
    groups: Sequence[tuple[Sequence[NewEvent], float]],
    keys: Sequence[str] | None,
    *,
    max_queued: int | None,
    at_most: float = math.inf,
) -> list[int | None]:
    """Accept groups of events in this order, except those for which the queue has no room.

    Args:
        connection: the connection of a transaction.
        groups: events that are accepted all or none, with the time of acceptance, seconds since the epoch.
        keys: keys of the copies of all events, in order; None: there are no copies.
        max_queued: most events that may be stored, dead letters not counted; None: no limit.
        at_most: an upper bound of the number of events that are stored, dead letters not counted.

    Returns:
        The first id of each group; None for a group that was not accepted.
    """
    sizes = [len(events) for events, _ in groups]
    room = math.inf if max_queued is None else max_queued - at_most
    if sum(sizes) > room and max_queued is not None:
        room = max_queued - count_waiting(connection)
    if sum(sizes) <= room:
        first_id = insert_all(connection, [(event, at) for events, at in groups for event in events], keys)
        return list(itertools.accumulate(sizes[:-1], initial=first_id))
    offsets: list[int | None] = []  # the difference between each group's first id and the first id of all
    pairs: list[tuple[NewEvent, float]] = []
    kept_keys: list[str] = []
    first = 0
    for events, at in groups:
        fits = len(pairs) + len(events) <= room
        offsets.append(len(pairs) if fits else None)
        if fits:
            pairs += [(event, at) for event in events]
            kept_keys += keys[first : first + len(events)] if keys is not None else ()
        first += len(events)
    first_id = insert_all(connection, pairs, kept_keys or None)
    return [None if offset is None else first_id + offset for offset in offsets]


def insert_all(
    connection: sqlite3.Connection, timed: Sequence[tuple[NewEvent, float]], keys: Sequence[str] | None = None
) -> int:
    """Accept events, each with its time of acceptance. Returns the id of the first; the ids of the others follow it.

    Args:
        connection: the connection of a transaction.
        timed: the events, each with the time of acceptance, seconds since the epoch.
        keys: keys of the events' copies in the cluster's database; None: there are no copies.
    """
    if not timed:
        return 0
    first_id = 0
    for first in range(0, len(timed), _AT_ONCE):
        part = timed[first : first + _AT_ONCE]
        # The ids of the inserted rows have no gaps, because nothing else writes during the transaction.
        last_id = _insert_events(connection, part, None if keys is None else keys[first : first + _AT_ONCE])
        numbers = range(last_id - len(part) + 1, last_id + 1)
        first_id = first_id or numbers[0]
        insert_rows(
            connection, "payloads", [(number, event.payload) for number, (event, _) in zip(numbers, part, strict=True)]
        )
    names = [event.function for event, _ in timed]
    counts = [(names[0], len(names))] if len(set(names)) == 1 else list(Counter(names).items())
    for first in range(0, len(counts), _AT_ONCE):
        insert_rows(connection, "acceptances", counts[first : first + _AT_ONCE])
    return first_id


def _insert_events(
    connection: sqlite3.Connection, timed: Sequence[tuple[NewEvent, float]], keys: Sequence[str] | None
) -> int:
    """Insert up to `_AT_ONCE` rows into the table ``events``; returns the id of the last.

    Columns without a value in all these events are left out: Python's sqlite3 takes longer to bind None than a text,
    because it looks for an adapter for each None. Most events have no value in most of these columns.
    """
    names = ["function", "accepted_at", "request_id", "source"]
    rows: list[tuple[Any, ...]] = [(event.function, at, event.request_id, event.source) for event, at in timed]
    optional = [_optional(event) for event, _ in timed]
    if optional.count(_NO_OPTIONAL) < len(optional):
        for name, values in zip(_OPTIONAL_COLUMNS, zip(*optional, strict=True), strict=True):
            if values.count(None) < len(values):
                names.append(name)
                rows = [(*row, value) for row, value in zip(rows, values, strict=True)]
    if keys is not None:
        names.append("copy_key")
        rows = [(*row, key) for row, key in zip(rows, keys, strict=True)]
    return insert_rows(connection, f"events ({', '.join(names)})", rows)


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


def oldest_of(connection: sqlite3.Connection) -> dict[str, float]:
    """When the oldest event that waits or is running was accepted, by function; see `EventQueue.oldest`."""
    found = {}
    for function in functions_in(connection, QUEUED):
        (at,) = connection.execute(
            "SELECT min(accepted_at) FROM (SELECT * FROM (SELECT accepted_at FROM events WHERE function = ? "
            "AND state = ? AND available_at = 0 ORDER BY id LIMIT 1) UNION ALL SELECT * FROM (SELECT "
            "accepted_at FROM events WHERE function = ? AND state = ? AND available_at > 0 "
            "ORDER BY available_at LIMIT 1000))",
            (function, QUEUED, function, QUEUED),
        ).fetchone()
        if at is not None:
            found[function] = at
    return found


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
