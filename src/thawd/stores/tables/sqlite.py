"""Embedded tables: those that are declared without a URL. Each is a separate SQLite file."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

from thawd.stores import sqlite_file
from thawd.stores.database import Database
from thawd.stores.tables.key_and_item_checks import check_key, item_text

APPLICATION_ID = 0x74687774
"""Marks the file of a table: "thwt" in ASCII."""

_MIGRATIONS = (
    # Not WITHOUT ROWID: SQLite's documentation advises that for small rows only, but items can be large.
    "CREATE TABLE items (id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, item TEXT NOT NULL) STRICT;",
)
SCHEMA_VERSION = len(_MIGRATIONS)
"""Schema version of an embedded table's file."""
_PAGE = "SELECT key, item FROM items WHERE key > ? ORDER BY key LIMIT ?"
_PAGE_ITEMS = 500
_BUSY_TIMEOUT_S = 5.0


class SqliteTable:
    """A `thawd.stores.tables.access.TableStore` in a SQLite file."""

    def __init__(self, name: str, path: Path) -> None:
        """Open the file, and create it if it is missing. Blocks.

        Raises:
            StoreError: the file cannot be used.
        """
        self._name = name
        self._db = Database(path, migrations=_MIGRATIONS, application_id=APPLICATION_ID)

    async def put(self, key: str, item: bytes) -> None:
        check_key(key, table=self._name)
        text = item_text(item, table=self._name, key=key)

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

    def close(self, *, until: float | None = None) -> None:
        del until  # not needed: operations on a local file are always finished
        self._db.close()


def read_file(path: Path) -> Iterator[tuple[str, bytes]]:
    """Keys and items of the table in the file `path`, in the order of the keys' UTF-8 bytes.

    For the command line: it blocks, changes nothing, and works while a server runs. Items are read in pages, so that a
    slow reader does not block writers. An item that is put in the meantime is also read if its key comes after the
    current page.

    Raises:
        NothingStored: there is no such file, or it is just being created.
        StoreError: the file is not a table, or cannot be read. The call itself raises both, not the first iteration.
    """
    _open_foreign(path).close()
    return _pages(path)


def read_item(path: Path, key: str) -> bytes | None:
    """The item under `key` of the table in the file `path`; None: there is none.

    Blocks, like `read_file`, and raises the same exceptions.
    """
    connection = _open_foreign(path)
    try:
        row = connection.execute("SELECT item FROM items WHERE key = ?", (key,)).fetchone()
    except sqlite3.Error as error:
        raise sqlite_file.explain(path, error) from error
    finally:
        connection.close()
    return None if row is None else row[0].encode()


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
