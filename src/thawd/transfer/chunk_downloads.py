"""Fetches chunks, several at a time, and writes their contents to the files that need them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from thawd.errors import ResourceNotFoundException
from thawd.stores.chunk_places import ChunkPlace
from thawd.transfer.chunk_format import MAX_CHUNK_BYTES, ChunkError, ChunkFacts, decode_chunk
from thawd.transfer.record_body import Extent
from thawd.transfer.store_layout import chunk_key

_THREADS = 8
# The largest chunk: zstd and AES-GCM add less than this to contents that cannot be compressed.
STORED_LIMIT_BYTES = MAX_CHUNK_BYTES + (16 << 10)
_TRIES = 2

_Write = tuple[Path, Extent]


def fetch(place: ChunkPlace, chunk: ChunkFacts) -> bytes:
    """Fetch one chunk. One that is damaged is fetched once more, in case it was damaged on its way.

    Raises:
        ChunkError: the store's chunk is missing, damaged or another one (HTTP 500).
        StoreError: the store failed (HTTP 500).
    """
    for attempt in range(_TRIES):
        try:
            return decode_chunk(place.get(chunk_key(chunk.id), limit_bytes=STORED_LIMIT_BYTES), chunk)
        except ResourceNotFoundException:
            raise ChunkError(f"chunk {chunk.id.hex()[:12]} is missing from {place.name}") from None
        except ChunkError:
            if attempt == _TRIES - 1:
                raise
    raise AssertionError("the last attempt returns or raises")


def write_contents(place: ChunkPlace, chunks: Sequence[ChunkFacts], files: Mapping[Path, list[Extent]]) -> int:
    """Write the contents of files that exist with their sizes, and contain only zeros.

    Each chunk is fetched once, and checked before anything of it is written.

    Returns:
        The number of bytes that were written.

    Raises:
        ChunkError: a chunk is missing, damaged or another one (HTTP 500).
        StoreError: the store failed (HTTP 500).
        OSError: a file cannot be written.
    """
    writes: dict[int, list[_Write]] = {}
    for path, extents in files.items():
        for extent in extents:
            writes.setdefault(extent.chunk, []).append((path, extent))

    def one(index: int) -> int:
        plain = fetch(place, chunks[index])
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
