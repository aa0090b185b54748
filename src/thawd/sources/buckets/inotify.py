"""Linux's inotify: the kernel's notices of changes in a tree of folders, read by the event loop.

Notices are hints: they say which key or folder to check, not what it contains. This module calls inotify itself,
without a library, because it also needs a notice when a writer closes a file, when a name is not UTF-8, and when the
kernel has dropped notices, and because an idle bucket should need neither a thread nor wake-ups.

Source: inotify(7).
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import threading
from collections.abc import Iterator
from enum import Enum, auto
from typing import NamedTuple

# Source: <linux/inotify.h>.
_IN_ATTRIB = 0x0000_0004
_IN_CLOSE_WRITE = 0x0000_0008
_IN_MOVED_FROM = 0x0000_0040
_IN_MOVED_TO = 0x0000_0080
_IN_CREATE = 0x0000_0100
_IN_DELETE = 0x0000_0200
_IN_DELETE_SELF = 0x0000_0400
_IN_MOVE_SELF = 0x0000_0800
_IN_UNMOUNT = 0x0000_2000
_IN_Q_OVERFLOW = 0x0000_4000
_IN_IGNORED = 0x0000_8000
_IN_ONLYDIR = 0x0100_0000
_IN_DONT_FOLLOW = 0x0200_0000
_IN_EXCL_UNLINK = 0x0400_0000
_IN_ISDIR = 0x4000_0000

_WANTED = (
    _IN_ATTRIB
    | _IN_CLOSE_WRITE
    | _IN_MOVED_FROM
    | _IN_MOVED_TO
    | _IN_CREATE
    | _IN_DELETE
    | _IN_DELETE_SELF
    | _IN_MOVE_SELF
    | _IN_ONLYDIR
    | _IN_EXCL_UNLINK
)
_HEADER = struct.Struct("iIII")
_READ_BYTES = 64 * 1024

_libc = ctypes.CDLL(None, use_errno=True)


class NoticeKind(Enum):
    """The kind of change that a notice reports."""

    FILE = auto()
    """A file or link changed, appeared or disappeared: check this key."""
    FOLDER = auto()
    """A folder appeared, disappeared or changed: check everything in it."""
    LOST = auto()
    """The kernel's queue was full and notices were lost: check the whole bucket."""
    ROOT_GONE = auto()
    """The watched folder itself was removed, moved or unmounted."""


class Notice(NamedTuple):
    """One notice. `path` is relative to the root, without a leading slash, and empty for the root."""

    kind: NoticeKind
    path: bytes


class TreeWatch:
    """One inotify instance for a folder and the folders below it, which the caller adds when it finds them.

    Names that begin with a dot are ignored. `watch` may be called from any thread.
    """

    def __init__(self, root: bytes) -> None:
        """Make the inotify instance. No folder is watched yet.

        Raises:
            OSError: the limit of inotify instances or of open files is reached, or the system has no inotify.
        """
        self._root = root
        self._lock = threading.Lock()
        self._folders: dict[int, bytes] = {}
        self._fd = _checked(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))

    def fileno(self) -> int:
        """Return the file descriptor that becomes readable when there are notices."""
        return self._fd

    def watch(self, folder: bytes) -> bool:
        """Watch one folder. Scan the folder after this call, so that no change in between is missed.

        Args:
            folder: its path relative to the root.

        Returns:
            Whether it is watched. False: there is no such folder, or thawd may not watch it.

        Raises:
            OSError: with ENOSPC: the limit of watches (fs.inotify.max_user_watches) is reached.
        """
        path = self._root + b"/" + folder if folder else self._root
        mask = _WANTED | _IN_DONT_FOLLOW if folder else _WANTED
        with self._lock:
            try:
                watch = _checked(_libc.inotify_add_watch(self._fd, ctypes.c_char_p(path), ctypes.c_uint32(mask)))
            except OSError as error:
                if error.errno == errno.ENOSPC:
                    raise
                return False
            self._folders[watch] = folder
            return True

    def read(self) -> list[Notice]:
        """Return the notices that have arrived, at most about 64 KiB of them. The list is empty if there are none.

        Raises:
            OSError: the descriptor is broken.
        """
        try:
            data = os.read(self._fd, _READ_BYTES)
        except BlockingIOError:
            return []
        with self._lock:
            return list(self._notices(data))

    def close(self) -> None:
        """Stop watching. Later calls of `watch` return False."""
        with self._lock:
            # -1, because the kernel may soon use the closed descriptor's number for another file.
            fd, self._fd = self._fd, -1
            os.close(fd)

    def _notices(self, data: bytes) -> Iterator[Notice]:
        at = 0
        while at < len(data):
            watch, mask, _cookie, size = _HEADER.unpack_from(data, at)
            name = data[at + _HEADER.size : at + _HEADER.size + size].rstrip(b"\0")
            at += _HEADER.size + size
            if mask & _IN_Q_OVERFLOW:
                yield Notice(NoticeKind.LOST, b"")
                continue
            folder = self._folders.get(watch)
            if folder is None or name.startswith(b"."):
                continue
            if mask & _IN_IGNORED:
                del self._folders[watch]
            elif not name:
                if not folder:
                    gone = mask & (_IN_DELETE_SELF | _IN_MOVE_SELF | _IN_UNMOUNT)
                    yield Notice(NoticeKind.ROOT_GONE if gone else NoticeKind.FOLDER, b"")
            else:
                path = folder + b"/" + name if folder else name
                if not mask & _IN_ISDIR:
                    yield Notice(NoticeKind.FILE, path)
                    continue
                if mask & _IN_MOVED_FROM:
                    self._forget(path)
                yield Notice(NoticeKind.FOLDER, path)

    def _forget(self, folder: bytes) -> None:
        """Remove the watches of a folder that was moved away: their notices would have its old path."""
        below = folder + b"/"
        for watch, path in list(self._folders.items()):
            if path == folder or path.startswith(below):
                del self._folders[watch]
                _libc.inotify_rm_watch(self._fd, watch)


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
