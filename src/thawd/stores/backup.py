"""Copies of SQLite files that are in use: consistent, checked, without stopping who writes them."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from thawd.errors import StoreError
from thawd.stores import sqlite_file
from thawd.stores.database import Database
from thawd.stores.objects.catalog import signed
from thawd.system import folders

_BUSY_TIMEOUT_S = 5.0
RESCUED = ".rescued-"
"""Between the name of a database and the time at which what it held was saved."""
_PAGES_A_STEP = 1024

Progress = Callable[[int, int], None]
"""Told how many pages are copied, and of how many."""


def copy_database(
    source: Path,
    target: Path,
    *,
    application_id: int,
    newest_version: int,
    progress: Progress = lambda done, all_: None,
) -> None:
    """Copy a SQLite file as it is at this moment, with all that is committed; blocks.

    Who writes to it goes on meanwhile. The copy is one file, durable, and has been read through.

    Args:
        source: the file; it may be in use.
        target: the copy, made; nothing may be there.
        application_id: the mark that the file must have.
        newest_version: of its schema, that this thawd knows.
        progress: told how far it is.

    Raises:
        StoreError: the source is missing, damaged, of another program, newer, or one of them cannot be used.
    """
    reading = sqlite_file.open_foreign(
        source, application_id=application_id, newest_version=newest_version, busy_timeout_s=_BUSY_TIMEOUT_S
    )
    try:
        # A transaction of the reader's own: without it each commit of others would make the copy begin anew.
        reading.execute("BEGIN")
        reading.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        _copy(reading, target, progress)
    except sqlite3.Error as error:
        raise sqlite_file.explain(source, error) from error
    finally:
        reading.close()


async def rescue(database: Database) -> Path:
    """Save what a database holds whose file was taken away under it, as a file beside the place where that was.

    Raises:
        StoreError: it cannot be read any more, or the copy not be written.
    """
    target = database.path.with_name(f"{database.path.name}{RESCUED}{time.strftime('%Y%m%d-%H%M%S')}")
    try:
        await database.read(lambda connection: _copy(connection, target, lambda done, all_: None))
        folders.sync(target.parent)
    except OSError as error:
        raise sqlite_file.unusable(target, error) from error
    return target


def rescued(path: Path) -> list[Path]:
    """What was saved of databases that had this path, oldest first."""
    return sorted(path.parent.glob(f"{path.name}{RESCUED}*"))


def _copy(reading: sqlite3.Connection, target: Path, progress: Progress) -> None:
    descriptor = os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        try:
            writing = sqlite3.connect(target, isolation_level=None)
            try:
                writing.execute("PRAGMA synchronous=OFF")
                reading.backup(
                    writing, pages=_PAGES_A_STEP, progress=lambda _, left, total: progress(total - left, total)
                )
                writing.execute("PRAGMA journal_mode=DELETE").fetchone()
                require_sound(writing, target)
            finally:
                writing.close()
        except sqlite3.Error as error:
            raise sqlite_file.explain(target, error) from error
        os.fsync(descriptor)
    except BaseException:
        target.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)


def require_sound(connection: sqlite3.Connection, path: Path) -> None:
    """Read a database through.

    Raises:
        StoreError: a page of it is damaged.
    """
    (first,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if first != "ok":
        raise StoreError(
            f"{path}: is damaged ({first}); what can be read of the original is saved with `sqlite3 FILE .recover`"
        )


def adopt_objects(path: Path, bucket: str, files: Iterable[tuple[bytes, os.stat_result]]) -> None:
    """Have a state file take copies of a bucket's objects for the objects themselves, so that they do not count as new.

    Args:
        path: a state file that nobody uses.
        bucket: name of the bucket.
        files: keys, and what the copies are by their file system; a copy has the size and the time of modification of
            what it is a copy of.

    Raises:
        StoreError: the file cannot be used.
    """
    try:
        connection = sqlite3.connect(path)
        try:
            with connection:
                connection.executemany(
                    "UPDATE objects SET inode = ?, ctime_ns = ? "
                    "WHERE bucket = ? AND key = ? AND size = ? AND mtime_ns = ?",
                    (
                        (signed(now.st_ino), now.st_ctime_ns, bucket, key, now.st_size, now.st_mtime_ns)
                        for key, now in files
                    ),
                )
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise sqlite_file.explain(path, error) from error
