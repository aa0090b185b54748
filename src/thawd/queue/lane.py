"""A function's lane in the asynchronous invoker: its events that are leased or run, and when it looks for more.

State and arithmetic only: `thawd.queue.invoker` leases and runs.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque

from thawd.invocation import Result
from thawd.stores.events.event_rows import Event
from thawd.system.retry import Backoff, SayOnce

READ_AHEAD = 64
"""Events of one function that are leased ahead of their turn at most."""
# Memory that a function's events take at most while they wait for their turn: a kilobyte each, and its payload.
_AHEAD_BYTES = 4 * 1024 * 1024
_EVENT_BYTES = 1024
# Memory that results take at most while they cannot be stored.
_RESULTS_BYTES = 64 * 1024 * 1024
SHORTEST_WAIT_S = 0.01
"""Shortest wait for an event that comes due by the clock, seconds: timers may fire a little early."""


class Lane:
    """The events of one function that are leased or run.

    Args:
        function: its name.
        backoff: how long the lane is paused.
        reports: takes lines on the lane's trouble with the store.

    Attributes:
        function: its name.
        backoff: how long the lane was paused last. While its wait is not 0, one event at a time tries whether the
            function or the store takes work again.
        reports: takes lines on the lane's trouble with the store.
        ahead: events leased, not begun.
        running: events that wait for or hold an environment.
        open: events begun and not acknowledged yet.
        awake: set when there may be something to do.
        more: whether there may be events that are due and not read ahead.
        due_s: when an event comes due by the clock, ``time.monotonic()`` seconds; None: no event waits for a time.
        gone: whether the function is not declared at the moment.
        paused: whether the function or the store takes no work for a while.
    """

    def __init__(self, function: str, backoff: Backoff, reports: SayOnce) -> None:
        self.function = function
        self.backoff = backoff
        self.reports = reports
        self.ahead: deque[Event] = deque()
        self._ahead_bytes = 0
        self.running = 0
        self.open = 0
        self.awake = asyncio.Event()
        self.more = True
        self.due_s: float | None = None
        self.gone = False
        self.paused = False
        self._results: dict[int, Result] = {}
        self._results_bytes = 0

    def keep_result(self, event: Event, result: Result) -> None:
        """Keep a result that could not be stored, so that the event does not run again; as far as memory allows."""
        if self._results_bytes + len(result.payload) <= _RESULTS_BYTES:
            self._results[event.id] = result
            self._results_bytes += len(result.payload)

    def take_result(self, event: Event) -> Result | None:
        """The result kept for an event, which is kept no longer; None: there is none."""
        result = self._results.pop(event.id, None)
        if result is not None:
            self._results_bytes -= len(result.payload)
        return result

    def add(self, event: Event) -> None:
        """Put a leased event behind the others."""
        self.ahead.append(event)
        self._ahead_bytes += _size(event)

    def add_first(self, event: Event) -> None:
        """Put a leased event before the others."""
        self.ahead.appendleft(event)
        self._ahead_bytes += _size(event)

    def take(self) -> Event:
        """Take the next event."""
        event = self.ahead.popleft()
        self._ahead_bytes -= _size(event)
        return event

    def has_room_for(self, event: Event) -> bool:
        """Whether an event that was just stored comes right behind those in `ahead`, and memory is left for it."""
        return not (self.gone or self.more) and self._ahead_bytes + _size(event) <= _AHEAD_BYTES

    def look(self) -> None:
        """Look whether there are new events to read ahead."""
        self.more = True
        self.awake.set()

    def until_due_s(self) -> float | None:
        """How long until an event comes due by the clock, seconds; None: none will, or there is more to read now."""
        return None if self.due_s is None or self.more else max(SHORTEST_WAIT_S, self.due_s - time.monotonic())

    def wants_more(self) -> bool:
        """Whether to read ahead: few events are there, and their payloads take little memory."""
        return len(self.ahead) <= READ_AHEAD // 2 and self._ahead_bytes < _AHEAD_BYTES


def _size(event: Event) -> int:
    return _EVENT_BYTES + len(event.payload)
