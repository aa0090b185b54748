"""Chunks that a machine keeps: shared by all functions, limited, and never trusted."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.unit.chunk_stores import KEY, Machine, MemoryPlace, elsewhere
from thawd.resources import RemoteBucket, StoreUrl
from thawd.stores.chunk_places import FolderPlace
from thawd.transfer import chunk_cache, receiving, sending
from thawd.transfer.chunk_cache import ChunkCache
from thawd.transfer.chunk_downloads import ChunkSource
from thawd.transfer.chunk_format import ChunkError, ChunkFacts, encode_chunk
from thawd.transfer.store_layout import chunk_key

KIB = 1 << 10


def stored(place: MemoryPlace, number: int, *, size: int = 100) -> ChunkFacts:
    """Put a chunk into a place."""
    import hashlib

    plain = number.to_bytes(4, "big") + os.urandom(size - 4)
    facts = ChunkFacts(hashlib.sha256(plain).digest(), b"k" * 32, hashlib.sha256(plain).digest(), size)
    place.put(chunk_key(facts.id), encode_chunk(plain, facts))
    return facts


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


class CountingPlace(MemoryPlace):
    """Counts what is fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.before_answer: Callable[[], object] = lambda: None

    def get(self, key: str, *, limit_bytes: int) -> bytes:
        self.fetched.append(key)
        self.before_answer()
        return super().get(key, limit_bytes=limit_bytes)


@pytest.fixture
def place() -> CountingPlace:
    return CountingPlace()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "chunks"


def cache_in(folder: Path, *, limit_bytes: int = 1 << 20) -> ChunkCache:
    return ChunkCache(folder, limit_bytes=limit_bytes, spare_bytes=0)


def test_a_chunk_is_fetched_once_for_all_functions(place: CountingPlace, folder: Path) -> None:
    chunk = stored(place, 1)
    cache = cache_in(folder)
    first, second = ChunkSource(place, cache), ChunkSource(place, cache)

    assert first.fetch(chunk) == second.fetch(chunk) == ChunkSource(place, cache_in(folder)).fetch(chunk)

    assert len(place.fetched) == 1
    assert (first.kept_bytes, second.kept_bytes) == (0, 100)


def test_starts_at_the_same_time_fetch_a_chunk_once(place: CountingPlace, folder: Path) -> None:
    chunk = stored(place, 1)
    cache = cache_in(folder)
    begun, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        assert go_on.wait(30)

    place.before_answer = hold
    with ThreadPoolExecutor(8) as threads:
        sources = [ChunkSource(place, cache) for _ in range(8)]
        fetched = [threads.submit(source.fetch, chunk) for source in sources]
        assert begun.wait(30)
        go_on.set()
        assert len({one.result() for one in fetched}) == 1

    assert len(place.fetched) == 1
    assert sum(source.kept_bytes for source in sources) == 700


def test_a_start_does_not_wait_long_for_another_one_whose_store_hangs(place: CountingPlace, folder: Path) -> None:
    chunk = stored(place, 1)
    cache = ChunkCache(folder, limit_bytes=1 << 20, spare_bytes=0, wait_s=0.05)
    begun, go_on = threading.Event(), threading.Event()

    def hang_once() -> None:
        if not begun.is_set():
            begun.set()
            assert go_on.wait(30)

    place.before_answer = hang_once
    with ThreadPoolExecutor(1) as threads:
        hanging = threads.submit(ChunkSource(place, cache).fetch, chunk)
        assert begun.wait(30)
        assert len(ChunkSource(place, cache).fetch(chunk)) == 100
        assert not hanging.done()
        go_on.set()
        assert len(hanging.result()) == 100

    assert len(place.fetched) == 2


def test_when_one_start_cannot_fetch_a_chunk_the_next_one_tries(place: CountingPlace, folder: Path) -> None:
    chunk = stored(place, 1)
    cache = cache_in(folder)
    kept = place.objects.pop(chunk_key(chunk.id))
    with pytest.raises(ChunkError, match="missing"):
        ChunkSource(place, cache).fetch(chunk)
    place.objects[chunk_key(chunk.id)] = kept

    assert len(ChunkSource(place, cache).fetch(chunk)) == 100


@pytest.mark.parametrize("harm", ["changed", "cut", "empty", "another"])
def test_a_chunk_that_was_damaged_here_is_fetched_again(place: CountingPlace, folder: Path, harm: str) -> None:
    chunk, other = stored(place, 1), stored(place, 2)
    source = ChunkSource(place, cache_in(folder))
    plain = source.fetch(chunk)
    [path] = files(folder)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes({"changed": bytes(data), "cut": bytes(data[:-5]), "empty": b""}.get(harm, b"") or b"")
    if harm == "another":
        path.write_bytes(place.objects[chunk_key(other.id)][0])

    assert source.fetch(chunk) == plain

    assert len(place.fetched) == 2
    assert path.read_bytes() == place.objects[chunk_key(chunk.id)][0], "the sound chunk is kept now"


def test_a_chunk_of_the_store_that_is_damaged_is_not_kept(place: CountingPlace, folder: Path) -> None:
    chunk = stored(place, 1)
    place.objects[chunk_key(chunk.id)] = (b"damaged" * 100, 0.0)
    with pytest.raises(ChunkError):
        ChunkSource(place, cache_in(folder)).fetch(chunk)

    assert not files(folder)


def test_a_link_and_a_pipe_in_the_place_of_a_chunk_are_not_read(
    place: CountingPlace, folder: Path, tmp_path: Path
) -> None:
    chunk = stored(place, 1)
    source = ChunkSource(place, cache_in(folder))
    plain = source.fetch(chunk)
    [path] = files(folder)
    elsewhere_path = tmp_path / "elsewhere"
    path.rename(elsewhere_path)
    path.symlink_to(elsewhere_path)
    assert source.fetch(chunk) == plain
    path.unlink()
    os.mkfifo(path)
    assert source.fetch(chunk) == plain

    assert len(place.fetched) == 3


def test_the_least_recently_used_chunks_give_way(place: CountingPlace, folder: Path) -> None:
    chunks = [stored(place, number, size=10 * KIB) for number in range(40)]
    cache = cache_in(folder, limit_bytes=105 * KIB)
    source = ChunkSource(place, cache)
    source.fetch(chunks[0])
    for number, chunk in enumerate(chunks[1:], start=1):
        source.fetch(chunk)
        source.fetch(chunks[0])
        kept_bytes = sum(path.stat().st_size for path in files(folder))
        assert kept_bytes <= 105 * KIB, number

    assert place.fetched.count(chunk_key(chunks[0].id)) == 1, "it was used all the time"
    assert len(files(folder)) >= 8
    source.fetch(chunks[-1])
    assert place.fetched.count(chunk_key(chunks[-1].id)) == 1
    source.fetch(chunks[1])
    assert place.fetched.count(chunk_key(chunks[1].id)) == 2


def test_several_processes_keep_the_limit_together(place: CountingPlace, folder: Path) -> None:
    caches = [cache_in(folder, limit_bytes=200 * KIB) for _ in range(4)]
    for number in range(200):
        ChunkSource(place, caches[number % 4]).fetch(stored(place, number, size=5 * KIB))
        # Each counts again when it has added a tenth of the limit.
        assert sum(path.stat().st_size for path in files(folder)) <= 200 * KIB * 1.4


def test_a_chunk_that_is_larger_than_the_limit_is_not_kept(place: CountingPlace, folder: Path) -> None:
    cache = cache_in(folder, limit_bytes=50)
    assert len(ChunkSource(place, cache).fetch(stored(place, 1))) == 100

    assert not files(folder)


def test_if_the_disk_is_almost_full_half_of_the_chunks_are_removed_and_none_is_added(
    place: CountingPlace, folder: Path
) -> None:
    chunks = [stored(place, number, size=10 * KIB) for number in range(11)]
    source = ChunkSource(place, cache_in(folder))
    for chunk in chunks[:10]:
        source.fetch(chunk)
    short = ChunkSource(place, ChunkCache(folder, limit_bytes=1 << 20, spare_bytes=1 << 60))

    assert len(short.fetch(chunks[10])) == 10 * KIB
    assert len(files(folder)) in (4, 5)
    for chunk in [*chunks, *chunks, *chunks]:
        assert len(short.fetch(chunk)) == 10 * KIB
    assert not files(folder)


def test_where_nothing_can_be_written_chunks_are_fetched_each_time(place: CountingPlace, folder: Path) -> None:
    folder.write_text("a file")
    chunk = stored(place, 1)
    source = ChunkSource(place, cache_in(folder))

    assert source.fetch(chunk) == source.fetch(chunk)

    assert len(place.fetched) == 2


def test_what_a_killed_process_left_behind_is_removed(place: CountingPlace, folder: Path) -> None:
    chunk = stored(place, 1)
    ChunkSource(place, cache_in(folder)).fetch(chunk)
    [path] = files(folder)
    old, new = path.with_name(f".new-{'0' * 16}"), path.with_name(f".new-{'1' * 16}")
    for left in (old, new):
        left.write_bytes(b"half")
    os.utime(old, (0, 0))
    ChunkSource(place, cache_in(folder)).fetch(stored(place, 2))

    assert not old.exists()
    assert new.exists(), "another process may be writing it"


def test_only_the_owner_can_read_what_is_kept(place: CountingPlace, folder: Path) -> None:
    ChunkSource(place, cache_in(folder)).fetch(stored(place, 1))
    [path] = files(folder)

    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_many_threads_use_a_cache_that_is_too_small(place: CountingPlace, folder: Path) -> None:
    chunks = [stored(place, number, size=4 * KIB) for number in range(30)]
    plains = {chunk.id: ChunkSource(place).fetch(chunk) for chunk in chunks}
    cache = cache_in(folder, limit_bytes=40 * KIB)

    def use(seed: int) -> None:
        source = ChunkSource(place, cache)
        for step in range(200):
            chunk = chunks[(seed * 7 + step * (seed + 1)) % len(chunks)]
            assert source.fetch(chunk) == plains[chunk.id]

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(use, range(8)))

    assert sum(path.stat().st_size for path in files(folder)) <= 40 * KIB


def test_chunks_of_buckets_and_registries_are_kept_but_not_those_of_a_folder(tmp_path: Path) -> None:
    url = StoreUrl(text="s3://bucket/prefix", shown="s3://bucket/prefix")
    bucket = RemoteBucket(name="store", url=url, bucket="bucket", prefix="prefix/")

    assert chunk_cache.cache_for(bucket, tmp_path, limit_bytes=1) is not None
    assert chunk_cache.cache_for(bucket, tmp_path, limit_bytes=0) is None
    assert chunk_cache.cache_for(bucket, tmp_path / "missing", limit_bytes=1) is None
    assert chunk_cache.cache_for(tmp_path, tmp_path, limit_bytes=1) is None


def test_all_are_removed_when_none_are_to_be_kept(place: CountingPlace, tmp_path: Path) -> None:
    ChunkSource(place, cache_in(tmp_path / chunk_cache.FOLDER)).fetch(stored(place, 1))
    chunk_cache.remove(tmp_path)
    chunk_cache.remove(tmp_path)

    assert not list(tmp_path.iterdir())


def test_a_store_of_chunks_or_anything_else_in_the_data_folder_is_never_removed(
    place: CountingPlace, tmp_path: Path
) -> None:
    for name in ("chunks", "store", chunk_cache.FOLDER):
        other = FolderPlace(tmp_path / name)
        for key in (chunk_key(b"x" * 32), "snapshots/f/abc", "main-key"):
            other.put(key, b"wanted")
    cache = cache_in(tmp_path / chunk_cache.FOLDER, limit_bytes=10 * KIB)
    ChunkSource(place, cache).fetch(stored(place, 1))
    (tmp_path / chunk_cache.FOLDER / "ab").mkdir(exist_ok=True)
    (tmp_path / chunk_cache.FOLDER / "ab" / "big").write_bytes(b"x" * 20 * KIB)
    for number in range(2, 9):
        ChunkSource(place, cache).fetch(stored(place, number, size=4 * KIB))
    chunk_cache.remove(tmp_path)

    assert (tmp_path / chunk_cache.FOLDER / "ab" / "big").exists()
    for name in ("chunks", "store", chunk_cache.FOLDER):
        for key in (chunk_key(b"x" * 32), "snapshots/f/abc", "main-key"):
            assert FolderPlace(tmp_path / name).get(key, limit_bytes=99) == b"wanted"
    assert len(files(tmp_path / chunk_cache.FOLDER)) == 4


def test_if_the_folder_is_a_link_nothing_behind_it_is_removed(place: CountingPlace, tmp_path: Path) -> None:
    ChunkSource(place, cache_in(tmp_path / "elsewhere")).fetch(stored(place, 1))
    (tmp_path / chunk_cache.FOLDER).symlink_to(tmp_path / "elsewhere")
    chunk_cache.remove(tmp_path)

    assert len(files(tmp_path / "elsewhere")) == 1


def test_a_new_version_fetches_only_what_has_changed(tmp_path: Path) -> None:
    machine, place = Machine(tmp_path / "machine"), CountingPlace()
    machine.install()
    for version in ("1", "2"):
        sending.send(machine.store, machine.freeze(version=version, text=version.encode() * 99), place, KEY)
    there = elsewhere(machine)
    cache = cache_in(tmp_path / "kept", limit_bytes=1 << 30)

    def received(version: str) -> receiving.Received:
        record = receiving.find(place, KEY, f"classify:{version}")
        return receiving.receive(there.store, ChunkSource(place, cache), record, program=None)

    assert received("1").kept_bytes == 0
    place.fetched.clear()
    second = received("2")

    assert second.kept_bytes > 700 << 10, "the weights"
    fetched = [key for key in place.fetched if key.startswith("chunks/")]
    assert len(fetched) <= 3


def test_chunks_of_a_folder_place_can_be_kept_too(tmp_path: Path, folder: Path) -> None:
    memory = MemoryPlace()
    chunk = stored(memory, 1)
    place = FolderPlace(tmp_path / "store")
    place.put(chunk_key(chunk.id), memory.objects[chunk_key(chunk.id)][0])
    source = ChunkSource(place, cache_in(folder))
    plain = source.fetch(chunk)
    place.remove(chunk_key(chunk.id))

    assert source.fetch(chunk) == plain
