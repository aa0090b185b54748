"""`thawd.environments.invocation_deadline`: which invocations are ended. The test fires the timers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from thawd.environments.invocation_deadline import InvocationDeadline


class Clock:
    """Takes the place of the event loop's timers and of the clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        self.timers: list[tuple[float, Callable[[], None]]] = []
        monkeypatch.setattr(time, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(asyncio, "get_running_loop", lambda: self)

    def call_later(self, wait_s: float, callback: Callable[[], None]) -> Any:
        timer = (self.now_s + wait_s, callback)
        self.timers.append(timer)
        return self.Handle(self, timer)

    class Handle:
        def __init__(self, clock: Clock, timer: Any) -> None:
            self.clock, self.timer = clock, timer

        def cancel(self) -> None:
            self.clock.timers.remove(self.timer)

    def advance(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        while due := [timer for timer in self.timers if timer[0] <= until_s]:
            first = min(due, key=lambda timer: timer[0])
            self.timers.remove(first)
            self.now_s = first[0]
            first[1]()
        self.now_s = until_s


def test_each_invocation_has_the_whole_time_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    passed: list[float] = []
    deadline = InvocationDeadline(lambda: passed.append(clock.now_s))
    for _ in range(100):  # 100 invocations of 2 s each, with a limit of 3 s
        deadline.begin(3)
        clock.advance(2)
        deadline.end()
        assert len(clock.timers) == 1
    assert passed == []
    deadline.begin(3)
    begun_s = clock.now_s
    clock.advance(2.9)
    assert passed == []
    clock.advance(0.2)
    assert passed == [pytest.approx(begun_s + 3)]


def test_an_idle_or_closed_environment_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    passed: list[float] = []
    deadline = InvocationDeadline(lambda: passed.append(clock.now_s))
    deadline.begin(3)
    deadline.end()
    clock.advance(10)
    assert passed == clock.timers == []
    deadline.begin(3)
    deadline.close()
    assert clock.timers == []
    clock.advance(10)
    assert passed == []


def test_a_timer_that_fires_slightly_early_is_not_set_again(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    passed: list[float] = []
    deadline = InvocationDeadline(lambda: passed.append(clock.now_s))
    deadline.begin(3)
    _, fire = clock.timers.pop()
    clock.now_s += 2.9995
    fire()
    assert passed == [clock.now_s]
    assert clock.timers == []
