"""Combines several writes to the state file, if they are requested at almost the same time, into a single write."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

from thawd.errors import StoreError
from thawd.system.inline import InlineFuture, can_run_inline, run_inline, runs_inline

T = TypeVar("T")
R = TypeVar("R")
_Future: TypeAlias = InlineFuture[R] | asyncio.Future[R]


class Batches(Generic[T, R]):
    """Collects the items that are added while a write runs, and writes them together in the next write.

    Args:
        write: writes several items together; returns their results, in the same order.
        patience_s: how long to wait for further items before each write, seconds; 0: one iteration of the event loop.
    """

    def __init__(self, write: Callable[[list[T]], Awaitable[Sequence[R]]], *, patience_s: float = 0.0) -> None:
        self._write = write
        self._patience_s = patience_s
        self._waiting: list[tuple[T, _Future[R]]] = []
        self._is_busy = False  # whether a write runs or is due
        self._timer: asyncio.TimerHandle | None = None  # begins the next write; None: none waits for its patience
        self._task: asyncio.Task[None] | None = None

    def add(self, item: T) -> _Future[R]:
        """Write `item` together with others. To be awaited; gives the item's result after it is written.

        Raises:
            StoreError: the item was not written. Awaiting raises this.
        """
        loop = asyncio.get_running_loop()
        # A task continues sooner after one of asyncio's own futures, which are written in C.
        future: _Future[R] = InlineFuture(loop) if runs_inline() else loop.create_future()
        self._waiting.append((item, future))
        if not self._is_busy:
            self._is_busy = True
            self._begin_soon()
        return future

    def _begin_soon(self) -> None:
        loop = asyncio.get_running_loop()
        if self._patience_s:
            self._timer = loop.call_later(self._patience_s, self._begin)
        else:
            loop.call_soon(self._begin)

    def begin_now(self) -> None:
        """Begin the write that waits for further items, if there is one, because it can share a commit now."""
        if self._timer is None:
            return
        self._timer.cancel()
        self._timer = None
        if can_run_inline():
            self._begin()
        else:
            asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        self._timer = None
        run_inline(self._run(), self._spawn)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._task = asyncio.get_running_loop().create_task(work)  # the event loop itself keeps only a weak reference

    async def _run(self) -> None:
        batch, self._waiting = self._waiting, []
        try:
            results = await self._write([item for item, _ in batch])
        except BaseException as error:
            await self._one_by_one(batch, error)
        else:
            for (_, future), result in zip(batch, results, strict=True):
                if not future.done():
                    future.set_result(result)
        finally:
            self._is_busy = bool(self._waiting)
            if self._is_busy:
                self._begin_soon()

    async def _one_by_one(self, batch: list[tuple[T, _Future[R]]], error: BaseException) -> None:
        """Write the items of a batch that failed one by one, because perhaps only one of them is at fault.

        After a StoreError or a cancellation, no item is at fault, so all items fail without another write.
        """
        write_alone = len(batch) > 1 and not isinstance(error, (StoreError, asyncio.CancelledError))
        for item, future in batch:
            failure = error
            if write_alone:
                try:
                    [result] = await self._write([item])
                except BaseException as item_error:
                    failure = item_error
                else:
                    if not future.done():
                        future.set_result(result)
                    continue
            if not future.done():
                future.set_exception(failure)
        if isinstance(error, asyncio.CancelledError):
            raise error
