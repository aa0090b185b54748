"""Threads for stores with blocking clients: a limited number for each store, so that the event loop never waits.

An operation continues when its caller is cancelled. This module cannot interrupt a client that waits for an answer.
When the server stops, `StoreThreads.close` waits a short time for running operations, and abandons those that have not
ended by then. Python waits for all threads before a process exits. So if `operations_are_left` returns True,
``thawd up`` ends the process with ``os._exit``, which does not wait.
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
"""How long closing a store waits for running operations by default, seconds."""
_abandoned: set[Future[Any]] = set()


class StoreThreads:
    """The threads of one store.

    Args:
        most: how many operations may run at the same time; others wait.
        store: the store's name in messages, for example ``table labels``.

    Raises:
        NoThreadError: the operating system refused to start a thread (HTTP 503).
    """

    def __init__(self, most: int, *, store: str) -> None:
        self._store = store
        self._threads = threads.pool(most, name=store)
        self._under_way: set[Future[Any]] = set()

    async def run(self, work: Callable[[], T]) -> T:
        """Run `work` in a thread; return its result or raise its exception.

        Raises:
            StoreError: the store has been closed.
        """
        try:
            future = self._threads.submit(work)
        except RuntimeError:
            raise StoreError(f"{self._store} is closed, because thawd is shutting down") from None
        self._under_way.add(future)
        future.add_done_callback(self._under_way.discard)
        return await asyncio.wrap_future(future)

    def close(self, *, until: float) -> bool:
        """Start no more operations, and wait for the running ones. Blocks.

        Args:
            until: when to stop waiting, ``time.monotonic()`` seconds.

        Returns:
            Whether all operations have ended. `operations_are_left` reports the others; a further call of `close` waits
            for them again.
        """
        self._threads.shutdown(wait=False, cancel_futures=True)
        unfinished = wait(set(self._under_way), max(0.0, until - time.monotonic())).not_done
        _abandoned.update(unfinished)
        return not unfinished


def operations_are_left() -> bool:
    """Whether threads of closed stores still run an operation."""
    return not all(future.done() for future in _abandoned)


def patience_over() -> float:
    """When to stop waiting for running operations, by default: `PATIENCE_S` from now, ``time.monotonic()`` seconds."""
    return time.monotonic() + PATIENCE_S
