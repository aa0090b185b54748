"""`thawd.system.retry`: waits grow to their limit and start again, and a lasting failure is reported once."""

from __future__ import annotations

import asyncio
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thawd.system.retry import Backoff, SayOnce, backoff_s, is_set_within, time_left_s


def test_the_wait_doubles_with_each_failure_up_to_the_limit() -> None:
    assert [backoff_s(n, first_s=1.0, longest_s=60.0) for n in range(8)] == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0]


@given(st.integers(0, 10**9), st.floats(0.001, 10.0), st.floats(10.0, 1e6))
def test_whatever_the_number_of_failures_the_wait_is_between_the_first_and_the_longest(
    failures: int, first_s: float, longest_s: float
) -> None:
    wait_s = backoff_s(failures, first_s=first_s, longest_s=longest_s)
    assert wait_s == 0.0 if failures == 0 else first_s <= wait_s <= longest_s


def test_without_a_limit_the_wait_stays_a_number() -> None:
    assert backoff_s(10**6, first_s=1.0) == 2.0**64


def test_attempts_that_fail_one_after_the_other_wait_longer_and_longer() -> None:
    backoff, now_s, waits = Backoff(first_s=1.0, longest_s=5.0), 100.0, []
    for _ in range(5):
        waits.append(backoff.failed(now_s))
        now_s += waits[-1]
    assert waits == [1.0, 2.0, 4.0, 5.0, 5.0]


def test_failures_during_a_wait_count_as_one_and_are_told_what_is_left_of_it() -> None:
    backoff = Backoff(first_s=4.0, longest_s=60.0)
    assert [backoff.failed(now_s) for now_s in (0.0, 1.0, 3.0)] == [4.0, 3.0, 1.0]
    assert backoff.wait_s == 4.0
    assert backoff.failed(4.0) == 8.0


def test_a_timer_that_fires_a_millisecond_early_begins_the_next_wait() -> None:
    backoff = Backoff(first_s=1.0, longest_s=60.0)
    backoff.failed(10.0)
    assert backoff.failed(10.999) == 2.0


def test_after_a_success_the_first_wait_comes_again_also_within_the_last_one() -> None:
    backoff = Backoff(first_s=1.0, longest_s=60.0)
    backoff.failed(0.0)
    backoff.failed(1.0)
    backoff.succeeded()
    assert backoff.wait_s == 0.0
    assert backoff.failed(1.5) == 1.0


def test_one_failure_may_have_a_limit_of_its_own() -> None:
    backoff = Backoff(first_s=1.0, longest_s=300.0)
    now_s = 0.0
    for _ in range(6):
        now_s += backoff.failed(now_s)
    assert backoff.failed(now_s, longest_s=30.0) == 30.0


@given(st.lists(st.tuples(st.floats(0.0, 100.0), st.booleans())))
def test_waits_never_leave_their_limits_and_do_not_drift(steps: list[tuple[float, bool]]) -> None:
    """The end of a wait is fixed when it begins. Another call does not move it."""
    backoff, now_s = Backoff(first_s=0.5, longest_s=30.0), 0.0
    for passed_s, fails in steps:
        now_s += passed_s
        if not fails:
            backoff.succeeded()
            continue
        left_s = backoff.failed(now_s)
        assert 0.0 <= left_s <= backoff.wait_s <= 30.0
        assert backoff.wait_s >= 0.5
        assert backoff.failed(now_s + left_s / 2) == pytest.approx(left_s / 2, abs=0.003) or left_s < 0.01


def test_the_time_left_is_kept_within_its_limits() -> None:
    def left_s(due: float | None) -> float:
        return time_left_s(due, 100.0, shortest_s=0.01, longest_s=30.0)

    assert [left_s(due) for due in (None, 90.0, 100.0, 105.0, 1000.0)] == [30.0, 0.01, 0.01, 5.0, 30.0]


def test_a_wait_for_an_event_ends_by_the_event_or_by_its_limit() -> None:
    async def work() -> None:
        event = asyncio.Event()
        assert not await is_set_within(event, 0.001)
        asyncio.get_running_loop().call_soon(event.set)
        assert await is_set_within(event, 60.0)
        assert await is_set_within(event, 0.0)
        event.clear()
        asyncio.get_running_loop().call_soon(event.set)
        assert await is_set_within(event, None)

    asyncio.run(work())


def test_a_trouble_is_said_once_until_it_is_another_one_or_over() -> None:
    said: list[str] = []
    once = SayOnce(said.append)
    for line in ("full", "full", "gone", "full"):
        once.say(line)
    once.resolved("well again")
    once.resolved("well again")
    once.say("full")
    assert said == ["full", "gone", "full", "well again", "full"]


def test_topics_are_apart_and_a_cause_tells_troubles_apart() -> None:
    said: list[str] = []
    once = SayOnce(said.append)
    once.say("a: event 1: full", topic="a", cause="full")
    once.say("a: event 2: full", topic="a", cause="full")
    once.say("b: event 3: full", topic="b", cause="full")
    once.resolved(topic="a")
    once.say("a: event 4: full", topic="a", cause="full")
    once.say("b: event 5: full", topic="b", cause="full")
    assert said == ["a: event 1: full", "b: event 3: full", "a: event 4: full"]


def test_no_more_topics_than_the_limit_are_remembered_or_reported() -> None:
    said: list[str] = []
    once = SayOnce(said.append, most_topics=2)
    for topic in ("a", "b", "c", "c", "a"):
        once.say(f"{topic} is broken", topic=topic)
    once.resolved(topic="a")
    once.say("c is broken", topic="c")
    assert said == ["a is broken", "b is broken", "c is broken"]


def test_a_terminal_that_is_gone_ends_nothing() -> None:
    def broken(line: str) -> None:
        raise BrokenPipeError

    once = SayOnce(broken)
    once.say("full")
    once.resolved("well again")
    once.report("hello")


def test_threads_that_meet_the_same_trouble_report_it_once() -> None:
    said: list[str] = []
    once, gate = SayOnce(said.append), threading.Barrier(8)

    def work() -> None:
        gate.wait()
        for number in range(200):
            once.say("broken", topic=number)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(said) == 200


def test_the_end_of_a_trouble_is_reported_if_there_was_one() -> None:
    said: list[str] = []
    reports = SayOnce(said.append)
    reports.resolved("A is back", topic="A")
    assert said == []
    reports.say("A is away", topic="A")
    reports.resolved("A is back", topic="A")
    reports.resolved("A is back", topic="A")
    assert said == ["A is away", "A is back"]


def test_of_many_topics_in_trouble_the_first_few_are_reported_and_those_go_on_being() -> None:
    said: list[str] = []
    reports = SayOnce(said.append, most_topics=2)
    for topic in ("A", "B", "C"):
        reports.say(f"{topic} is away", topic=topic)
    assert said == ["A is away", "B is away"]
    reports.say("A is on fire", topic="A")
    assert said[2:] == ["A is on fire"]
    reports.resolved(topic="B")
    reports.say("C is away", topic="C")
    assert said[3:] == ["C is away"]


def test_what_is_due_leaves_no_time_unless_a_shortest_wait_is_given() -> None:
    assert time_left_s(5.0, 7.0, longest_s=30.0) == 0.0
    assert time_left_s(5.0, 7.0, shortest_s=0.5, longest_s=30.0) == 0.5
