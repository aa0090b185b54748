"""Fetches chunks, several at a time, and writes their contents to the files that need them."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from thawd.errors import ResourceNotFoundException, StoreError
from thawd.stores.chunk_places import ChunkPlace
from thawd.transfer.chunk_cache import ChunkCache
from thawd.transfer.chunk_format import MAX_CHUNK_BYTES, ChunkError, ChunkFacts, decode_chunk
from thawd.transfer.record_body import Extent
from thawd.transfer.store_layout import chunk_key

_THREADS = 8
# The largest chunk: zstd and AES-GCM add less than this to contents that cannot be compressed.
STORED_LIMIT_BYTES = MAX_CHUNK_BYTES + (16 << 10)
_TRIES = 2

_FIRST_S = 15.0
_SLOWEST_BYTES_S = 4 << 20
_LONGEST_LOOK_S = 1.0

_Write = tuple[Path, Extent]


class Patience:
    """How long somebody waits for a store: some seconds, and more while contents arrive at a useful speed.

    Args:
        first_s: seconds in which nothing need arrive; None: wait for ever.
    """

    def __init__(self, first_s: float | None = None) -> None:
        self._first_s = first_s
        self._bytes = 0
        self._looked_s = time.monotonic()
        self._waited_s = 0.0

    @classmethod
    def of_a_start(cls) -> Patience:
        """That of a function that is to start, and could be initialised instead."""
        return cls(_FIRST_S)

    def arrived(self, size_bytes: int) -> None:
        """Account for contents that have arrived. Exact if one thread calls it; several may lose a little."""
        self._bytes += size_bytes

    @property
    def is_over(self) -> bool:
        """Whether to stop waiting. A pause of this process counts for one second at most: look often."""
        now_s = time.monotonic()
        self._waited_s += min(now_s - self._looked_s, _LONGEST_LOOK_S)
        self._looked_s = now_s
        return self._first_s is not None and self._waited_s > self._first_s + self._bytes / _SLOWEST_BYTES_S

    def check(self, place: ChunkPlace) -> None:
        """Raise an error if it is over.

        Raises:
            StoreError: the store is too slow (HTTP 500).
        """
        if self.is_over:
            raise StoreError(
                f"{place.name} is too slow: {self._bytes:,} bytes have arrived, less than {_SLOWEST_BYTES_S:,} a second"
            )


class ChunkSource:
    """Chunks of a place. What this machine has kept is not fetched again. Several threads may use it.

    Args:
        place: the store of chunks.
        cache: this machine's chunks; None: all are fetched.

    Attributes:
        place: the same.
        kept_bytes: contents that were not fetched, because this machine had them. Several threads may lose a little.
    """

    def __init__(self, place: ChunkPlace, cache: ChunkCache | None = None) -> None:
        self.place = place
        self.kept_bytes = 0
        self._cache = cache

    def fetch(self, chunk: ChunkFacts) -> bytes:
        """The verified content of a chunk. One that is damaged is fetched once more, in case that happened on its way.

        Raises:
            ChunkError: the store's chunk is missing, damaged or another one (HTTP 500).
            StoreError: the store failed (HTTP 500).
        """
        if self._cache is None:
            return fetch(self.place, chunk)[0]
        with self._cache.fetching(chunk.id):
            plain = self._kept(self._cache, chunk)
            if plain is None:
                plain, data = fetch(self.place, chunk)
                self._cache.put(chunk.id, data)
        return plain

    def _kept(self, cache: ChunkCache, chunk: ChunkFacts) -> bytes | None:
        data = cache.get(chunk.id)
        if data is None:
            return None
        try:
            plain = decode_chunk(data, chunk)
        except ChunkError:
            cache.discard(chunk.id)
            return None
        self.kept_bytes += len(plain)
        return plain


def fetch(place: ChunkPlace, chunk: ChunkFacts) -> tuple[bytes, bytes]:
    """Fetch one chunk from the store, see `ChunkSource.fetch`.

    Returns:
        Its content, and its bytes as they are in the store.
    """
    for attempt in range(_TRIES):
        try:
            data = place.get(chunk_key(chunk.id), limit_bytes=STORED_LIMIT_BYTES)
            return decode_chunk(data, chunk), data
        except ResourceNotFoundException:
            raise ChunkError(f"chunk {chunk.id.hex()[:12]} is missing from {place.name}") from None
        except ChunkError:
            if attempt == _TRIES - 1:
                raise
    raise AssertionError("the last attempt returns or raises")


def write_contents(
    source: ChunkSource, chunks: Sequence[ChunkFacts], files: Mapping[Path, list[Extent]], patience: Patience
) -> int:
    """Write the contents of files that exist with their sizes, and contain only zeros.

    Each chunk is fetched once, and checked before anything of it is written.

    Returns:
        The number of bytes that were written.

    Raises:
        ChunkError: a chunk is missing, damaged or another one (HTTP 500).
        StoreError: the store failed, or is too slow (HTTP 500).
        OSError: a file cannot be written.
    """
    writes: dict[int, list[_Write]] = {}
    for path, extents in files.items():
        for extent in extents:
            writes.setdefault(extent.chunk, []).append((path, extent))

    def one(index: int) -> int:
        patience.check(source.place)
        plain = source.fetch(chunks[index])
        patience.arrived(len(plain))
        return sum(_write(path, extent, plain) for path, extent in writes[index])

    pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="download")
    try:
        return sum(pool.map(one, sorted(writes)))
    finally:
        pool.shutdown(cancel_futures=True)


def _write(path: Path, extent: Extent, plain: bytes) -> int:
    data = memoryview(plain)[extent.begin : extent.begin + extent.length]
    fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        done = 0
        while done < len(data):
            done += os.pwrite(fd, data[done:], extent.offset + done)
    finally:
        os.close(fd)
    return len(data)
