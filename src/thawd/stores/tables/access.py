"""Tables store items (JSON objects) by key, in SQLite files, PostgreSQL or DynamoDB. A table's URL selects the store.

`TableStore` is the interface of every store. A store returns an item as exactly the bytes that were put.
"""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Iterator, Mapping
from typing import Protocol

from thawd.errors import ResourceNotFoundException, StoreError
from thawd.resources import Table
from thawd.stores.tables import sqlite
from thawd.stores.tables.dynamodb import AwsAccess, DynamodbTable
from thawd.stores.tables.key_and_item_checks import MAX_ITEM_BYTES, MAX_KEY_BYTES
from thawd.stores.tables.postgresql import PostgresqlTable
from thawd.stores.tables.sqlite import SqliteTable
from thawd.stores.tables.threads import BlockingTable, ThreadedTable
from thawd.stores.threads import patience_over

__all__ = [
    "MAX_ITEM_BYTES",
    "MAX_KEY_BYTES",
    "AwsAccess",
    "TableStore",
    "Tables",
    "read_item",
    "read_table",
    "require_libraries",
]

_PAGE_ITEMS = 500
_LIBRARIES = {
    "postgresql": ("psycopg", "postgresql"),
    "postgres": ("psycopg", "postgresql"),
    "dynamodb": ("boto3", "aws"),
}
"""By URL scheme: the module that the store needs, and the extra of thawd that installs it."""


class TableStore(Protocol):
    """A table. All methods raise `StoreError` when the store fails; the next call tries again.

    A `put` or `delete` that raised an exception may still have been carried out, if the connection was lost before the
    store answered. It can be repeated: doing it twice has the same effect as doing it once.
    """

    async def put(self, key: str, item: bytes) -> None:
        """Store `item` under `key`; an existing item is replaced. Durable on return.

        Raises:
            InvalidParameterValueException: the key or the item is not allowed (HTTP 400).
        """

    async def get(self, key: str) -> bytes | None:
        """The item under `key`; None: there is none."""

    async def delete(self, key: str) -> bool:
        """Remove the item under `key`; returns whether there was one."""

    async def scan(self, *, after: str = "", limit: int = _PAGE_ITEMS) -> list[tuple[str, bytes]]:
        """Up to `limit` keys and items, beginning after the key `after`; fewer only at the end.

        The order is that of the keys' UTF-8 bytes. DynamoDB has another order, which does not change.
        """

    async def count(self) -> int:
        """How many items there are."""

    def close(self, *, until: float | None = None) -> None:
        """Wait for running operations and close the store. Blocks.

        Args:
            until: when to stop waiting for a remote store, ``time.monotonic()`` seconds; None: in two seconds.
                Operations without an answer by then are interrupted (PostgreSQL) or abandoned (DynamoDB).
        """


class Tables:
    """The tables of a configuration; each is opened at its first use.

    Attributes:
        aws: endpoint and credentials for DynamoDB to use instead of the usual ones, for example of an emulator; None:
            the usual ones.
    """

    def __init__(self, tables: Mapping[str, Table], *, aws: AwsAccess | None = None) -> None:
        self.aws = aws
        self._tables = tables
        self._open: dict[str, TableStore] = {}
        self._opening: dict[str, asyncio.Lock] = {}

    async def get(self, name: str) -> TableStore:
        """The table called `name`. A table that could not be opened is tried again at the next call.

        Raises:
            ResourceNotFoundException: there is no such table (HTTP 404).
            StoreError: the table's file cannot be used, or a library that the table needs is not installed (HTTP 500).
        """
        store = self._open.get(name)
        if store is not None:
            return store
        table = self._tables.get(name)
        if table is None:
            known = ", ".join(sorted(self._tables)) or "none"
            raise ResourceNotFoundException(
                f"Table not found: {name!r}. The tables in the configuration are: {known}. "
                f"Add [tables.{name}] to thawd.toml or correct the name"
            )
        async with self._opening.setdefault(name, asyncio.Lock()):
            if name not in self._open:
                self._open[name] = await asyncio.to_thread(_open, table, self.aws)
        return self._open[name]

    def close(self, *, until: float | None = None) -> None:
        """Close all tables that were opened, as `TableStore.close` does. Blocks."""
        until = patience_over() if until is None else until
        while self._open:
            self._open.popitem()[1].close(until=until)


def require_libraries(tables: Mapping[str, Table]) -> None:
    """Check that the libraries that tables need are installed.

    Raises:
        StoreError: a library is missing; the message names the extra that installs it.
    """
    for table in tables.values():
        if table.url is None:
            continue
        module, extra = _LIBRARIES[table.url.scheme]
        if importlib.util.find_spec(module) is None:
            raise StoreError(
                f"table {table.name}: {table.url} needs {module}, which is not installed; install it with: "
                f"pip install 'thawd[{extra}]'"
            )


def read_table(table: Table) -> Iterator[tuple[str, bytes]]:
    """Keys and items of a table, in the order of `TableStore.scan`. Works with and without a running server.

    For the command line: it blocks, and changes nothing. Items are read in pages, so that a slow reader does not block
    writers. An item that is put in the meantime is also read if it comes after the current page.

    Raises:
        NothingStored: no item was ever put, so the table does not exist yet.
        StoreError: the table cannot be read. For a SQLite file the call itself raises both, not the first iteration.
    """
    if table.path is not None:
        return sqlite.read_file(table.path)
    return _pages(table)


def read_item(table: Table, key: str) -> bytes | None:
    """The item under `key`; None: there is none. Blocks, like `read_table`, and raises the same exceptions."""
    if table.path is not None:
        return sqlite.read_item(table.path, key)
    store = _blocking(table, None, create=False)
    try:
        return store.get(key)
    finally:
        store.close()


def _pages(table: Table) -> Iterator[tuple[str, bytes]]:
    store = _blocking(table, None, create=False)
    try:
        after = ""
        while page := store.scan(after, _PAGE_ITEMS):
            yield from page
            after = page[-1][0]
    finally:
        store.close()


def _open(table: Table, aws: AwsAccess | None) -> TableStore:
    if table.path is not None:
        return SqliteTable(table.name, table.path)
    return ThreadedTable(table.name, _blocking(table, aws, create=True))


def _blocking(table: Table, aws: AwsAccess | None, *, create: bool) -> BlockingTable:
    require_libraries({table.name: table})
    assert table.url is not None, "a table has a path or a URL"
    if table.url.scheme == "dynamodb":
        return DynamodbTable(table.name, table.url, aws=aws)
    return PostgresqlTable(table.name, table.url, create=create)
