"""The bytes of a chunk and of a record. docs/reference/chunk-format.md describes every field.

Nothing that is read here is trusted: both functions that decode check every byte before they return anything, and raise
`ChunkError` for whatever was damaged, cut, exchanged or encrypted with another key. A chunk is authenticated by
AES-256-GCM, and its content by SHA-256 as well, so that not even another holder of the key can exchange it.
"""

from __future__ import annotations

import hashlib
import os
import struct
from dataclasses import dataclass

from thawd.errors import StoreError

CHUNK_MAGIC = b"THAWDCHK"
RECORD_MAGIC = b"THAWDREC"
LAYOUT = 1
MAX_CHUNK_BYTES = 512 << 10
MAX_RECORD_BYTES = 256 << 20

_CHUNK_HEADER = struct.Struct("<8sII32s12s")  # magic, layout, plain bytes, id, nonce
_RECORD_HEADER = struct.Struct("<8sII32s12sI")  # magic, layout, number of ids, key id, nonce, plain bytes
_NONCE_BYTES = 12
_TAG_BYTES = 16
_ID_BYTES = 32
_LEVEL = 3


class ChunkError(StoreError):
    """A chunk or a record is not what its name says: damaged, cut, exchanged, or of another key (HTTP 500)."""


@dataclass(frozen=True, slots=True)
class ChunkFacts:
    """What a record says about a chunk.

    Attributes:
        id: name of the chunk, 32 bytes.
        key: the chunk's key, 32 bytes.
        sha256: digest of the content, 32 bytes.
        plain_bytes: size of the content, 1 to `MAX_CHUNK_BYTES`.
    """

    id: bytes
    key: bytes
    sha256: bytes
    plain_bytes: int


def encode_chunk(plain: bytes, chunk: ChunkFacts) -> bytes:
    """Compress and encrypt the content of a chunk."""
    header = _CHUNK_HEADER.pack(CHUNK_MAGIC, LAYOUT, len(plain), chunk.id, nonce := os.urandom(_NONCE_BYTES))
    return header + _encrypt(chunk.key, nonce, _compress(plain), header)


def decode_chunk(data: bytes, chunk: ChunkFacts) -> bytes:
    """Check, decrypt and decompress a chunk.

    Raises:
        ChunkError: the bytes are not this chunk (HTTP 500).
    """
    name = chunk.id.hex()[:12]
    plain_bytes, found, nonce = _chunk_header(data, name)
    if found != chunk.id:
        raise ChunkError(f"chunk {name}: it is another chunk, {found.hex()[:12]}")
    if plain_bytes != chunk.plain_bytes:
        raise ChunkError(f"chunk {name}: it has {plain_bytes:,} bytes, but the record says {chunk.plain_bytes:,}")
    header, sealed = data[: _CHUNK_HEADER.size], data[_CHUNK_HEADER.size :]
    packed = _decrypt(chunk.key, nonce, sealed, header, f"chunk {name}")
    plain = _decompress(packed, plain_bytes, f"chunk {name}")
    if hashlib.sha256(plain).digest() != chunk.sha256:
        raise ChunkError(f"chunk {name}: its content has another SHA-256 than the record says")
    return plain


def chunk_id(data: bytes) -> bytes:
    """The id that a chunk's header names; only its form is checked, so no key is needed.

    Raises:
        ChunkError: these are not the bytes of a chunk (HTTP 500).
    """
    return _chunk_header(data, "?")[1]


def _chunk_header(data: bytes, name: str) -> tuple[int, bytes, bytes]:
    if len(data) < _CHUNK_HEADER.size + _TAG_BYTES:
        raise ChunkError(f"chunk {name}: it is cut off, {len(data)} bytes")
    magic, layout, plain_bytes, found, nonce = _CHUNK_HEADER.unpack_from(data)
    if magic != CHUNK_MAGIC:
        raise ChunkError(f"chunk {name}: it is not a chunk")
    if layout != LAYOUT:
        raise ChunkError(f"chunk {name}: it has layout {layout}, but this thawd reads layout {LAYOUT}")
    if not 0 < plain_bytes <= MAX_CHUNK_BYTES:
        raise ChunkError(f"chunk {name}: its size is not valid, {plain_bytes:,} bytes")
    return plain_bytes, found, nonce


def encode_record(body: bytes, ids: list[bytes], *, key: bytes) -> bytes:
    """Compress and encrypt the body of a record; the ids of its chunks stay readable.

    Args:
        body: the body's JSON text, see `record_body`.
        ids: the ids of all chunks of the snapshot, each once.
        key: the function's key.
    """
    nonce = os.urandom(_NONCE_BYTES)
    header = _RECORD_HEADER.pack(RECORD_MAGIC, LAYOUT, len(ids), key_id(key), nonce, len(body)) + b"".join(ids)
    return header + _encrypt(key, nonce, _compress(body), header)


def record_ids(data: bytes) -> list[bytes]:
    """The ids of the chunks that a record lists. No key is needed, and so nothing proves that they are right.

    Raises:
        ChunkError: these are not the bytes of a record (HTTP 500).
    """
    return _record_header(data)[0]


def decode_record(data: bytes, *, key: bytes) -> tuple[bytes, list[bytes]]:
    """Check, decrypt and decompress a record.

    Returns:
        The body's JSON text, and the ids of the chunks.

    Raises:
        ChunkError: the bytes are not a record, or one of another key (HTTP 500).
    """
    ids, found_key_id, nonce, plain_bytes = _record_header(data)
    if found_key_id != key_id(key):
        raise ChunkError("the record is encrypted with another key; use the key of the machine that sent the snapshot")
    end = _RECORD_HEADER.size + _ID_BYTES * len(ids)
    packed = _decrypt(key, nonce, data[end:], data[:end], "the record")
    return _decompress(packed, plain_bytes, "the record"), ids


def _record_header(data: bytes) -> tuple[list[bytes], bytes, bytes, int]:
    if len(data) < _RECORD_HEADER.size + _TAG_BYTES:
        raise ChunkError(f"the record is cut off, {len(data)} bytes")
    magic, layout, count, found_key_id, nonce, plain_bytes = _RECORD_HEADER.unpack_from(data)
    if magic != RECORD_MAGIC:
        raise ChunkError("this is not the record of a snapshot")
    if layout != LAYOUT:
        raise ChunkError(f"the record has layout {layout}, but this thawd reads layout {LAYOUT}")
    end = _RECORD_HEADER.size + _ID_BYTES * count
    if len(data) < end + _TAG_BYTES:
        raise ChunkError(f"the record is cut off, {len(data)} bytes")
    if plain_bytes > MAX_RECORD_BYTES:
        raise ChunkError(f"the record is too large, {plain_bytes:,} bytes")
    ids = [data[at : at + _ID_BYTES] for at in range(_RECORD_HEADER.size, end, _ID_BYTES)]
    return ids, found_key_id, nonce, plain_bytes


def sealed(plain: bytes, context: bytes, *, key: bytes) -> bytes:
    """Compress and encrypt bytes, so that they can be opened only in the same context. Nonce and size come first."""
    nonce = os.urandom(_NONCE_BYTES)
    size = struct.pack("<I", len(plain))
    return nonce + size + _encrypt(key, nonce, _compress(plain), context + size)


def opened(data: bytes, context: bytes, *, key: bytes, what: str) -> bytes:
    """Check, decrypt and decompress what `sealed` has made.

    Args:
        data: the bytes.
        context: the context in which they were encrypted.
        key: the key.
        what: names them in messages.

    Raises:
        ChunkError: they were changed, or are of another context or key (HTTP 500).
    """
    if len(data) < _NONCE_BYTES + 4 + _TAG_BYTES:
        raise ChunkError(f"{what} is cut off")
    nonce, size, rest = data[:_NONCE_BYTES], data[_NONCE_BYTES : _NONCE_BYTES + 4], data[_NONCE_BYTES + 4 :]
    [plain_bytes] = struct.unpack("<I", size)
    if plain_bytes > MAX_RECORD_BYTES:
        raise ChunkError(f"{what} is too large")
    return _decompress(_decrypt(key, nonce, rest, context + size, what), plain_bytes, what)


def key_id(key: bytes) -> bytes:
    """A name of a function's key, from which the key cannot be found, 32 bytes."""
    return hashlib.sha256(b"thawd function key\0" + key).digest()


def _compress(plain: bytes) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor(level=_LEVEL, write_content_size=True).compress(plain)


def _decompress(packed: bytes, plain_bytes: int, what: str) -> bytes:
    import zstandard

    try:
        # The size in the frame decides how much memory is allocated.
        if zstandard.frame_content_size(packed) != plain_bytes:
            raise ChunkError(f"{what}: its content has another size than its header says")
        plain = zstandard.ZstdDecompressor().decompress(packed, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise ChunkError(f"{what}: its content cannot be decompressed: {error}") from None
    if len(plain) != plain_bytes:
        raise ChunkError(f"{what}: its content has another size than its header says")
    return plain


def _encrypt(key: bytes, nonce: bytes, plain: bytes, header: bytes) -> bytes:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(key).encrypt(nonce, plain, header)


def _decrypt(key: bytes, nonce: bytes, sealed: bytes, header: bytes, what: str) -> bytes:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    try:
        return AESGCM(key).decrypt(nonce, sealed, header)
    except InvalidTag:
        raise ChunkError(f"{what} was changed after it was encrypted, or is encrypted with another key") from None
