"""The time limit of the invocation that runs in an environment."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable

from thawd.system.retry import TIMER_EARLY_S


class InvocationDeadline:
    """Calls `on_passed` when an invocation runs for too long.

    One timer serves all invocations of the environment, because setting and cancelling a timer for each invocation
    would take longer. If the timer fires before the deadline of the current invocation, it is set again.
    """

    __slots__ = ("_at_s", "_on_passed", "_timer")

    def __init__(self, on_passed: Callable[[], None]) -> None:
        self._on_passed = on_passed
        self._at_s = math.inf
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, limit_s: float) -> None:
        """An invocation begins, which may run for `limit_s` seconds."""
        self._at_s = time.monotonic() + limit_s
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(limit_s, self._check)

    def end(self) -> None:
        """The invocation has ended."""
        self._at_s = math.inf

    def close(self) -> None:
        """There will be no more invocations: cancel the timer."""
        self._at_s = math.inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        self._timer = None
        if self._at_s == math.inf:
            return  # no invocation runs; the next one sets the timer
        left_s = self._at_s - time.monotonic()
        if left_s > TIMER_EARLY_S:
            self._timer = asyncio.get_running_loop().call_later(left_s, self._check)
        else:
            self._on_passed()
