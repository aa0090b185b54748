"""Uploads the chunks of a snapshot, several at a time, each at most once."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

from thawd.stores.chunk_places import ChunkPlace
from thawd.transfer.chunk_format import ChunkFacts, encode_chunk
from thawd.transfer.record_body import ChunkEntry
from thawd.transfer.store_keys import StoreKey
from thawd.transfer.store_layout import chunk_key, require_main_key

_THREADS = 8
_WAITING = 32  # chunks that wait for a thread; each takes up to half a MiB


class ChunkUploads:
    """A context manager; at its end all chunks are stored, or an error is raised. A store of another key is refused.

    Attributes:
        ids: the ids of the chunks, in the order of their indexes.
        entries: the same chunks, as a record lists them.
        new_bytes: bytes that were uploaded.
        new_count: chunks that were uploaded.

    Args:
        place: where chunks are stored.
        key: the main key.
        anew: whether to upload a chunk with this id although the place has it.
    """

    def __init__(self, place: ChunkPlace, key: StoreKey, *, anew: frozenset[bytes] | None) -> None:
        self.ids: list[bytes] = []
        self.entries: list[ChunkEntry] = []
        self.new_bytes = 0
        self.new_count = 0
        self._place = place
        self._key = key
        self._anew = anew
        self._indexes: dict[bytes, int] = {}
        self._room = threading.Semaphore(_WAITING)
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="upload")
        self._running: list[Future[None]] = []

    def __enter__(self) -> Self:
        require_main_key(self._place, self._key.name)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=error is not None)
        if error is None:
            self._raise_errors()

    def add(self, plain: bytes) -> int:
        """Store a chunk, unless the place has it; returns its index in the record.

        Raises:
            StoreError: an earlier upload failed (HTTP 500).
        """
        chunk = self._key.chunk(plain)
        known = self._indexes.get(chunk.id)
        if known is not None:
            return known
        self._indexes[chunk.id] = len(self.ids)
        self.ids.append(chunk.id)
        self.entries.append(ChunkEntry(chunk.sha256.hex(), chunk.key.hex(), chunk.plain_bytes))
        self._raise_errors()
        self._room.acquire()
        self._running.append(self._pool.submit(self._upload, plain, chunk))
        return len(self.ids) - 1

    def _raise_errors(self) -> None:
        still = []
        for one in self._running:
            if one.done():
                one.result()
            else:
                still.append(one)
        self._running = still

    def _upload(self, plain: bytes, chunk: ChunkFacts) -> None:
        try:
            key = chunk_key(chunk.id)
            is_wanted = self._anew is None or chunk.id in self._anew
            if not is_wanted and self._place.find(key) is not None:
                return
            data = encode_chunk(plain, chunk)
            self._place.put(key, data)
            with self._lock:
                self.new_bytes += len(data)
                self.new_count += 1
        finally:
            self._room.release()
