"""Helpers of the image store: checks whether a file may be trusted as code, and locks that end with their process.

A file is trusted if it is a regular file of this user that no other user may read or write. Locks are those of
flock(2): a lock belongs to an open file, excludes other processes and other open files of this process, and ends at the
latest when the process ends. `using` converts errors of the operating system into errors that name the path and say
what to do. Used by `thawd.snapshot.store` and `thawd.snapshot.disk`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from thawd.errors import StoreError, StoreFullError

_LOCK_PAUSE_S = 0.01
_LONG_PATH_BYTES = 2048  # half of what the kernel accepts: PATH_MAX
_NOT_LISTED = (FileNotFoundError, NotADirectoryError, PermissionError)
_OPEN_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class LockedFile:
    """An open file or folder with a lock on it.

    Attributes:
        fd: the descriptor, closed on exec; -1 once released.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __del__(self) -> None:
        self._close()

    def release(self) -> None:
        """Release the lock and close the file; a second call does nothing."""
        if self.fd >= 0:
            # Another thread may have forked a child that has not called exec yet. That child shares the open file, so
            # closing this descriptor alone would leave the file locked.
            fcntl.flock(self.fd, fcntl.LOCK_UN)
        self._close()

    def _close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def try_lock(path: Path, *, shared: bool) -> LockedFile | None:
    """Open and lock a file or folder without waiting; returns None if another open file has a lock that excludes it.

    Raises:
        OSError: the path cannot be opened, or its file system has no locks.
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
    return LockedFile(fd)


@contextlib.contextmanager
def folder_lock(folder: Path, *, wait_s: float) -> Iterator[None]:
    """Hold the exclusive lock of `folder` against all other threads and processes. A read-only folder works, too.

    Raises:
        StoreError: the folder cannot be opened or locked, or the lock was not free within `wait_s` seconds (HTTP 500).
    """
    deadline_s = time.monotonic() + wait_s
    try:
        # Links in the path are followed: the folder may be on another disk.
        real = folder.resolve(strict=True)
        held = try_lock(real, shared=False)
        while held is None and time.monotonic() < deadline_s:
            time.sleep(_LOCK_PAUSE_S)
            held = try_lock(real, shared=False)
    except (OSError, RuntimeError) as error:
        raise unusable(folder, error) from error
    if held is None:
        raise StoreError(
            f"{folder} cannot be locked: another process has held its lock for {wait_s:g} s; see whether a "
            "`thawd snapshot` command hangs, end it and try again."
        )
    try:
        yield
    finally:
        held.release()


def shared_holders(path: Path) -> list[int]:
    """Ids of the processes that hold a shared lock on `path`, as far as the kernel shows them.

    The list is empty on file systems such as btrfs, for which proc_locks(5) shows another device than stat(2).
    """
    try:
        status = path.stat()
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return []
    place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    rows = (line.split() for line in lines)
    pids = {int(row[4]) for row in rows if row[1:4] == ["FLOCK", "ADVISORY", "READ"] and row[5] == place}
    return sorted(pid for pid in pids if pid > 0)  # 0 stands for a process in a namespace that is not visible here


def distrust(path: Path, status: os.stat_result) -> str | None:
    """Why the file with this status must not be used; None when it can be used."""
    if not stat.S_ISREG(status.st_mode):
        return f"{path} is not a regular file"
    if status.st_uid != os.geteuid():
        return f"{path} belongs to user {status.st_uid}, but thawd runs as user {os.geteuid()}"
    if status.st_mode & 0o077:
        return f"{path} has the mode {stat.S_IMODE(status.st_mode):04o}, with which other users may access it"
    return None


def distrust_folder(folder: Path, status: os.stat_result) -> str | None:
    """Why the contents of the folder with this status must not be used; None when they can be used."""
    if not stat.S_ISDIR(status.st_mode):
        return f"{folder} is not a folder"
    if status.st_uid != os.geteuid():
        return f"{folder} belongs to user {status.st_uid}, but thawd runs as user {os.geteuid()}"
    if status.st_mode & 0o022:
        return f"{folder} has the mode {stat.S_IMODE(status.st_mode):04o}, with which other users may write to it"
    return None


def stored_bytes(path: Path) -> int:
    """Disk space of a file, or of a folder with all files in it, without holes; 0 when it does not exist.

    What disappears meanwhile is not counted, nor are the contents of folders that this user may not list.

    Raises:
        OSError: the disk failed, or a path in the folder is too long for the kernel (ENAMETOOLONG).
    """
    try:
        status = path.lstat()
    except FileNotFoundError:
        return 0
    total = status.st_blocks * 512
    folders = [os.fspath(path)] if stat.S_ISDIR(status.st_mode) else []
    while folders:
        with contextlib.suppress(*_NOT_LISTED), os.scandir(folders.pop()) as entries:
            for entry in entries:
                with contextlib.suppress(*_NOT_LISTED):
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
    return total


def remove_tree(path: Path) -> None:
    """Remove as much as possible of a file or folder and its contents; no error when it does not exist.

    Folders without permission to enter or write are removed, too, because functions and overlayfs leave such folders;
    and so are folders so deep that their paths are too long for the kernel.
    """
    folders: list[Path] = [path]
    emptied: list[Path] = []
    while folders:
        folder = folders.pop()
        with contextlib.suppress(OSError):
            if not stat.S_ISDIR(folder.lstat().st_mode):
                folder.unlink()
                continue
            with contextlib.suppress(PermissionError):
                folder.chmod(stat.S_IRWXU)
            if emptied and len(os.fsencode(folder)) > _LONG_PATH_BYTES:
                folder = folder.rename(path / f".deep-{secrets.token_hex(8)}")
            emptied.append(folder)
            with os.scandir(folder) as children:
                folders += [Path(child.path) for child in children]
    for folder in reversed(emptied):
        with contextlib.suppress(OSError):
            folder.rmdir()


@contextlib.contextmanager
def open_as_is(path: Path) -> Iterator[int]:
    """Open a file for reading, without following a link or waiting for a pipe's writer; yields the descriptor.

    Raises:
        OSError: the file cannot be opened.
    """
    fd = os.open(path, _OPEN_FLAGS)
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def using(path: Path) -> Iterator[None]:
    """Convert the operating system's errors on `path` into thawd's.

    Raises:
        StoreError: `path` cannot be read or written (HTTP 500).
        StoreFullError: the disk is full, or the user's disk quota is used up (HTTP 503).
    """
    try:
        yield
    except OSError as error:
        raise unusable(path, error) from error


def unusable(path: Path, error: OSError | RuntimeError) -> StoreError:
    """The thawd error to raise for an error of the operating system on `path`."""
    code, reason = (error.errno, error.strerror) if isinstance(error, OSError) else (errno.ELOOP, str(error))
    if code in (errno.ENOSPC, errno.EDQUOT):
        return StoreFullError(
            f"{path} cannot be written: {reason}; free some space on that disk, for example by "
            "`thawd snapshot rm --unused`, then try again."
        )
    if code in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
        return StoreError(f"{path} cannot be locked: {reason}; put the data folder on a local disk.")
    return StoreError(
        f"{path} cannot be used: {reason}; snapshots need a folder that the user who runs thawd owns and may write to. "
        "Fix its owner and permissions, or name another data folder (`data` in thawd.toml, or THAWD_DATA)."
    )
