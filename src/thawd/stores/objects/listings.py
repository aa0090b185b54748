"""How far the listings of buckets elsewhere are: when the first one began, and whether one has come to its end."""

from __future__ import annotations

import sqlite3

import msgspec

from thawd.stores.database import Database


class ListingProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Attributes:
    begun_at: when the first listing began, seconds since the epoch.
    completed_at: when the last complete one ended; None: there was none yet.
    """

    begun_at: float
    completed_at: float | None


class Listings:
    """The table of listings in the state file."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def begin(self, bucket: str, *, now: float) -> ListingProgress:
        """A listing of `bucket` begins at `now`; what is known of those before.

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
        """A listing of `bucket` has come to its end, and all of it is recorded.

        Raises:
            StoreError: it could not be stored.
        """
        await self._db.write(
            lambda connection: (
                connection.execute("UPDATE listings SET completed_at = ? WHERE bucket = ?", (now, bucket)).rowcount
            )
        )
