"""A queue that is opened again: after a stop, a crash, a clock set back, or an older thawd."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from tests.unit.queued_events import new, numbers, reopened
from thawd.errors import StoreError
from thawd.stores import clock
from thawd.stores.database import Database
from thawd.stores.events.dead_letters import DeadLetters
from thawd.stores.events.event_queue import EventQueue
from thawd.stores.events.event_rows import Depth
from thawd.stores.events.running_marks import SLOTS, Marks
from thawd.stores.schema import MIGRATIONS, open_state

pytestmark = pytest.mark.in_memory


def test_what_was_leased_when_the_process_ended_is_queued_again_without_an_attempt(tmp_path: Path) -> None:
    async def before(queue: EventQueue) -> None:
        await queue.put([new(i) for i in range(3)] + [new(9, "g")])
        (first, _second) = await queue.lease("f", limit=2)
        await queue.lease("g", limit=1)
        await queue.retry(first.id, at=0, error="once")
        await queue.lease("f", limit=1)
        assert await queue.depth() == {"f": Depth(queued=1, leased=2), "g": Depth(leased=1)}

    async def after(queue: EventQueue) -> None:
        await queue.recover()
        assert await queue.depth() == {"f": Depth(queued=3), "g": Depth(queued=1)}
        events = await queue.lease("f", limit=9)
        assert numbers(events) == [0, 1, 2]
        assert [event.attempts for event in events] == [1, 0, 0]

    for part in (before, after):
        db = open_state(tmp_path / "thawd.db")
        asyncio.run(part(EventQueue(db)))
        db.close()


def test_an_event_that_ran_when_the_process_died_is_told_from_those_that_did_not(tmp_path: Path) -> None:
    async def dies(queue: EventQueue, _: Database) -> None:
        if not await queue.depth():
            await queue.put([new(i) for i in range(3)])
        events = await queue.lease("f", limit=3)
        for event in events[:2]:
            queue.begins(event)
        queue.ended(events[1])

    async def after(queue: EventQueue, _: Database) -> None:
        assert [event.interruptions for event in await queue.lease("f", limit=3)] == [2, 0, 0]

    reopened(tmp_path, dies)
    reopened(tmp_path, dies)
    reopened(tmp_path, after)


def test_more_events_than_there_are_marks_run_unmarked(tmp_path: Path) -> None:
    marks = Marks(tmp_path / "running")
    for number in range(1, SLOTS + 50):
        marks.set(number)
    marks.close()
    again = Marks(tmp_path / "running")
    assert sorted(again.left_over) == list(range(1, SLOTS + 1))
    again.clear()
    again.close()
    assert Marks(tmp_path / "running").left_over == []


def test_a_mark_file_that_cannot_be_used_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "running").mkdir()
    with pytest.raises(StoreError, match="running cannot be used"):
        Marks(tmp_path / "running")


def test_no_event_waits_for_a_time_that_a_clock_set_back_has_made_far(tmp_path: Path) -> None:
    async def before(queue: EventQueue, _: Database) -> None:
        await queue.put([new(0)])
        (event,) = await queue.lease("f", limit=1)
        await queue.retry(event.id, at=clock.now() + 3660, error="x")

    async def after(queue: EventQueue, _: Database) -> None:
        assert numbers(await queue.lease("f", limit=1)) == [0]

    reopened(tmp_path, before)
    reopened(tmp_path, after)


def test_a_state_file_of_an_older_release_is_brought_up_to_date(tmp_path: Path) -> None:
    path = tmp_path / "thawd.db"
    old = Database(path, migrations=MIGRATIONS[:2])

    def fill(connection: sqlite3.Connection) -> None:
        for state in (0, 1, 2):
            row = connection.execute(
                "INSERT INTO events (function, state, accepted_at, request_id, source, error, condition) "
                "VALUES ('f', ?, 1, ?, 'invoke', 'boom', 'RetriesExhausted')",
                (state, f"request-{state}"),
            ).lastrowid
            connection.execute("INSERT INTO payloads VALUES (?, ?)", (row, b"{}"))

    old.write_now(fill)
    old.close()

    async def after(queue: EventQueue, db: Database) -> None:
        assert await queue.depth() == {"f": Depth(queued=2, dead=1)}
        assert numbers(await queue.lease("f", limit=9)) == [0, 1]
        assert [letter.error for letter in await DeadLetters(db).page()] == ["boom"]

    reopened(tmp_path, after)
