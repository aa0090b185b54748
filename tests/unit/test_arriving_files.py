"""`thawd.transfer.arriving_files`: whoever reads what has not arrived waits, and never reads anything else."""

from __future__ import annotations

import hashlib
import os
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.unit.chunk_stores import KEY, MemoryPlace
from thawd.errors import StoreError
from thawd.transfer import arriving_files
from thawd.transfer.arriving_files import ArrivingFile
from thawd.transfer.chunk_downloads import ChunkSource
from thawd.transfer.chunk_format import ChunkError, ChunkFacts, encode_chunk
from thawd.transfer.record_body import Extent
from thawd.transfer.store_layout import chunk_key

CHUNK = 8192
COUNT = 64


class GatedPlace(MemoryPlace):
    """Hands out a chunk once the test allows it, and remembers in which order chunks were asked for."""

    def begin(self) -> None:
        self.allowed = threading.Semaphore(0)
        self.asked: list[str] = []

    def get(self, key: str, *, limit_bytes: int) -> bytes:
        self.asked.append(key)
        self.allowed.acquire()
        return super().get(key, limit_bytes=limit_bytes)


class Stored:
    """A file of `COUNT` chunks with holes between them, in a store."""

    def __init__(self) -> None:
        self.place = GatedPlace()
        self.place.begin()
        self.chunks: list[ChunkFacts] = []
        self.extents: list[Extent] = []
        content = bytearray(2 * CHUNK * COUNT)
        for index in range(COUNT):
            plain = os.urandom(CHUNK)
            chunk = KEY.chunk(plain)
            self.chunks.append(chunk)
            self.place.put(chunk_key(chunk.id), encode_chunk(plain, chunk))
            self.extents.append(Extent(2 * CHUNK * index, index, 0, CHUNK))
            content[2 * CHUNK * index : 2 * CHUNK * index + CHUNK] = plain
        self.content = bytes(content)

    def file(self, folder: Path) -> ArrivingFile:
        return ArrivingFile(ChunkSource(self.place), self.chunks, self.extents, len(self.content), folder)

    def let_all_arrive(self) -> None:
        self.place.allowed.release(10_000)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arriving_files, "_QUIET_S", 0.05)


@pytest.fixture
def stored() -> Stored:
    return Stored()


@pytest.fixture
def file(stored: Stored, tmp_path: Path) -> Iterator[ArrivingFile]:
    found = stored.file(tmp_path)
    yield found
    stored.let_all_arrive()
    found.close()


def test_a_reader_waits_for_what_it_needs_and_gets_it(stored: Stored, file: ArrivingFile) -> None:
    with ThreadPoolExecutor(1) as reader:
        begin = 2 * CHUNK * 40 - 100
        answer = reader.submit(file.read, begin, CHUNK)
        hole = file.read(CHUNK, CHUNK)
        assert hole == bytes(CHUNK), "what no chunk covers is zero, and needs no chunk"
        assert not answer.done()
        stored.let_all_arrive()
        assert answer.result(60) == stored.content[begin : begin + CHUNK]


def test_what_somebody_waits_for_comes_first_then_what_follows_it(stored: Stored, file: ArrivingFile) -> None:
    with ThreadPoolExecutor(1) as reader:
        answer = reader.submit(file.read, 2 * CHUNK * 40, 10)
        stored.let_all_arrive()
        answer.result(60)
    file.require_whole(_digest(stored.content))
    first = stored.place.asked.index(chunk_key(stored.chunks[40].id))
    last = stored.place.asked.index(chunk_key(stored.chunks[COUNT - 1].id))
    assert first < last
    assert stored.place.asked.index(chunk_key(stored.chunks[41].id)) < last


def test_random_reads_of_many_threads_are_right(stored: Stored, file: ArrivingFile) -> None:
    stored.let_all_arrive()

    def read(seed: int) -> bool:
        chance = random.Random(seed)
        places = [(chance.randrange(len(stored.content)), chance.randrange(1, 5 * CHUNK)) for _ in range(50)]
        return all(file.read(begin, size) == stored.content[begin : begin + size] for begin, size in places)

    with ThreadPoolExecutor(8) as readers:
        assert all(readers.map(read, range(8)))
    file.require_whole(_digest(stored.content))
    assert file.fetched_bytes == CHUNK * COUNT


@pytest.mark.parametrize("harm", ["missing", "damaged"])
def test_a_reader_of_what_cannot_be_had_fails_after_the_owner_has_learnt_it(
    harm: str, stored: Stored, file: ArrivingFile
) -> None:
    key = chunk_key(stored.chunks[40].id)
    data = stored.place.objects[key][0]
    stored.place.remove(key)
    if harm == "damaged":
        stored.place.put(key, data[:-1] + bytes([data[-1] ^ 1]))
    learnt: list[bool] = []
    file.on_failure = lambda why: learnt.append(not file.failure)
    stored.let_all_arrive()
    with pytest.raises(OSError, match="chunk"):
        file.read(2 * CHUNK * 40, 10)
    assert learnt[0], "before any reader"
    with pytest.raises(OSError, match="chunk"):
        file.read(0, 10)
    with pytest.raises(StoreError):
        file.require_whole(_digest(stored.content))


def test_a_file_with_another_digest_than_it_should_have_is_noticed(stored: Stored, file: ArrivingFile) -> None:
    stored.let_all_arrive()
    with pytest.raises(ChunkError, match="is damaged"):
        file.require_whole("0" * 64)
    with pytest.raises(OSError, match="is damaged"):
        file.read(0, 1)


def test_a_reader_does_not_wait_for_a_file_that_is_closed(stored: Stored, tmp_path: Path) -> None:
    file = stored.file(tmp_path)
    with ThreadPoolExecutor(1) as reader:
        answer = reader.submit(file.read, 0, 10)
        while not stored.place.asked:
            threading.Event().wait(0.001)
        closing = threading.Thread(target=file.close)
        closing.start()
        with pytest.raises(OSError, match="closed"):
            answer.result(60)
        stored.let_all_arrive()
        closing.join()


def _digest(content: bytes) -> str:

    return hashlib.sha256(content).hexdigest()
