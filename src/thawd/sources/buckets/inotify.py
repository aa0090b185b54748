"""Notices from the kernel that something changed in a tree of folders: Linux's inotify, read by the event loop.

Notices are hints: they say where to look, never what is there. inotify is called directly because a hint must also
come when a writer closes a file, when a name is no UTF-8, and when the kernel has dropped notices; and because an idle
bucket should cost neither a thread nor a wake-up.

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
    """What a notice is about."""

    FILE = auto()
    """A name that is, or was, not a folder: look at this key."""
    FOLDER = auto()
    """A folder that appeared, went or changed: look at everything under it."""
    LOST = auto()
    """The kernel's queue was full: look at everything."""
    ROOT_GONE = auto()
    """The watched folder itself was removed, moved or unmounted."""


class Notice(NamedTuple):
    """One hint; `path` is relative to the root, without a leading slash, empty for the root."""

    kind: NoticeKind
    path: bytes


class TreeWatch:
    """One inotify instance for a folder and the folders below it, which the caller adds as it finds them.

    Names that begin with a dot are passed over. `watch` may be called from any thread.
    """

    def __init__(self, root: bytes) -> None:
        """Make the instance; no folder is watched yet.

        Raises:
            OSError: the limit of inotify instances or of open files is reached, or there is no inotify.
        """
        self._root = root
        self._lock = threading.Lock()
        self._folders: dict[int, bytes] = {}
        self._fd = _checked(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))

    def fileno(self) -> int:
        """The descriptor that is readable when there are notices."""
        return self._fd

    def watch(self, folder: bytes) -> bool:
        """Watch one folder, by its path relative to the root. Scan the folder afterwards, not before.

        Returns:
            False when there is no such folder, or it may not be watched.

        Raises:
            OSError: ENOSPC: the limit of watches (fs.inotify.max_user_watches) is reached.
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
        """The notices that have arrived, at most some 64 KiB of them; empty when there are none.

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
        """Stop watching; later calls of `watch` find nothing."""
        with self._lock:
            # -1, because the number of the closed descriptor may soon be that of another file.
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
        """Drop the watches of a folder that moved away: they would report under its old name."""
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
