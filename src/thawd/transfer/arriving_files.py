"""A file whose contents arrive from a store of chunks while it is read.

Whoever reads waits for the chunks that it needs, and they are fetched first. Then come those that an earlier run used
first, and those that follow in the file. When nobody has waited for a while, the rest is fetched. Every chunk is
verified before a byte of it is returned. If a chunk cannot be had, reading fails from then on: no byte that has not
arrived is ever returned as zero.

The contents are in a file without a name, so nothing is left of them when the process that receives ends; or in a
file whose path the caller chooses, and which is whole after `ArrivingFile.require_whole`.
"""

from __future__ import annotations

import bisect
import errno
import math
import os
import tempfile
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from thawd.errors import StoreError, ThawdError, unexpected
from thawd.snapshot.store.folder import digest_of
from thawd.transfer.chunk_downloads import ChunkSource, Patience
from thawd.transfer.chunk_format import ChunkError, ChunkFacts
from thawd.transfer.record_body import Extent

_THREADS = 8
_AHEAD = 4
_QUIET_S = 1.0
_TRIES = 3
_PAUSE_S = 0.5
# Python runs the handler of a signal that arrives just before such a wait only after it.
_LONGEST_WAIT_S = 0.5
FIRST_USE_S = 10.0
"""Chunks that are read in these seconds after the first one belong to a program's start."""
_MISSING, _ASKED, _THERE = 0, 1, 2


class ArrivingFile:
    """A file that is being received. Several threads may read. Call `close` at the end.

    Args:
        source: the chunks.
        chunks: the chunks of the record, by index.
        extents: where the file's bytes are; the others are zero.
        size: size of the file, bytes.
        where: what has arrived is kept in a file without a name in this folder; or in a new file, if this path is free.
        expected: chunks that will probably be used first, in order.

    Attributes:
        size: the same.
        fetched_bytes: contents that have arrived.
        on_failure: called with the reason, in any thread, before a reader learns that contents cannot be had.

    Raises:
        OSError: the file cannot be made.
    """

    def __init__(
        self,
        source: ChunkSource,
        chunks: Sequence[ChunkFacts],
        extents: Sequence[Extent],
        size: int,
        where: Path,
        *,
        expected: Sequence[int] = (),
    ) -> None:
        self.size = size
        self.fetched_bytes = 0
        self.on_failure: Callable[[str], object] = lambda why: None
        self._source = source
        self._chunks = chunks
        self._extents = sorted(extents, key=lambda one: one.offset)
        self._begins = [one.offset for one in self._extents]
        self._of_chunk: dict[int, list[Extent]] = {}
        for extent in self._extents:
            self._of_chunk.setdefault(extent.chunk, []).append(extent)
        # By the first place of each chunk in the file.
        self._order = list(self._of_chunk)
        self._rank = {chunk: rank for rank, chunk in enumerate(self._order)}
        self._state = dict.fromkeys(self._order, _MISSING)
        self._urgent: deque[int] = deque()
        self._ahead: deque[int] = deque(one for one in expected if one in self._state)
        self._used: dict[int, None] = {}
        self._used_until_s = math.inf
        self._rest = 0  # rank of the first chunk that may be missing
        self._left = len(self._order)
        self._wanted_at_s = time.monotonic()
        self._failure = ""
        self._is_closed = False
        self._changed = threading.Condition()
        self._fd = _new_file(where)
        weakref.finalize(self, os.close, self._fd).atexit = False
        os.truncate(self._fd, size)
        self._threads = [threading.Thread(target=self._work, name="arriving", daemon=True) for _ in range(_THREADS)]
        for thread in self._threads:
            thread.start()

    @property
    def failure(self) -> str:
        """Why reading fails; empty: it does not."""
        return self._failure

    @property
    def first_used(self) -> list[int]:
        """The chunks that were read in the `FIRST_USE_S` seconds after the first one, in order."""
        with self._changed:
            return list(self._used)

    def read(self, offset: int, size: int) -> bytes:
        """Read bytes, and wait until they are there; fewer at the end of the file.

        Raises:
            OSError: they cannot be had (EIO).
        """
        size = max(0, min(size, self.size - offset))
        needed = self._needed(offset, offset + size)
        with self._changed:
            self._note(needed)
            missing = [chunk for chunk in needed if self._state[chunk] != _THERE]
            if missing:
                self._urgent.extend(missing)
                self._ahead.extend(self._following(missing[-1]))
                self._changed.notify_all()
            while missing and not self._failure and not self._is_closed:
                self._wanted_at_s = time.monotonic()
                self._changed.wait(_LONGEST_WAIT_S)
                missing = [chunk for chunk in missing if self._state[chunk] != _THERE]
            if self._failure or self._is_closed:
                raise OSError(errno.EIO, self._failure or "the file is closed")
        return os.pread(self._fd, size, offset)

    def expect(self, chunks: Sequence[int]) -> None:
        """Fetch these chunks next, in this order: they will probably be used soon."""
        with self._changed:
            self._ahead.extend(chunk for chunk in chunks if self._state.get(chunk) == _MISSING)
            self._changed.notify_all()

    def wait_for(self, chunks: Sequence[int], patience: Patience) -> None:
        """Wait until some of the expected chunks are there.

        Raises:
            StoreError: a chunk cannot be had, or the store is too slow (HTTP 500).
        """
        counted_bytes = 0
        with self._changed:
            missing = list(chunks)
            while missing := [chunk for chunk in missing if self._state.get(chunk, _THERE) != _THERE]:
                if self._failure or self._is_closed:
                    raise StoreError(self._failure or "the file is closed")
                patience.check(self._source.place)
                self._wanted_at_s = time.monotonic()
                self._changed.wait(_LONGEST_WAIT_S)
                patience.arrived(self.fetched_bytes - counted_bytes)
                counted_bytes = self.fetched_bytes

    def require_whole(self, sha256: str) -> None:
        """Wait until everything is there, and verify the digest of the whole file.

        Raises:
            StoreError: a chunk cannot be had, or the file is closed (HTTP 500).
            ChunkError: the digest is another one; reading fails from now on (HTTP 500).
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._left or self._failure or self._is_closed)
            if self._failure or self._is_closed:
                raise StoreError(self._failure or "the file is closed")
        found = digest_of(self._fd)
        if found != sha256:
            self._fail(f"the image {sha256[:12]} is damaged: its SHA-256 is {found[:12]}")
            raise ChunkError(self._failure)

    def close(self) -> None:
        """End all threads, and let all readers fail. Waits for chunks that are just being fetched.

        The contents stay on the disk until the object is gone, so that a reader of this moment reads no other file.
        """
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _note(self, chunks: list[int]) -> None:
        if chunks and self._used_until_s == math.inf:
            self._used_until_s = time.monotonic() + FIRST_USE_S
        if time.monotonic() < self._used_until_s:
            self._used.update(dict.fromkeys(chunks))

    def _needed(self, begin: int, end: int) -> list[int]:
        first = max(0, bisect.bisect_right(self._begins, begin) - 1)
        last = bisect.bisect_left(self._begins, end)
        found = (one for one in self._extents[first:last] if one.offset + one.length > begin)
        return list(dict.fromkeys(one.chunk for one in found))

    def _following(self, chunk: int) -> list[int]:
        rank = self._rank[chunk] + 1
        return [one for one in self._order[rank : rank + _AHEAD] if self._state[one] == _MISSING]

    def _work(self) -> None:
        while (chunk := self._next()) is not None:
            try:
                self._take(chunk)
            except (ThawdError, OSError) as error:
                self._fail(error.message if isinstance(error, ThawdError) else str(error))
            except Exception as error:
                self._fail(unexpected(error))

    def _next(self) -> int | None:
        """Choose the next chunk, and wait while there is nothing to fetch. None: at the end."""
        with self._changed:
            while not self._is_closed and not self._failure and self._left:
                for waiting in (self._urgent, self._ahead):
                    while waiting:
                        chunk = waiting.popleft()
                        if self._state[chunk] == _MISSING:
                            self._state[chunk] = _ASKED
                            return chunk
                quiet_s = time.monotonic() - self._wanted_at_s
                if quiet_s < _QUIET_S:
                    self._changed.wait(_QUIET_S - quiet_s)
                    continue
                while self._rest < len(self._order) and self._state[self._order[self._rest]] != _MISSING:
                    self._rest += 1
                if self._rest < len(self._order):
                    chunk = self._order[self._rest]
                    self._state[chunk] = _ASKED
                    return chunk
                self._changed.wait()
            return None

    def _take(self, chunk: int) -> None:
        plain = memoryview(self._fetch(chunk))
        for extent in self._of_chunk[chunk]:
            data, done = plain[extent.begin : extent.begin + extent.length], 0
            while done < len(data):
                done += os.pwrite(self._fd, data[done:], extent.offset + done)
        with self._changed:
            self._state[chunk] = _THERE
            self._left -= 1
            self.fetched_bytes += len(plain)
            self._changed.notify_all()

    def _fetch(self, chunk: int) -> bytes:
        for attempt in range(_TRIES):
            try:
                return self._source.fetch(self._chunks[chunk])
            except ChunkError:
                raise
            except StoreError:
                if attempt == _TRIES - 1 or self._is_closed:
                    raise
                time.sleep(_PAUSE_S)
        raise AssertionError("the last attempt returns or raises")

    def _fail(self, why: str) -> None:
        self.on_failure(why)
        with self._changed:
            self._failure = self._failure or why
            self._changed.notify_all()


def _new_file(where: Path) -> int:
    if not where.is_dir():
        return os.open(where, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    fd, name = tempfile.mkstemp(prefix="arriving-", dir=where)
    Path(name).unlink()
    return fd
