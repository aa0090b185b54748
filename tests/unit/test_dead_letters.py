"""`thawd.stores.events.dead_letters`: dead letters are kept until they are redriven or removed."""

from __future__ import annotations

import asyncio
import tracemalloc

import pytest

from tests.unit.queued_events import new
from thawd.stores import clock
from thawd.stores.database import Database
from thawd.stores.events.dead_letters import DeadLetters
from thawd.stores.events.event_queue import EventQueue
from thawd.stores.events.event_rows import Depth, Flow, NewEvent

pytestmark = pytest.mark.in_memory


def test_dead_letters_are_listed_without_reading_their_payloads(queue: EventQueue, db: Database) -> None:
    async def work() -> None:
        # Given dead letters with more bytes than a list of them may hold in memory
        for number in range(20):
            await queue.put([NewEvent(function="f", payload=b"x" * 1_000_000, request_id=f"id-{number}")])
            (leased,) = await queue.lease("f", limit=1)
            await queue.dead_letter(leased.id, error="e", condition="c")
        tracemalloc.start()
        try:
            letters = await DeadLetters(db).page("f", payloads=False)
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert [(len(letter.payload), letter.payload_bytes) for letter in letters] == [(0, 1_000_000)] * 20
        assert most < 5_000_000

    asyncio.run(work())


def test_dead_letters_keep_payload_and_error_until_they_are_done(queue: EventQueue, db: Database) -> None:
    async def scenario() -> None:
        await queue.put([new(i) for i in range(3)], now=5)
        events = await queue.lease("f", limit=3)
        await queue.dead_letter(events[0].id, error="boom", condition="RetriesExhausted", now=50)
        await queue.dead_letter(events[2].id, error="old", condition="EventAgeExceeded", counts=False, now=60)
        assert await queue.depth() == {"f": Depth(leased=1, dead=2)}
        first, second = await DeadLetters(db).page("f")
        assert (first.payload, first.error, first.condition) == (b'{"n":0}', "boom", "RetriesExhausted")
        assert (first.attempts, first.buried_at, first.accepted_at) == (1, 50, 5)
        assert (second.attempts, second.condition) == (0, "EventAgeExceeded")
        assert await DeadLetters(db).page("f", after=first.id, limit=1) == [second]
        assert await queue.lease("f", limit=9) == []
        assert await queue.next_due("f") is None
        await queue.done([first.id, second.id])
        assert await DeadLetters(db).page("f") == []

    asyncio.run(scenario())


def test_of_a_very_long_error_the_beginning_is_kept(queue: EventQueue, db: Database) -> None:
    async def scenario() -> None:
        await queue.put([new(0)])
        (event,) = await queue.lease("f", limit=1)
        await queue.retry(event.id, at=0, error="x" * 5_000_000)
        assert len((await db.read(lambda c: c.execute("SELECT error FROM events").fetchone()))[0]) < 100_000
        (event,) = await queue.lease("f", limit=1)
        await queue.dead_letter(event.id, error="y" * 5_000_000, condition="RetriesExhausted")
        (letter,) = await DeadLetters(db).page()
        assert letter.error.startswith("y" * 10_000)
        assert letter.error.endswith("… (5,000,000 characters in total)")
        assert len(letter.error) < 100_000

    asyncio.run(scenario())


def test_an_event_is_given_up_once_and_not_put_back_after(queue: EventQueue, db: Database) -> None:
    async def scenario() -> None:
        await queue.put([new(0)])
        (event,) = await queue.lease("f", limit=1)
        await queue.dead_letter(event.id, error="first", condition="RetriesExhausted")
        await queue.retry(event.id, at=0, error="late")
        await queue.dead_letter(event.id, error="late", condition="EventAgeExceeded")
        assert [letter.error for letter in await DeadLetters(db).page("f")] == ["first"]
        assert await queue.depth() == {"f": Depth(dead=1)}

    asyncio.run(scenario())


def test_dead_letters_of_all_functions_are_found_redriven_and_removed(queue: EventQueue, db: Database) -> None:
    async def scenario() -> None:
        dead = DeadLetters(db)
        await queue.put([new(i, "f" if i % 2 else "g") for i in range(6)], now=5)
        for event in [*await queue.lease("f", limit=9), *await queue.lease("g", limit=9)]:
            await queue.dead_letter(event.id, error="boom", condition="RetriesExhausted", now=float(event.id))
        assert [letter.id for letter in await dead.page()] == [1, 2, 3, 4, 5, 6]
        assert [letter.id for letter in await dead.page("g", after=1, limit=1)] == [3]
        assert [letter.id for letter in await dead.find([6, 99, 2])] == [6, 2]
        assert sorted(await dead.ids("f")) == [2, 4, 6]
        assert await dead.remove([6, 99]) == 1
        assert await dead.remove_older(3.0) == 2
        assert [letter.id for letter in await dead.page()] == [3, 4, 5]
        before = clock.now()
        assert set(await dead.redrive(await dead.ids())) == {"f", "g"}
        (event,) = await queue.lease("f", limit=9)
        assert (event.id, event.attempts, event.accepted_at >= before) == (4, 0, True)
        flow = await queue.flow()
        assert flow["f"] == Flow(accepted=3, buried=3)

    asyncio.run(scenario())


def test_events_of_a_function_that_is_gone_are_given_up_when_they_are_old(queue: EventQueue, db: Database) -> None:
    async def scenario() -> None:
        await queue.put([new(0)], now=10)
        await queue.put([new(1)], now=100)
        assert await queue.dead_letter_older("f", 50, error="there is no function f", condition="ResourceNotFound") == 1
        assert [letter.request_id for letter in await DeadLetters(db).page()] == ["request-0"]
        assert await queue.depth() == {"f": Depth(queued=1, dead=1)}

    asyncio.run(scenario())
