"""Trying again: how long to wait after a failure, waits with a time limit, and a lasting trouble reported once.

Owns no task, thread or clock. Whatever depends on the time takes it as a parameter, ``time.monotonic()`` seconds unless
it says otherwise, so that a wall clock which is set neither shortens nor lengthens a wait. Every room above uses it.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
from collections.abc import Callable, Hashable

# A longer series of doublings overflows a float; every limit is reached long before.
_MOST_DOUBLINGS = 64
# The event loop's timers count whole milliseconds and may fire that much early.
_TIMER_S = 0.002


def backoff_s(failures: int, *, first_s: float, longest_s: float = math.inf) -> float:
    """The wait after a number of failures in a row, seconds: doubles with each, up to `longest_s`.

    Args:
        failures: how many, 1 or more; 0: there is nothing to wait for.
        first_s: the wait after the first one, seconds.
        longest_s: no wait is longer, seconds.
    """
    return min(longest_s, first_s * 2.0 ** min(failures - 1, _MOST_DOUBLINGS)) if failures > 0 else 0.0


class Backoff:
    """The waits between attempts that fail: each is twice as long as the one before, up to a limit.

    Several attempts may be made side by side: failures that come before a wait is over count as the one that began it.

    Args:
        first_s: the first wait, seconds.
        longest_s: no wait is longer, seconds.

    Attributes:
        wait_s: length of the present wait, seconds; 0 once an attempt has succeeded.
    """

    def __init__(self, *, first_s: float, longest_s: float = math.inf) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._until_s = -math.inf
        self.wait_s = 0.0

    def failed(self, now_s: float, *, longest_s: float | None = None) -> float:
        """Count a failure; how long to wait from now on before the next attempt, seconds.

        Args:
            now_s: the time, ``time.monotonic()`` seconds.
            longest_s: limit for this wait, seconds; None: the back-off's own.
        """
        if now_s >= self._until_s - _TIMER_S:
            longest_s = self._longest_s if longest_s is None else longest_s
            self.wait_s = min(longest_s, max(self._first_s, 2 * self.wait_s))
            self._until_s = now_s + self.wait_s
        return min(self.wait_s, max(0.0, self._until_s - now_s))

    def succeeded(self) -> None:
        """An attempt has succeeded: the next failure waits for `first_s` again."""
        self.wait_s, self._until_s = 0.0, -math.inf


def time_left_s(due: float | None, now: float, *, shortest_s: float = 0.0, longest_s: float) -> float:
    """How long to sleep until `due`, seconds, within two limits.

    Args:
        due: when there is something to do; None: the time is unknown, and `longest_s` is the answer.
        now: the time by the same clock.
        shortest_s: at least so long, as a timer that fires early would spin.
        longest_s: at most so long, as a clock may be set and a wake-up be lost.
    """
    return longest_s if due is None else min(longest_s, max(shortest_s, due - now))


async def is_set_within(event: asyncio.Event, timeout_s: float | None) -> bool:
    """Wait until `event` is set; whether it is.

    Args:
        event: what is waited for.
        timeout_s: at most so long, seconds; None: without a limit.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()
    return event.is_set()


class SayOnce:
    """Reports a trouble that lasts once, not at every attempt. May be used from several threads.

    A trouble belongs to a topic, such as a destination or a file. It is reported when its topic has none yet or another
    one, and `over` ends it.

    Args:
        report: takes a line for the operator. An `OSError` of it is dropped: the operator's terminal may be gone.
        most_topics: most topics in trouble at the same time; further ones are not reported. None: any number.
    """

    def __init__(self, report: Callable[[str], object], *, most_topics: int | None = None) -> None:
        self._report = report
        self._most_topics = most_topics
        self._lock = threading.Lock()
        self._causes: dict[Hashable, Hashable] = {}

    def say(self, line: str, *, topic: Hashable = "", cause: Hashable = None) -> None:
        """Report `line`, unless this trouble of `topic` has been reported.

        Args:
            line: what an operator should know.
            topic: what is in trouble.
            cause: tells one trouble of the topic from another; None: the line does.
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

    def over(self, line: str | None = None, *, topic: Hashable = "") -> None:
        """The trouble of `topic` is over; `line` is reported if there was one."""
        with self._lock:
            was_in_trouble = self._causes.pop(topic, None) is not None
        if was_in_trouble and line is not None:
            self.report(line)

    def report(self, line: str) -> None:
        """Report `line` in any case: it says what happened, not what lasts."""
        with contextlib.suppress(OSError):
            self._report(line)
