"""Stores the progress of listing remote buckets, which thawd lists again and again to find changed objects.

For each bucket, the progress is the time when the first listing began, and the time when the last complete one ended.
"""

from __future__ import annotations

import sqlite3

import msgspec

from thawd.stores.database import Database


class ListingProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of listing one bucket.

    Attributes:
        begun_at: when the first listing began, seconds since the epoch.
        completed_at: when the last complete listing ended, seconds since the epoch; None: no listing is complete yet.
    """

    begun_at: float
    completed_at: float | None


class Listings:
    """The table of listings in the state file."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def begin(self, bucket: str, *, now: float) -> ListingProgress:
        """Record `now` as the beginning of the first listing of `bucket`, unless one is recorded; returns the progress.

        Raises:
            StoreError: the record could not be stored.
        """

        def work(connection: sqlite3.Connection) -> ListingProgress:
            connection.execute("INSERT OR IGNORE INTO listings VALUES (?, ?, NULL)", (bucket, now))
            begun_at, completed_at = connection.execute(
                "SELECT begun_at, completed_at FROM listings WHERE bucket = ?", (bucket,)
            ).fetchone()
            return ListingProgress(begun_at=begun_at, completed_at=completed_at)

        return await self._db.write(work)

    async def complete(self, bucket: str, *, now: float) -> None:
        """Record that a listing of `bucket` ended at `now`. Call this when all objects of the listing are recorded.

        Raises:
            StoreError: the record could not be stored.
        """
        await self._db.write(
            lambda connection: (
                connection.execute("UPDATE listings SET completed_at = ? WHERE bucket = ?", (now, bucket)).rowcount
            )
        )
