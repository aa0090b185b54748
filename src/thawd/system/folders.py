"""Writes files and folders durably, including their names: syncing a file does not sync its name in its folder.

A file is written under a temporary name and then renamed. If the power fails or the process is killed before that, the
file remains under its temporary name. The process keeps the file locked (flock(2)) until it has renamed it. So a file
with a temporary name that is not locked belongs to no running process and can be removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO

_UNFINISHED = re.compile(rb"\.thawd-[0-9a-f]{32}")


def make(folder: Path, *, mode: int = 0o777) -> None:
    """Create a folder and its missing parents, durably.

    Args:
        folder: the folder; an existing one is not changed.
        mode: mode of the folder itself, before the umask.

    Raises:
        OSError: the folder cannot be created.
    """
    if folder.is_dir():
        return
    make(folder.parent)
    folder.mkdir(mode=mode, exist_ok=True)
    with contextlib.suppress(PermissionError):  # a folder cannot be synced without the right to read it
        sync(folder.parent)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Yield a new file that atomically replaces `path` at the end of the ``with`` block.

    After the block, the file and its name are on the disk. Until then the file's name is ``.thawd-…``, which no object
    of a bucket can have. If the block raises an exception, the file is removed.

    Raises:
        OSError: the file cannot be written.
    """
    staged, fd, lock = _stage(path)
    try:
        with os.fdopen(fd, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        staged.replace(path)
    except BaseException:
        staged.unlink(missing_ok=True)
        raise
    finally:
        os.close(lock)
    sync(path.parent)


def _stage(path: Path) -> tuple[Path, int, int]:
    """Create a temporary file beside `path`. Return its path, a descriptor to write it and one that keeps it locked.

    The lock is needed until the file has its final name. Its descriptor is open for reading only: while an
    object is open for writing, the watcher of a bucket considers it incomplete.
    """
    while True:
        staged = path.with_name(f".thawd-{secrets.token_hex(16)}")
        # `tempfile` is not used, because only the owner can read its files. This file gets the usual permissions.
        fd = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            lock = os.open(staged, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:  # another process removed the file before it was locked: make another file
            os.close(fd)
            continue
        except BaseException:
            os.close(fd)
            staged.unlink(missing_ok=True)
            raise
        with contextlib.suppress(OSError):  # if the file system has no locks, `remove_unlocked` removes no file either
            fcntl.flock(lock, fcntl.LOCK_EX)
        if os.fstat(lock).st_nlink:
            return staged, fd, lock
        os.close(fd)
        os.close(lock)


def is_unfinished(name: bytes) -> bool:
    """Whether a file has the name that `replacing`, or ``thawd.bucket(...).write``, gives to an unfinished file."""
    return _UNFINISHED.fullmatch(name) is not None


def remove_unlocked(path: bytes) -> None:
    """Remove an unfinished file, unless a running process has locked it. Never raises OSError."""
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if stat.S_ISREG(os.fstat(fd).st_mode):
                os.unlink(path)  # noqa: PTH108 - pathlib does not accept bytes
        finally:
            os.close(fd)


def remove_unfinished(folder: Path) -> None:
    """Remove the unfinished files that killed processes left directly in `folder`. Never raises OSError.

    A file is removed only if it has the name of an unfinished file and no process has locked it.
    """
    with contextlib.suppress(OSError), os.scandir(os.fsencode(folder)) as entries:
        for entry in entries:
            if is_unfinished(entry.name):
                remove_unlocked(entry.path)


def sync_all(path: Path) -> None:
    """Sync a file, or a folder with all files and names in it. Links are not followed: only their names are synced.

    Raises:
        OSError: a file cannot be read, or the disk failed.
    """
    if path.is_dir():
        for place, _, names in os.walk(path):
            for inner in (Path(place) / name for name in names):
                if not inner.is_symlink():
                    sync(inner)
            sync(Path(place))
    else:
        sync(path)


def sync(path: Path | bytes) -> None:
    """Sync the contents of a file, or the names in a folder.

    Raises:
        OSError: the file or folder cannot be read, or the disk failed.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


written_about: set[Path] = set()
"""Files with absolute paths that this process writes about itself, such as its ready file."""


def printed_into() -> set[Path]:
    """Return the regular files, with absolute paths, into which this process prints, and those in `written_about`."""
    files = set(written_about)
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):
            status = os.fstat(descriptor)
            if stat.S_ISREG(status.st_mode) and status.st_nlink:
                files.add(Path(f"/proc/self/fd/{descriptor}").readlink())
    return files
