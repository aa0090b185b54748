"""The keys under which a store of chunks keeps its objects."""

from __future__ import annotations

import json
import re

from thawd.errors import InvalidParameterValueException, ResourceNotFoundException
from thawd.stores.chunk_places import ChunkPlace

CHUNKS = "chunks"
RECORDS = "snapshots"
DOOMED = "gc/unused"
CLOCK = "gc/clock"

GRACE_S = 86400.0
"""How long a chunk stays after it was found to be unused. Whoever sends a snapshot must be done within half of it."""

_FUNCTION = re.compile(r"[A-Za-z0-9_-]{1,140}\Z")
_DOOMED_MAX_BYTES = 256 << 20


def chunk_key(chunk_id: bytes) -> str:
    """Key of a chunk."""
    digits = chunk_id.hex()
    return f"{CHUNKS}/{digits[:2]}/{digits}"


def record_key(function: str, sha256: str) -> str:
    """Key of the record of a snapshot.

    Raises:
        InvalidParameterValueException: the function's name cannot be part of a key (HTTP 400).
    """
    if not _FUNCTION.match(function):
        raise InvalidParameterValueException(f"{function!r} is not the name of a function whose snapshots can be sent.")
    return f"{RECORDS}/{function}/{sha256}"


def doomed(place: ChunkPlace) -> frozenset[bytes]:
    """The ids of the chunks that were unused when the store was last cleaned: they may be removed at any time."""
    try:
        found = json.loads(place.get(DOOMED, limit_bytes=_DOOMED_MAX_BYTES))
        return frozenset(bytes.fromhex(digits) for digits in found["ids"])
    except (ResourceNotFoundException, ValueError, KeyError, TypeError):
        return frozenset()


def doom(place: ChunkPlace, ids: frozenset[bytes]) -> None:
    """Record which chunks are unused."""
    place.put(DOOMED, json.dumps({"ids": sorted(one.hex() for one in ids)}).encode())
