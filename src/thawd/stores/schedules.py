"""Stores the progress of each schedule, in the same transaction as the events of its runs."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence

import msgspec

from thawd.stores.database import Database
from thawd.stores.events.event_rows import NewEvent, insert

_COLUMNS = "name, definition, anchor, done_until, last_run, last_late_s, runs"


class ScheduleState(msgspec.Struct, frozen=True):
    """A schedule's progress; times are seconds since the epoch.

    Attributes:
        name: name of the schedule.
        definition: expression and time zone, and whether the schedule is paused, as text.
        anchor: when the schedule was declared; the times of a ``rate(...)`` expression are counted from then on.
        done_until: all times up to this one have been handled.
        last_run: the scheduled time of the last run; None: there was no run.
        last_late_s: how long after its scheduled time the last run was queued, seconds.
        runs: number of runs.
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
        """The progress of all schedules, by name.

        Raises:
            StoreError: the progress cannot be read.
        """
        rows = await self._db.read(
            lambda connection: connection.execute(f"SELECT {_COLUMNS} FROM schedules").fetchall()
        )
        return {row[0]: ScheduleState(*row) for row in rows}

    async def advance(
        self, before: ScheduleState | None, after: ScheduleState, events: Sequence[NewEvent] = ()
    ) -> bool:
        """Store a schedule's progress and accept the events of its runs, both or neither.

        Args:
            before: the progress that was loaded or stored last; None: the schedule is new.
            after: the new progress.
            events: events of the runs between `before` and `after`.

        Returns:
            Whether the progress was stored; False when the stored progress is not `before`.

        Raises:
            StoreError: the progress could not be stored.
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
        """Delete the progress of schedules that no longer exist.

        Raises:
            StoreError: the progress could not be deleted.
        """
        keys = [(name,) for name in names]

        def work(connection: sqlite3.Connection) -> None:
            connection.executemany("DELETE FROM schedules WHERE name = ?", keys)

        await self._db.write(work)
