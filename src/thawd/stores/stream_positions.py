"""Stores how far event source mappings have processed their streams, shard by shard."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

import msgspec

from thawd.stores.database import Database


class Position(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far one shard of a stream has been processed.

    Attributes:
        sequence: sequence number of the last processed record; empty: no record has been processed.
        identity: what identifies that record besides its sequence number, so that a stream that was made anew under
            the same name is noticed.
        arrived_at: when that record was written to the stream, seconds since the epoch.
        since: if no record has been processed: records written before this time are not wanted, seconds since the
            epoch; None: all records are.
        ended: whether the shard is closed and all its records have been processed.
        window: start of the tumbling window that is open, seconds since the epoch; None: none is.
        state: the state of that window, JSON text.
    """

    sequence: str = ""
    identity: str = ""
    arrived_at: float = 0.0
    since: float | None = None
    ended: bool = False
    window: int | None = None
    state: str = ""


class StreamPositions:
    """The table ``stream_positions`` of the state file."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def load(self, mapping: str) -> dict[str, Position]:
        """The positions of a mapping, by shard.

        Args:
            mapping: UUID of the mapping.

        Raises:
            StoreError: the positions cannot be read.
        """
        rows = await self._db.read(
            lambda connection: connection.execute(
                "SELECT shard, position FROM stream_positions WHERE mapping = ?", (mapping,)
            ).fetchall()
        )
        return {shard: msgspec.json.decode(position, type=Position) for shard, position in rows}

    async def save(
        self, mapping: str, positions: Iterable[tuple[str, Position]], *, remove: Iterable[str] = ()
    ) -> None:
        """Store the positions of shards and remove those of other shards, all or none. Durable when this returns.

        Args:
            mapping: UUID of the mapping.
            positions: pairs of shard and position.
            remove: shards that no longer exist.

        Raises:
            StoreError: the positions could not be stored.
        """
        rows = [(mapping, shard, msgspec.json.encode(position)) for shard, position in positions]
        gone = [(mapping, shard) for shard in remove]

        def work(connection: sqlite3.Connection) -> None:
            connection.executemany("DELETE FROM stream_positions WHERE mapping = ? AND shard = ?", gone)
            connection.executemany("INSERT OR REPLACE INTO stream_positions VALUES (?, ?, ?)", rows)

        await self._db.write(work)

    async def forget(self, mapping: str) -> None:
        """Remove the positions of a mapping that was deleted.

        Raises:
            StoreError: the positions could not be removed.
        """

        def work(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM stream_positions WHERE mapping = ?", (mapping,))

        await self._db.write(work)
