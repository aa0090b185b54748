"""Durable documents of the control plane: what was created through the Lambda API, such as functions and layers.

A document is JSON. All documents are small. They are read once, when the server starts; after that they are only
written.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import NamedTuple

from thawd.stores.database import Database


class Key(NamedTuple):
    """The key of a document.

    Attributes:
        kind: kind of the resource, for example ``function`` or ``layer``.
        name: name of the resource; the UUID of an event source mapping.
        qualifier: number of a function's version; empty for other resources.
    """

    kind: str
    name: str
    qualifier: str = ""


class Catalog:
    """The table ``catalog`` of the state file."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def load(self) -> dict[Key, bytes]:
        """All documents.

        Raises:
            StoreError: the documents cannot be read.
        """
        rows = await self._db.read(
            lambda connection: connection.execute("SELECT kind, name, qualifier, document FROM catalog").fetchall()
        )
        return {Key(kind, name, qualifier): document for kind, name, qualifier, document in rows}

    async def change(self, *, put: Iterable[tuple[Key, bytes]] = (), remove: Iterable[Key] = ()) -> None:
        """Write and remove documents, all or none. The change is durable when this returns.

        Raises:
            StoreError: the change could not be stored.
        """
        putting = [(*key, document) for key, document in put]
        removing = list(remove)

        def work(connection: sqlite3.Connection) -> None:
            connection.executemany("DELETE FROM catalog WHERE kind = ? AND name = ? AND qualifier = ?", removing)
            connection.executemany("INSERT OR REPLACE INTO catalog VALUES (?, ?, ?, ?)", putting)

        await self._db.write(work)
