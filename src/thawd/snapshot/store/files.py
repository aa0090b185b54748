"""Files that are trusted as code, and locks that end with their holder: what `thawd.snapshot.store` asks of Linux.

Serves the store of images alone and knows nothing of snapshots. A file counts as trusted when it is a regular file of
this user that nobody else may read or write. Locks are those of flock(2): they belong to an open file, hold against
other processes and against other openings in this one, and are gone with the process however it ends. Turns every
error of the operating system into one that names the path and the way out.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from thawd.errors import StoreError, StoreFullError

_LOCK_PAUSE_S = 0.01
_OPEN_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Hold:
    """An open file or folder with a lock on it.

    Attributes:
        fd: its descriptor, closed on exec; -1 once released.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __del__(self) -> None:
        self._close()

    def release(self) -> None:
        """Give up the lock and close the file; again is nothing."""
        if self.fd >= 0:
            # A child that some thread forked, and that has not come to its exec yet, holds the same open file: closing
            # ours alone would leave it locked.
            fcntl.flock(self.fd, fcntl.LOCK_UN)
        self._close()

    def _close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def hold(path: Path, *, shared: bool) -> Hold | None:
    """Open and lock a file or folder, without waiting; None: a lock of somebody else's stands against it.

    Raises:
        OSError: it cannot be opened, or its file system knows no locks.
    """
    fd = os.open(path, _OPEN_FLAGS)
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    except OSError as error:
        os.close(fd)
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error
    return Hold(fd)


@contextlib.contextmanager
def folder_lock(folder: Path, *, wait_s: float) -> Iterator[None]:
    """Be the only one, of all threads and processes, that looks after `folder`; works in a read-only one, too.

    Raises:
        StoreError: it cannot be opened or locked, or the lock did not come free within `wait_s` seconds (HTTP 500).
    """
    deadline_s = time.monotonic() + wait_s
    try:
        # Links on the way are followed: the folder may lie on another disk.
        real = folder.resolve(strict=True)
        held = hold(real, shared=False)
        while held is None and time.monotonic() < deadline_s:
            time.sleep(_LOCK_PAUSE_S)
            held = hold(real, shared=False)
    except (OSError, RuntimeError) as error:
        raise unusable(folder, error) from error
    if held is None:
        raise StoreError(
            f"{folder} has been locked by another process for {wait_s:g} s; see whether a `thawd snapshot` hangs, end "
            "it and try again."
        )
    try:
        yield
    finally:
        held.release()


def shared_holders(path: Path) -> list[int]:
    """Ids of the processes that hold a shared lock on `path`, as far as the kernel tells.

    Source: proc_locks(5). File systems that show another device there than in stat(2), such as btrfs, give none.
    """
    try:
        status = path.stat()
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return []
    place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    rows = (line.split() for line in lines)
    pids = {int(row[4]) for row in rows if row[1:4] == ["FLOCK", "ADVISORY", "READ"] and row[5] == place}
    return sorted(pid for pid in pids if pid > 0)  # others are of a process namespace that cannot be seen from here


def distrust(path: Path, status: os.stat_result) -> str | None:
    """Why the file of this status must not be used, None when it may."""
    if not stat.S_ISREG(status.st_mode):
        return f"{path} is not a regular file"
    if status.st_uid != os.geteuid():
        return f"{path} belongs to user {status.st_uid}, and thawd runs as user {os.geteuid()}"
    if status.st_mode & 0o077:
        return f"{path} has the mode {stat.S_IMODE(status.st_mode):04o}, others than its owner may use it"
    return None


def distrust_folder(folder: Path, status: os.stat_result) -> str | None:
    """Why what lies in the folder of this status must not be used, None when it may."""
    if not stat.S_ISDIR(status.st_mode):
        return f"{folder} is not a folder"
    if status.st_uid != os.geteuid():
        return f"{folder} belongs to user {status.st_uid}, and thawd runs as user {os.geteuid()}"
    if status.st_mode & 0o022:
        return f"{folder} has the mode {stat.S_IMODE(status.st_mode):04o}, others than its owner may write to it"
    return None


def stored_bytes(path: Path) -> int:
    """Disk space that a file, or all in a folder, takes: holes count nothing. What is not there takes none."""
    try:
        total = path.lstat().st_blocks * 512
    except FileNotFoundError:
        return 0
    for folder, folders, files in os.walk(path):
        for name in (*folders, *files):
            with contextlib.suppress(FileNotFoundError):
                total += (Path(folder) / name).lstat().st_blocks * 512
    return total


def remove_tree(path: Path) -> None:
    """Remove a file or folder with all in it, or as much of it as can be; no error when it is not there."""
    if not path.is_dir() or path.is_symlink():
        with contextlib.suppress(OSError):
            path.unlink()
        return
    for folder, _, _ in os.walk(path):
        # Nothing can be removed from a folder that may not be written to.
        with contextlib.suppress(OSError):
            Path(folder).chmod(stat.S_IRWXU)
    shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def open_as_is(path: Path) -> Iterator[int]:
    """A descriptor of the file at a path, for reading; a link is not followed, and a pipe is not waited for.

    Raises:
        OSError: it cannot be opened.
    """
    fd = os.open(path, _OPEN_FLAGS)
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def using(path: Path) -> Iterator[None]:
    """Turn errors of reading or writing `path` into ours.

    Raises:
        StoreError: it cannot be read or written (HTTP 500).
        StoreFullError: the disk is full, or the user's share of it (HTTP 503).
    """
    try:
        yield
    except OSError as error:
        raise unusable(path, error) from error


def unusable(path: Path, error: OSError | RuntimeError) -> StoreError:
    """The error to show when the operating system refuses `path`."""
    code, reason = (error.errno, error.strerror) if isinstance(error, OSError) else (errno.ELOOP, str(error))
    if code in (errno.ENOSPC, errno.EDQUOT):
        return StoreFullError(
            f"{path} cannot be written: {reason}; free some space on that disk, for example by "
            "`thawd snapshot rm --unused`, then try again."
        )
    if code in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
        return StoreError(f"{path} cannot be locked: {reason}; put the data folder on a local disk.")
    return StoreError(
        f"{path} cannot be used: {reason}; snapshots need a folder that the user who runs thawd owns and may write to: "
        "mend its owner and permissions, or name another data folder (`data` in thawd.toml, or THAWD_DATA)."
    )
