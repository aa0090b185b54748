"""Between coroutines and a store whose client blocks: threads of the store's own, bounded, so that no loop waits.

What a caller has begun goes on when the caller is cancelled. A client that waits for an answer cannot be interrupted:
at the end of the server it is waited for a little, and then left behind. Python itself would wait for its thread, so
that whoever ends the process asks `are_left`.
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
"""So long what is under way when a store is closed is waited for, unless its closer says otherwise."""
_left: set[Future[Any]] = set()


class StoreThreads:
    """The threads of one store.

    Args:
        most: operations under way at once; others wait their turn.
        store: what it is, for messages, for example ``table labels``.

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
        """Begin nothing more, and wait for what is under way until then, ``time.monotonic()`` seconds. Blocks.

        Returns:
            Whether nothing is under way any more. What is counts as left behind; a further call waits for it again.
        """
        self._threads.shutdown(wait=False, cancel_futures=True)
        left = set(self._under_way)
        left = wait(left, max(0.0, until - time.monotonic())).not_done
        _left.update(left)
        return not left


def are_left() -> bool:
    """Whether threads are still at work in stores that have been closed."""
    return not all(future.done() for future in _left)


def patience_over() -> float:
    """When what is under way at this moment has been waited for long enough, ``time.monotonic()`` seconds."""
    return time.monotonic() + PATIENCE_S
