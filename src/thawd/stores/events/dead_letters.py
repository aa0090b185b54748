"""Dead letters: events that were given up, kept with their payload and error until somebody deals with them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from thawd.stores import clock
from thawd.stores.database import Database
from thawd.stores.events.records import COLUMNS, Event, event_of
from thawd.stores.schema import DEAD, DELIVERING, QUEUED

# Rows changed in one transaction: between two, other writers have their turn.
_AT_ONCE = 500


class DeadLetter(Event, frozen=True, kw_only=True):
    """An event given up.

    Attributes:
        error: what was wrong with the last attempt.
        condition: ``RetriesExhausted``, ``EventAgeExceeded`` or another word for why.
        buried_at: when it was given up, seconds since the epoch.
        has_outcome: whether it had run, and it is its outcome that did not get to its destination.
        payload_bytes: size of its payload, which may have been left out.
    """

    error: str
    condition: str
    buried_at: float
    has_outcome: bool = False
    payload_bytes: int = 0


class Selection(msgspec.Struct, forbid_unknown_fields=True):
    """Which dead letters are meant: by id, of a function, or all of them; exactly one of the three.

    Attributes:
        ids: of them.
        function: whose they are.
        all: every one.
    """

    ids: list[int] | None = None
    function: str | None = None
    all: bool = False


_SELECT = (
    f"SELECT {COLUMNS}, e.error, e.condition, e.available_at, "
    "EXISTS (SELECT 1 FROM deliveries d WHERE d.event = e.id), length(p.body) "
    "FROM events e JOIN payloads p ON p.event = e.id"
)
# SQLite knows a payload's length without reading it.
_SELECT_WITHOUT = _SELECT.replace("p.body,", "x'',", 1)
_WIDTH = COLUMNS.count(",") + 1


class DeadLetters:
    """The dead letters in the state file. All methods raise `StoreError` when it cannot be used."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def page(
        self, function: str | None = None, *, after: int = 0, limit: int = 100, payloads: bool = True
    ) -> list[DeadLetter]:
        """Dead letters in the order of acceptance, from after the id `after`; None: of all functions.

        Without `payloads` these are empty, and memory does not grow with them.
        """
        select = _SELECT if payloads else _SELECT_WITHOUT
        return await self._db.read(lambda connection: _page(connection, select, function, after, limit))

    async def find(self, ids: Iterable[int]) -> list[DeadLetter]:
        """Those with these ids, in the order given; others are left out."""
        wanted = list(ids)

        def work(connection: sqlite3.Connection) -> list[DeadLetter]:
            rows = (
                connection.execute(f"{_SELECT} WHERE e.id = ? AND e.state = ?", (i, DEAD)).fetchone() for i in wanted
            )
            return [_letter(row) for row in rows if row is not None]

        return await self._db.read(work)

    async def redrive(self, ids: Iterable[int]) -> set[str]:
        """Queue them again, as if just accepted; where only the outcome was stuck, that is taken on its way again.

        Returns:
            The functions whose events they are; ids of no dead letter are passed over.
        """
        functions: set[str] = set()
        for part in _parts(ids):
            functions |= await self._db.write(lambda connection, part=part: _redrive(connection, part))  # type: ignore[misc]
        return functions

    async def remove(self, ids: Iterable[int]) -> int:
        """Forget them; how many there were."""
        removed = 0
        for part in _parts(ids):
            removed += await self._db.write(lambda connection, part=part: _remove(connection, part))  # type: ignore[misc]
        return removed

    async def ids(self, function: str | None = None) -> Sequence[int]:
        """The ids of all, or of those of a function."""
        return await self._db.read(
            lambda connection: [
                row[0]
                for name in _functions(connection, function)
                for row in connection.execute("SELECT id FROM events WHERE function = ? AND state = ?", (name, DEAD))
            ]
        )

    async def remove_older(self, before: float, *, limit: int = _AT_ONCE) -> int:
        """Forget up to `limit` that were given up before that time, seconds since the epoch; how many there were."""

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


def _redrive(connection: sqlite3.Connection, ids: Sequence[int]) -> set[str]:
    now = clock.now()
    functions = set()
    for number in ids:
        row = connection.execute(
            "UPDATE events SET state = CASE WHEN EXISTS (SELECT 1 FROM deliveries WHERE event = id) THEN ? ELSE ? END, "
            "available_at = ?, accepted_at = ?, attempts = 0, interruptions = 0, condition = NULL "
            "WHERE id = ? AND state = ? RETURNING function",
            (DELIVERING, QUEUED, now, now, number, DEAD),
        ).fetchone()
        if row is not None:
            functions.add(row[0])
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
