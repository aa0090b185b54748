"""Dead letters: events that failed for good, kept with payload and error until they are redriven, removed or too old.

`thawd.queue.invoker` decides which events fail for good. `add` writes a dead letter inside a transaction of
`thawd.stores.events.event_queue`. `DeadLetters` reads, redrives and deletes dead
letters; `thawd.stores.events.removals` removes them so that this can be undone.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from thawd.stores import clock
from thawd.stores.database import Database
from thawd.stores.events.event_rows import COLUMNS, Event, count_flow, event_of, kept
from thawd.stores.schema import DEAD, DELIVERING, QUEUED, REMOVED

# Most rows changed in one transaction, so that other writers can write between two transactions.
_AT_ONCE = 500


class DeadLetter(Event, frozen=True, kw_only=True):
    """An event that failed for good.

    Attributes:
        error: why the last attempt failed.
        condition: why it is a dead letter, for example ``RetriesExhausted`` or ``EventAgeExceeded``.
        buried_at: when it became a dead letter, seconds since the epoch.
        has_outcome: whether the event had run and its outcome could not be delivered. A redrive then delivers the
            outcome.
        payload_bytes: size of its payload, also if `payload` was not read.
    """

    error: str
    condition: str
    buried_at: float
    has_outcome: bool = False
    payload_bytes: int = 0


class Selection(msgspec.Struct, forbid_unknown_fields=True):
    """Selects dead letters by id, by function, or all of them. Exactly one of the three must be set.

    Attributes:
        ids: ids of dead letters.
        function: selects all dead letters of this function.
        all: True selects all dead letters.
    """

    ids: list[int] | None = None
    function: str | None = None
    all: bool = False


_SELECT = (
    f"SELECT {COLUMNS}, e.error, e.condition, e.available_at, "
    "EXISTS (SELECT 1 FROM deliveries d WHERE d.event = e.id), length(p.body) "
    "FROM events e JOIN payloads p ON p.event = e.id"
)
# This statement does not read the payloads: SQLite computes `length(p.body)` without reading the body.
_SELECT_NO_PAYLOADS = _SELECT.replace("p.body,", "x'',", 1)
_WIDTH = COLUMNS.count(",") + 1


class DeadLetters:
    """The dead letters in the state file. All methods raise `StoreError` when the file cannot be used."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def page(
        self, function: str | None = None, *, after: int = 0, limit: int = 100, payloads: bool = True
    ) -> list[DeadLetter]:
        """Up to `limit` dead letters with ids above `after`, in the order of acceptance.

        Args:
            function: read the dead letters of this function; None: of all functions.
            after: read only ids above this one.
            limit: most dead letters to return.
            payloads: whether to read payloads. If False, they are empty, so large payloads use no memory.
        """
        select = _SELECT if payloads else _SELECT_NO_PAYLOADS
        return await self._db.read(lambda connection: _page(connection, select, function, after, limit))

    async def find(self, ids: Iterable[int]) -> list[DeadLetter]:
        """The dead letters with these ids, in this order. Ids without a dead letter are ignored."""
        wanted = list(ids)

        def work(connection: sqlite3.Connection) -> list[DeadLetter]:
            rows = (
                connection.execute(f"{_SELECT} WHERE e.id = ? AND e.state = ?", (i, DEAD)).fetchone() for i in wanted
            )
            return [_letter(row) for row in rows if row is not None]

        return await self._db.read(work)

    async def redrive(self, ids: Iterable[int]) -> Counter[str]:
        """Queue dead letters again, as if they had just been accepted.

        If a dead letter has an outcome, its event does not run again: only the outcome is delivered.

        Returns:
            How many events of each function were queued. Ids without a dead letter are ignored.
        """
        functions: Counter[str] = Counter()
        for part in _parts(ids):
            functions += await self._db.write(lambda connection, part=part: _redrive(connection, part))  # type: ignore[misc]
        return functions

    async def remove(self, ids: Iterable[int]) -> int:
        """Delete the dead letters with these ids for good; returns how many existed."""
        removed = 0
        for part in _parts(ids):
            removed += await self._db.write(lambda connection, part=part: _remove(connection, part))  # type: ignore[misc]
        return removed

    async def ids(self, function: str | None = None) -> Sequence[int]:
        """The ids of a function's dead letters; None: of all dead letters."""
        return await self._db.read(
            lambda connection: [
                row[0]
                for name in _functions(connection, function)
                for row in connection.execute("SELECT id FROM events WHERE function = ? AND state = ?", (name, DEAD))
            ]
        )

    async def remove_older(self, before: float, *, limit: int = _AT_ONCE) -> int:
        """Delete up to `limit` dead letters that are older than a time; returns how many.

        Args:
            before: delete events that became dead letters before this time, seconds since the epoch.
            limit: most dead letters to delete.
        """

        def work(connection: sqlite3.Connection) -> int:
            found = [
                row[0]
                for name in _functions(connection, None)
                for row in connection.execute(
                    "SELECT id FROM events WHERE function = ? AND state = ? AND available_at < ? LIMIT ?",
                    (name, DEAD, before, limit),
                )
            ]
            return _remove(connection, found[:limit])

        return await self._db.write(work)


def add(connection: sqlite3.Connection, event_id: int, *, error: str, condition: str, counts: bool, at: float) -> bool:
    """Make an event a dead letter, inside a transaction of the state file.

    Args:
        connection: the transaction's connection.
        event_id: the event.
        error: why the last attempt failed.
        condition: why it is a dead letter, for example ``RetriesExhausted`` or ``EventAgeExceeded``.
        counts: whether an attempt has been made that is not counted yet.
        at: the time, seconds since the epoch.

    Returns:
        False if there is no such event, or it is a dead letter already.
    """
    row = connection.execute(
        "UPDATE events SET state = ?, available_at = ?, attempts = attempts + ?, error = ?, condition = ? "
        "WHERE id = ? AND state NOT IN (?, ?) RETURNING function",
        (DEAD, at, int(counts), kept(error), condition, event_id, DEAD, REMOVED),
    ).fetchone()
    if row is None:
        return False
    count_flow(connection, "buried", [(row[0], 1)])
    return True


def keep_outcome(connection: sqlite3.Connection, event_id: int, outcome: bytes | None) -> None:
    """Set the outcome that a redrive of a dead letter delivers, inside a transaction.

    If `outcome` is None, the stored outcome is removed, so that a redrive runs the event again.
    """
    if outcome is None:
        connection.execute("DELETE FROM deliveries WHERE event = ?", (event_id,))
    else:
        connection.execute("UPDATE deliveries SET document = ? WHERE event = ?", (outcome, event_id))


def _functions(connection: sqlite3.Connection, function: str | None) -> list[str]:
    if function is not None:
        return [function]
    rows = connection.execute("SELECT function FROM depths WHERE state = ? AND count > 0", (DEAD,))
    return [row[0] for row in rows]


def _page(
    connection: sqlite3.Connection, select: str, function: str | None, after: int, limit: int
) -> list[DeadLetter]:
    ids: list[int] = []
    for name in _functions(connection, function):
        rows = connection.execute(
            "SELECT id FROM events WHERE function = ? AND state = ? AND id > ? ORDER BY id LIMIT ?",
            (name, DEAD, after, limit),
        )
        ids += [row[0] for row in rows]
    return [
        _letter(connection.execute(f"{select} WHERE e.id = ?", (number,)).fetchone()) for number in sorted(ids)[:limit]
    ]


def _redrive(connection: sqlite3.Connection, ids: Sequence[int]) -> Counter[str]:
    now = clock.now()
    functions: Counter[str] = Counter()
    for number in ids:
        row = connection.execute(
            "UPDATE events SET state = CASE WHEN EXISTS (SELECT 1 FROM deliveries WHERE event = id) THEN ? ELSE ? END, "
            "available_at = ?, accepted_at = ?, attempts = 0, interruptions = 0, condition = NULL "
            "WHERE id = ? AND state = ? RETURNING function",
            (DELIVERING, QUEUED, now, now, number, DEAD),
        ).fetchone()
        if row is not None:
            functions[row[0]] += 1
            connection.execute("UPDATE deliveries SET since = ?, tries = 0 WHERE event = ?", (now, number))
    return functions


def _remove(connection: sqlite3.Connection, ids: Sequence[int]) -> int:
    return sum(
        connection.execute("DELETE FROM events WHERE id = ? AND state = ?", (number, DEAD)).rowcount for number in ids
    )


def _parts(ids: Iterable[int]) -> list[list[int]]:
    wanted = list(ids)
    return [wanted[start : start + _AT_ONCE] for start in range(0, len(wanted), _AT_ONCE)]


def _letter(row: Sequence[Any]) -> DeadLetter:
    error, condition, buried_at, has_outcome, payload_bytes = row[_WIDTH:]
    return DeadLetter(
        **msgspec.structs.asdict(event_of(row)),
        error=error,
        condition=condition,
        buried_at=buried_at,
        has_outcome=bool(has_outcome),
        payload_bytes=payload_bytes,
    )
