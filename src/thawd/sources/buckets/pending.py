"""Keys that wait to be checked, each with a due time. It is a bounded set: it contains each key at most once.

It may only be used in the event loop. Times are parameters, in ``time.monotonic()`` seconds.
"""

from __future__ import annotations

import asyncio
import heapq
from typing import NamedTuple

from thawd.sources.buckets.files import UnfinishedFile
from thawd.system.retry import is_set_within


class DueKey(NamedTuple):
    """A key that is due, and the record of its last check."""

    key: bytes
    unfinished: UnfinishedFile | None


class PendingKeys:
    """Keys ordered by the time of their next check.

    Args:
        limit: most keys at the same time.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._due: dict[bytes, tuple[float, UnfinishedFile | None]] = {}
        # Can contain times that a later `push` has replaced by earlier ones; `take` ignores these.
        self._heap: list[tuple[float, bytes]] = []
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._due)

    def __contains__(self, key: bytes) -> bool:
        return key in self._due

    def push(self, key: bytes, due: float, *, unfinished: UnfinishedFile | None = None) -> bool:
        """Add `key`, to be checked at `due`. If it is already contained, the earlier of both times is used.

        Returns:
            Whether the key is contained now. False: the limit is reached.
        """
        known = self._due.get(key)
        if known is None and len(self._due) >= self._limit:
            return False
        if known is not None:
            unfinished = _longer(known[1], unfinished)
            if known[0] <= due:
                self._due[key] = (known[0], unfinished)
                return True
        self._due[key] = (due, unfinished)
        heapq.heappush(self._heap, (due, key))
        if self._heap[0][0] == due:
            self._changed.set()
        return True

    def take(self, now: float, limit: int) -> list[DueKey]:
        """Remove and return up to `limit` keys that are due, the earliest first."""
        taken: list[DueKey] = []
        while self._heap and len(taken) < limit and self._heap[0][0] <= now:
            due, key = heapq.heappop(self._heap)
            held = self._due.get(key)
            if held is not None and held[0] == due:
                del self._due[key]
                taken.append(DueKey(key, held[1]))
        return taken

    def next_due(self) -> float | None:
        """Return when the earliest key is due; None: no key waits."""
        while self._heap:
            due, key = self._heap[0]
            held = self._due.get(key)
            if held is not None and held[0] == due:
                return due
            heapq.heappop(self._heap)
        return None

    async def wait(self, timeout_s: float | None) -> None:
        """Wait until a key is added that is due before all others, at most `timeout_s` seconds."""
        self._changed.clear()
        await is_set_within(self._changed, timeout_s)


def _longer(one: UnfinishedFile | None, other: UnfinishedFile | None) -> UnfinishedFile | None:
    """Of two records of the same file, return the one that has seen the file unchanged for longer."""
    if one is None or other is None:
        return one or other
    return other if one.seen is None or (other.seen is not None and other.since < one.since) else one
