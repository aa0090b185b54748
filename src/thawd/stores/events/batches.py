"""Combines several writes to the state file, if they are requested at almost the same time, into a single write."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from thawd.errors import StoreError

T = TypeVar("T")
R = TypeVar("R")


class Batches(Generic[T, R]):
    """Collects the items that are added while a write runs, and writes them together in the next write.

    Args:
        write: writes several items together; returns their results, in the same order.
        patience_s: how long to wait for further items before each write, seconds; 0: one iteration of the event loop.
    """

    def __init__(self, write: Callable[[list[T]], Awaitable[Sequence[R]]], *, patience_s: float = 0.0) -> None:
        self._write = write
        self._patience_s = patience_s
        self._waiting: list[tuple[T, asyncio.Future[R]]] = []
        self._task: asyncio.Task[None] | None = None

    async def add(self, item: T) -> R:
        """Write `item` together with others; returns its result after it is written.

        Raises:
            StoreError: the item was not written.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()
        self._waiting.append((item, future))
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._run())
        return await future

    async def _run(self) -> None:
        while self._waiting:
            await asyncio.sleep(self._patience_s)
            batch, self._waiting = self._waiting, []
            try:
                results = await self._write([item for item, _ in batch])
            except BaseException as error:
                await self._one_by_one(batch, error)
            else:
                for (_, future), result in zip(batch, results, strict=True):
                    if not future.done():
                        future.set_result(result)

    async def _one_by_one(self, batch: list[tuple[T, asyncio.Future[R]]], error: BaseException) -> None:
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
