"""Bounds the deliveries that run to one destination at the same time, apart from those to other destinations.

Blocking work runs in threads of its own, not in the loop's shared ones: a destination that hangs holds no more of them
than its slots, and a slot is free again only when its thread has really ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from thawd.errors import DestinationUnavailable, NoThreadError
from thawd.resources import Destination
from thawd.system import threads

T = TypeVar("T")

SLOTS = 8
"""Most deliveries to one destination at the same time."""


class Slots:
    """The slots of all destinations."""

    def __init__(self) -> None:
        self._of: dict[Destination, asyncio.Semaphore] = {}

    def of(self, destination: Destination) -> asyncio.Semaphore:
        """The slots of one destination."""
        if destination not in self._of:
            self._of[destination] = asyncio.Semaphore(SLOTS)
        return self._of[destination]

    async def in_thread(self, destination: Destination, work: Callable[[], T]) -> T:
        """Run `work` in a thread, and return or raise what it does; it goes on when the caller is cancelled.

        Raises:
            DestinationUnavailable: the machine gives no thread.
        """
        slots = self.of(destination)
        await slots.acquire()
        loop = asyncio.get_running_loop()
        outcome: Future[T] = Future()
        outcome.set_running_or_notify_cancel()  # it cannot be cancelled any more: the thread runs to its end

        def run() -> None:
            try:
                outcome.set_result(work())
            except Exception as error:
                outcome.set_exception(error)
            with contextlib.suppress(RuntimeError):  # the loop may have been closed meanwhile
                loop.call_soon_threadsafe(slots.release)

        # A daemon thread, so that one that hangs does not delay the end of the server.
        try:
            threads.start(threading.Thread(target=run, name=f"thawd-{destination.kind}", daemon=True))
        except NoThreadError as error:
            slots.release()
            raise DestinationUnavailable(f"{destination} cannot be sent to now: {error}") from error
        return await asyncio.wrap_future(outcome)
