"""SHA-256 digests of files, remembered as long as a file does not change.

A digest is remembered by device, inode, size, modification time and time of change of its file, and used again only
while all five are the same. Programs can set a modification time, but not the time of change. So a remembered digest
stands for a file that nobody has changed since it was read. File times advance only every few milliseconds, so a file
that changed a moment ago is read a moment later.

Source: inode_timestamps(7), current_time().
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
import threading
import time
from pathlib import Path

import msgspec

from thawd.errors import StoreError
from thawd.snapshot.store.folder import digest_of

_CLOCK_NS = 100_000_000
_PATIENCE_NS = 5_000_000_000
_LAYOUT = 1
_MOST = 100_000  # remembered digests; a list of more is begun anew
_OPEN_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC

_Key = tuple[int, int, int, int, int]


class _Remembered(msgspec.Struct):
    layout: int
    digests: list[tuple[_Key, str]]


class FileDigests:
    """Digests of files. Several threads may use one object.

    Args:
        store: file in which the digests are kept, with access for its owner alone; None: in memory only. A file that is
            missing, damaged, or belongs to another user is ignored.
    """

    def __init__(self, store: Path | None = None) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._known = _load(store)
        self._loaded = len(self._known)

    def of(self, path: Path) -> tuple[os.stat_result, str]:
        """The status and the SHA-256 of a regular file. Later changes of the file change its status.

        Raises:
            StoreError: the file is missing, cannot be read, is not a regular file, or changed meanwhile (HTTP 500).
        """
        try:
            fd = os.open(path, _OPEN_FLAGS)
        except OSError as error:
            raise StoreError(f"{path} cannot be opened: {error.strerror}") from None
        try:
            before = _settled(fd, path)
            if not stat.S_ISREG(before.st_mode):
                raise StoreError(f"{path} is not a regular file")
            with self._lock:
                known = self._known.get(_key(before))
            if known is not None:
                return before, known
            sha256 = digest_of(fd)
            if _key(os.fstat(fd)) != _key(before):
                raise StoreError(f"{path} was changed while it was read; try again")
        except OSError as error:
            raise StoreError(f"{path} cannot be read: {error.strerror}") from None
        finally:
            os.close(fd)
        with self._lock:
            self._known[_key(before)] = sha256
        return before, sha256

    def save(self) -> None:
        """Write the digests to the file, replacing it; has no effect if nothing was added, or on a full disk."""
        with self._lock:
            known = list(self._known.items())
        if self._store is None or len(known) == self._loaded:
            return
        text = msgspec.json.encode(_Remembered(_LAYOUT, known if len(known) <= _MOST else []))
        with contextlib.suppress(OSError):
            fd, written = tempfile.mkstemp(prefix=".new-digests-", dir=self._store.parent)
            try:
                with open(fd, "wb") as file:
                    file.write(text)
                Path(written).rename(self._store)
            except OSError:
                Path(written).unlink(missing_ok=True)
                raise
            self._loaded = len(known)


def _settled(fd: int, path: Path) -> os.stat_result:
    """Status of a file, once its last change is so long ago that another change would get another time.

    Raises:
        StoreError: the file keeps changing (HTTP 500).
    """
    until_ns = time.time_ns() + _PATIENCE_NS
    while True:
        status = os.fstat(fd)
        now_ns = time.time_ns()
        if not now_ns - _CLOCK_NS < status.st_ctime_ns <= now_ns:
            return status
        if now_ns > until_ns:
            raise StoreError(f"{path} keeps changing; try again when nothing writes to it")
        time.sleep((status.st_ctime_ns + _CLOCK_NS - now_ns) / 1e9)


def _key(status: os.stat_result) -> _Key:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _load(store: Path | None) -> dict[_Key, str]:
    if store is None:
        return {}
    try:
        fd = os.open(store, _OPEN_FLAGS | os.O_NOFOLLOW)
        with open(fd, "rb") as file:
            status = os.fstat(fd)
            if status.st_uid != os.geteuid() or status.st_mode & 0o077 or not stat.S_ISREG(status.st_mode):
                return {}
            found = msgspec.json.decode(file.read(), type=_Remembered)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return dict(found.digests) if found.layout == _LAYOUT else {}
