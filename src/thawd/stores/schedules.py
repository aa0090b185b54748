"""How far each schedule has come, durably: together with the events of a run, or not at all."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence

import msgspec

from thawd.stores.database import Database
from thawd.stores.events.records import NewEvent, insert

_COLUMNS = "name, definition, anchor, done_until, last_run, last_late_s, runs"


class ScheduleState(msgspec.Struct, frozen=True):
    """A schedule's progress; times are seconds since the epoch.

    Attributes:
        name: of the schedule.
        definition: when it runs, and whether it rests, as text.
        anchor: when it began.
        done_until: all its times up to this one have been dealt with.
        last_run: the time for which it ran last; None: it has not.
        last_late_s: how much later than that time it really was, seconds.
        runs: how often it ran.
    """

    name: str
    definition: str
    anchor: float
    done_until: float
    last_run: float | None = None
    last_late_s: float = 0.0
    runs: int = 0


class ScheduleStore:
    """The table ``schedules`` of the state file."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def load(self) -> dict[str, ScheduleState]:
        """All that are known, by name.

        Raises:
            StoreError: they cannot be read.
        """
        rows = await self._db.read(
            lambda connection: connection.execute(f"SELECT {_COLUMNS} FROM schedules").fetchall()
        )
        return {row[0]: ScheduleState(*row) for row in rows}

    async def advance(
        self, before: ScheduleState | None, after: ScheduleState, events: Sequence[NewEvent] = ()
    ) -> bool:
        """Store a schedule's progress and accept the events of its runs, both or none.

        Args:
            before: as it was loaded or stored last; None: it is new.
            after: as it is from now on.
            events: of the runs that lie between.

        Returns:
            Whether it was stored; not when somebody else has changed it since.

        Raises:
            StoreError: it could not be stored.
        """

        def work(connection: sqlite3.Connection) -> bool:
            row = connection.execute(f"SELECT {_COLUMNS} FROM schedules WHERE name = ?", (after.name,)).fetchone()
            if (None if row is None else ScheduleState(*row)) != before:
                return False
            connection.execute(
                f"INSERT OR REPLACE INTO schedules ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)",
                msgspec.structs.astuple(after),
            )
            insert(connection, events)
            return True

        return await self._db.write(work)

    async def forget(self, names: Iterable[str]) -> None:
        """Schedules that there are no more.

        Raises:
            StoreError: it could not be stored.
        """
        keys = [(name,) for name in names]

        def work(connection: sqlite3.Connection) -> None:
            connection.executemany("DELETE FROM schedules WHERE name = ?", keys)

        await self._db.write(work)
