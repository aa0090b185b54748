"""Verifies a store of chunks, and removes what no record needs.

A clean-up has two steps, at least `GRACE_S` apart. The first notes which chunks no record lists. The second removes
those of them that are still not listed and were not written since. Whoever sends a snapshot meanwhile uploads noted
chunks again, and is done within half of that time. So a record is not left without its chunks, even if machines send at
the same time. Times are those of the store's clock. One gap remains, as stores do not remove on a condition: a sender
may write a chunk again between the last look at it and its removal, milliseconds later. Then receivers refuse the
snapshot, `verify` names it, and the next sender of the content uploads the chunk.

A registry frees chunks itself, and has no clock: there, only old records are removed, by the times that their senders
wrote.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass

from thawd.errors import ResourceNotFoundException, StoreError, ThawdError
from thawd.stores.chunk_places import ChunkPlace, FolderPlace
from thawd.transfer.chunk_downloads import STORED_LIMIT_BYTES, fetch
from thawd.transfer.chunk_format import MAX_RECORD_BYTES, ChunkError, chunk_id, record_ids
from thawd.transfer.receiving import read_record
from thawd.transfer.store_keys import FunctionKey, StoreKey
from thawd.transfer.store_layout import (
    CHUNKS,
    CLOCK,
    DOOMED,
    FIRST_USE,
    GRACE_S,
    KEYS,
    RECORDS,
    chunk_key,
    doom,
    doomed,
)


@dataclass(frozen=True, slots=True)
class CleanUp:
    """The result of a clean-up.

    Attributes:
        removed: number of chunks that were removed.
        removed_bytes: their bytes.
        noted: number of chunks that a later clean-up may remove.
        wait_s: seconds until then; 0: none is noted.
        records: number of records that were removed because of their age.
    """

    removed: int
    removed_bytes: int
    noted: int
    wait_s: float
    records: int


def clean_up(place: ChunkPlace, *, max_age_s: float | None = None, grace_s: float = GRACE_S) -> CleanUp:
    """Remove old records, and chunks that have been unused since the last clean-up. Needs no key.

    Args:
        place: the store.
        max_age_s: remove records that were written longer ago; None: keep all.
        grace_s: see `GRACE_S`; only tests use another time.

    Raises:
        ChunkError: a record is damaged, so that the chunks that it needs are not known; nothing was removed (HTTP 500).
        StoreError: the store failed (HTTP 500).
    """
    now_s = time.time() if place.frees_chunks else _now_s(place)
    if isinstance(place, FolderPlace):
        place.remove_unfinished(before_unix_s=now_s - grace_s)
    old = 0
    for one in list(place.listed(RECORDS)) if max_age_s is not None else []:
        if max_age_s is not None and one.modified_unix_s < now_s - max_age_s:
            found = place.find(one.key)
            # A record that was sent again since the listing stays. The two times of one object may differ: a bucket's
            # listing has milliseconds, and its answer about one object has whole seconds.
            if found is not None and found.modified_unix_s < now_s - max_age_s:
                place.remove(one.key)
                old += 1
    _remove_pointers(place)
    if place.frees_chunks:
        return CleanUp(0, 0, 0, 0.0, old)
    noted_at = place.find(DOOMED)
    noted = doomed(place) if noted_at is not None else frozenset()
    stored = {_id_of(one.key): one for one in place.listed(CHUNKS)}
    unused = frozenset(one for one in stored.keys() - _listed_ids(place) if one is not None)
    wait_s = 0.0 if noted_at is None else noted_at.modified_unix_s + grace_s - now_s
    if noted and wait_s > 0:
        return CleanUp(0, 0, len(noted & unused), wait_s, old)
    removed = removed_bytes = 0
    if noted_at is not None:
        # Read once more: a record may have been written since.
        for chunk in (noted & unused) - _listed_ids(place):
            found = place.find(chunk_key(chunk))
            if found is not None and found.modified_unix_s < noted_at.modified_unix_s:
                place.remove(found.key)
                removed, removed_bytes = removed + 1, removed_bytes + found.size
                unused -= {chunk}
    doom(place, unused)
    return CleanUp(removed, removed_bytes, len(unused), grace_s if unused else 0.0, old)


def _remove_pointers(place: ChunkPlace) -> None:
    """Remove the objects that belong to a snapshot whose record is gone."""
    for one in list(place.listed(KEYS)):
        function = one.key.split("/")[1]
        with contextlib.suppress(ResourceNotFoundException, ChunkError):
            sha256 = place.get(one.key, limit_bytes=one.size).decode(errors="replace")
            if not sha256.isalnum() or place.find(f"{RECORDS}/{function}/{sha256}") is None:
                place.remove(one.key)
    for one in list(place.listed(FIRST_USE)):
        if place.find(f"{RECORDS}/{one.key.removeprefix(f'{FIRST_USE}/')}") is None:
            place.remove(one.key)


def _now_s(place: ChunkPlace) -> float:
    place.put(CLOCK, b"now")
    now = place.find(CLOCK)
    if now is None:
        raise StoreError(f"{place.name} does not show what was written to it a moment ago; try again")
    return now.modified_unix_s


def _id_of(key: str) -> bytes | None:
    try:
        return bytes.fromhex(key.rpartition("/")[2])
    except ValueError:
        return None


def _listed_ids(place: ChunkPlace) -> set[bytes]:
    found: set[bytes] = set()
    for one in place.listed(RECORDS):
        try:
            found.update(record_ids(place.get(one.key, limit_bytes=MAX_RECORD_BYTES)))
        except ResourceNotFoundException:
            continue  # removed since it was listed
        except ChunkError as error:
            raise ChunkError(
                f"{one.key}: {error.message}; so it is unknown which chunks it needs, and none was removed. Remove the "
                "record if the snapshot is not needed, or send the snapshot again."
            ) from None
    return found


def verify(
    place: ChunkPlace,
    key: StoreKey | FunctionKey | None,
    *,
    on_record: Callable[[str, list[str]], object] = lambda name, problems: None,
) -> int:
    """Read every record of the store, and every chunk once.

    Args:
        place: the store.
        key: a key of the store; of a function's key, only that function's records are read. None: check only which
            chunks are there, and what their headers say.
        on_record: called for each record with its key and what is wrong with it.

    Returns:
        The number of records with a problem.
    """
    checked: dict[bytes, str] = {}  # what is wrong with a chunk; empty: nothing
    bad = 0
    for one in place.listed(RECORDS):
        function, _, sha256 = one.key.removeprefix(f"{RECORDS}/").partition("/")
        if isinstance(key, FunctionKey) and key.function != function:
            continue
        try:
            problems = _problems(place, key, function, sha256, checked)
        except ThawdError as error:
            problems = [error.message]
        bad += bool(problems)
        on_record(one.key, problems)
    return bad


def _problems(
    place: ChunkPlace, key: StoreKey | FunctionKey | None, function: str, sha256: str, checked: dict[bytes, str]
) -> list[str]:
    if key is None:
        ids = record_ids(place.get(f"{RECORDS}/{function}/{sha256}", limit_bytes=MAX_RECORD_BYTES))
        for one in ids:
            if one not in checked:
                checked[one] = _problem_of_header(place, one)
        return [checked[one] for one in ids if checked[one]]
    record = read_record(place, key, function, sha256)
    for chunk in record.chunks:
        if chunk.id not in checked:
            try:
                fetch(place, chunk)
                checked[chunk.id] = ""
            except ThawdError as error:
                checked[chunk.id] = error.message
    return [checked[chunk.id] for chunk in record.chunks if checked[chunk.id]]


def _problem_of_header(place: ChunkPlace, one: bytes) -> str:
    try:
        found = chunk_id(place.get(chunk_key(one), limit_bytes=STORED_LIMIT_BYTES))
    except ResourceNotFoundException:
        return f"chunk {one.hex()[:12]} is missing"
    except ThawdError as error:
        return error.message
    return "" if found == one else f"chunk {one.hex()[:12]}: it is another chunk, {found.hex()[:12]}"
