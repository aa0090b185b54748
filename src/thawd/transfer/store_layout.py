"""The keys under which a store of chunks keeps its objects."""

from __future__ import annotations

import hmac
import importlib.util
import json
import re
from pathlib import Path

from thawd.errors import InvalidParameterValueException, ResourceNotFoundException, StoreError
from thawd.resources import RemoteBucket
from thawd.stores.chunk_places import BucketPlace, ChunkPlace, FolderPlace

CHUNKS = "chunks"
RECORDS = "snapshots"
KEYS = "keys"
FIRST_USE = "first-use"
DOOMED = "gc/unused"
CLOCK = "gc/clock"
MAIN_KEY = "main-key"
KEY_FILE = "snapshots.key"
"""Name of the key file in the data folder."""

GRACE_S = 86400.0
"""How long a chunk stays after it was found to be unused. Whoever sends a snapshot must be done within half of it."""

_REGISTRY = "oci"
_FUNCTION = re.compile(r"[A-Za-z0-9_-]{1,140}\Z")
_DOOMED_MAX_BYTES = 256 << 20
_DIGEST_DIGITS = 64
_DIGEST = re.compile(r"[0-9a-f]{64}\Z")


def missing_library(where: Path | RemoteBucket) -> str | None:
    """Which library a store of chunks there needs and this machine lacks, as a sentence; None: all are there."""
    needed = {"cryptography": "AES-256-GCM", "zstandard": "zstd"}
    if isinstance(where, RemoteBucket):
        needed |= {"httpx": "registries"} if where.url.scheme == _REGISTRY else {"obstore": "buckets"}
    for module, what in needed.items():
        if importlib.util.find_spec(module) is None:
            return f"a store of chunks needs {module} ({what}), which is not installed: pip install 'thawd[chunks]'"
    return None


def place_at(where: Path | RemoteBucket) -> ChunkPlace:
    """The store of chunks in a folder, a bucket or a registry."""
    if isinstance(where, RemoteBucket) and where.url.scheme == _REGISTRY:
        from thawd.transfer.registry_place import RegistryPlace

        return RegistryPlace(where.bucket, name=str(where.url))
    return BucketPlace(where) if isinstance(where, RemoteBucket) else FolderPlace(where)


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


def first_use_key(function: str, sha256: str) -> str:
    """Key of the list of the chunks that a run of a snapshot needed first."""
    record_key(function, sha256)  # checks the name
    return f"{FIRST_USE}/{function}/{sha256}"


def key_pointer(function_key: bytes, function: str, key: str) -> str:
    """Key of the object that names the snapshot with the key `key`. It tells nothing without the function's key."""
    record_key(function, "")  # checks the name
    digest = hmac.digest(function_key, b"thawd snapshot key\0" + key.encode(), "sha256")
    return f"{KEYS}/{function}/{digest.hex()}"


def find_by_key(place: ChunkPlace, function_key: bytes, function: str, key: str) -> str | None:
    """The SHA-256 of the snapshot with this key, as the store says; only its record proves it. None: there is none."""
    try:
        text = place.get(key_pointer(function_key, function, key), limit_bytes=_DIGEST_DIGITS).decode(errors="replace")
    except ResourceNotFoundException:
        return None
    return text if _DIGEST.match(text) else None


def require_main_key(place: ChunkPlace, name: str) -> None:
    """Note the name of the main key in the store, and refuse another one.

    Args:
        place: the store.
        name: see `StoreKey.name`.

    Raises:
        StoreError: the store has snapshots of another main key (HTTP 500).
    """
    try:
        found = place.get(MAIN_KEY, limit_bytes=_DIGEST_DIGITS).decode(errors="replace")
    except ResourceNotFoundException:
        place.put(MAIN_KEY, name.encode())
        return
    if found != name:
        raise StoreError(
            f"{place.name} belongs to another main key than this machine's, so other machines could not receive what "
            f"this one sends. Copy {KEY_FILE} from the machine that sent first, or use another store; if that key is "
            f"lost, remove the object {MAIN_KEY} from the store."
        )


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
