"""`thawd.transfer.first_use`: a list of chunks is a hint that is verified, and a bad one is left out."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import pytest
import zstandard
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tests.unit.chunk_stores import KEY, MemoryPlace
from tests.unit.test_arriving_files import CHUNK, Stored
from thawd.errors import StoreError
from thawd.transfer.arriving_files import ArrivingFile
from thawd.transfer.chunk_downloads import ChunkSource
from thawd.transfer.chunk_format import ChunkError, key_id
from thawd.transfer.first_use import chunks_of, decode, encode, merged, recall, remember
from thawd.transfer.record_body import Extent
from thawd.transfer.store_layout import chunk_key, first_use_key

SHA256 = "ab" * 32
SECRET = KEY.function_key("f")


def encoded(*order: int) -> bytes:
    return encode(order, function="f", sha256=SHA256, key=SECRET)


def decoded(data: bytes, count: int = 10, function: str = "f", sha256: str = SHA256, key: bytes = SECRET) -> list[int]:
    return decode(data, count, function=function, sha256=sha256, key=key)


def test_a_second_reader_finds_the_list_by_the_documentation() -> None:
    data = encoded(3, 0, 7)
    magic, layout, found, nonce, size = struct.unpack_from("<8sI32s12sI", data)
    assert (magic, layout, found) == (b"THAWDUSE", 1, key_id(SECRET))
    context = data[:44] + b"f\0" + SHA256.encode() + data[56:60]
    text = zstandard.ZstdDecompressor().decompress(AESGCM(SECRET).decrypt(nonce, data[60:], context))
    assert (len(text), json.loads(text)) == (size, [3, 0, 7])
    assert decoded(data) == [3, 0, 7]


def test_a_list_that_is_damaged_or_of_something_else_is_refused() -> None:
    data = encoded(3, 0, 7)
    for at in range(len(data)):
        with pytest.raises(ChunkError):
            decoded(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(ChunkError):
            decoded(data[:at])
    for foreign in ({"function": "g"}, {"sha256": "cd" * 32}, {"key": os.urandom(32)}, {"count": 7}):
        with pytest.raises(ChunkError):
            decoded(data, **foreign)  # type: ignore[arg-type]
    for order in ([1, 1], [-1]):
        with pytest.raises(ChunkError):
            decoded(encoded(*order))


def test_a_store_without_a_list_or_without_the_right_to_write_does_no_harm() -> None:
    class ReadOnly(MemoryPlace):
        def put(self, key: str, data: bytes) -> None:
            raise StoreError("no")

    place = MemoryPlace()
    known = {"function": "f", "sha256": SHA256, "key": SECRET}
    assert recall(place, 10, **known) == []  # type: ignore[arg-type]
    remember(place, [2, 1], **known)  # type: ignore[arg-type]
    assert recall(place, 10, **known) == [2, 1]  # type: ignore[arg-type]
    place.put(first_use_key("f", SHA256), b"rubbish")
    assert recall(place, 10, **known) == []  # type: ignore[arg-type]
    remember(ReadOnly(), [1], **known)  # type: ignore[arg-type]


def test_a_list_is_written_again_only_if_a_run_used_much_else() -> None:
    assert merged([], [4, 2]) == [4, 2]
    assert merged(list(range(100)), [5, 6, 200]) is None
    assert merged(list(range(10)), [20, 3]) == [*range(10), 20]
    assert merged([], []) is None


def test_what_is_expected_is_fetched_before_anybody_asks_and_what_was_used_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("thawd.transfer.arriving_files._QUIET_S", 3600.0)
    stored = Stored()
    expected = [50, 3, 9]
    file = ArrivingFile(
        ChunkSource(stored.place),
        stored.chunks,
        stored.extents,
        len(stored.content),
        tmp_path,
        expected=[*expected, 999],
    )
    stored.let_all_arrive()
    assert file.read(2 * CHUNK * 9, 10) == stored.content[2 * CHUNK * 9 : 2 * CHUNK * 9 + 10]
    assert file.read(2 * CHUNK * 3, 10) == stored.content[2 * CHUNK * 3 : 2 * CHUNK * 3 + 10]
    assert file.first_used == [9, 3]
    assert set(stored.place.asked[:3]) == {chunk_key(stored.chunks[one].id) for one in expected}
    file.close()


def test_parts_of_an_image_are_found_in_its_chunks() -> None:
    extents = [Extent(8000, 2, 0, 1000), Extent(0, 5, 0, 1000), Extent(1000, 3, 0, 1000), Extent(9000, 5, 1000, 500)]
    assert chunks_of(extents, []) == []
    assert chunks_of(extents, [(999, 1000)]) == [5]
    assert chunks_of(extents, [(999, 1001)]) == [5, 3]
    assert chunks_of(extents, [(2000, 8000)]) == []
    assert chunks_of(extents, [(8999, 9001), (1500, 1501), (0, 10_000)]) == [5, 3, 2]
    assert chunks_of(extents, [(2500, 7500)], around_bytes=501) == [3, 2]
    assert chunks_of(extents, [(-(1 << 62), -5), (1 << 62, 1 << 63)]) == []
