"""Opens the file with records of invocations, writes batches, and keeps the file within its limits of days and bytes.

Records are worth less than events: a commit does not wait for the disk (synchronous=NORMAL). After ``kill -9`` every
written batch is there. After a power cut the last seconds may be missing, and the file is still whole.

A damaged file is renamed, and a new one is begun: no record is worth a server that does not start.
"""

from __future__ import annotations

import itertools
import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from thawd.errors import StoreError
from thawd.stores.database import Database
from thawd.stores.invocations import handler_calls
from thawd.stores.invocations.record_rows import APPLICATION_ID, MIGRATIONS, Batch

T = TypeVar("T")

MIN_BYTES = 4 << 20
"""Smallest limit of the file. An empty file with its indexes needs about 60 KiB, and a batch some MiB."""
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_BUSY_S = 5.0
# A full file is trimmed to this share of its limit, so that not each batch has to trim.
_TRIMMED_TO = 0.9
_CHUNK_ROWS = 250
# Most rows of one statement. Each statement makes the writer wait for the event loop's thread several times, because it
# releases the interpreter's lock (GIL). Before version 3.32, SQLite took at most 999 parameters.
_ROWS_AT_ONCE = 40
_TABLES_BY_ID = ("invocations", "bodies")


class RecordFile:
    """The file with the records of invocations.

    Args:
        path: the file; created if missing.
        max_bytes: most bytes of the file, at least `MIN_BYTES`; its write-ahead log comes on top (about 4 MiB).
        max_age_s: records and counts that are older are removed, seconds.
        report: takes a line for the operator.

    Raises:
        StoreError: the file cannot be used, for another reason than damage.
        NoThreadError: the operating system refused to start a thread.
    """

    def __init__(self, path: Path, *, max_bytes: int, max_age_s: float, report: Callable[[str], object]) -> None:
        self.path = path
        self._max_bytes = max(MIN_BYTES, max_bytes)
        self._max_age_s = max_age_s
        self._report = report
        self._database = self._open()
        self._part = time.time_ns()
        self._trimmed_s = 0.0
        self.last_id: int = self._database.read_now(_last_id)

    def _open(self) -> Database:
        try:
            return self._opened()
        except StoreError as error:
            if not _is_damage(self.path, error):
                raise
            self._set_aside(error)
            return self._opened()

    def _opened(self) -> Database:
        database = Database(
            self.path, migrations=MIGRATIONS, application_id=APPLICATION_ID, busy_timeout_s=_BUSY_S,
            is_lazy=True,
        )  # fmt: skip
        try:
            database.read_now(_check)
        except StoreError:
            database.close()
            raise
        return database

    def _set_aside(self, error: StoreError) -> None:
        aside = self.path.with_name(f"{self.path.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}")
        for suffix in ("", "-wal", "-shm"):
            file = Path(f"{self.path}{suffix}")
            if file.exists():
                file.rename(f"{aside}{suffix}")
        cause = error.__cause__ or error
        self._report(
            f"thawd: the file with the records of invocations is damaged ({cause}); it is now {aside}, and thawd has "
            "begun a new one"
        )

    async def write(self, make: Callable[[int], Batch]) -> int:
        """Store a batch.

        Args:
            make: makes the batch, in the thread that writes; its argument is the last id that is in use.

        Returns:
            How many records were stored.

        Raises:
            StoreError: the batch is not stored. If the file was damaged, it is renamed now, and a new one begun.
        """
        try:
            count, used_bytes = await self._database.write(lambda connection: self._insert(connection, make))
        except StoreError as error:
            if _is_damage(self.path, error):
                self._database.close()
                self._set_aside(error)
                self._database = self._opened()
            raise
        await self._trim(used_bytes)
        return count

    def _insert(self, connection: sqlite3.Connection, make: Callable[[int], Batch]) -> tuple[int, int]:
        batch = make(self.last_id)
        if batch.invocations:
            # Noted here, because a cancelled caller gets no answer. If the batch is not stored, ids are skipped.
            self.last_id = max(self.last_id, batch.invocations[-1].id)
        _insert_rows(connection, "invocations", batch.invocations)
        _insert_rows(connection, "bodies", batch.bodies)
        connection.executemany("INSERT INTO steps (at_ms, request_id, kind, detail) VALUES (?, ?, ?, ?)", batch.steps)
        connection.executemany(
            "INSERT OR REPLACE INTO minutes VALUES (?, ?, ?, ?)",
            [(row.function, row.minute, self._part, row.document) for row in batch.minutes],
        )
        if batch.handlers or batch.calls or batch.left_out:
            handler_calls.insert(connection, batch, _insert_rows)
        return len(batch.invocations), _used_bytes(connection)

    async def _trim(self, used_bytes: int) -> None:
        """Remove what is too old, now and then; and, if the file is full, the oldest successes, then the oldest of all.

        Args:
            used_bytes: how many bytes of the file are in use.

        Raises:
            StoreError: the file cannot be used.
        """
        now_s = time.monotonic()
        if now_s - self._trimmed_s > 60.0 or self._trimmed_s == 0.0:
            self._trimmed_s = now_s
            before_s = time.time() - self._max_age_s
            while await self._database.write(lambda connection: _remove_older(connection, before_s)):
                pass
        if used_bytes > self._max_bytes:
            least = int(self._max_bytes * _TRIMMED_TO)
            is_more = True
            while used_bytes > least and is_more:
                used_bytes, is_more = await self._database.write(_remove_oldest)

    async def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run a query, in the thread that reads.

        Raises:
            StoreError: the file could not be read.
        """
        return await self._database.read(work)

    def close(self) -> None:
        """Close the file. Blocks until what is queued is written."""
        self._database.close()


def _insert_rows(connection: sqlite3.Connection, table: str, rows: Sequence[tuple[object, ...]]) -> None:
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        some = rows[start : start + _ROWS_AT_ONCE]
        row = f"({', '.join('?' * len(some[0]))})"
        values = list(itertools.chain.from_iterable(some))
        connection.execute(f"INSERT INTO {table} VALUES {', '.join([row] * len(some))}", values)


def _check(connection: sqlite3.Connection) -> None:
    """Raise an error if the file is damaged where each write would meet it."""
    connection.execute("SELECT id, request_id FROM invocations ORDER BY id DESC LIMIT 1").fetchone()
    for index in ("invocations_by_function", "invocations_by_request", "invocations_by_trace"):
        connection.execute(f"SELECT count(*) FROM (SELECT 1 FROM invocations INDEXED BY {index} WHERE {_FIRST[index]})")


_FIRST = {
    "invocations_by_function": "function = ''",
    "invocations_by_request": "request_id = ''",
    "invocations_by_trace": "trace = 'none'",
}


def _last_id(connection: sqlite3.Connection) -> int:
    (last,) = connection.execute("SELECT coalesce(max(id), 0) FROM invocations").fetchone()
    return int(last)


def _used_bytes(connection: sqlite3.Connection) -> int:
    (used,) = connection.execute(
        "SELECT (p.page_count - f.freelist_count) * s.page_size "
        "FROM pragma_page_count p, pragma_freelist_count f, pragma_page_size s"
    ).fetchone()
    return int(used)


def _remove_older(connection: sqlite3.Connection, before_s: float) -> bool:
    """Remove some rows that are too old. Return whether there may be more."""
    before = int(before_s * 1_000_000)
    ids = connection.execute("SELECT id FROM invocations WHERE id < ? ORDER BY id LIMIT ?", (before, _CHUNK_ROWS))
    removed = _remove(connection, [number for (number,) in ids])
    steps = connection.execute(
        "DELETE FROM steps WHERE id IN (SELECT id FROM steps ORDER BY id LIMIT ?) AND at_ms < ?",
        (_CHUNK_ROWS, int(before_s * 1000)),
    )
    connection.execute("DELETE FROM minutes WHERE minute < ?", (int(before_s // 60),))
    return _CHUNK_ROWS in (removed, steps.rowcount)


def _remove_oldest(connection: sqlite3.Connection) -> tuple[int, bool]:
    """Remove the oldest successes, or the oldest records if there are no successes.

    Returns:
        How many bytes are still in use, and whether any record was removed.
    """
    found = connection.execute("SELECT id FROM invocations WHERE failed = 0 ORDER BY id LIMIT ?", (_CHUNK_ROWS,))
    ids = [number for (number,) in found]
    if not ids:
        found = connection.execute("SELECT id FROM invocations ORDER BY id LIMIT ?", (_CHUNK_ROWS,))
        ids = [number for (number,) in found]
    if not ids:
        connection.execute("DELETE FROM steps")
        connection.execute("DELETE FROM minutes WHERE minute < (SELECT max(minute) FROM minutes)")
        return _used_bytes(connection), False
    _remove(connection, ids)
    (oldest,) = connection.execute("SELECT coalesce(min(id), 0) FROM invocations").fetchone()
    connection.execute("DELETE FROM steps WHERE at_ms < ?", (oldest // 1000,))
    return _used_bytes(connection), True


def _remove(connection: sqlite3.Connection, ids: list[int]) -> int:
    handler_calls.remove_of(connection, ids)
    for table in _TABLES_BY_ID:
        connection.executemany(f"DELETE FROM {table} WHERE id = ?", [(number,) for number in ids])
    return len(ids)


def _is_damage(path: Path, error: StoreError) -> bool:
    """Whether the file is damaged, or no SQLite file at all."""
    cause = error.__cause__
    if isinstance(cause, sqlite3.Error):
        return (getattr(cause, "sqlite_errorcode", 0) & 0xFF) in _DAMAGED
    return "is not a SQLite database" in error.message and path.is_file()
