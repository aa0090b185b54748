"""What of the queue is under way, in memory."""

from __future__ import annotations

import contextlib
from collections import Counter, deque
from collections.abc import Iterator

from thawd.stores.events.records import Event


class Leases:
    """Events that are leased, and how far the ready ones have been.

    Attributes:
        ready_after: ids up to which the ready events of a function have been leased.
        returned: given back, to be leased first.
        exhausted: of each function, whether the last lease found no more that was due than it took.
    """

    def __init__(self) -> None:
        self.ready_after: dict[str, int] = {}
        self.returned: dict[str, deque[Event]] = {}
        self.exhausted: dict[str, bool] = {}
        self._function: dict[int, str] = {}
        self._held: dict[str, set[int]] = {}
        self._reading: Counter[str] = Counter()

    def add(self, event_id: int, function: str) -> None:
        """An event is leased."""
        self._function[event_id] = function
        self._held.setdefault(function, set()).add(event_id)

    def take(self, event_id: int, function: str) -> bool:
        """Lease an event that is not read from its row; False if a reading may find it, or one has."""
        if self._reading[function] or event_id <= self.ready_after.get(function, 0) or event_id in self._function:
            return False
        self.add(event_id, function)
        return True

    @contextlib.contextmanager
    def reading(self, function: str) -> Iterator[None]:
        """Rows of `function` are being read, to be leased."""
        self._reading[function] += 1
        try:
            yield
        finally:
            self._reading[function] -= 1

    def remove(self, event_id: int) -> None:
        """It is no more."""
        function = self._function.pop(event_id, None)
        if function is not None:
            self._held[function].discard(event_id)

    def function_of(self, event_id: int) -> str | None:
        """The function of an event that is leased; None where it is not."""
        return self._function.get(event_id)

    def held(self, function: str) -> set[int]:
        """Ids of events of `function` that are leased, or returned: nobody is to read them from their rows."""
        return self._held.get(function, set())

    def count(self, function: str) -> int:
        """How many events of `function` are leased."""
        return len(self.held(function)) - len(self.returned.get(function, ()))

    def give_back(self, event: Event) -> None:
        """See `EventQueue.give_back`."""
        if event.id in self._function:
            self.returned.setdefault(event.function, deque()).append(event)

    def forget(self, function: str) -> None:
        """What was given back is leased no more, and is read from its rows if it is again; nothing else is held."""
        for event in self.returned.pop(function, ()):
            self.remove(event.id)
        self.ready_after.pop(function, None)
        self._held.pop(function, None)

    def take_returned(self, function: str, limit: int) -> list[Event]:
        """Lease what was given back."""
        waiting = self.returned.get(function, deque())
        return [waiting.popleft() for _ in range(min(limit, len(waiting)))]
