"""The outbox: outcomes of events that have run, which wait to be delivered to their destinations.

`EventQueue.deliver_later` stores an outcome here. `thawd.queue.outcome_delivery` leases the outcome, delivers it, and
then ends the outcome's event with `EventQueue.done` or `EventQueue.dead_letter`. Leases of outcomes exist only in
memory, like leases of events.
"""

from __future__ import annotations

import sqlite3

import msgspec

from thawd.stores import clock
from thawd.stores.database import Database
from thawd.stores.events.event_rows import functions_in
from thawd.stores.schema import DELIVERING


class WaitingOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """An outcome that waits to be delivered.

    Attributes:
        id: id of the event that has this outcome.
        function: the function of that event.
        document: the outcome, as `EventQueue.deliver_later` or `Outbox.advance` stored it.
        since: when the document was stored, seconds since the epoch.
        tries: how many deliveries of the document have failed.
    """

    id: int
    function: str
    document: bytes
    since: float
    tries: int


class Outbox:
    """The waiting outcomes. Times are seconds since the epoch; the default of ``now`` is the current time."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._leased: dict[int, str] = {}
        self._turns: dict[str, int] = {}  # by function, the number of its last lease; each lease gets a new number
        self._turn = 0

    def ended(self, event_id: int) -> None:
        """Forget the lease of an outcome whose delivery has ended."""
        self._leased.pop(event_id, None)

    async def lease(self, *, limit: int, now: float | None = None) -> list[WaitingOutcome]:
        """Lease up to `limit` outcomes that are due. Functions take turns, so that none has to wait for the others.

        Raises:
            StoreError: the outcomes could not be read.
        """
        at, held, turns = clock.now() if now is None else now, self._held(), dict(self._turns)

        def work(connection: sqlite3.Connection) -> list[WaitingOutcome]:
            due = []
            for function in functions_in(connection, DELIVERING):
                leased = held.get(function, set())
                rows = connection.execute(
                    "SELECT e.id FROM events e JOIN deliveries d ON d.event = e.id "
                    "WHERE e.function = ? AND e.state = ? AND e.available_at <= ? ORDER BY e.available_at LIMIT ?",
                    (function, DELIVERING, at, limit + len(leased)),
                )
                unleased = [row[0] for row in rows if row[0] not in leased]
                # An outcome's rank is the number of outcomes of its function that are leased or due earlier. The lowest
                # ranks are leased first: if the destination of one function is down, and many of its outcomes wait, the
                # outcomes of other functions are leased nevertheless.
                due += [(len(leased) + place, turns.get(function, 0), number) for place, number in enumerate(unleased)]
            return [_read(connection, number) for _, _, number in sorted(due)[:limit]]

        waiting = await self._db.read(work)
        for each in waiting:
            self._leased[each.id] = each.function
            self._turns[each.function] = self._turn = self._turn + 1
        return waiting

    def _held(self) -> dict[str, set[int]]:
        held: dict[str, set[int]] = {}
        for event_id, function in self._leased.items():
            held.setdefault(function, set()).add(event_id)
        return held

    async def retry(self, event_id: int, *, at: float, error: str) -> None:
        """Schedule another delivery of an outcome that could not be delivered, at or after `at`.

        Raises:
            StoreError: the change could not be stored; the outcome stays leased until `ended`, and stays due.
        """

        def work(connection: sqlite3.Connection) -> None:
            connection.execute(
                "UPDATE events SET available_at = ?, error = ? WHERE id = ? AND state = ?",
                (at, error, event_id, DELIVERING),
            )
            connection.execute("UPDATE deliveries SET tries = tries + 1 WHERE event = ?", (event_id,))

        await self._db.write(work)
        self._leased.pop(event_id, None)

    async def advance(self, event_id: int, document: bytes) -> None:
        """When the first of an outcome's deliveries has ended, store the deliveries that remain; they are due now.

        Args:
            event_id: the event.
            document: the outcome with the remaining deliveries.

        Raises:
            StoreError: the change could not be stored; the first delivery will be made again, too.
        """
        now = clock.now()

        def work(connection: sqlite3.Connection) -> None:
            connection.execute(
                "UPDATE events SET available_at = ? WHERE id = ? AND state = ?", (now, event_id, DELIVERING)
            )
            connection.execute(
                "UPDATE deliveries SET document = ?, since = ?, tries = 0 WHERE event = ?", (document, now, event_id)
            )

        await self._db.write(work)
        self._leased.pop(event_id, None)

    async def next_due(self, *, now: float | None = None) -> float | None:
        """When the next outcome that is not leased is due: `now`, a later time, or None for never.

        Raises:
            StoreError: the times could not be read.
        """
        at, held = clock.now() if now is None else now, frozenset(self._leased)

        def work(connection: sqlite3.Connection) -> float | None:
            times = []
            for function in functions_in(connection, DELIVERING):
                rows = connection.execute(
                    "SELECT id, available_at FROM events WHERE function = ? AND state = ? ORDER BY available_at "
                    "LIMIT ?",
                    (function, DELIVERING, len(held) + 1),
                )
                times += [max(at, row[1]) for row in rows if row[0] not in held]
            return min(times, default=None)

        return await self._db.read(work)


def _read(connection: sqlite3.Connection, event_id: int) -> WaitingOutcome:
    row = connection.execute(
        "SELECT e.id, e.function, d.document, d.since, d.tries FROM events e JOIN deliveries d ON d.event = e.id "
        "WHERE e.id = ?",
        (event_id,),
    ).fetchone()
    return WaitingOutcome(id=row[0], function=row[1], document=row[2], since=row[3], tries=row[4])
