"""Which chunks a program needed first. A run leaves this list in the store, and the next one fetches them all at once.

Without the list, a program waits for one chunk after the other. The list is only a hint: whatever it says, every chunk
is verified, and an access to memory waits for its own chunk. So a list that cannot be read, or written, is left out.
"""

from __future__ import annotations

import contextlib
import struct
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TypedDict

import msgspec

from thawd.errors import ThawdError
from thawd.stores.chunk_places import ChunkPlace
from thawd.transfer.chunk_format import ChunkError, key_id, opened, sealed
from thawd.transfer.record_body import Extent
from thawd.transfer.store_layout import first_use_key

MAGIC = b"THAWDUSE"
LAYOUT = 1
_HEADER = struct.Struct("<8sI32s")  # magic, layout, key id
_LIMIT_BYTES = 16 << 20


class Named(TypedDict):
    """What a list belongs to: the snapshot `sha256` of a function, and the function's key."""

    function: str
    sha256: str
    key: bytes


_decode = msgspec.json.Decoder(list[int]).decode


def encode(order: Sequence[int], *, function: str, sha256: str, key: bytes) -> bytes:
    """Encrypt a list of chunks, by their indices in the record, for the snapshot of a function."""
    header = _HEADER.pack(MAGIC, LAYOUT, key_id(key))
    return header + sealed(msgspec.json.encode(order), header + _name(function, sha256), key=key)


def decode(data: bytes, count: int, *, function: str, sha256: str, key: bytes) -> list[int]:
    """Check and decrypt a list of chunks.

    Args:
        data: the bytes.
        count: number of chunks in the record.
        function: the function's name.
        sha256: the snapshot.
        key: the function's key.

    Raises:
        ChunkError: the bytes are not such a list, or that of another snapshot or key (HTTP 500).
    """
    if len(data) < _HEADER.size:
        raise ChunkError("the list of chunks is cut off")
    header, rest = data[: _HEADER.size], data[_HEADER.size :]
    magic, layout, found_key_id = _HEADER.unpack(header)
    if (magic, layout, found_key_id) != (MAGIC, LAYOUT, key_id(key)):
        raise ChunkError("this is not a list of chunks of this layout and key")
    text = opened(rest, header + _name(function, sha256), key=key, what="the list of chunks")
    try:
        order = _decode(text)
    except msgspec.DecodeError as error:
        raise ChunkError(f"the list of chunks is damaged: {error}") from None
    if len(set(order)) != len(order) or not all(0 <= one < count for one in order):
        raise ChunkError("the list of chunks names chunks twice, or others than the record")
    return order


def recall(place: ChunkPlace, count: int, *, function: str, sha256: str, key: bytes) -> list[int]:
    """Return the list that an earlier run left; empty if there is none that can be used."""
    with contextlib.suppress(ThawdError):
        data = place.get(first_use_key(function, sha256), limit_bytes=_LIMIT_BYTES)
        return decode(data, count, function=function, sha256=sha256, key=key)
    return []


def remember(place: ChunkPlace, order: Sequence[int], *, function: str, sha256: str, key: bytes) -> None:
    """Leave a list for the next run. Does nothing if the store refuses it: this machine may have no right to write."""
    with contextlib.suppress(ThawdError):
        place.put(first_use_key(function, sha256), encode(order, function=function, sha256=sha256, key=key))


def chunks_of(extents: Iterable[Extent], ranges: Iterable[tuple[int, int]], *, around_bytes: int = 0) -> list[int]:
    """Return the chunks that contain ranges of an image, in the image's order, each once.

    Args:
        extents: where the image's bytes are.
        ranges: first byte and end of each range, in any order; they may overlap, or be outside the image.
        around_bytes: bytes before and after each range that are needed with it.
    """
    found: dict[int, None] = {}
    wanted = deque(sorted((begin - around_bytes, end + around_bytes) for begin, end in ranges))
    for extent in sorted(extents, key=lambda one: one.offset):
        while wanted and wanted[0][1] <= extent.offset:
            wanted.popleft()
        if wanted and wanted[0][0] < extent.offset + extent.length:
            found[extent.chunk] = None
    return list(found)


def merged(known: Sequence[int], used: Sequence[int]) -> list[int] | None:
    """Return the list to leave after a run that used some chunks; None: the known list is good enough.

    Args:
        known: the list that the run began with.
        used: the chunks that it used first, in order.
    """
    more = set(used) - set(known)
    if len(more) * 20 <= len(known):
        return None
    return list(dict.fromkeys([*known, *used]))


def _name(function: str, sha256: str) -> bytes:
    return f"{function}\0{sha256}".encode()
