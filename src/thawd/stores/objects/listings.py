"""Stores how far the listings of remote buckets are: when the first one began, and when one was last complete."""

from __future__ import annotations

import sqlite3

import msgspec

from thawd.stores.database import Database


class ListingProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far the listings of one bucket are.

    Attributes:
        begun_at: when the first listing began, seconds since the epoch.
        completed_at: when the last complete listing ended, seconds since the epoch; None: none was complete yet.
    """

    begun_at: float
    completed_at: float | None


class Listings:
    """The table of listings in the state file."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def begin(self, bucket: str, *, now: float) -> ListingProgress:
        """Note that a listing of `bucket` begins at `now`; returns the progress of the listings before.

        Raises:
            StoreError: it could not be stored.
        """

        def work(connection: sqlite3.Connection) -> ListingProgress:
            connection.execute("INSERT OR IGNORE INTO listings VALUES (?, ?, NULL)", (bucket, now))
            begun_at, completed_at = connection.execute(
                "SELECT begun_at, completed_at FROM listings WHERE bucket = ?", (bucket,)
            ).fetchone()
            return ListingProgress(begun_at=begun_at, completed_at=completed_at)

        return await self._db.write(work)

    async def complete(self, bucket: str, *, now: float) -> None:
        """Note that a listing of `bucket` is complete, and all of it recorded.

        Raises:
            StoreError: it could not be stored.
        """
        await self._db.write(
            lambda connection: (
                connection.execute("UPDATE listings SET completed_at = ? WHERE bucket = ?", (now, bucket)).rowcount
            )
        )
