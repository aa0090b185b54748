"""Retries: how long to wait after a failure, waits with a time limit, and reporting a lasting problem only once.

This module starts no task and no thread. Functions that need the current time take it as a parameter, in
``time.monotonic()`` seconds unless documented otherwise, so a change of the system clock affects no wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
from collections.abc import Callable, Hashable

from thawd.system.flag import Flag

# The power of two would overflow a float after 1,023 doublings. Every finite limit on a wait is reached long before
# the 64th.
_MOST_DOUBLINGS = 64
TIMER_EARLY_S = 0.002
"""The event loop's timers count whole milliseconds, so a timer can fire too early, by at most this time (seconds)."""


def backoff_s(failures: int, *, first_s: float, longest_s: float = math.inf) -> float:
    """Return how long to wait after a number of failures in a row, seconds. The wait doubles with each failure.

    Args:
        failures: number of failures in a row; 0: no wait.
        first_s: the wait after the first failure, seconds.
        longest_s: the longest wait, seconds.
    """
    return min(longest_s, first_s * 2.0 ** min(failures - 1, _MOST_DOUBLINGS)) if failures > 0 else 0.0


class Backoff:
    """Computes the waits between failing attempts: each wait is twice as long as the one before, up to a limit.

    Attempts may run in parallel: failures during a wait do not lengthen it.

    Args:
        first_s: the first wait, seconds.
        longest_s: the longest wait, seconds.

    Attributes:
        wait_s: length of the current wait, seconds; 0 once an attempt has succeeded.
    """

    def __init__(self, *, first_s: float, longest_s: float = math.inf) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._until_s = -math.inf
        self.wait_s = 0.0

    def failed(self, now_s: float, *, longest_s: float | None = None) -> float:
        """Count a failure. Return how long to wait before the next attempt, seconds.

        Args:
            now_s: the current time, ``time.monotonic()`` seconds.
            longest_s: limit for this wait, seconds; None: the back-off's own limit.
        """
        if now_s >= self._until_s - TIMER_EARLY_S:
            longest_s = self._longest_s if longest_s is None else longest_s
            self.wait_s = min(longest_s, max(self._first_s, 2 * self.wait_s))
            self._until_s = now_s + self.wait_s
        return min(self.wait_s, max(0.0, self._until_s - now_s))

    def succeeded(self) -> None:
        """Record that an attempt has succeeded. The wait after the next failure is `first_s` again."""
        self.wait_s, self._until_s = 0.0, -math.inf


def time_left_s(due: float | None, now: float, *, shortest_s: float = 0.0, longest_s: float) -> float:
    """Return how long to sleep until `due`, seconds, within two limits.

    Args:
        due: when there is something to do, seconds; None: the time is unknown, and `longest_s` is returned.
        now: the current time of the same clock, seconds.
        shortest_s: shortest sleep. If a timer fires a little early, a caller without a shortest sleep sleeps for almost
            no time, again and again.
        longest_s: longest sleep. It limits the delay if somebody changes the clock or if a wake-up is lost.
    """
    return longest_s if due is None else min(longest_s, max(shortest_s, due - now))


async def is_set_within(event: asyncio.Event | Flag, timeout_s: float | None) -> bool:
    """Wait until `event` is set. Return whether it is set.

    Args:
        event: the event.
        timeout_s: longest wait, seconds; None: no limit.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()
    return event.is_set()


class SayOnce:
    """Reports a lasting problem once, instead of at every attempt. May be used from several threads.

    Each problem belongs to a topic, such as a destination or a file. It is reported if its topic has no problem yet or
    a different one. `over` ends the topic's problem.

    Args:
        report: gets a line for the operator. If it raises `OSError`, the line is dropped: the operator's terminal may
            be closed.
        most_topics: most topics that have problems at the same time; problems of further topics are not reported.
            None: no limit.
    """

    def __init__(self, report: Callable[[str], object], *, most_topics: int | None = None) -> None:
        self._report = report
        self._most_topics = most_topics
        self._lock = threading.Lock()
        self._causes: dict[Hashable, Hashable] = {}

    def say(self, line: str, *, topic: Hashable = "", cause: Hashable = None) -> None:
        """Report `line`, unless this problem of `topic` has already been reported.

        Args:
            line: the line for the operator.
            topic: what has the problem.
            cause: identifies the problem among those of the topic; None: `line` identifies it.
        """
        cause = line if cause is None else cause
        with self._lock:
            is_news = self._causes.get(topic) != cause
            is_full = self._most_topics is not None and len(self._causes) >= self._most_topics
            if is_news and is_full and topic not in self._causes:
                return
            self._causes[topic] = cause
        if is_news:
            self.report(line)

    def resolved(self, line: str | None = None, *, topic: Hashable = "") -> None:
        """End the problem of `topic`. If the topic had one, report `line`."""
        with self._lock:
            was_in_trouble = self._causes.pop(topic, None) is not None
        if was_in_trouble and line is not None:
            self.report(line)

    def report(self, line: str) -> None:
        """Report `line` in any case, because it is about a single occurrence, not a lasting problem."""
        with contextlib.suppress(OSError):
            self._report(line)
