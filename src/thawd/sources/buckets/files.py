"""Checks one file of a bucket: whether it is an object, whether it is complete, and whether it differs from its record.

Also computes its ETag.

All functions here block, so they are called on threads. They change no object, queue no event, and do not use the
catalog.

A file is complete when no process has it open for writing. Linux can tell: it refuses a read lease (fcntl(2),
"Leases") with EAGAIN while a process has the file open or mapped for writing. If file leases do not work (the file
belongs to another user, or is on a network file system), a file counts as complete after it has not changed for a
while. In both cases, more than one tick of the file system's clock must have passed since the file's last change, so
that any later write changes the file's times.
"""
# Keys and paths are bytes here, which pathlib does not take.
# ruff: noqa: PTH108, PTH116, PTH118

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import signal
import stat
import threading
import time
from dataclasses import dataclass
from enum import Enum, auto

from thawd.stores.objects.catalog import ObjectRecord
from thawd.stores.objects.folder import BucketFolder

REST_S = 0.025
"""How long a file is not checked after its last change, seconds. A tick of a file system's clock is at most 10 ms."""
# The first and the longest wait between the checks of an unfinished file, seconds, and the factor by which each wait is
# longer than the one before.
FIRST_POLL_S = 0.2
LONGEST_POLL_S = 2.0
_POLL_GROWTH = 1.6
_CHUNK_BYTES = 1024 * 1024
_PASSING = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.ENOENT, errno.ELOOP, errno.ENOTDIR)
"""Errors after which a file is checked again: descriptors or memory ran short, or the file was removed or replaced."""
# A write sets mtime and ctime to the current time; utime() sets ctime to the current time and mtime to any given time.
# If mtime and ctime differ by less than this, the last change counts as a write.
_SAME_MOMENT_NS = 20_000_000


class FileState(Enum):
    """The state of a key, as a check found it."""

    SAME = auto()
    """The object equals its record."""
    CHANGED = auto()
    """A complete object that differs from its record; `LookResult.announce` says whether to queue an event."""
    UNFINISHED = auto()
    """A process writes the file, or may be writing it: check again in `LookResult.wait_s` seconds."""
    GONE = auto()
    """There is no object with this key."""
    LARGE = auto()
    """The file would have to be read, but is larger than the caller allows."""
    UNREADABLE = auto()
    """The file cannot be read; `LookResult.error` says why."""


@dataclass(slots=True)
class UnfinishedFile:
    """The record of a file that was unfinished at the last check.

    Attributes:
        wait_s: length of the last wait, seconds.
        seen: size, mtime and ctime at the last check; None: file leases work, so these are not needed.
        since: when `seen` got its present value, ``time.monotonic()`` seconds.
    """

    wait_s: float = 0.0
    seen: tuple[int, int, int] | None = None
    since: float = 0.0


@dataclass(slots=True)
class LookResult:
    """The result of checking one key.

    Attributes:
        key: the key.
        state: the state that was found.
        record: the object's new record; None unless the state is `CHANGED`.
        announce: whether to queue an event for the change.
        wait_s: for an unfinished file: when to check again, seconds from now.
        unfinished: for an unfinished or large file: what to pass to the next check.
        error: why the file cannot be read.
    """

    key: bytes
    state: FileState
    record: ObjectRecord | None = None
    announce: bool = False
    wait_s: float = 0.0
    unfinished: UnfinishedFile | None = None
    error: OSError | None = None


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that the platform itself has written, and need not read to know its ETag.

    Attributes:
        stat: stat of the complete file before it was renamed to its final name.
        etag: MD5 of the content, hexadecimal digits.
        trace_id: X-Ray trace header of the request that wrote it; None: it had none.
    """

    stat: os.stat_result
    etag: str
    trace_id: str | None = None


class Looker:
    """Checks keys of one bucket.

    Make a new `Looker` for each batch: it remembers which folders are not links, and this can change between batches.

    Args:
        root: the bucket's folder.
        leases: whether file leases work in this file system, see `leases_work`.
        settle_s: without file leases, a file counts as complete after it has not changed for this long, seconds.
        stop: once set, reading a file is aborted.
    """

    def __init__(self, root: bytes, *, leases: bool, settle_s: float, stop: threading.Event) -> None:
        self._folder = BucketFolder(root)
        self._leases = leases
        self._settle_s = settle_s
        self._stop = stop

    def look(
        self,
        key: bytes,
        *,
        known: ObjectRecord | None = None,
        unfinished: UnfinishedFile | None = None,
        written: WrittenFile | None = None,
        largest_bytes: int | None = None,
    ) -> LookResult:
        """Check one key now.

        Args:
            key: the key.
            known: the key's record, read before this call; None: there is none.
            unfinished: the value from the last check, if that found the file unfinished or large; else None.
            written: the file as the platform wrote it. If the key still names that file, it counts as complete.
            largest_bytes: files larger than this are not read; None: files of any size are read.
        """
        unfinished = unfinished or UnfinishedFile()
        try:
            located = self._folder.locate(key)
            if located is None:
                return LookResult(key, FileState.GONE)
            if known is not None and is_same(located.stat, known):
                return LookResult(key, FileState.SAME)
            if written is not None and _stat_key(located.stat)[:3] == _stat_key(written.stat)[:3]:
                record = _record(key, located.stat, written.etag)
                return LookResult(key, FileState.CHANGED, record=record, announce=not _is_same_file(record, known))
            if largest_bytes is not None and located.stat.st_size > largest_bytes:
                return LookResult(key, FileState.LARGE, unfinished=unfinished)
            return self._examine(key, located.path, known, unfinished)
        except OSError as error:
            return self._unfinished(key, unfinished) if error.errno in _PASSING else _unreadable(key, error)

    def _examine(self, key: bytes, path: bytes, known: ObjectRecord | None, unfinished: UnfinishedFile) -> LookResult:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            before = os.fstat(descriptor)
            if not stat.S_ISREG(before.st_mode):
                return LookResult(key, FileState.GONE)
            if 0 <= time.time_ns() - before.st_ctime_ns < REST_S * 1e9:
                return LookResult(key, FileState.UNFINISHED, wait_s=REST_S, unfinished=unfinished)
            writers = has_writers(descriptor) if self._leases else None
            if writers or (writers is None and not self._is_settled(before, unfinished)):
                return self._unfinished(key, unfinished)
            etag = self._md5(descriptor)
            same_content = os.fstat(descriptor)
        finally:
            os.close(descriptor)
        named = os.stat(path, follow_symlinks=False)
        if etag is None or not _stat_key(before) == _stat_key(same_content) == _stat_key(named):
            return self._unfinished(key, unfinished)
        record = _record(key, before, etag)
        return LookResult(key, FileState.CHANGED, record=record, announce=_is_new(record, known))

    def _md5(self, descriptor: int) -> str | None:
        digest = hashlib.md5(usedforsecurity=False)
        while chunk := os.read(descriptor, _CHUNK_BYTES):
            if self._stop.is_set():
                return None
            digest.update(chunk)
        return digest.hexdigest()

    def _is_settled(self, now: os.stat_result, unfinished: UnfinishedFile) -> bool:
        seen = (now.st_size, now.st_mtime_ns, now.st_ctime_ns)
        at = time.monotonic()
        if unfinished.seen != seen:
            unfinished.seen, unfinished.since = seen, at
        return at - unfinished.since >= self._settle_s

    def _unfinished(self, key: bytes, unfinished: UnfinishedFile) -> LookResult:
        unfinished.wait_s = min(max(FIRST_POLL_S, unfinished.wait_s * _POLL_GROWTH), LONGEST_POLL_S)
        return LookResult(key, FileState.UNFINISHED, wait_s=unfinished.wait_s, unfinished=unfinished)


def _unreadable(key: bytes, error: OSError) -> LookResult:
    return LookResult(key, FileState.UNREADABLE, error=error)


def is_same(now: os.stat_result, known: ObjectRecord) -> bool:
    """Return whether a file's stat equals that in its record."""
    return _stat_key(now) == (known.inode, known.size, known.mtime_ns, known.ctime_ns)


def _is_new(now: ObjectRecord, known: ObjectRecord | None) -> bool:
    """Return whether an object whose stat differs from its record counts as written again.

    If the file and its content are the same, it counts as written again if its mtime has grown and equals its ctime:
    then the file was rewritten or touched. It does not count as written again if a program set its mtime to another
    time, as copying tools do after closing a file, or if only its metadata changed.
    """
    if known is None or (now.inode, now.size, now.etag) != (known.inode, known.size, known.etag):
        return True
    return now.mtime_ns > known.mtime_ns and abs(now.mtime_ns - now.ctime_ns) < _SAME_MOMENT_NS


def _is_same_file(now: ObjectRecord, known: ObjectRecord | None) -> bool:
    """Return whether a newly written file is already recorded. ctime is not compared: the final rename changed it."""
    return known is not None and (now.inode, now.size, now.mtime_ns) == (known.inode, known.size, known.mtime_ns)


def has_writers(descriptor: int) -> bool | None:
    """Return whether a process has the file open for writing; None: the kernel refuses leases on it.

    Args:
        descriptor: file descriptor of a regular file, opened for reading only.
    """
    # If a process opens the file for writing while the lease is held, the kernel sends a signal to thawd. Make
    # it SIGURG, which is ignored by default, and not SIGIO, which ends a process that has no handler for it.
    with contextlib.suppress(OSError):
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except OSError as error:
        return True if error.errno == errno.EAGAIN else None
    fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return False


def install_lease_signal_handler() -> None:
    """Make SIGIO harmless, for a sandbox that allows file leases but not F_SETSIG. Call it once, in the main thread.

    It installs a handler instead of SIG_IGN, because an ignored signal stays ignored in child processes.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGIO, _no_op)


def _no_op(_number: int, _frame: object) -> None:
    """Do nothing. The lease needs no reaction, because it is released immediately after it was taken."""


def leases_work(folder: bytes) -> bool:
    """Test with a temporary file whether leases reveal writers in a folder. Return True if that cannot be tested.

    Some file systems refuse leases, and some always report a writer.
    """
    path = os.path.join(folder, b".thawd-lease-%d" % os.getpid())
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError:
        return True
    try:
        if has_writers(descriptor) is not False:
            return False
        writer = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            return has_writers(descriptor) is True
        finally:
            os.close(writer)
    finally:
        os.close(descriptor)
        os.unlink(path)


def _stat_key(now: os.stat_result) -> tuple[int, int, int, int]:
    return now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns


def _record(key: bytes, now: os.stat_result, etag: str) -> ObjectRecord:
    return ObjectRecord(
        key=key, inode=now.st_ino, size=now.st_size, mtime_ns=now.st_mtime_ns, ctime_ns=now.st_ctime_ns, etag=etag
    )
