"""What the queue reads: only as much as requested, nothing hidden by leased events; and what it reports."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest

from tests.unit.queued_events import new, numbers
from thawd.stores import clock
from thawd.stores.database import Database
from thawd.stores.events import running_marks
from thawd.stores.events.event_queue import EventQueue
from thawd.stores.events.event_rows import Depth, Event, Flow, NewEvent, as_accepted
from thawd.stores.events.leases import Leases
from thawd.stores.events.running_marks import SLOTS, Marks
from thawd.stores.schema import open_state

pytestmark = pytest.mark.in_memory


async def put_one_by_one(queue: EventQueue, count: int) -> list[int]:
    """Put `count` events, each separately, and return their ids."""
    return [(await queue.put([new(number)], now=100.0))[0] for number in range(count)]


async def with_retries(queue: EventQueue, count: int, *, retries: int) -> list[Event]:
    """Put `count` events, the first `retries` of which have failed once and are due at 110, 111, ..."""
    await put_one_by_one(queue, count)
    failed = await queue.lease("f", limit=retries, now=100.0)
    for place, event in enumerate(failed):
        await queue.retry(event.id, at=110.0 + place, error="it failed")
    return failed


# How many are read, and which


async def test_retries_and_new_events_together_are_no_more_than_the_limit(queue: EventQueue) -> None:
    await with_retries(queue, 6, retries=2)
    assert numbers(await queue.lease("f", limit=3, now=200.0)) == [0, 1, 2]
    assert numbers(await queue.lease("f", limit=3, now=200.0)) == [3, 4, 5]


async def test_of_more_retries_than_the_limit_only_that_many_come_and_no_new_event(queue: EventQueue) -> None:
    await with_retries(queue, 4, retries=3)
    assert numbers(await queue.lease("f", limit=2, now=200.0)) == [0, 1]
    assert numbers(await queue.lease("f", limit=2, now=200.0)) == [2, 3]


async def test_retries_that_are_leased_hide_none_of_those_due_after_them(queue: EventQueue) -> None:
    await with_retries(queue, 5, retries=5)
    found = [numbers(await queue.lease("f", limit=1, now=200.0)) for _ in range(6)]
    assert found == [[0], [1], [2], [3], [4], []]


async def test_events_that_were_taken_unread_hide_none_of_those_accepted_after_them(queue: EventQueue) -> None:
    ids = await put_one_by_one(queue, 6)
    for number in range(4):
        assert queue.take(as_accepted(new(number), ids[number], 100.0))
    assert numbers(await queue.lease("f", limit=1, now=200.0)) == [4]
    assert numbers(await queue.lease("f", limit=1, now=200.0)) == [5]


async def test_a_retry_is_due_at_its_very_time(queue: EventQueue) -> None:
    await with_retries(queue, 1, retries=1)
    assert await queue.lease("f", limit=1, now=109.999) == []
    assert numbers(await queue.lease("f", limit=1, now=110.0)) == [0]


async def test_of_what_was_given_back_only_as_much_is_taken_as_was_asked_for(queue: EventQueue) -> None:
    await put_one_by_one(queue, 3)
    for event in await queue.lease("f", limit=3):
        queue.give_back(event)
    assert numbers(await queue.lease("f", limit=2)) == [0, 1]
    assert numbers(await queue.lease("f", limit=2)) == [2]


# Whether there are more


async def test_a_function_is_exhausted_once_a_lease_found_less_than_it_asked_for(queue: EventQueue) -> None:
    assert not queue.exhausted("f")
    await put_one_by_one(queue, 4)
    await queue.lease("f", limit=2)
    assert not queue.exhausted("f")  # two more exist
    await queue.lease("f", limit=2)
    assert not queue.exhausted("f")  # it found as many as requested, so there may be more
    await queue.lease("f", limit=2)
    assert queue.exhausted("f")
    assert not queue.exhausted("g")


async def test_retries_count_in_whether_a_lease_found_less_than_it_asked_for(queue: EventQueue) -> None:
    await with_retries(queue, 3, retries=2)
    await queue.lease("f", limit=3, now=200.0)
    assert not queue.exhausted("f")


async def test_a_function_whose_payloads_were_too_large_for_one_read_is_not_exhausted(queue: EventQueue) -> None:
    await queue.put([NewEvent(function="f", payload=bytes(1 << 20), request_id=f"request-{i}") for i in range(5)])
    assert numbers(await queue.lease("f", limit=9)) == [0, 1, 2, 3]
    assert not queue.exhausted("f")
    assert numbers(await queue.lease("f", limit=9)) == [4]
    assert queue.exhausted("f")


async def test_a_function_that_had_events_given_back_is_exhausted_no_more(queue: EventQueue) -> None:
    await put_one_by_one(queue, 1)
    (event,) = await queue.lease("f", limit=9)
    assert queue.exhausted("f")
    queue.give_back(event)
    await queue.lease("f", limit=1)
    assert not queue.exhausted("f")


# When the next one is due


async def test_an_event_is_due_now_before_anything_has_been_leased(queue: EventQueue) -> None:
    await put_one_by_one(queue, 1)
    assert await queue.next_due("f", now=105.0) == 105.0


async def test_an_event_is_due_now_though_others_are_leased(queue: EventQueue) -> None:
    ids = await put_one_by_one(queue, 4)
    assert numbers(await queue.lease("f", limit=1)) == [0]
    for number in (1, 2):
        assert queue.take(as_accepted(new(number), ids[number], 100.0))
    assert await queue.next_due("f", now=105.0) == 105.0


async def test_leased_retries_do_not_hide_when_the_next_one_is_due(queue: EventQueue) -> None:
    await with_retries(queue, 3, retries=3)
    await queue.lease("f", limit=2, now=111.0)
    assert await queue.next_due("f", now=111.0) == 112.0


def test_without_a_time_the_clocks_is_taken(queue: EventQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "now", lambda: 1234.5)

    async def main() -> None:
        await put_one_by_one(queue, 1)
        assert await queue.next_due("f") == 1234.5

    asyncio.run(main())


# What the queue reports


async def test_functions_wait_while_an_event_of_theirs_is_queued_or_runs(queue: EventQueue) -> None:
    await queue.put([new(0, "queued"), new(1, "runs"), new(2, "done"), new(3, "dead")])
    await queue.lease("runs", limit=1)
    (done,) = await queue.lease("done", limit=1)
    await queue.done([done.id])
    (dead,) = await queue.lease("dead", limit=1)
    await queue.dead_letter(dead.id, error="e", condition="RetriesExhausted")
    assert sorted(await queue.waiting()) == ["queued", "runs"]


async def test_the_oldest_event_may_be_a_new_one_or_one_that_waits_for_its_retry(queue: EventQueue) -> None:
    await queue.put([new(0, "retry")], now=100.0)
    await queue.put([new(1, "retry"), new(2, "young"), new(3, "gone")], now=200.0)
    await queue.put([new(4, "young")], now=300.0)
    (failed,) = await queue.lease("retry", limit=1, now=300.0)
    await queue.retry(failed.id, at=400.0, error="it failed")
    (done,) = await queue.lease("gone", limit=1, now=300.0)
    await queue.done([done.id])
    assert await queue.oldest() == {"retry": 100.0, "young": 200.0}


async def test_each_outcome_is_counted_once_and_what_was_no_attempt_is_not(queue: EventQueue) -> None:
    ids = await put_one_by_one(queue, 4)
    await queue.lease("f", limit=9)
    await queue.done([ids[0]])
    await queue.retry(ids[1], at=110.0, error="it failed")
    await queue.retry(ids[2], at=110.0, error="throttled", counts=False)
    await queue.dead_letter(ids[3], error="e", condition="RetriesExhausted")
    assert await queue.flow() == {"f": Flow(accepted=4, done=1, retried=1, buried=1)}
    await queue.dead_letter_older("f", 101.0, error="e", condition="EventAgeExceeded")
    assert await queue.flow() == {"f": Flow(accepted=4, done=1, retried=1, buried=3)}


def test_after_a_restart_a_retry_that_is_due_soon_keeps_its_time(tmp_path: Path) -> None:
    async def first(queue: EventQueue) -> None:
        await queue.put([new(0), new(1)])
        soon, late = await queue.lease("f", limit=2)
        now = clock.now()
        await queue.retry(soon.id, at=now + 200, error="it failed")
        await queue.retry(late.id, at=now + 4000, error="it failed")

    async def second(queue: EventQueue) -> None:
        await queue.recover(longest_wait_s=300)
        now = clock.now()
        assert numbers(await queue.lease("f", limit=9, now=now)) == [1]
        assert await queue.next_due("f", now=now) == pytest.approx(now + 200, abs=100)

    for part in (first, second):
        database = open_state(tmp_path / "thawd.db")
        try:
            asyncio.run(part(EventQueue(database)))
        finally:
            database.close()


# Leases alone


def test_while_one_of_two_readings_is_over_an_event_is_still_not_taken_unread() -> None:
    leases = Leases()
    with leases.reading("f"):
        with leases.reading("f"):
            assert not leases.take(1, "f")
        assert not leases.take(1, "f")
        assert leases.take(1, "g")
    assert leases.take(2, "f")


def test_a_function_that_never_leased_anything_is_forgotten_as_any_other() -> None:
    leases = Leases()
    leases.forget("f")
    assert (leases.held("f"), leases.count("f")) == (set(), 0)


def test_an_event_that_ended_before_the_process_died_is_not_taken_for_one_that_ran(tmp_path: Path) -> None:
    marks = Marks(tmp_path / "marks")
    for event_id in (5, 7):
        marks.set(event_id)
    marks.unset(5)
    marks.unset(5)
    marks.unset(99)
    marks.close()
    again = Marks(tmp_path / "marks")
    assert again.left_over == [7]
    again.clear()
    again.close()
    last = Marks(tmp_path / "marks")
    assert last.left_over == []
    last.close()


@pytest.mark.parametrize(("written_in", "left_over"), [("this", [7]), ("another", []), ("an earlier version", [7])])
def test_events_that_ran_at_a_power_failure_are_not_blamed_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written_in: str, left_over: list[int]
) -> None:
    marks = Marks(tmp_path / "marks")
    with monkeypatch.context() as patched:
        if written_in == "another":
            patched.setattr(running_marks, "boot_id", lambda: "0f1e2d3c")
        marks.clear()
    marks.set(7)
    marks.close()
    if written_in == "an earlier version":
        os.truncate(tmp_path / "marks", SLOTS * 8)
    again = Marks(tmp_path / "marks")
    assert again.left_over == left_over
    again.close()


# What need not be read, because it was just put


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
        assert not queue.take(as_accepted(new(0), during, 0.0))  # the putter comes late: the event has run

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
