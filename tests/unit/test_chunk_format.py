"""`thawd.transfer.chunk_format`: a chunk or a record that is not exactly what its name says is refused.

A second reader decodes both with nothing but the documentation's tables, AES-GCM and zstd.
"""

from __future__ import annotations

import hashlib
import os
import random
import struct
from collections.abc import Callable
from dataclasses import replace

import pytest
import zstandard
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tests.unit.chunk_stores import KEY
from thawd.transfer.chunk_format import (
    MAX_CHUNK_BYTES,
    ChunkError,
    ChunkFacts,
    chunk_id,
    decode_chunk,
    decode_record,
    encode_chunk,
    encode_record,
    record_ids,
)
from thawd.transfer.store_keys import StoreKey

PLAIN = b"pages of memory " * 1000
CHUNK = KEY.chunk(PLAIN)
STORED = encode_chunk(PLAIN, CHUNK)
IDS = [bytes([one]) * 32 for one in range(3)]
RECORD_KEY = KEY.function_key("classify")
RECORD = encode_record(b'{"body": 1}', IDS, key=RECORD_KEY)
FUZZ_RUNS = int(os.environ.get("THAWD_FUZZ_RUNS", "2000"))


def read_chunk(data: bytes, key: bytes) -> tuple[bytes, bytes]:
    """The second reader: id and content of a chunk."""
    magic, layout, plain_bytes, name, nonce = struct.unpack("<8sII32s12s", data[:60])
    assert (magic, layout) == (b"THAWDCHK", 1)
    plain = zstandard.ZstdDecompressor().decompress(AESGCM(key).decrypt(nonce, data[60:], data[:60]))
    assert len(plain) == plain_bytes
    return name, plain


def read_record(data: bytes, key: bytes) -> tuple[list[bytes], bytes]:
    """The second reader: ids and body of a record."""
    magic, layout, count, key_id, nonce, plain_bytes = struct.unpack("<8sII32s12sI", data[:64])
    assert (magic, layout, key_id) == (b"THAWDREC", 1, hashlib.sha256(b"thawd function key\0" + key).digest())
    end = 64 + 32 * count
    body = zstandard.ZstdDecompressor().decompress(AESGCM(key).decrypt(nonce, data[end:], data[:end]))
    assert len(body) == plain_bytes
    return [data[at : at + 32] for at in range(64, end, 32)], body


def test_a_second_reader_decodes_chunks_and_records() -> None:
    assert read_chunk(STORED, CHUNK.key) == (CHUNK.id, PLAIN)
    assert read_record(RECORD, RECORD_KEY) == (IDS, b'{"body": 1}')


def test_what_is_encoded_is_decoded() -> None:
    assert decode_chunk(STORED, CHUNK) == PLAIN
    assert decode_record(RECORD, key=RECORD_KEY) == (b'{"body": 1}', IDS)
    assert (chunk_id(STORED), record_ids(RECORD)) == (CHUNK.id, IDS)


def test_equal_contents_have_one_name_that_depends_on_the_main_key() -> None:
    assert KEY.chunk(PLAIN) == CHUNK
    other = StoreKey(b"o" * 32).chunk(PLAIN)
    assert other.sha256 == CHUNK.sha256
    assert (other.id, other.key) != (CHUNK.id, CHUNK.key)
    assert CHUNK.sha256 not in (CHUNK.id, CHUNK.key)


def test_no_nonce_is_used_twice() -> None:
    assert len({encode_chunk(PLAIN, CHUNK)[48:60] for _ in range(100)}) == 100


FOREIGN = KEY.chunk(b"another content")


def without_bytes(value: bytes | str) -> str:
    """Return what the name of a test says of a parameter: encrypted bytes differ between the workers of a run."""
    return value if isinstance(value, str) else ""


@pytest.mark.parametrize(
    ("stored", "why"),
    [
        (b"", "cut off"),
        (STORED[:75], "cut off"),
        (STORED[:-1], "changed after it was encrypted"),
        (STORED + b"\0", "changed after it was encrypted"),
        (RECORD, "not a chunk"),
        (encode_chunk(b"another content", FOREIGN), "another chunk"),
        (encode_chunk(PLAIN, replace(CHUNK, key=bytes(32))), "encrypted with another key"),
        (encode_chunk(b"another content", replace(FOREIGN, id=CHUNK.id, key=CHUNK.key)), "the record says"),
        (encode_chunk(PLAIN[::-1], CHUNK), "another SHA-256"),
        (STORED[:8] + struct.pack("<I", 2) + STORED[12:], "layout 2"),
        (STORED[:12] + struct.pack("<I", MAX_CHUNK_BYTES + 1) + STORED[16:], "size is not valid"),
    ],
    ids=without_bytes,
)
def test_a_chunk_that_was_damaged_cut_exchanged_or_is_foreign_is_refused(stored: bytes, why: str) -> None:
    with pytest.raises(ChunkError, match=why):
        decode_chunk(stored, CHUNK)


def test_a_content_that_would_decompress_to_more_than_it_says_is_refused() -> None:
    header = STORED[:60]
    for packed in (
        zstandard.ZstdCompressor().compress(bytes(64 << 20)),
        zstandard.ZstdCompressor(write_content_size=False).compress(PLAIN),
        zstandard.ZstdCompressor().compress(PLAIN) + b"more",
        b"not zstd",
    ):
        with pytest.raises(ChunkError, match=r"size|decompressed"):
            decode_chunk(header + AESGCM(CHUNK.key).encrypt(header[48:60], packed, header), CHUNK)


@pytest.mark.parametrize(
    ("stored", "key", "why"),
    [
        (b"", RECORD_KEY, "cut off"),
        (RECORD[:100], RECORD_KEY, "cut off"),
        (RECORD[:-1], RECORD_KEY, "changed after it was encrypted"),
        (RECORD[:64] + IDS[1] + RECORD[96:], RECORD_KEY, "changed after it was encrypted"),
        (RECORD, KEY.function_key("other"), "another key"),
        (STORED, RECORD_KEY, "not the record"),
        (RECORD[:8] + struct.pack("<I", 9) + RECORD[12:], RECORD_KEY, "layout 9"),
        (RECORD[:60] + struct.pack("<I", 1 << 31) + RECORD[64:], RECORD_KEY, "too large"),
    ],
    ids=without_bytes,
)
def test_a_record_that_was_damaged_cut_exchanged_or_is_foreign_is_refused(stored: bytes, key: bytes, why: str) -> None:
    with pytest.raises(ChunkError, match=why):
        decode_record(stored, key=key)


def mutated(data: bytes, draw: random.Random) -> bytes:
    """Return the bytes with a change: bits, a cut, a repetition, a splice, a hole."""
    changed = bytearray(data)
    kind = draw.randrange(5)
    at, length = draw.randrange(len(data)), draw.choice((1, 4, 16, 64))
    if kind == 0:
        changed[at] ^= 1 << draw.randrange(8)
    elif kind == 1:
        del changed[at:]
    elif kind == 2:
        changed[at:at] = data[draw.randrange(len(data)) :][:length]
    elif kind == 3:
        changed[at : at + length] = draw.randbytes(length)
    else:
        del changed[at : at + length]
    return bytes(changed)


@pytest.mark.parametrize(
    ("data", "decode"),
    [
        pytest.param(STORED, lambda data: decode_chunk(data, CHUNK), id="chunk"),
        pytest.param(RECORD, lambda data: decode_record(data, key=RECORD_KEY), id="record"),
    ],
)
def test_no_mutation_is_accepted_and_none_raises_another_error(data: bytes, decode: Callable[[bytes], object]) -> None:
    draw = random.Random(FUZZ_RUNS)
    right = decode(data)
    for _ in range(FUZZ_RUNS):
        changed = mutated(data, draw)
        try:
            found = decode(changed)
        except ChunkError:
            continue
        assert (changed, found) == (data, right), changed.hex()


def test_facts_of_other_chunks_do_not_fit() -> None:
    facts = [CHUNK, FOREIGN, ChunkFacts(FOREIGN.id, CHUNK.key, CHUNK.sha256, CHUNK.plain_bytes)]
    for one in facts[1:]:
        with pytest.raises(ChunkError):
            decode_chunk(STORED, one)
