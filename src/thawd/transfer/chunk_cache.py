"""Chunks that this machine has received, so that its functions do not fetch equal ones again.

Only chunks from buckets and registries are kept: a folder is read as fast.

A chunk is kept as the store of chunks has it: compressed, encrypted, under its id. So the folder tells nothing without
the keys, and whoever reads a chunk verifies it like one from the store. The folder has a limit; beyond it, the chunks
that were used least recently are removed. Several processes may use it at the same time.

Nothing here is synced to the disk: after a power failure, a chunk may be damaged; then it is fetched again.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from thawd.resources import RemoteBucket

FOLDER = "received-chunks"
"""Name of the folder in the data folder."""

_UNFINISHED = ".new-"
_NAME = re.compile(r"([0-9a-f]{2})/(\1[0-9a-f]{62}|\.new-[0-9a-f]{16})\Z")
_ABANDONED_S = 3600.0
# When the limit is reached, so much room is made at once.
_ROOM = 0.1


class _Kept(NamedTuple):
    used_ns: int
    size: int
    path: Path


class ChunkCache:
    """A folder with chunks. Several threads may use it; no method raises OSError.

    Args:
        folder: the folder; made when missing, with access for its owner alone.
        limit_bytes: the size of all chunks together, without the file system's own needs.
        spare_bytes: if less is free on the disk, nothing is added, and half of the chunks are removed.
        wait_s: how long a thread waits for another one that fetches the same chunk.
    """

    def __init__(self, folder: Path, *, limit_bytes: int, spare_bytes: int = 1 << 30, wait_s: float = 5.0) -> None:
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._spare_bytes = spare_bytes
        self._wait_s = wait_s
        self._lock = threading.Lock()
        self._fetching: dict[bytes, threading.Lock] = {}
        self._waiting: dict[bytes, int] = {}
        self._size_bytes = 0  # as of the last count, and what was added since
        self._uncounted_bytes = limit_bytes  # what may have been added since, so the first `put` counts

    def get(self, chunk_id: bytes) -> bytes | None:
        """The bytes of a chunk, which may be damaged; None: it is not here."""
        path = self._path(chunk_id)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with open(fd, "rb") as file:
                data = file.read()
                os.utime(fd)
        except OSError:
            return None
        return data

    def put(self, chunk_id: bytes, data: bytes) -> None:
        """Keep a chunk that was verified."""
        path = self._path(chunk_id)
        if len(data) > self._limit_bytes or not self._make_room(len(data)):
            return
        unfinished = path.with_name(f"{_UNFINISHED}{secrets.token_hex(8)}")
        with contextlib.suppress(OSError):
            try:
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                with open(fd, "wb") as file:
                    file.write(data)
                unfinished.rename(path)
            except BaseException:
                unfinished.unlink(missing_ok=True)
                raise

    def discard(self, chunk_id: bytes) -> None:
        """Remove a chunk that is damaged."""
        with contextlib.suppress(OSError):
            self._path(chunk_id).unlink(missing_ok=True)

    @contextlib.contextmanager
    def fetching(self, chunk_id: bytes) -> Iterator[None]:
        """Let one thread of this process at a time fetch a chunk; who waited finds it here.

        If the other thread takes longer than `wait_s`, this one does not wait any more.
        """
        with self._lock:
            lock = self._fetching.setdefault(chunk_id, threading.Lock())
            self._waiting[chunk_id] = self._waiting.get(chunk_id, 0) + 1
        is_alone = lock.acquire(timeout=self._wait_s)
        try:
            yield
        finally:
            if is_alone:
                lock.release()
            with self._lock:
                self._waiting[chunk_id] -= 1
                if not self._waiting[chunk_id]:
                    del self._waiting[chunk_id], self._fetching[chunk_id]

    def _make_room(self, size_bytes: int) -> bool:
        """Remove chunks if the limit or the disk demands it. Returns whether a chunk of this size may be added."""
        with self._lock:
            self._size_bytes += size_bytes
            self._uncounted_bytes += size_bytes
            is_short = self._is_short()
            # Other processes add chunks, too: what is here is counted again now and then.
            if is_short or self._size_bytes > self._limit_bytes or self._uncounted_bytes > self._limit_bytes * _ROOM:
                self._shrink(size_bytes, is_short=is_short)
        return not is_short

    def _is_short(self) -> bool:
        try:
            found = os.statvfs(self._folder if self._folder.exists() else self._folder.parent)
        except OSError:
            return True
        return found.f_bavail * found.f_frsize < self._spare_bytes

    def _shrink(self, size_bytes: int, *, is_short: bool) -> None:
        chunks = sorted(self._listed())
        total_bytes = sum(one.size for one in chunks)
        most_bytes = self._limit_bytes
        if is_short:
            most_bytes = min(most_bytes, total_bytes // 2)
        elif total_bytes + size_bytes > self._limit_bytes:
            most_bytes = int(self._limit_bytes * (1 - _ROOM))
        for one in chunks:
            if total_bytes + size_bytes <= most_bytes or not total_bytes:
                break
            with contextlib.suppress(OSError):
                one.path.unlink(missing_ok=True)
            total_bytes -= one.size
        self._size_bytes = total_bytes + size_bytes
        self._uncounted_bytes = 0

    def _listed(self) -> Iterator[_Kept]:
        """All chunks. Removes what processes left behind that died while they wrote."""
        abandoned_ns = time.time_ns() - int(_ABANDONED_S * 1e9)
        for one in _files(self._folder):
            if not one.path.name.startswith(_UNFINISHED):
                yield one
            elif one.used_ns < abandoned_ns:
                with contextlib.suppress(OSError):
                    one.path.unlink()

    def _path(self, chunk_id: bytes) -> Path:
        digits = chunk_id.hex()
        return self._folder / digits[:2] / digits


def _files(folder: Path) -> Iterator[_Kept]:
    """The files that a cache has written, by their names; others that lie among them are none of its business."""
    for inner, _, names in os.walk(folder):
        for name in names:
            path = Path(inner) / name
            if path.parent.parent == folder and _NAME.match(f"{path.parent.name}/{name}"):
                with contextlib.suppress(OSError):
                    status = path.lstat()
                    yield _Kept(status.st_mtime_ns, status.st_size, path)


def cache_for(where: Path | RemoteBucket, data: Path, *, limit_bytes: int) -> ChunkCache | None:
    """The chunks that this machine keeps from a store of chunks; None: it keeps none, because the store is a folder.

    Args:
        where: the store of chunks.
        data: the data folder. If it does not exist, nothing is kept.
        limit_bytes: see `ChunkCache`; 0: nothing is kept.
    """
    if not isinstance(where, RemoteBucket) or not limit_bytes or not data.is_dir():
        return None
    return ChunkCache(data / FOLDER, limit_bytes=limit_bytes)


def remove(data: Path) -> None:
    """Remove all chunks that are kept in the data folder `data`, and nothing else that lies among them."""
    folder = data / FOLDER
    if not folder.is_dir() or folder.is_symlink():
        return
    for kept in _files(folder):
        with contextlib.suppress(OSError):
            kept.path.unlink()
    for part in [*folder.iterdir(), folder]:
        with contextlib.suppress(OSError):  # it contains something else, or is a file
            part.rmdir()
