"""Tables: items (JSON objects) by key. Each embedded table is a SQLite file of its own.

`TableStore` is the seam for other stores (PostgreSQL): whoever has its methods can be a table. Items are bytes in and
the same bytes out; this module checks that they are a JSON object and does not look inside.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from thawd.errors import InvalidParameterValueException, ResourceNotFoundException
from thawd.resources import Table
from thawd.state import sqlite_file
from thawd.state.database import Database

APPLICATION_ID = 0x74687774
"""Marks the file of a table: "thwt" in ASCII."""
# Source: DynamoDB quotas: item size 400 KB; partition key 1 to 2,048 bytes.
MAX_ITEM_BYTES = 400 * 1024
MAX_KEY_BYTES = 2048

_MIGRATIONS = (
    # Not WITHOUT ROWID: items may be large, and rows of such a table should be small.
    "CREATE TABLE items (id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, item TEXT NOT NULL) STRICT;",
)
SCHEMA_VERSION = len(_MIGRATIONS)
"""Of an embedded table's file."""
_PAGE = "SELECT key, item FROM items WHERE key > ? ORDER BY key LIMIT ?"
_PAGE_ITEMS = 500
_BUSY_TIMEOUT_S = 5.0


class TableStore(Protocol):
    """A table. All methods raise `StoreError` when the store behind it fails."""

    async def put(self, key: str, item: bytes) -> None:
        """Store `item` under `key` in place of what was there; when this returns it is durable.

        Raises:
            InvalidParameterValueException: the key or the item is not acceptable (HTTP 400).
        """

    async def get(self, key: str) -> bytes | None:
        """The item under `key`, or None."""

    async def delete(self, key: str) -> bool:
        """Remove the item under `key`; whether there was one."""

    async def scan(self, *, after: str = "", limit: int = 500) -> list[tuple[str, bytes]]:
        """Up to `limit` keys and items in the order of the keys' UTF-8 bytes, from after the key `after`."""

    async def count(self) -> int:
        """How many items there are."""

    def close(self) -> None:
        """Finish what is under way and let go of the store. Blocks."""


class SqliteTable:
    """A `TableStore` in a SQLite file."""

    def __init__(self, table: Table) -> None:
        """Open the file, making it when missing. Blocks.

        Raises:
            StoreError: the file cannot be used.
        """
        self._name = table.name
        self._db = Database(table.path, migrations=_MIGRATIONS, application_id=APPLICATION_ID)

    async def put(self, key: str, item: bytes) -> None:
        check_key(key, table=self._name)
        text = _item_text(item, table=self._name, key=key)

        def work(connection: sqlite3.Connection) -> None:
            connection.execute(
                "INSERT INTO items (key, item) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET item = excluded.item",
                (key, text),
            )

        await self._db.write(work)

    async def get(self, key: str) -> bytes | None:
        check_key(key, table=self._name)
        row = await self._db.read(
            lambda connection: connection.execute("SELECT item FROM items WHERE key = ?", (key,)).fetchone()
        )
        return None if row is None else row[0].encode()

    async def delete(self, key: str) -> bool:
        check_key(key, table=self._name)
        return await self._db.write(
            lambda connection: connection.execute("DELETE FROM items WHERE key = ?", (key,)).rowcount > 0
        )

    async def scan(self, *, after: str = "", limit: int = _PAGE_ITEMS) -> list[tuple[str, bytes]]:
        rows = await self._db.read(lambda connection: connection.execute(_PAGE, (after, limit)).fetchall())
        return [(key, item.encode()) for key, item in rows]

    async def count(self) -> int:
        (number,) = await self._db.read(lambda connection: connection.execute("SELECT count(*) FROM items").fetchone())
        return int(number)

    def close(self) -> None:
        self._db.close()


class Tables:
    """The tables of a configuration; each is opened when it is first asked for."""

    def __init__(self, tables: Mapping[str, Table]) -> None:
        self._tables = tables
        self._open: dict[str, TableStore] = {}
        self._opening: dict[str, asyncio.Lock] = {}

    async def get(self, name: str) -> TableStore:
        """The table called `name`. One that could not be opened is tried again at the next call.

        Raises:
            ResourceNotFoundException: there is no such table (HTTP 404).
            StoreError: its file cannot be used (HTTP 500).
        """
        store = self._open.get(name)
        if store is not None:
            return store
        table = self._tables.get(name)
        if table is None:
            known = ", ".join(sorted(self._tables)) or "none"
            raise ResourceNotFoundException(
                f"Table not found: {name!r}; tables in the configuration: {known}. "
                f"Add [tables.{name}] or correct the name"
            )
        async with self._opening.setdefault(name, asyncio.Lock()):
            if name not in self._open:
                self._open[name] = await asyncio.to_thread(SqliteTable, table)
        return self._open[name]

    def close(self) -> None:
        """Close all that were opened. Blocks."""
        while self._open:
            self._open.popitem()[1].close()


def read_table(path: Path) -> Iterator[tuple[str, bytes]]:
    """Keys and items of the table in the file `path`, in the order of the keys' UTF-8 bytes.

    For the command line: blocks, changes nothing, works beside a running server. Items are read in pages, so that a
    slow reader holds nothing up; what is put meanwhile behind the place reached is seen.

    Raises:
        StoreError: there is no such file, it is no table, or it cannot be read. Raised at once, not at the first item.
    """
    _open_foreign(path).close()
    return _pages(path)


def _open_foreign(path: Path) -> sqlite3.Connection:
    return sqlite_file.open_foreign(
        path,
        application_id=APPLICATION_ID,
        newest_version=len(_MIGRATIONS),
        busy_timeout_s=_BUSY_TIMEOUT_S,
    )


def _pages(path: Path) -> Iterator[tuple[str, bytes]]:
    connection = _open_foreign(path)
    after = ""
    try:
        while rows := connection.execute(_PAGE, (after, _PAGE_ITEMS)).fetchall():
            for key, item in rows:
                yield key, item.encode()
            after = rows[-1][0]
    except sqlite3.Error as error:
        raise sqlite_file.explain(path, error) from error
    finally:
        connection.close()


def check_key(key: str, *, table: str) -> None:
    """Refuse a key that no table may hold.

    Raises:
        InvalidParameterValueException: it is empty, too long or not text (HTTP 400).
    """
    try:
        size = len(key.encode())
    except UnicodeEncodeError as error:
        raise InvalidParameterValueException(
            f"table {table}: the key {key!r} is not valid Unicode text ({error.reason}); replace its surrogates"
        ) from None
    if not 1 <= size <= MAX_KEY_BYTES:
        raise InvalidParameterValueException(
            f"table {table}: the key has {size} bytes in UTF-8; allowed are 1 to {MAX_KEY_BYTES}"
        )


def _item_text(item: bytes, *, table: str, key: str) -> str:
    where = f"table {table}, key {key!r}"
    if len(item) > MAX_ITEM_BYTES:
        raise InvalidParameterValueException(
            f"{where}: the item has {len(item)} bytes; allowed are {MAX_ITEM_BYTES}. Put large things into a bucket"
        )
    try:
        value = msgspec.json.decode(item)
        text = item.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidParameterValueException(
            f"{where}: the item is not JSON in UTF-8 ({error}); it must be a JSON object such as {{}}"
        ) from None
    if not isinstance(value, dict):
        raise InvalidParameterValueException(
            f"{where}: the item is a JSON {_JSON_NAMES[type(value)]}; it must be a JSON object such as {{}}"
        )
    return text


_JSON_NAMES = {
    list: "array",
    str: "string",
    int: "number",
    float: "number",
    bool: "boolean",
    type(None): "null",
}
