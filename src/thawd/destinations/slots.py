"""Limits how many deliveries to one destination run at the same time, independently of other destinations.

Blocking work runs in separate threads, not in the event loop's shared thread pool. So a destination that hangs holds at
most as many threads as it has slots. A slot is released only when its thread has really ended.
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
        self._by_destination: dict[Destination, asyncio.Semaphore] = {}

    def of(self, destination: Destination) -> asyncio.Semaphore:
        """Return the semaphore that counts the free slots of one destination."""
        if destination not in self._by_destination:
            self._by_destination[destination] = asyncio.Semaphore(SLOTS)
        return self._by_destination[destination]

    async def in_thread(self, destination: Destination, work: Callable[[], T]) -> T:
        """Wait for a slot, run `work` in a thread, and return its result or raise its error.

        If the caller is cancelled while `work` runs, `work` continues.

        Raises:
            DestinationUnavailable: no thread can be started.
        """
        slots = self.of(destination)
        await slots.acquire()
        loop = asyncio.get_running_loop()
        outcome: Future[T] = Future()
        # A running future cannot be cancelled, so the thread can always set its result.
        outcome.set_running_or_notify_cancel()

        def run() -> None:
            try:
                outcome.set_result(work())
            except Exception as error:
                outcome.set_exception(error)
            with contextlib.suppress(RuntimeError):  # the loop may have been closed in the meantime
                loop.call_soon_threadsafe(slots.release)

        # The thread is a daemon thread: Python does not wait for it at the end, so it cannot keep the server running.
        try:
            threads.start(threading.Thread(target=run, name=f"thawd-{destination.kind}", daemon=True))
        except NoThreadError as error:
            slots.release()
            raise DestinationUnavailable(f"nothing can be sent to {destination} now: {error}") from error
        return await asyncio.wrap_future(outcome)
