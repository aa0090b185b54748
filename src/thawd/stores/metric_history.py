"""Stores the history of metrics in the state file: for each series and minute, a document with the values.

A series is a namespace with dimensions; its document of a minute contains all metrics that were measured for it. A row
can be written again while its minute lasts. A series can have several rows of one minute, for example of two servers,
one started after the other, so that a restart loses nothing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from thawd.stores.database import Database, Work

MAX_ROWS = 200_000
"""Most rows; of more, the oldest are removed. A row needs about 300 bytes."""
KEPT_MINUTES = 15 * 24 * 60
"""Rows are removed after this time. Source: CloudWatch user guide, "Metrics retention": 15 days for minutes."""
_CHUNK_ROWS = 2000

SCHEMA = """
CREATE TABLE metric_series (
    id INTEGER PRIMARY KEY,
    namespace TEXT NOT NULL,
    dimensions TEXT NOT NULL,
    UNIQUE (namespace, dimensions)
) STRICT;
CREATE TABLE metric_minutes (
    series INTEGER NOT NULL,
    minute INTEGER NOT NULL,
    part INTEGER NOT NULL,
    document BLOB NOT NULL,
    PRIMARY KEY (series, minute, part)
) STRICT, WITHOUT ROWID;
CREATE INDEX metric_minutes_by_age ON metric_minutes (minute);
"""


class SeriesRow(NamedTuple):
    """A series: its id, and its dimensions as JSON."""

    id: int
    dimensions: str


class MinuteRow(NamedTuple):
    """What was measured for a series in a minute; `minute` counts minutes since 1970."""

    series: int
    minute: int
    document: bytes


class WrittenRow(NamedTuple):
    """A row to write.

    Attributes:
        namespace: namespace of its series.
        dimensions: dimensions of its series, as JSON.
        minute: its minute, counted since 1970.
        part: distinguishes rows of the same series and minute; a row with the same part is replaced.
        document: what was measured.
    """

    namespace: str
    dimensions: str
    minute: int
    part: int
    document: bytes


class MetricStore:
    """The history of metrics in the state file."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def write(self, rows: Sequence[WrittenRow]) -> None:
        """Write rows. They are durable when this returns.

        Raises:
            StoreError: the rows could not be stored.
        """

        def work(connection: sqlite3.Connection) -> None:
            for row in rows:
                key = (row.namespace, row.dimensions)
                connection.execute("INSERT OR IGNORE INTO metric_series (namespace, dimensions) VALUES (?, ?)", key)
                connection.execute(
                    "INSERT OR REPLACE INTO metric_minutes SELECT id, ?, ?, ? FROM metric_series "
                    "WHERE namespace = ? AND dimensions = ?",
                    (row.minute, row.part, row.document, *key),
                )

        await self._db.write(work)

    async def trim(self, *, before: int) -> None:
        """Remove the rows of minutes before `before`, then the oldest of too many, and series without rows.

        Raises:
            StoreError: the rows could not be removed.
        """

        def work(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM metric_minutes WHERE minute < ?", (before,))
            (count,) = connection.execute("SELECT count(*) FROM metric_minutes").fetchone()
            if count > MAX_ROWS:
                excess = "SELECT minute FROM metric_minutes ORDER BY minute LIMIT 1 OFFSET ?"
                (minute,) = connection.execute(excess, (count - MAX_ROWS,)).fetchone()
                connection.execute("DELETE FROM metric_minutes WHERE minute <= ?", (minute,))
            connection.execute("DELETE FROM metric_series WHERE id NOT IN (SELECT series FROM metric_minutes)")

        await self._db.write(work)

    async def namespaces(self) -> list[str]:
        """The namespaces with history, sorted.

        Raises:
            StoreError: they cannot be read.
        """
        query = "SELECT DISTINCT namespace FROM metric_series ORDER BY namespace"
        rows = await self._db.read(lambda connection: connection.execute(query).fetchall())
        return [namespace for (namespace,) in rows]

    async def series(self, namespace: str) -> list[SeriesRow]:
        """The series of a namespace, by their dimensions.

        Raises:
            StoreError: they cannot be read.
        """
        query = "SELECT id, dimensions FROM metric_series WHERE namespace = ? ORDER BY dimensions"
        rows = await self._db.read(lambda connection: connection.execute(query, (namespace,)).fetchall())
        return [SeriesRow(*row) for row in rows]

    async def minutes(self, series: Iterable[int], first: int, last: int) -> list[MinuteRow]:
        """What was measured for some series from minute `first` to minute `last`, both included.

        Raises:
            StoreError: it cannot be read.
        """
        found: list[MinuteRow] = []
        for each in series:
            minute, part = first, -1
            while True:
                chunk = await self._db.read(_chunk(each, (minute, part), last))
                found += [MinuteRow(each, at, document) for at, _, document in chunk]
                if len(chunk) < _CHUNK_ROWS:
                    break
                minute, part, _ = chunk[-1]
        return found

    async def latest(self, series: int) -> bytes | None:
        """The latest document of a series; None: there is none.

        Raises:
            StoreError: it cannot be read.
        """
        query = "SELECT document FROM metric_minutes WHERE series = ? ORDER BY minute DESC LIMIT 1"
        row = await self._db.read(lambda connection: connection.execute(query, (series,)).fetchone())
        return None if row is None else bytes(row[0])


def _chunk(series: int, after: tuple[int, int], last: int) -> Work[list[tuple[int, int, bytes]]]:
    """Make the operation that reads some of the rows of a series after a row."""

    def work(connection: sqlite3.Connection) -> list[tuple[int, int, bytes]]:
        return connection.execute(
            "SELECT minute, part, document FROM metric_minutes WHERE series = ? AND (minute, part) > (?, ?) "
            "AND minute <= ? ORDER BY minute, part LIMIT ?",
            (series, *after, last, _CHUNK_ROWS),
        ).fetchall()

    return work
