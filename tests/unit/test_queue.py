"""Claims about `thawd.stores.events.queue`: nothing accepted is lost, order is kept, cost does not grow with the
backlog.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from thawd.errors import StoreError, TooManyRequestsException
from thawd.stores import clock
from thawd.stores.database import Database
from thawd.stores.events.dead_letters import DeadLetters
from thawd.stores.events.marks import SLOTS, Marks
from thawd.stores.events.outbox import Outbox
from thawd.stores.events.queue import EventQueue
from thawd.stores.events.records import Depth, Event, Flow, NewEvent, as_accepted, insert
from thawd.stores.objects.catalog import ObjectCatalog, ObjectChange, ObjectRecord
from thawd.stores.schedules import ScheduleState, ScheduleStore
from thawd.stores.schema import MIGRATIONS, open_state

pytestmark = pytest.mark.in_memory


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    database = open_state(tmp_path / "thawd.db")
    yield database
    database.close()


@pytest.fixture
def queue(db: Database) -> EventQueue:
    return EventQueue(db)


def new(number: int, function: str = "f") -> NewEvent:
    return NewEvent(function=function, payload=b'{"n":%d}' % number, request_id=f"request-{number}")


def numbers(events: list[Event]) -> list[int]:
    return [int(event.request_id.removeprefix("request-")) for event in events]


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


def test_dead_letters_are_listed_without_reading_their_payloads(queue: EventQueue, db: Database) -> None:
    async def work() -> None:
        # Given more bytes of dead letters than a list of them is worth
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
        assert letter.error.endswith("… (5,000,000 characters in all)")
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


def reopened(folder: Path, part: Callable[[EventQueue, Database], Awaitable[None]], **options: int) -> None:
    """Run `part` as a process of its own would: the state file and the marks are opened, and not tidied up."""
    db = open_state(folder / "thawd.db")
    marks = Marks(folder / "running")

    async def main() -> None:
        queue = EventQueue(db, marks=marks, **options)
        await queue.recover()
        await part(queue, db)

    asyncio.run(main())
    marks.close()
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
    with pytest.raises(StoreError, match="running: cannot be used"):
        Marks(tmp_path / "running")


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
        queue.give_back(first)  # no longer leased: nothing happens
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


def test_an_outcome_waits_beside_its_event_until_that_ends(tmp_path: Path) -> None:
    async def stored(queue: EventQueue, db: Database) -> None:
        await queue.put([new(i) for i in range(3)])
        events = await queue.lease("f", limit=3)
        for event in events:
            await queue.deliver_later(event.id, b"outcome %d" % event.id, at=100 + event.id, error="down", counts=True)
        assert await queue.lease("f", limit=3, now=1e12) == []
        assert await queue.depth() == {"f": Depth(delivering=3)}

    async def after(queue: EventQueue, db: Database) -> None:
        outbox = Outbox(db)
        assert await outbox.next_due(now=50) == 101
        (first,) = await outbox.lease(limit=9, now=101)
        assert (first.document, first.tries) == (b"outcome 1", 0)
        await outbox.retry(first.id, at=500, error="still down")
        assert [each.id for each in await outbox.lease(limit=9, now=200)] == [2, 3]
        assert await outbox.lease(limit=9, now=200) == []
        assert await outbox.next_due(now=200) == 500
        await queue.done([2])
        outbox.ended(2)
        await queue.dead_letter(3, error="away", condition="DestinationFailed", counts=False, outcome=b"outcome 3")
        outbox.ended(3)
        (again,) = await outbox.lease(limit=9, now=600)
        assert (again.id, again.tries) == (1, 1)
        await queue.dead_letter(1, error="refused", condition="DestinationRefused", counts=False)
        dead = DeadLetters(db)
        assert [(letter.id, letter.has_outcome) for letter in await dead.page()] == [(1, False), (3, True)]
        assert await queue.depth() == {"f": Depth(dead=2)}
        assert await dead.redrive([1, 2, 3, 4]) == {"f"}
        assert await queue.depth() == {"f": Depth(queued=1, delivering=1)}
        (event,) = await queue.lease("f", limit=9)
        assert (event.id, event.attempts) == (1, 0)

    reopened(tmp_path, stored)
    reopened(tmp_path, after)


def test_outcomes_of_all_functions_have_their_turn_however_many_one_has(queue: EventQueue, db: Database) -> None:
    async def scenario() -> None:
        names = [f"f{number}" for number in range(5)]
        await queue.put([new(i, name) for name in names for i in range(40 if name == "f0" else 4)])
        for name in names:
            for event in await queue.lease(name, limit=40):
                await queue.deliver_later(event.id, b"", at=event.id, error="down", counts=True)
        outbox = Outbox(db)
        begun = [each.function for each in await outbox.lease(limit=3, now=1000)]
        for _ in range(12):  # one that hangs ends, and another takes its place
            outbox.ended(next(iter(outbox._leased)))
            (more,) = await outbox.lease(limit=1, now=1000)
            begun.append(more.function)
        assert begun == names * 3

    asyncio.run(scenario())


def test_an_event_and_what_follows_it_are_one_transaction(queue: EventQueue) -> None:
    async def scenario() -> None:
        await queue.put([new(0)])
        (event,) = await queue.lease("f", limit=1)
        await queue.done([event.id], follow_ups=[new(7, "g")])
        assert await queue.depth() == {"g": Depth(queued=1)}

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
        assert await dead.redrive(await dead.ids()) == {"f", "g"}
        (event,) = await queue.lease("f", limit=9)
        assert (event.id, event.attempts, event.accepted_at >= before) == (4, 0, True)
        flow = await queue.flow()
        assert flow["f"] == Flow(accepted=3, buried=3)

    asyncio.run(scenario())


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
        # Events that come together are accepted in their order, as far as there is room
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
        # When events come of an object, of a schedule, of a redrive
        await objects.apply("b", [changed("one")], events_for=lambda _, __: [new(7)])
        assert not queue.full
        await schedules.advance(None, ScheduleState("s", "rate(1 minute)", 0.0, 0.0), [new(8)])
        # Then that is known at once
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


def test_no_event_waits_for_a_time_that_a_clock_set_back_has_made_far(tmp_path: Path) -> None:
    async def before(queue: EventQueue, _: Database) -> None:
        await queue.put([new(0)])
        (event,) = await queue.lease("f", limit=1)
        await queue.retry(event.id, at=clock.now() + 3660, error="x")

    async def after(queue: EventQueue, _: Database) -> None:
        assert numbers(await queue.lease("f", limit=1)) == [0]

    reopened(tmp_path, before)
    reopened(tmp_path, after)


def test_one_event_that_cannot_be_stored_does_not_keep_others_out(queue: EventQueue) -> None:
    async def scenario() -> None:
        wrong = NewEvent(function="f", payload=b"{}", request_id="\ud800")
        puts = [queue.put([new(0)]), queue.put([wrong]), queue.put([new(1)])]
        outcomes = await asyncio.gather(*puts, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [list, UnicodeEncodeError, list]
        assert numbers(await queue.lease("f", limit=9)) == [0, 1]

    asyncio.run(scenario())


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


def test_events_of_a_function_that_is_gone_are_given_up_when_they_are_old(queue: EventQueue, db: Database) -> None:
    async def scenario() -> None:
        await queue.put([new(0)], now=10)
        await queue.put([new(1)], now=100)
        assert await queue.dead_letter_older("f", 50, error="there is no function f", condition="ResourceNotFound") == 1
        assert [letter.request_id for letter in await DeadLetters(db).page()] == ["request-0"]
        assert await queue.depth() == {"f": Depth(queued=1, dead=1)}

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
    """Counted in steps of SQLite's virtual machine, which unlike time are the same on every machine."""
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
        # Some wait for a retry far away, as many as are ready.
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


def test_an_event_that_was_put_is_leased_unread_and_is_as_it_would_have_been_read(
    queue: EventQueue,
) -> None:
    async def scenario() -> None:
        given = NewEvent(
            function="f",
            payload=b"\x00",
            request_id="r",
            source="invoke",
            row_key="k",
            client_context="{}",
            trace_id="Root=1-2-3",
            qualifier="7",
        )
        [first, second] = await queue.put([given, new(2)], now=5.0)
        (read, _) = await queue.lease("f", limit=2)
        assert as_accepted(given, first, 5.0) == read
        queue.give_back(read)

        [third] = await queue.put([new(3)], now=6.0)
        assert queue.take(as_accepted(new(3), third, 6.0))
        assert not queue.take(as_accepted(new(3), third, 6.0))
        assert (await queue.depth())["f"] == Depth(queued=1, leased=2)
        assert [event.id for event in await queue.lease("f", limit=9)] == [first]
        assert await queue.lease("f", limit=9) == []
        assert await queue.next_due("f") is None
        await queue.done([third, second, first])
        assert await queue.depth() == {}
        assert (await queue.flow())["f"] == Flow(accepted=3, done=3)

    asyncio.run(scenario())


def test_what_a_lease_may_find_or_has_found_is_not_leased_a_second_time(queue: EventQueue, db: Database) -> None:
    async def scenario() -> None:
        going_on, go_on = asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()

        def slow(_: object) -> None:
            loop.call_soon_threadsafe(going_on.set)
            go_on.wait()

        before = asyncio.create_task(db.read(slow))
        await going_on.wait()
        leasing = asyncio.create_task(queue.lease("f", limit=9))
        await asyncio.sleep(0)
        [during] = await queue.put([new(0)])
        [other] = await queue.put([new(1, "g")])
        taken = [queue.take(as_accepted(new(0), during, 0.0)), queue.take(as_accepted(new(1, "g"), other, 0.0))]
        go_on.set()
        await before
        assert taken == [False, True]
        assert [event.id for event in await leasing] == [during]

        assert not queue.take(as_accepted(new(0), during, 0.0))
        await queue.done([during])
        assert not queue.take(as_accepted(new(0), during, 0.0))  # who put it comes late: it has run

    asyncio.run(scenario())


def test_events_that_were_not_read_are_passed_over_by_a_lease_of_those_between_them(queue: EventQueue) -> None:
    async def scenario() -> None:
        ids = [(await queue.put([new(number)]))[0] for number in range(6)]
        for number in (1, 2, 4):
            assert queue.take(as_accepted(new(number), ids[number], 0.0))
        assert numbers(await queue.lease("f", limit=2)) == [0, 3]
        assert numbers(await queue.lease("f", limit=2)) == [5]
        queue.forget("f")
        assert numbers(await queue.lease("f", limit=9)) == list(range(6))

    asyncio.run(scenario())
