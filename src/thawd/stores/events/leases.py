"""Leases: which events have been taken from the queue and have not ended. `thawd.stores.events.event_queue` uses them.

Leases exist only in memory.
"""

from __future__ import annotations

import contextlib
from collections import Counter, deque
from collections.abc import Iterator

from thawd.stores.events.event_rows import Event


class Leases:
    """The leased events of all functions.

    Attributes:
        ready_after: by function, the highest leased id among the events that have not been queued for a retry
            (``available_at`` 0). Such events are leased in the order of their ids.
        returned: by function, events that were returned without running; they are leased next.
        exhausted: by function, whether the last lease took all events that were due.
    """

    def __init__(self) -> None:
        self.ready_after: dict[str, int] = {}
        self.returned: dict[str, deque[Event]] = {}
        self.exhausted: dict[str, bool] = {}
        self._function: dict[int, str] = {}
        self._held: dict[str, set[int]] = {}
        self._reading: Counter[str] = Counter()

    def add(self, event_id: int, function: str) -> None:
        """Lease an event."""
        self._function[event_id] = function
        self._held.setdefault(function, set()).add(event_id)

    def take(self, event_id: int, function: str) -> bool:
        """Lease an event without reading its row.

        Returns:
            False if a call of `EventQueue.lease` is perhaps reading the event at this moment, or has leased it.
        """
        if self._reading.get(function) or event_id <= self.ready_after.get(function, 0) or event_id in self._function:
            return False
        self.add(event_id, function)
        return True

    @contextlib.contextmanager
    def reading(self, function: str) -> Iterator[None]:
        """A context within which rows of `function` are being read to lease them."""
        self._reading[function] += 1
        try:
            yield
        finally:
            self._reading[function] -= 1

    def remove(self, event_id: int) -> None:
        """End the lease of an event."""
        function = self._function.pop(event_id, None)
        if function is not None:
            self._held[function].discard(event_id)

    def function_of(self, event_id: int) -> str | None:
        """The function of a leased event; None: the event is not leased."""
        return self._function.get(event_id)

    def held(self, function: str) -> set[int]:
        """Ids of events of `function` that are leased or returned, so their rows must not be leased again."""
        return self._held.get(function, set())

    def count(self, function: str) -> int:
        """How many events of `function` are leased, without those that were returned."""
        return len(self.held(function)) - len(self.returned.get(function, ()))

    def give_back(self, event: Event) -> None:
        """Undo the lease of an event, if there is one; `take_returned` leases the event again, before others."""
        if event.id in self._function:
            self.returned.setdefault(event.function, deque()).append(event)

    def forget(self, function: str) -> None:
        """Forget a function that has no leased events. The next lease of its returned events reads their rows again."""
        for event in self.returned.pop(function, ()):
            self.remove(event.id)
        self.ready_after.pop(function, None)
        self._held.pop(function, None)

    def take_returned(self, function: str, limit: int) -> list[Event]:
        """Lease up to `limit` returned events."""
        waiting = self.returned.get(function, deque())
        return [waiting.popleft() for _ in range(min(limit, len(waiting)))]
