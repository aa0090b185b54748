"""A function's lane in the asynchronous invoker: its leased and running events, and when to look for more.

This module only keeps state and counts: `thawd.queue.invoker` leases and runs the events.
"""

from __future__ import annotations

import time
from collections import deque

from thawd.invocation import Invocation, Result
from thawd.queue.event_invocation import invocation_of
from thawd.stores.events.event_rows import Event
from thawd.system.flag import Flag
from thawd.system.retry import Backoff, SayOnce

READ_AHEAD = 64
"""Most events of one function that are leased before they can run."""
# Once the leased and not started events of a function take this much memory, no more are read ahead. Each event counts
# a kilobyte plus its payload.
_AHEAD_BYTES = 4 * 1024 * 1024
_EVENT_BYTES = 1024
# Most memory for the results of one function that could not be stored yet.
_RESULTS_BYTES = 64 * 1024 * 1024
SHORTEST_WAIT_S = 0.01
"""Shortest wait for an event's due time, seconds. Timers may fire slightly early, and would then fire repeatedly."""


class Lane:
    """The leased and running events of one function.

    Args:
        function: the function's name.
        backoff: computes how long the lane is paused.
        reports: takes lines about the lane's failures to read or write the state file.

    Attributes:
        function: the function's name.
        backoff: computes how long the lane is paused. While its wait is not 0, only one event at a time is run, to
            find out whether the function or the store takes work again.
        reports: takes lines about the lane's failures to read or write the state file.
        ahead: events that are leased from the state file and not started.
        running: events that wait for an environment or have one.
        open: events that are started and not acknowledged yet: the state file does not say yet what became of them.
        awake: set to make the lane check whether there is something to do.
        more: whether the state file may contain events of the function that are due and not leased.
        due_s: when the next waiting event is due, ``time.monotonic()`` seconds; None: no event waits for a later time.
        gone: whether the function is currently not declared.
        paused: whether no events are started for a while, because the function or the store took no work.
    """

    def __init__(self, function: str, backoff: Backoff, reports: SayOnce) -> None:
        self.function = function
        self.backoff = backoff
        self.reports = reports
        self.ahead: deque[Event] = deque()
        self._ahead_bytes = 0
        self.running = 0
        self.open = 0
        self.awake = Flag()
        self.more = True
        self.due_s: float | None = None
        self.gone = False
        self.paused = False
        self._started: dict[int, Invocation] = {}
        self._results: dict[int, Result] = {}
        self._results_bytes = 0

    def invocation_of(self, event: Event, *, wait_s: float) -> Invocation:
        """Return the invocation that runs a started event. It may wait `wait_s` seconds for an environment."""
        self._started[event.id] = invocation = invocation_of(event, wait_s=wait_s)
        return invocation

    def close(self, event: Event) -> None:
        """The event is acknowledged, or is back in `ahead`."""
        self.open -= 1
        self._started.pop(event.id, None)

    def in_environments(self) -> int:
        """How many events have an environment, or have had one and are not acknowledged yet."""
        return sum(invocation.leased_s > 0 for invocation in self._started.values())

    def keep_result(self, event: Event, result: Result) -> None:
        """Keep a result that could not be stored, so that the event need not run again.

        If the lane's results would then take more memory than `_RESULTS_BYTES`, the result is not kept.
        """
        if self._results_bytes + len(result.payload) <= _RESULTS_BYTES:
            self._results[event.id] = result
            self._results_bytes += len(result.payload)

    def take_result(self, event: Event) -> Result | None:
        """Remove and return the result that was kept for an event; None: no result was kept."""
        result = self._results.pop(event.id, None)
        if result is not None:
            self._results_bytes -= len(result.payload)
        return result

    def add(self, event: Event) -> None:
        """Add a leased event at the end of `ahead`."""
        self.ahead.append(event)
        self._ahead_bytes += _size(event)

    def add_first(self, event: Event) -> None:
        """Add a leased event at the front of `ahead`."""
        self.ahead.appendleft(event)
        self._ahead_bytes += _size(event)

    def take(self) -> Event:
        """Remove and return the first event of `ahead`."""
        event = self.ahead.popleft()
        self._ahead_bytes -= _size(event)
        return event

    def has_room_for(self, event: Event) -> bool:
        """Return whether a newly stored event comes directly after those in `ahead` and fits the memory limit."""
        return not (self.gone or self.more) and self._ahead_bytes + _size(event) <= _AHEAD_BYTES

    def look(self) -> None:
        """Wake the lane to check for new events to read ahead."""
        self.more = True
        self.awake.set()

    def until_due_s(self) -> float | None:
        """Return how many seconds remain until the next event is due; None: unknown, or no event waits for a time."""
        return None if self.due_s is None or self.more else max(SHORTEST_WAIT_S, self.due_s - time.monotonic())

    def wants_more(self) -> bool:
        """Return whether to read ahead: at most half of `READ_AHEAD` events are leased, and they take little memory."""
        return len(self.ahead) <= READ_AHEAD // 2 and self._ahead_bytes < _AHEAD_BYTES


def _size(event: Event) -> int:
    return _EVENT_BYTES + len(event.payload)
