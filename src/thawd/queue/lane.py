"""A function's lane in the asynchronous invoker: its events that are leased and under way, and what it waits for."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

from thawd.invocation import Result
from thawd.stores.events.records import Event

READ_AHEAD = 64
"""Events of one function that are leased ahead of their turn at most."""
# What a function's events take of memory at most while they wait for their turn; each is a kilobyte, and its payload.
_AHEAD_BYTES = 4 * 1024 * 1024
_EVENT_BYTES = 1024
# Likewise of results that cannot be stored at the moment.
_RESULTS_BYTES = 64 * 1024 * 1024
SHORTEST_WAIT_S = 0.01
"""So long is waited at least for what is due by the clock at any moment."""


class Lane:
    """The events of one function under way.

    Attributes:
        ahead: leased, not begun.
        running: events that wait for or hold an environment.
        open: events begun and not acknowledged yet.
        awake: set when there may be something to do.
        more: whether there may be events that are due and not read ahead.
        due_s: when one comes due by itself, by the monotonic clock; None: none will.
        gone: the function is not declared at the moment.
        paused: the function or the store takes no work for a while.
        backoff_s: how long it was paused last; 0 once something has run since. While it is not, one event at a time
            tries whether it does again.
        told: the last trouble that was told.
    """

    def __init__(self, function: str) -> None:
        self.function = function
        self.ahead: deque[Event] = deque()
        self._ahead_bytes = 0
        self.running = 0
        self.open = 0
        self.awake = asyncio.Event()
        self.more = True
        self.due_s: float | None = None
        self.gone = False
        self.paused = False
        self.backoff_s = 0.0
        self.told = ""
        self._results: dict[int, Result] = {}
        self._results_bytes = 0

    def keep_result(self, event: Event, result: Result) -> None:
        """What an event came to could not be stored: it need not run again, as far as there is memory for that."""
        if self._results_bytes + len(result.payload) <= _RESULTS_BYTES:
            self._results[event.id] = result
            self._results_bytes += len(result.payload)

    def take_result(self, event: Event) -> Result | None:
        """What it came to, where that is known."""
        result = self._results.pop(event.id, None)
        if result is not None:
            self._results_bytes -= len(result.payload)
        return result

    def add(self, event: Event) -> None:
        """An event that is leased is to run, after those before it."""
        self.ahead.append(event)
        self._ahead_bytes += _size(event)

    def add_first(self, event: Event) -> None:
        """It is to run before the others."""
        self.ahead.appendleft(event)
        self._ahead_bytes += _size(event)

    def take(self) -> Event:
        """The next one."""
        event = self.ahead.popleft()
        self._ahead_bytes -= _size(event)
        return event

    def has_room_for(self, event: Event) -> bool:
        """Whether an event that has just been stored is the next one, and memory is left for it."""
        return not (self.gone or self.more) and self._ahead_bytes + _size(event) <= _AHEAD_BYTES

    def look(self) -> None:
        """There may be something new to read ahead."""
        self.more = True
        self.awake.set()

    def until_due_s(self) -> float | None:
        """How long until something comes due by itself, seconds; None: nothing will, or more is there already."""
        return None if self.due_s is None or self.more else max(SHORTEST_WAIT_S, self.due_s - time.monotonic())

    def wants_more(self) -> bool:
        """Whether events are to be read ahead: few are there, and little memory is in their payloads."""
        return len(self.ahead) <= READ_AHEAD // 2 and self._ahead_bytes < _AHEAD_BYTES

    def tell_once(self, tell: Callable[[str], None], line: str) -> None:
        """Tell a trouble that lasts only once."""
        kind = line.rpartition(":")[2]
        if kind != self.told:
            self.told = kind
            tell(line)


def _size(event: Event) -> int:
    return _EVENT_BYTES + len(event.payload)
