"""Makes consistent, checked copies of SQLite files that are in use; other processes can continue to write."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from thawd.errors import StoreError
from thawd.stores import sqlite_file
from thawd.stores.database import Database
from thawd.stores.events import copied_events
from thawd.stores.objects.catalog import signed
from thawd.system import folders

_BUSY_TIMEOUT_S = 5.0
RESCUED = ".rescued-"
"""The name of a rescued copy is the database's name, then this, then the time of the rescue."""
_PAGES_A_STEP = 1024
_KEYS_AT_ONCE = 1000

Progress = Callable[[int, int], None]
"""Called with the number of pages copied so far, and the number of all pages."""


def copy_database(
    source: Path,
    target: Path,
    *,
    application_id: int,
    newest_version: int,
    progress: Progress = lambda done, all_: None,
) -> None:
    """Copy a SQLite file as it is at this moment, with everything that is committed; blocks.

    Other processes can write to the file in the meantime. The copy is a single durable file without a write-ahead log,
    and all its pages have been read to check them.

    Args:
        source: the file; it may be in use.
        target: path of the copy; no file may exist there.
        application_id: SQLite's number for the kind of file, which is in the file's header. A file with another number
            is refused.
        newest_version: newest schema version that this thawd knows.
        progress: called while the copy is made.

    Raises:
        StoreError: the source is missing, damaged, made by another program or a newer thawd, or one of the two files
            cannot be used.
    """
    reading = sqlite_file.open_foreign(
        source, application_id=application_id, newest_version=newest_version, busy_timeout_s=_BUSY_TIMEOUT_S
    )
    try:
        # Without this transaction, each commit of another connection would make the copy start again. BEGIN alone reads
        # nothing: the first read decides which state of the file is copied.
        reading.execute("BEGIN")
        reading.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        _copy(reading, target, progress)
    except sqlite3.Error as error:
        raise sqlite_file.explain(source, error) from error
    finally:
        reading.close()


async def rescue(database: Database) -> Path:
    """Copy an open database, whose file was moved or removed, to a new file in the folder where the file was.

    Returns:
        The path of the new file.

    Raises:
        StoreError: the database can no longer be read, or the copy cannot be written.
    """
    target = database.path.with_name(f"{database.path.name}{RESCUED}{time.strftime('%Y%m%d-%H%M%S')}")
    try:
        await database.read(lambda connection: _copy(connection, target, lambda done, all_: None))
        folders.sync(target.parent)
    except OSError as error:
        raise sqlite_file.unusable(target, error) from error
    return target


def rescued(path: Path) -> list[Path]:
    """The rescued copies of databases that had this path, oldest first."""
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
    """Check a database by reading all of it.

    Raises:
        StoreError: one of its pages is damaged.
    """
    (first,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if first != "ok":
        raise StoreError(
            f"{path}: this copy is damaged ({first}), probably because the original is; to save what can still be "
            "read of the original, use `sqlite3 ORIGINAL .recover`"
        )


def drop_copied(path: Path, existing: Callable[[Sequence[str]], set[str]]) -> int:
    """Remove the events from a state file whose copies are elsewhere, so that a backup has each event once.

    Args:
        path: a state file that no process uses.
        existing: returns those of some keys of copies that exist elsewhere.

    Returns:
        How many events were removed.

    Raises:
        StoreError: the file cannot be used.
    """
    removed, after = 0, ""
    try:
        connection = sqlite3.connect(path, isolation_level=None)
        try:
            connection.execute("BEGIN")
            while keys := copied_events.keys(connection, after=after, limit=_KEYS_AT_ONCE):
                removed += len(copied_events.remove_moved(connection, sorted(existing(keys))))
                after = keys[-1]
            connection.execute("COMMIT")
            if removed:
                connection.execute("VACUUM")
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise sqlite_file.explain(path, error) from error
    return removed


def adopt_objects(path: Path, bucket: str, files: Iterable[tuple[bytes, os.stat_result]]) -> None:
    """Record the copied files of a bucket's objects in a state file, so that they do not count as changed.

    A copy has another inode number and change time than the original. thawd compares both with the records of the
    bucket's objects, so without this call it would report each copied file as a changed object.

    Args:
        path: a state file that no process uses.
        bucket: name of the bucket.
        files: keys, each with the stat of the copy. A copy is skipped if its size or mtime is not the recorded one.

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
