"""The line of functions that wait to be published: a few are published at a time, and requested ones go first.

The server answers requests while functions wait in the line. A request for a waiting function takes the function out of
the line and starts its publication, so the request waits only for this publication. `thawd.control.declared` owns the
line and knows how one function is published.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable

from thawd.system.flag import Flag

# Publications for requests run in addition to those of the line. This is the highest number of publications for
# requests at a time: more of them would slow each other down.
REQUESTED_AT_A_TIME = 8


class PublicationLine:
    """Publishes functions in order. A function that a request asks for does not wait for its turn.

    Args:
        publish: publishes one function. It must not raise.
        at_a_time: how many functions of the line are published at the same time; None: one for each core.

    Attributes:
        is_stopped: whether `stop` was called.
    """

    def __init__(self, publish: Callable[[str], Awaitable[None]], *, at_a_time: int | None = None) -> None:
        self._publish = publish
        self._at_a_time = at_a_time or os.cpu_count() or 1
        self._order: deque[str] = deque()
        self._waiting: set[str] = set()
        self._working = 0
        self._requested = asyncio.Semaphore(REQUESTED_AT_A_TIME)
        self._tasks: set[asyncio.Task[None]] = set()
        self._drained = Flag()
        self._drained.set()
        self.is_stopped = False

    @property
    def is_empty(self) -> bool:
        """Whether no function waits, and none is being published."""
        return not self._waiting and not self._tasks

    def put(self, names: Iterable[str]) -> None:
        """Let these functions wait, in this order, instead of those that wait now. No effect after `stop`."""
        if self.is_stopped:
            return
        self._order = deque(names)
        self._waiting = set(self._order)
        while self._working < min(self._at_a_time, len(self._waiting)):
            self._working += 1
            self._spawn(self._work())

    def request(self, name: str) -> None:
        """Publish a function now, because a request waits for it. No effect if the function is not in the line."""
        if name in self._waiting:
            self._waiting.discard(name)
            self._spawn(self._publish_requested(name))

    async def drained(self) -> None:
        """Wait until no function waits and none is being published."""
        while not self.is_empty:
            await self._drained.wait()

    def stop(self) -> None:
        """From now on, publish no more functions, and cancel the running calls of `publish`."""
        self.is_stopped = True
        self._waiting.clear()
        for task in self._tasks:
            task.cancel()

    async def ended(self, patience_s: float) -> None:
        """After `stop`: wait until all publications have ended, at most `patience_s` seconds."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=patience_s)

    async def _work(self) -> None:
        try:
            while self._waiting:
                name = self._order.popleft()
                if name in self._waiting:  # otherwise a request has taken the function out of the line
                    self._waiting.discard(name)
                    await self._publish(name)
        finally:
            self._working -= 1

    async def _publish_requested(self, name: str) -> None:
        async with self._requested:
            await self._publish(name)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        self._drained.clear()
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not self._tasks:
            self._drained.set()
