"""`thawd.queue.lane`: the order of one function's events, and how much of them is held in memory."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from thawd.invocation import Result
from thawd.queue import lane as module
from thawd.queue.lane import READ_AHEAD, SHORTEST_WAIT_S, Lane
from thawd.stores.events.event_rows import Event, NewEvent, as_accepted
from thawd.system.retry import Backoff, SayOnce


def event(number: int, size: int = 0) -> Event:
    return as_accepted(NewEvent(function="f", payload=bytes(size), request_id=f"r-{number}"), number, 0.0)


def a_lane() -> Lane:
    return Lane("f", Backoff(first_s=1.0), SayOnce(print))


def test_events_run_in_the_order_they_came_and_one_that_goes_first_goes_first() -> None:
    lane = a_lane()
    for number in (1, 2):
        lane.add(event(number))
    lane.add_first(event(3))
    assert [lane.take().id for _ in range(3)] == [3, 1, 2]


def test_payloads_are_read_ahead_up_to_a_size_however_few_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_AHEAD_BYTES", 1000)
    monkeypatch.setattr(module, "_EVENT_BYTES", 100)
    lane = a_lane()
    lane.more = False
    assert lane.wants_more()
    assert lane.has_room_for(event(1, 900))
    assert not lane.has_room_for(event(1, 901))
    lane.add(event(1, 400))
    lane.add_first(event(2, 300))
    assert lane.wants_more()
    assert lane.has_room_for(event(3, 0))
    assert not lane.has_room_for(event(3, 1))
    lane.add(event(3, 0))
    assert not lane.wants_more()
    lane.take()
    assert lane.wants_more()
    assert lane.has_room_for(event(4, 300))
    assert not lane.has_room_for(event(4, 301))
    lane.take()
    assert lane.has_room_for(event(4, 800))


def test_few_events_are_held_however_small_they_are() -> None:
    lane = a_lane()
    for number in range(READ_AHEAD // 2):
        lane.add(event(number))
    assert lane.wants_more()
    lane.add(event(99))
    assert not lane.wants_more()


@pytest.mark.parametrize(("gone", "more", "room"), [(False, False, True), (True, False, False), (False, True, False)])
def test_an_event_that_was_just_stored_is_next_only_where_none_waits_before_it(
    gone: bool, more: bool, room: bool
) -> None:
    lane = a_lane()
    lane.gone, lane.more = gone, more
    assert lane.has_room_for(event(1)) is room


def test_something_new_wakes_the_lane_and_is_looked_for() -> None:
    lane = a_lane()
    lane.more = False
    assert not lane.awake.is_set()
    lane.look()
    assert lane.more
    assert lane.awake.is_set()


@pytest.mark.parametrize(
    ("due_s", "more", "wait_s"),
    [
        (None, False, None),
        (None, True, None),
        (107.5, True, None),
        (107.5, False, 7.5),
        (100.0, False, SHORTEST_WAIT_S),
        (50.0, False, SHORTEST_WAIT_S),
    ],
)
def test_the_wait_is_until_the_next_event_is_due(
    monkeypatch: pytest.MonkeyPatch, due_s: float | None, more: bool, wait_s: float | None
) -> None:
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: 100.0))
    lane = a_lane()
    lane.due_s, lane.more = due_s, more
    assert lane.until_due_s() == wait_s


def test_results_that_could_not_be_stored_are_kept_as_far_as_there_is_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_RESULTS_BYTES", 10)
    lane = a_lane()
    results = [Result(b"x" * size) for size in (4, 6, 1)]
    for number, result in enumerate(results):
        lane.keep_result(event(number), result)
    assert lane.take_result(event(2)) is None  # it exceeded the limit by one byte
    assert lane.take_result(event(0)) is results[0]
    assert lane.take_result(event(0)) is None
    lane.keep_result(event(3), Result(b"x" * 5))
    assert lane.take_result(event(3)) is None
    lane.keep_result(event(4), Result(b"x" * 4))
    assert lane.take_result(event(4)) is not None
    assert lane.take_result(event(1)) is results[1]
