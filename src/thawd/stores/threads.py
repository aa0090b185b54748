"""Threads for stores whose clients block: a bounded number for each store, so that the event loop never waits.

An operation goes on when its caller is cancelled. A client that waits for an answer cannot be interrupted: at the end
of the server it is waited for a little, and then left behind. Python would wait for its thread before it exits, so the
code that ends the process asks `are_left`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from thawd.errors import StoreError
from thawd.system import threads

T = TypeVar("T")

PATIENCE_S = 2.0
"""How long running operations are waited for when a store is closed, unless the caller says otherwise, seconds."""
_left: set[Future[Any]] = set()


class StoreThreads:
    """The threads of one store.

    Args:
        most: operations that run at the same time; others wait their turn.
        store: the store's name in messages, for example ``table labels``.

    Raises:
        NoThreadError: the machine gives too few threads (HTTP 503).
    """

    def __init__(self, most: int, *, store: str) -> None:
        self._store = store
        self._threads = threads.pool(most, name=store)
        self._under_way: set[Future[Any]] = set()

    async def run(self, work: Callable[[], T]) -> T:
        """Run `work` in a thread, and return or raise what it does.

        Raises:
            StoreError: the store has been closed.
        """
        try:
            future = self._threads.submit(work)
        except RuntimeError:
            raise StoreError(f"{self._store}: is closed; thawd is shutting down") from None
        self._under_way.add(future)
        future.add_done_callback(self._under_way.discard)
        return await asyncio.wrap_future(future)

    def close(self, *, until: float) -> bool:
        """Begin no more operations, and wait for those that run. Blocks.

        Args:
            until: when to stop waiting, ``time.monotonic()`` seconds.

        Returns:
            Whether all have ended. The others count as left behind; a further call waits for them again.
        """
        self._threads.shutdown(wait=False, cancel_futures=True)
        left = set(self._under_way)
        left = wait(left, max(0.0, until - time.monotonic())).not_done
        _left.update(left)
        return not left


def are_left() -> bool:
    """Whether threads of closed stores still run an operation."""
    return not all(future.done() for future in _left)


def patience_over() -> float:
    """When to stop waiting for operations that run now, ``time.monotonic()`` seconds."""
    return time.monotonic() + PATIENCE_S
