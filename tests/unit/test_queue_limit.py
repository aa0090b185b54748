"""`server.max_queued`: how many events a queue accepts, whatever their source."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.unit.queued_events import new, reopened
from thawd.errors import TooManyRequestsException
from thawd.stores.database import Database
from thawd.stores.events.dead_letters import DeadLetters
from thawd.stores.events.event_queue import EventQueue
from thawd.stores.objects.catalog import ObjectCatalog, ObjectChange, ObjectRecord
from thawd.stores.schedules import ScheduleState, ScheduleStore

pytestmark = pytest.mark.in_memory


def test_a_full_queue_takes_no_more_until_something_is_done(tmp_path: Path) -> None:
    async def fills(queue: EventQueue, _: Database) -> None:
        await queue.put([new(0), new(1)])
        with pytest.raises(TooManyRequestsException, match=r"server\.max_queued is 3"):
            await queue.put([new(2), new(3)])
        await queue.put([new(2)])
        assert queue.full

    async def after(queue: EventQueue, _: Database) -> None:
        with pytest.raises(TooManyRequestsException):
            await queue.put([new(3)])
        (event,) = await queue.lease("f", limit=1)
        await queue.done([event.id])
        assert not queue.full
        await queue.put([new(3)])
        (event,) = await queue.lease("f", limit=1)
        await queue.dead_letter(event.id, error="x", condition="RetriesExhausted")
        await queue.put([new(4)])
        assert queue.full

    reopened(tmp_path, fills, max_queued=3)
    reopened(tmp_path, after, max_queued=3)


def test_a_queue_that_is_filled_from_all_sides_at_once_takes_as_many_as_it_may(tmp_path: Path) -> None:
    def changed(key: str) -> ObjectChange:
        made = ObjectRecord(key=key.encode(), inode=1, size=1, mtime_ns=1, ctime_ns=1, etag="")
        return ObjectChange(key=made.key, expected=0, now=made, announce=True)

    async def by_many(queue: EventQueue, _: Database) -> None:
        given = [queue.put([new(number)] * (1 + number % 2)) for number in range(9)]
        ids = await asyncio.gather(*given, return_exceptions=True)
        # Events that arrive together are accepted in their order while there is room
        assert ids[:3] == [[1], [2, 3], [4]]
        assert ids[4] == [5]
        assert {type(one) for one in (ids[3], *ids[5:])} == {TooManyRequestsException}
        assert (await queue.depth())["f"].queued == 5
        assert await queue.put([], now=1.0) == []

    async def by_others(queue: EventQueue, db: Database) -> None:
        objects, dead, schedules = ObjectCatalog(db), DeadLetters(db), ScheduleStore(db)
        assert queue.full
        for event in await queue.lease("f", limit=2):
            await queue.dead_letter(event.id, error="x", condition="RetriesExhausted")
        assert not queue.full
        # When events come from an object, a schedule and a redrive
        await objects.apply("b", [changed("one")], events_for=lambda _, __: [new(7)])
        assert not queue.full
        await schedules.advance(None, ScheduleState("s", "rate(1 minute)", 0.0, 0.0), [new(8)])
        # Then the queue counts them immediately
        assert queue.full
        with pytest.raises(TooManyRequestsException, match=r"^5 asynchronous events wait"):
            await queue.put([new(9)])
        await queue.done([event.id for event in await queue.lease("f", limit=9)])
        await queue.put([new(number) for number in range(4)])
        assert not queue.full
        await dead.redrive((await dead.ids())[:1])
        assert queue.full

    reopened(tmp_path, by_many, max_queued=5)
    reopened(tmp_path, by_others, max_queued=5)
