"""The pace of `thawd.queue.outcome_delivery`: how many stored outcomes are tried at a time, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tests.unit.execution_fakes import turns
from thawd.destinations.delivery import Delivery
from thawd.errors import DestinationRefused, DestinationUnavailable, StoreError, StoreFullError
from thawd.queue import outcome_delivery as module
from thawd.queue.outcome_delivery import DeadLetterCause, Outcome, Outcomes
from thawd.resources import Destination
from thawd.stores.events.event_rows import NewEvent
from thawd.stores.events.outbox import WaitingOutcome

HOOK = Destination("http", "http://127.0.0.1/")
NOW = 1_000_000.0


def delivery(number: int = 0) -> Delivery:
    return Delivery(destination=HOOK, function="f", request_id=f"id-{number}", key="k", body=b"{}", success=True)


class FakeOutbox:
    """Stored outcomes that are all due. `retried` lists by how much those that were put back were delayed."""

    def __init__(self, count: int, *, tries: int = 0, since: float = NOW) -> None:
        documents = [module._encode(Outcome(delivery(number))) for number in range(count)]
        self.waiting = [
            WaitingOutcome(id=number, function="f", document=document, since=since, tries=tries)
            for number, document in enumerate(documents)
        ]
        self.limits: list[int] = []
        self.retried: list[float] = []
        self.trouble: StoreError | None = None
        self.due: float | StoreError | None = None
        self.asked_due = 0

    async def lease(self, *, limit: int) -> list[WaitingOutcome]:
        self.limits.append(limit)
        if self.trouble is not None:
            raise self.trouble
        leased, self.waiting = self.waiting[:limit], self.waiting[limit:]
        return leased

    async def next_due(self, *, now: float) -> float | None:
        self.asked_due += 1
        if isinstance(self.due, StoreError):
            raise self.due
        return self.due

    async def retry(self, event_id: int, *, at: float, error: str) -> None:
        self.retried.append(at - NOW)

    def ended(self, event_id: int) -> None:
        return None


class FakeQueue:
    """Records which outcomes were kept for later and which events ended."""

    def __init__(self) -> None:
        self.kept: list[float] = []
        self.done_ids: list[int] = []
        self.dead_letters: list[dict[str, Any]] = []
        self.trouble: StoreError | None = None

    async def deliver_later(self, event_id: int, document: bytes, *, at: float, error: str, counts: bool) -> None:
        self.kept.append(at - NOW)

    async def done(self, ids: list[int], *, follow_ups: list[NewEvent]) -> None:
        if self.trouble is not None:
            raise self.trouble
        self.done_ids += ids

    async def dead_letter(self, event_id: int, **how: Any) -> None:
        self.dead_letters.append(how)


class FakeDestinations:
    """Deliveries that are in progress until the test lets them arrive, or that fail."""

    def __init__(self) -> None:
        self.in_delivery: list[asyncio.Future[None]] = []
        self.failure: Exception | None = None
        self.at_once = False
        self.follow_ups: list[NewEvent] = []

    async def deliver(self, made: Delivery) -> list[NewEvent]:
        if self.failure is not None:
            raise self.failure
        if not self.at_once:
            self.in_delivery.append(asyncio.get_running_loop().create_future())
            await self.in_delivery[-1]
        return self.follow_ups

    def break_off(self) -> None:
        return None


class Desk:
    """`Outcomes` with the fakes, and what it reports."""

    def __init__(self, outbox: FakeOutbox, *, report: Callable[[str], object] | None = None) -> None:
        self.outbox, self.queue, self.destinations = outbox, FakeQueue(), FakeDestinations()
        self.told: list[str] = []
        self.outcomes = Outcomes(
            self.queue,  # type: ignore[arg-type]
            outbox,  # type: ignore[arg-type]
            self.destinations,  # type: ignore[arg-type]
            report=report or self.told.append,
        )

    async def __aenter__(self) -> Desk:
        self.running = asyncio.get_running_loop().create_task(self.outcomes.run())
        await turns()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)

    async def arrive(self, count: int) -> None:
        for future in [future for future in self.destinations.in_delivery if not future.done()][:count]:
            future.set_result(None)
        await turns()


@pytest.fixture(autouse=True)
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop the wall clock."""
    monkeypatch.setattr(module.clock, "now", lambda: NOW)


def claim(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(work(), 60))


def test_sixteen_outcomes_are_tried_at_a_time_and_each_that_arrives_makes_room_for_one() -> None:
    async def work() -> None:
        async with Desk(FakeOutbox(40)) as desk:
            assert (desk.outcomes.in_delivery, len(desk.destinations.in_delivery)) == (16, 16)
            await desk.arrive(3)
            assert (desk.outcomes.in_delivery, len(desk.destinations.in_delivery)) == (16, 19)
            await desk.arrive(16)
            await desk.arrive(16)
            await desk.arrive(16)
            assert sorted(desk.queue.done_ids) == list(range(40))
            assert desk.outcomes.in_delivery == 0

    claim(work)


def test_while_as_many_are_under_way_as_may_be_the_state_file_is_not_asked_what_is_due() -> None:
    async def work() -> None:
        async with Desk(FakeOutbox(16)) as desk:
            assert desk.outbox.asked_due == 0
            await desk.arrive(1)
            assert desk.outbox.asked_due > 0

    claim(work)


def test_once_thawd_stops_no_kept_outcome_is_tried_any_more() -> None:
    async def work() -> None:
        desk = Desk(FakeOutbox(5))
        desk.outcomes.break_off()
        async with desk:
            desk.outcomes.wake()
            await turns()
            assert desk.outbox.limits == []
            assert desk.destinations.in_delivery == []

    claim(work)


@pytest.mark.parametrize(("due_in_s", "wait_s"), [(None, 30.0), (100.0, 30.0), (7.0, 7.0), (0.0, 0.01), (-5.0, 0.01)])
def test_the_next_look_is_when_one_is_due_but_within_30_seconds(due_in_s: float | None, wait_s: float) -> None:
    async def work() -> None:
        desk = Desk(FakeOutbox(0))
        desk.outbox.due = None if due_in_s is None else NOW + due_in_s
        assert await desk.outcomes._until_due_s() == pytest.approx(wait_s)

    claim(work)


def test_when_the_state_file_does_not_say_what_is_due_the_next_look_is_in_a_second() -> None:
    async def work() -> None:
        desk = Desk(FakeOutbox(0))
        desk.outbox.due = StoreError("no disk")
        assert await desk.outcomes._until_due_s() == 1.0

    claim(work)


@pytest.mark.parametrize(("tries", "wait_s"), [(0, 2), (1, 4), (2, 8), (7, 256), (8, 300), (1000, 300)])
def test_an_outcome_whose_destination_is_away_waits_twice_as_long_each_time_up_to_five_minutes(
    tries: int, wait_s: int
) -> None:
    async def work() -> None:
        desk = Desk(FakeOutbox(1, tries=tries))
        desk.destinations.failure = DestinationUnavailable("away")
        async with desk:
            assert desk.outbox.retried == [wait_s]

    claim(work)


def test_an_outcome_that_is_kept_after_its_first_try_is_tried_again_a_second_later() -> None:
    async def work() -> None:
        desk = Desk(FakeOutbox(0))
        desk.destinations.failure = DestinationUnavailable("away")
        await desk.outcomes.settle(1, Outcome(delivery()))
        assert desk.queue.kept == [1.0]

    claim(work)


@pytest.mark.parametrize(("waited_s", "given_up"), [(21_600.0, False), (21_600.5, True)])
def test_a_destination_may_be_away_for_six_hours(waited_s: float, given_up: bool) -> None:
    async def work() -> None:
        desk = Desk(FakeOutbox(1, since=NOW - waited_s))
        desk.destinations.failure = DestinationUnavailable("away")
        async with desk:
            assert [how["condition"] for how in desk.queue.dead_letters] == (["DestinationFailed"] if given_up else [])
            assert len(desk.outbox.retried) == (not given_up)

    claim(work)


def test_a_destination_that_is_away_is_reported_once_until_it_takes_something_again() -> None:
    async def work() -> None:
        desk = Desk(FakeOutbox(3))
        desk.destinations.failure = DestinationUnavailable("away")
        async with desk:
            assert [str(HOOK) in line for line in desk.told] == [True]
            desk.destinations.failure, desk.destinations.at_once = None, True
            for _ in range(2):
                desk.outbox.waiting = FakeOutbox(2).waiting
                desk.outcomes.wake()
                await turns()
            assert [str(HOOK) in line for line in desk.told[1:]] == [True]  # the report that it accepts outcomes again

    claim(work)


def test_while_the_state_file_takes_nothing_the_wait_doubles_from_one_second_to_thirty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slept: list[float] = []
    now_s = 500.0

    async def sleep(wait_s: float) -> None:
        nonlocal now_s
        slept.append(wait_s)
        now_s += wait_s

    async def work() -> None:
        desk = Desk(FakeOutbox(0))
        for _ in range(7):
            await desk.outcomes._back_off(StoreFullError("the disk is full"))
        assert slept == [1, 2, 4, 8, 16, 30, 30]
        assert len(desk.told) == 1
        await desk.outcomes._back_off(StoreFullError("no, the other disk"))
        assert len(desk.told) == 2

    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now_s))
    monkeypatch.setattr(module, "asyncio", SimpleNamespace(sleep=sleep, Event=asyncio.Event))
    claim(work)


def test_those_that_fail_together_wait_together(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(wait_s: float) -> None:
        slept.append(wait_s)

    async def work() -> None:
        desk = Desk(FakeOutbox(0))
        for _ in range(3):
            await desk.outcomes._back_off(StoreFullError("the disk is full"))
        assert slept == [1, 1, 1]

    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: 500.0))
    monkeypatch.setattr(module, "asyncio", SimpleNamespace(sleep=sleep, Event=asyncio.Event))
    claim(work)


def test_a_state_file_that_took_something_is_no_longer_backed_off_from() -> None:
    async def work() -> None:
        desk = Desk(FakeOutbox(3))
        desk.destinations.at_once = True
        desk.outcomes._store_backoff.wait_s = 8.0
        async with desk:
            assert desk.outbox.limits[0] == 1  # one at a time until one is stored
            assert desk.queue.done_ids == [0, 1, 2]
            assert desk.outcomes._store_backoff.wait_s == 0.0

    claim(work)


def test_an_operator_whose_terminal_has_gone_stops_no_outcome() -> None:
    async def work() -> None:
        def gone(line: str) -> None:
            raise BrokenPipeError

        desk = Desk(FakeOutbox(2), report=gone)
        desk.destinations.failure = DestinationUnavailable("away")
        async with desk:
            assert len(desk.outbox.retried) == 2

    claim(work)


# How an event ends


def test_a_failure_is_kept_first_and_what_follows_it_is_stored_with_the_end_of_the_event() -> None:
    async def work() -> None:
        desk = Desk(FakeOutbox(1))
        told: list[set[str]] = []
        desk.outcomes.on_follow_ups = told.append
        outcome = Outcome(delivery(), DeadLetterCause("it failed", "RetriesExhausted"))
        await desk.outcomes.settle(1, outcome)
        assert desk.queue.kept == [0.0]  # due immediately
        assert desk.queue.dead_letters == []
        desk.outbox.waiting = [msgspec.structs.replace(desk.outbox.waiting[0], document=module._encode(outcome))]
        follow_up = NewEvent(function="next", payload=b"{}", request_id="r")
        desk.destinations.at_once, desk.destinations.follow_ups = True, [follow_up]
        async with desk:
            await turns()
        assert desk.queue.dead_letters == [
            {
                "error": "it failed",
                "condition": "RetriesExhausted",
                "counts": False,
                "outcome": None,
                "follow_ups": [follow_up],
            }
        ]
        assert told == [{"next"}]

    claim(work)


@pytest.mark.parametrize(
    ("failure", "condition", "why"),
    [
        (DestinationRefused("never"), "DestinationRefused", "never"),
        (DestinationUnavailable("away"), "DestinationFailed", "away"),
    ],
)
def test_an_answer_that_will_not_get_there_gives_the_event_up_and_may_be_tried_again_if_it_was_away(
    failure: Exception, condition: str, why: str
) -> None:
    async def work() -> None:
        desk = Desk(FakeOutbox(1, since=NOW - 30_000))
        document = desk.outbox.waiting[0].document
        desk.destinations.failure = failure
        async with desk:
            again = document if condition == "DestinationFailed" else None
            (how,) = desk.queue.dead_letters
            assert how.pop("error").endswith(f": {why}")
            assert how == {"condition": condition, "counts": False, "outcome": again, "follow_ups": []}

    claim(work)


def test_what_is_to_be_delivered_goes_one_after_the_other() -> None:
    first, second, third = (delivery(number) for number in range(3))
    again = Outcome(delivery(9))
    whole = Outcome(first, DeadLetterCause("it failed", "RetriesExhausted"), rest=(second, third), again=again)
    left = whole.after()
    assert left == Outcome(second, whole.cause, rest=(third,), again=again)
    assert left.after() == Outcome(third, whole.cause, again=again)
    assert Outcome(third).after() is None


def test_a_mistake_of_thawds_own_with_one_outcome_ends_that_one_and_keeps_it() -> None:
    async def work() -> None:
        desk = Desk(FakeOutbox(1))
        document = desk.outbox.waiting[0].document
        desk.destinations.failure = RuntimeError("a bug")
        async with desk:
            assert desk.queue.dead_letters == [
                {
                    "error": "RuntimeError('a bug')",
                    "condition": "InternalError",
                    "counts": False,
                    "outcome": document,
                }
            ]
            assert len(desk.told) == 1
            assert desk.outcomes.in_delivery == 0

    claim(work)
