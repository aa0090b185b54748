"""Opens SQLite files, if they are SQLite files and not made by another program or a newer thawd; explains errors.

This module contains the messages about a file that SQLite or the operating system refuses. It never changes a file
that thawd did not make. `thawd.stores.database` adds threads, transactions and group commit.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

from thawd import __version__
from thawd.errors import NothingStored, StoreError, StoreFullError
from thawd.stores import write_ahead_log, written_by
from thawd.system import folders

# Source: SQLite file format, "The Database Header": offset 0, 16 bytes.
_MAGIC = b"SQLite format 3\x00"
# With less free space than this, an I/O error counts as a full disk. SQLite reports an I/O error if it cannot enlarge
# the index of the write-ahead log (-shm), which grows in steps of 32 KiB.
_FULL_BELOW_BYTES = 64 * 1024
# The write-ahead log is cut to this size when SQLite has copied its content into the file.
_WAL_KEPT_BYTES = 64 * 1024 * 1024


def open_writer(
    path: Path, *, migrations: Sequence[str], application_id: int, busy_timeout_s: float
) -> sqlite3.Connection:
    """Open `path` for reading and writing. Creates it and its folder if missing, and brings its schema up to date.

    Args:
        path: the file.
        migrations: SQL scripts; the schema version of a file is the number of scripts that have run on it.
        application_id: marks the kind of file; a file with another mark belongs to another program.
        busy_timeout_s: how long to wait for a lock that another process holds, seconds.

    Returns:
        A connection in autocommit mode. Any thread may use it, but only one at a time.

    Raises:
        StoreError: the file is not a database, damaged, made by another program or a newer thawd, locked or not
            writable.
        StoreFullError: the disk is full.
    """
    try:
        folders.make(path.parent)
        _require_header(path)
        _make(path)
    except OSError as error:
        raise unusable(path, error) from error
    connection = _connect(path, mode="rwc", busy_timeout_s=busy_timeout_s)
    try:
        _require_ours(connection, path, application_id=application_id, newest=len(migrations))
        connection.execute("PRAGMA auto_vacuum=INCREMENTAL")  # affects only a new file; an existing file keeps its mode
        _require_log(connection, path)
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute(f"PRAGMA journal_size_limit={_WAL_KEPT_BYTES}")
        _migrate(connection, path, migrations=migrations, application_id=application_id)
    except sqlite3.Error as error:
        connection.close()
        raise explain(path, error) from error
    except OSError as error:
        connection.close()
        raise unusable(path, error) from error
    except StoreError:
        connection.close()
        raise
    return connection


def open_reader(path: Path, *, busy_timeout_s: float) -> sqlite3.Connection:
    """Open a second connection, for reading only, in the process that already has `path` open for writing.

    Raises:
        StoreError: the file no longer exists or cannot be opened a second time.
    """
    connection = _connect(path, mode="rw", busy_timeout_s=busy_timeout_s)
    try:
        connection.execute("PRAGMA query_only=ON")
        connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    except sqlite3.Error as error:
        connection.close()
        raise explain(path, error) from error
    return connection


def open_foreign(path: Path, *, application_id: int, newest_version: int, busy_timeout_s: float) -> sqlite3.Connection:
    """Open a file read-only, without creating or changing anything. Another process may be writing to it.

    Raises:
        NothingStored: the file is missing, or another process is just creating it.
        StoreError: the file is not a database, made by another program or a newer thawd, or cannot be read.
    """
    try:
        if not path.exists():
            raise NothingStored(f"{path} does not exist yet; it is created when something is first stored")
        _require_header(path)
    except OSError as error:
        raise unusable(path, error) from error
    try:
        return _open_checked(path, "ro", application_id=application_id, newest=newest_version, busy_s=busy_timeout_s)
    except sqlite3.OperationalError as error:
        # In a folder that is not writable, SQLite cannot create the index of the write-ahead log. If there is no log,
        # the file alone is complete, and can be read without an index. Source: sqlite.org/wal.html, "Read-Only
        # Databases".
        log = Path(f"{path}-wal")
        if log.exists() and log.stat().st_size > 0:
            raise explain(path, error) from error
    except sqlite3.Error as error:
        raise explain(path, error) from error
    try:
        return _open_checked(
            path, "ro&immutable=1", application_id=application_id, newest=newest_version, busy_s=busy_timeout_s
        )
    except sqlite3.Error as error:
        raise explain(path, error) from error


def _open_checked(path: Path, mode: str, *, application_id: int, newest: int, busy_s: float) -> sqlite3.Connection:
    connection = _connect(path, mode=mode, busy_timeout_s=busy_s)
    try:
        _require_ours(connection, path, application_id=application_id, newest=newest)
        _require_content(connection, path)
    except (sqlite3.Error, StoreError):
        connection.close()
        raise
    return connection


def explain(path: Path, error: sqlite3.Error) -> StoreError:
    """The error to show for an error that SQLite raised about `path`: what happened, then what to do."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_FULL or (code == sqlite3.SQLITE_IOERR and _disk_is_full(path)):
        return StoreFullError(
            f"{path}: the disk is full ({error}), so nothing was stored; free some space and try again"
        )
    if code == sqlite3.SQLITE_IOERR:
        return StoreError(
            f"{path}: the disk failed ({error}), so nothing was stored; the kernel's log (`dmesg`) may say why"
        )
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreError(
            f"{path}: another process holds it locked ({error}); "
            "stop that process (does a second thawd use this file?) and try again"
        )
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
        return StoreError(
            f"{path}: cannot be opened for writing ({error}); make the file and its folder writable for this user"
        )
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return StoreError(
            f"{path} is damaged ({error}) and was not changed; restore it from a backup, or save what can still be "
            f"read with `sqlite3 '{path}' .recover`, then move it away and start again"
        )
    return StoreError(f"{path}: {error}")


def unusable(path: Path, error: OSError) -> StoreError:
    """The error to show when the operating system refuses `path` or its folder."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreFullError(f"{path}: the disk is full ({error}); free some space and try again")
    if error.errno == errno.EIO:
        return StoreError(f"{path}: the disk failed ({error}); the kernel's log (`dmesg`) may say why")
    return StoreError(f"{path} cannot be used ({error}); give a path in a folder that this user may read and write")


def _disk_is_full(path: Path) -> bool:
    try:
        room = os.statvfs(path.parent)
    except OSError:
        return False
    return room.f_bavail * room.f_frsize < _FULL_BELOW_BYTES


def _connect(path: Path, *, mode: str, busy_timeout_s: float) -> sqlite3.Connection:
    # isolation_level None: only thawd's own statements begin transactions, never the sqlite3 module by itself.
    try:
        return sqlite3.connect(
            f"file:{quote(os.fsencode(path))}?mode={mode}",
            uri=True,
            timeout=busy_timeout_s,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=256,
        )
    except sqlite3.Error as error:
        raise explain(path, error) from error


def _make(path: Path) -> None:
    """Create the file if it is missing, for its owner only. SQLite gives its log and index the same permissions.

    Source: sqlite3, os_unix.c, findCreateFileMode.
    """
    with contextlib.suppress(FileExistsError, PermissionError):  # SQLite will report a missing permission
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    # An empty file may be left over from a process that ended before it had synced the folder. Sync the folder now, so
    # that the file's name is on the disk.
    with contextlib.suppress(FileNotFoundError, PermissionError):
        if path.stat().st_size == 0:
            folders.sync(path.parent)


def _require_header(path: Path) -> None:
    """Refuse a file that SQLite would overwrite or misread. An empty file counts as a new one."""
    if not path.exists():
        return
    if not path.is_file():
        raise StoreError(f"{path} is not a file; give the path of an existing file, or of one to create")
    with path.open("rb") as file:
        start = file.read(len(_MAGIC))
    if start and start != _MAGIC:
        raise StoreError(
            f"{path} is not a SQLite database (it begins with {start!r}) and was not changed; move it away and start "
            "again, or give another path"
        )


def _require_ours(connection: sqlite3.Connection, path: Path, *, application_id: int, newest: int) -> None:
    # One statement reads the mark, the version and the number of tables at the same moment: another process may be
    # creating the file, and could change it between two statements.
    query = (
        "SELECT application_id, user_version, (SELECT count(*) FROM sqlite_schema) "
        "FROM pragma_application_id, pragma_user_version"
    )
    mark, version, tables = connection.execute(query).fetchone()
    if mark == 0 and version == 0 and tables == 0:
        return
    if mark != application_id:
        raise StoreError(
            f"{path} is a database of another program, or another kind of thawd file (its application id is {mark:#x}, "
            f"expected {application_id:#x}), and was not changed; give another path"
        )
    if version > newest:
        raise StoreError(
            f"{path} was written by {written_by.newer(path.parent)} (schema version {version}; this is thawd "
            f"{__version__}, which knows versions up to {newest}), and was not changed; use the newer thawd, or a file "
            "that this one can read: give another path, or restore a backup with `thawd restore`"
        )


def _require_content(connection: sqlite3.Connection, path: Path) -> None:
    if connection.execute("PRAGMA user_version").fetchone()[0] == 0:
        raise NothingStored(f"{path} contains no table yet; the table is created when something is first stored")


def _require_log(connection: sqlite3.Connection, path: Path) -> None:
    journal = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
    if journal != "wal":
        raise StoreError(
            f"{path}: this file system does not support a write-ahead log (the journal mode remains {journal!r}); put "
            "the data folder on a local disk"
        )


def _migrate(connection: sqlite3.Connection, path: Path, *, migrations: Sequence[str], application_id: int) -> None:
    # The write lock is taken even if there is no migration to run, so that a file that cannot be written is noticed now
    # and not at the first write. The version is read under the lock, because another process may just have migrated the
    # file.
    connection.execute("BEGIN IMMEDIATE")
    try:
        write_ahead_log.write_again(path)
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version < len(migrations):
            for script in migrations[version:]:
                for statement in _statements(script):
                    connection.execute(statement)
            connection.execute(f"PRAGMA application_id={application_id}")
            connection.execute(f"PRAGMA user_version={len(migrations)}")
        connection.execute("COMMIT")
    except (sqlite3.Error, OSError):
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _statements(script: str) -> Iterator[str]:
    """Split a script into statements. `executescript` is not used, because it commits the open transaction."""
    statement = ""
    for part in script.split(";"):
        statement += part + ";"
        if sqlite3.complete_statement(statement):
            if statement.strip("; \n"):
                yield statement
            statement = ""
