"""Runs the operations of a table with a blocking client on threads, at most `THREADS` at the same time."""

from __future__ import annotations

import time
from functools import partial
from typing import Protocol

from thawd.stores.tables.key_and_item_checks import check_key, item_text
from thawd.stores.threads import StoreThreads, patience_over

THREADS = 8
"""Most operations of a table at the same time, and so also the most connections that it holds."""
# How long to wait for interrupted operations to end, seconds.
_BREAKING_OFF_S = 0.5


class BlockingTable(Protocol):
    """A store with blocking methods. Any thread may call them, with keys and items that have been checked."""

    def put(self, key: str, text: str) -> None: ...

    def get(self, key: str) -> bytes | None: ...

    def delete(self, key: str) -> bool: ...

    def scan(self, after: str, limit: int) -> list[tuple[str, bytes]]: ...

    def count(self) -> int: ...

    def break_off(self) -> None:
        """Make running and later operations fail soon, if the client allows that."""

    def close(self) -> None: ...


class ThreadedTable:
    """A `thawd.stores.tables.access.TableStore` that runs a `BlockingTable` on threads."""

    def __init__(self, name: str, table: BlockingTable) -> None:
        self._name = name
        self._table = table
        self._threads = StoreThreads(THREADS, store=f"table {name}")

    async def put(self, key: str, item: bytes) -> None:
        check_key(key, table=self._name)
        text = item_text(item, table=self._name, key=key)
        await self._threads.run(partial(self._table.put, key, text))

    async def get(self, key: str) -> bytes | None:
        check_key(key, table=self._name)
        return await self._threads.run(partial(self._table.get, key))

    async def delete(self, key: str) -> bool:
        check_key(key, table=self._name)
        return await self._threads.run(partial(self._table.delete, key))

    async def scan(self, *, after: str = "", limit: int = 500) -> list[tuple[str, bytes]]:
        return await self._threads.run(partial(self._table.scan, after, limit))

    async def count(self) -> int:
        return await self._threads.run(self._table.count)

    def close(self, *, until: float | None = None) -> None:
        ended = self._threads.close(until=patience_over() if until is None else until)
        if not ended:
            self._table.break_off()
            ended = self._threads.close(until=time.monotonic() + _BREAKING_OFF_S)
        if ended:  # otherwise a thread perhaps still uses a connection
            self._table.close()
