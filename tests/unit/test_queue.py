"""`thawd.stores.events.event_queue`: nothing accepted is lost, order is kept, cost does not grow with the backlog."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable

import pytest

from tests.unit.queued_events import new, numbers
from thawd.stores.database import Database
from thawd.stores.events.event_queue import EventQueue
from thawd.stores.events.event_rows import Depth, Event, NewEvent, insert

pytestmark = pytest.mark.in_memory


def test_an_event_comes_out_as_it_went_in(queue: EventQueue) -> None:
    async def scenario() -> None:
        given = NewEvent(
            function="classify",
            payload=bytes(range(256)),
            request_id="r",
            source="bucket:uploads",
            row_key="a/ü\n.png",
            client_context='{"custom":{}}',
            trace_id="Root=1-2-3",
        )
        await queue.put([given], now=1000.5)
        (event,) = await queue.lease("classify", limit=10, now=1001)
        for name in NewEvent.__struct_fields__:
            assert getattr(event, name) == getattr(given, name)
        assert (event.attempts, event.accepted_at) == (0, 1000.5)

    asyncio.run(scenario())


def test_events_come_in_the_order_of_acceptance_and_only_for_their_function(queue: EventQueue) -> None:
    async def scenario() -> None:
        await queue.put([new(i, "f" if i % 2 else "g") for i in range(10)])
        assert numbers(await queue.lease("f", limit=3)) == [1, 3, 5]
        assert numbers(await queue.lease("f", limit=3)) == [7, 9]
        assert numbers(await queue.lease("f", limit=3)) == []
        assert numbers(await queue.lease("g", limit=99)) == [0, 2, 4, 6, 8]

    asyncio.run(scenario())


def test_a_retry_waits_until_it_is_due_and_then_goes_before_younger_events(queue: EventQueue) -> None:
    async def scenario() -> None:
        await queue.put([new(i) for i in range(3)], now=100)
        first, second = await queue.lease("f", limit=2, now=100)
        await queue.retry(first.id, at=160, error="it failed")
        await queue.retry(second.id, at=130, error="throttled", counts=False)
        assert await queue.next_due("f", now=101) == 101
        assert numbers(await queue.lease("f", limit=9, now=129.9)) == [2]
        assert await queue.next_due("f", now=129.9) == 130
        assert numbers(await queue.lease("f", limit=9, now=129.9)) == []
        await queue.put([new(3)], now=150)
        due = await queue.lease("f", limit=9, now=160)
        assert numbers(due) == [0, 1, 3]
        assert [event.attempts for event in due] == [1, 0, 0]
        assert await queue.next_due("f") is None

    asyncio.run(scenario())


def test_what_is_done_is_gone_and_unknown_ids_are_passed_over(queue: EventQueue, db: Database) -> None:
    async def scenario() -> None:
        await queue.put([new(i) for i in range(3)])
        events = await queue.lease("f", limit=3)
        await queue.done([event.id for event in events[:2]])
        await queue.done([event.id for event in events[:2]] + [12345])
        await queue.done([])
        assert await queue.depth() == {"f": Depth(leased=1)}

    asyncio.run(scenario())
    assert db.read_now(lambda connection: connection.execute("SELECT count(*) FROM payloads").fetchone()) == (1,)


def test_an_id_is_never_used_again(queue: EventQueue) -> None:
    async def scenario() -> None:
        await queue.put([new(0)])
        (first,) = await queue.lease("f", limit=1)
        await queue.done([first.id])
        await queue.put([new(1)])
        await queue.done([first.id])
        assert await queue.depth() == {"f": Depth(queued=1)}

    asyncio.run(scenario())


def test_what_is_given_back_comes_first_and_is_leased_by_nobody_meanwhile(queue: EventQueue) -> None:
    async def scenario() -> None:
        await queue.put([new(i) for i in range(4)])
        first, second = await queue.lease("f", limit=2)
        queue.give_back(second)
        assert await queue.depth() == {"f": Depth(queued=3, leased=1)}
        assert await queue.next_due("f", now=5) == 5
        assert numbers(await queue.lease("f", limit=9)) == [1]
        assert numbers(await queue.lease("f", limit=9)) == [2, 3]
        await queue.retry(first.id, at=50, error="x")
        queue.give_back(first)  # not leased any more, so nothing happens
        assert numbers(await queue.lease("f", limit=9, now=60)) == [0]

    asyncio.run(scenario())


def test_a_retry_that_is_stored_while_others_are_leased_is_leased_once(queue: EventQueue) -> None:
    async def scenario() -> None:
        await queue.put([new(i) for i in range(200)])
        events = await queue.lease("f", limit=200)

        async def lease_all() -> list[Event]:
            got: list[Event] = []
            while len(got) < 200:
                got += await queue.lease("f", limit=7, now=1e12)
            return got

        leasing = asyncio.ensure_future(lease_all())
        await asyncio.gather(*(queue.retry(event.id, at=1.0, error="x") for event in events))
        again = await leasing
        assert sorted(event.id for event in again) == [event.id for event in events]
        assert await queue.lease("f", limit=9, now=1e12) == []

    asyncio.run(scenario())


def test_large_payloads_come_a_few_at_a_time(queue: EventQueue) -> None:
    async def scenario() -> None:
        large = [NewEvent(function="f", payload=bytes(1 << 20), request_id=f"request-{i}") for i in range(10)]
        await queue.put(large)
        first = await queue.lease("f", limit=10)
        assert numbers(first) == [0, 1, 2, 3]
        assert numbers(await queue.lease("f", limit=10)) == [4, 5, 6, 7]
        for event in first:
            await queue.retry(event.id, at=1.0, error="x")
        assert numbers(await queue.lease("f", limit=10)) == [0, 1, 2, 3]
        assert numbers(await queue.lease("f", limit=10)) == [8, 9]

    asyncio.run(scenario())


def test_an_event_and_what_follows_it_are_one_transaction(queue: EventQueue) -> None:
    async def scenario() -> None:
        await queue.put([new(0)])
        (event,) = await queue.lease("f", limit=1)
        await queue.done([event.id], follow_ups=[new(7, "g")])
        assert await queue.depth() == {"g": Depth(queued=1)}

    asyncio.run(scenario())


def test_one_event_that_cannot_be_stored_does_not_keep_others_out(queue: EventQueue) -> None:
    async def scenario() -> None:
        wrong = NewEvent(function="f", payload=b"{}", request_id="\ud800")
        puts = [queue.put([new(0)]), queue.put([wrong]), queue.put([new(1)])]
        outcomes = await asyncio.gather(*puts, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [list, UnicodeEncodeError, list]
        assert numbers(await queue.lease("f", limit=9)) == [0, 1]

    asyncio.run(scenario())


def test_space_is_given_back_to_the_file_system(db: Database) -> None:
    queue = EventQueue(db)

    def pages() -> int:
        return int(db.read_now(lambda connection: connection.execute("PRAGMA page_count").fetchone()[0]))

    async def scenario() -> None:
        await queue.put([NewEvent(function="f", payload=bytes(1 << 20), request_id=str(i)) for i in range(48)])
        full = pages()
        while events := await queue.lease("f", limit=48):
            await queue.done([event.id for event in events])
        for _ in range(4):
            await db.give_space_back()
        assert pages() < full / 2

    asyncio.run(scenario())


def test_events_and_other_changes_of_one_transaction_stand_or_fall_together(db: Database) -> None:
    queue = EventQueue(db)

    def half(connection: sqlite3.Connection) -> None:
        insert(connection, [new(0), new(1)], now=1)
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        db.write_now(half)
    assert asyncio.run(queue.depth()) == {}
    db.write_now(lambda connection: insert(connection, [new(0), new(1)], now=1))
    assert asyncio.run(queue.depth()) == {"f": Depth(queued=2)}


def test_the_cost_of_a_lease_does_not_grow_with_the_backlog(db: Database) -> None:
    """Counts steps of SQLite's virtual machine, which unlike time are the same on every machine."""
    queue = EventQueue(db)

    def steps_of(operation: Callable[[], object]) -> int:
        counted = 0

        def count() -> int:
            nonlocal counted
            counted += 1
            return 0

        def set_handler(handler: Callable[[], int] | None) -> None:
            work: Callable[[sqlite3.Connection], None] = lambda c: c.set_progress_handler(handler, 10)  # noqa: E731
            db.write_now(work)
            db.read_now(work)

        set_handler(count)
        operation()
        set_handler(None)
        return counted

    async def cycle() -> None:
        events = await queue.lease("f", limit=10, now=1000)
        assert len(events) == 10
        await queue.retry(events[0].id, at=500, error="x")
        await queue.dead_letter(events[1].id, error="x", condition="RetriesExhausted")
        await queue.done([event.id for event in events[2:]])
        await queue.depth()
        await queue.next_due("f", now=1000)

    async def fill(count: int) -> None:
        for at in range(0, count, 500):
            await queue.put([new(i) for i in range(at, at + 500)])
        # Half of the events wait for a retry far in the future, the other half are ready.
        for event in await queue.lease("f", limit=count // 2):
            await queue.retry(event.id, at=9e9, error="later")

    asyncio.run(fill(500))
    small = steps_of(lambda: asyncio.run(cycle()))
    asyncio.run(fill(4000))
    large = steps_of(lambda: asyncio.run(cycle()))
    assert large < 1.5 * small


def test_a_great_many_retries_due_at_once_are_all_delivered(queue: EventQueue) -> None:
    async def scenario() -> None:
        await queue.put([new(i) for i in range(2500)])
        for event in await queue.lease("f", limit=2500):
            await queue.retry(event.id, at=100 + event.id / 1e6, error="x")
        seen: list[int] = []
        while events := await queue.lease("f", limit=300, now=200):
            seen += numbers(events)
        assert seen == list(range(2500))

    asyncio.run(scenario())


def test_many_callers_at_once_share_transactions(queue: EventQueue) -> None:
    async def scenario() -> float:
        begun = time.perf_counter()
        await asyncio.gather(*(queue.put([new(i)]) for i in range(1000)))
        events = await queue.lease("f", limit=1000)
        assert sorted(numbers(events)) == list(range(1000))
        await asyncio.gather(*(queue.done([event.id]) for event in events))
        assert await queue.depth() == {}
        return time.perf_counter() - begun

    assert asyncio.run(scenario()) < 60


def test_events_that_have_ended_are_deleted_when_others_are_accepted(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("thawd.stores.events.event_queue._DONE_PATIENCE_S", 3600.0)
    queue = EventQueue(db)

    async def main() -> None:
        await queue.put([new(1), new(2)])
        [one, _] = await queue.lease("f", limit=2)
        done = asyncio.ensure_future(queue.done([one.id]))
        await asyncio.sleep(0)
        await asyncio.gather(done, queue.put([new(3)]))
        assert (await queue.depth())["f"] == Depth(queued=1, leased=1)
        assert (await queue.flow())["f"].done == 1

    asyncio.run(main())
