"""Between coroutines and a store whose client blocks: threads of the table's own, bounded, so that no loop waits.

At most `THREADS` operations of a table are under way at once; others wait their turn. What a caller has begun goes on
when the caller is cancelled.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Protocol, TypeVar

from thawd.errors import StoreError
from thawd.state.table_rules import check_key, item_text

T = TypeVar("T")

THREADS = 8
"""Most operations of a table under way at once, and so most connections it holds."""
# So long what is under way when the server stops is waited for.
_PATIENCE_S = 5.0


class BlockingTable(Protocol):
    """A store whose methods block. From any thread; keys and items have been checked."""

    def put(self, key: str, text: str) -> None: ...

    def get(self, key: str) -> bytes | None: ...

    def delete(self, key: str) -> bool: ...

    def scan(self, after: str, limit: int) -> list[tuple[str, bytes]]: ...

    def count(self) -> int: ...

    def break_off(self) -> None: ...

    def close(self) -> None: ...


class ThreadedTable:
    """A `thawd.state.tables.TableStore` before a `BlockingTable`."""

    def __init__(self, name: str, table: BlockingTable) -> None:
        self._name = name
        self._table = table
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix=f"table {name}")

    async def put(self, key: str, item: bytes) -> None:
        check_key(key, table=self._name)
        text = item_text(item, table=self._name, key=key)
        await self._run(partial(self._table.put, key, text))

    async def get(self, key: str) -> bytes | None:
        check_key(key, table=self._name)
        return await self._run(partial(self._table.get, key))

    async def delete(self, key: str) -> bool:
        check_key(key, table=self._name)
        return await self._run(partial(self._table.delete, key))

    async def scan(self, *, after: str = "", limit: int = 500) -> list[tuple[str, bytes]]:
        return await self._run(partial(self._table.scan, after, limit))

    async def count(self) -> int:
        return await self._run(self._table.count)

    def close(self) -> None:
        # A store that does not answer must not keep the server from its end.
        impatient = threading.Timer(_PATIENCE_S, self._table.break_off)
        impatient.daemon = True
        impatient.start()
        self._threads.shutdown(wait=True, cancel_futures=True)
        impatient.cancel()
        self._table.close()

    async def _run(self, work: Callable[[], T]) -> T:
        try:
            future = asyncio.get_running_loop().run_in_executor(self._threads, work)
        except RuntimeError:
            raise StoreError(f"table {self._name}: is closed; thawd is shutting down") from None
        return await future
