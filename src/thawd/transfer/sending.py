"""Sends a snapshot of this machine to a store of chunks.

The snapshot is in use meanwhile, so it is not removed. The record is written last: a store never has the record of a
snapshot whose chunks are missing, whenever this process ends.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from thawd.errors import StoreError
from thawd.snapshot.inspect import reader
from thawd.snapshot.store import file_lists
from thawd.snapshot.store.file_digests import FileDigests
from thawd.snapshot.store.file_lists import FileList, FileRecord
from thawd.snapshot.store.folder import digest_of
from thawd.snapshot.store.image_facts import Sidecar
from thawd.snapshot.store.images import Snapshot, SnapshotStore
from thawd.snapshot.store.trust_and_locks import open_as_is, using
from thawd.stores.chunk_places import ChunkPlace
from thawd.transfer import record_body
from thawd.transfer.chunk_format import encode_record
from thawd.transfer.chunk_uploads import ChunkUploads
from thawd.transfer.cutting import Cutter, cut_image
from thawd.transfer.folder_trees import read_tree
from thawd.transfer.record_body import TREE_FOLDERS, Body, SentSnapshot, Tree
from thawd.transfer.store_keys import StoreKey
from thawd.transfer.store_layout import GRACE_S, doomed, key_pointer, record_key

DIGESTS = "digests.json"
"""Name of the file in the folder of snapshots that remembers digests of files."""

_SHOWN = 3
_NAME = re.compile(r"[0-9a-f]{64}\Z")


@dataclass(frozen=True, slots=True)
class Sent:
    """What was sent.

    Attributes:
        key: key of the record in the store.
        image_bytes: size of the image and its bases without holes and zeros.
        chunks: number of chunks.
        new_chunks: number of chunks that the store did not have.
        new_bytes: bytes that were uploaded, without the record.
    """

    key: str
    image_bytes: int
    chunks: int
    new_chunks: int
    new_bytes: int


def send(
    store: SnapshotStore,
    snapshot: Snapshot,
    place: ChunkPlace,
    key: StoreKey,
    *,
    anew: bool = False,
    progress: Callable[[str], object] = lambda line: None,
) -> Sent:
    """Send a snapshot with its bases, the files of its temporary folder, and the folders of its packages.

    Args:
        store: this machine's snapshots; its folder is in the data folder.
        snapshot: one of them.
        place: the store of chunks.
        key: its main key.
        anew: whether to upload every chunk, also those that the store has, because they may be damaged.
        progress: called with lines for the operator.

    Raises:
        ThawdError: the snapshot cannot be sent, with the reason; or the store failed.
    """
    begun_s = time.monotonic()
    with store.use(snapshot):
        chain = _chain(store, snapshot)
        function = _sidecar_of(snapshot).origin.function
        record_key(function, snapshot.sha256)  # checks the name
        digests = FileDigests(store.folder / DIGESTS)
        progress(f"reading the files that {snapshot.name} depends on")
        files = _files(store, snapshot, digests)
        digests.save()
        with ChunkUploads(place, key, anew=None if anew else doomed(place)) as uploads:
            cutter = Cutter(uploads.add)
            sent = [_read(one, cutter, files if one is snapshot else None) for one in chain]
            trees = []
            for at in _trees(files.files, store.folder.parent):
                progress(f"sending {at}")
                with using(store.folder.parent / at):
                    trees.append(Tree(at, read_tree(store.folder.parent / at, cutter, digests)))
        body = Body(
            function=function,
            sha256=snapshot.sha256,
            data=str(store.folder.parent),
            sent_unix_s=time.time(),
            chunks=uploads.entries,
            snapshots=sent,
            trees=trees,
        )
        done = put_record(place, key, body, uploads, begun_s=begun_s)
        pointer = key_pointer(key.function_key(function), function, _sidecar_of(snapshot).origin.key)
        place.put(pointer, snapshot.sha256.encode())
    return done


def put_record(place: ChunkPlace, key: StoreKey, body: Body, uploads: ChunkUploads, *, begun_s: float) -> Sent:
    """Check and write a record, after all its chunks were uploaded.

    Args:
        place: the store of chunks.
        key: its main key.
        body: the record's body.
        uploads: the uploads, which have ended.
        begun_s: when sending began, by the monotonic clock.

    Raises:
        ThawdError: the record is not valid, sending took too long, or the store failed.
    """
    record_body.check(body)
    if time.monotonic() - begun_s > GRACE_S / 2:
        raise StoreError(
            "sending took so long that a clean-up of the store may have removed chunks meanwhile; send the snapshot "
            "again: chunks that are there are not sent again."
        )
    where = record_key(body.function, body.sha256)
    data = encode_record(msgspec.json.encode(body), uploads.ids, key=key.function_key(body.function))
    place.put(where, data)
    image_bytes = sum(extent.length for one in body.snapshots for extent in one.extents)
    return Sent(where, image_bytes, len(uploads.ids), uploads.new_count, uploads.new_bytes)


def _chain(store: SnapshotStore, snapshot: Snapshot) -> list[Snapshot]:
    """The bases of a snapshot, the lowest first, and the snapshot itself."""
    by_name = {one.sha256: one for one in store.snapshots()}
    chain = [snapshot]
    while (base := chain[0].base) is not None:
        if base not in by_name:
            raise StoreError(f"the base {base[:12]} of {snapshot.name} is missing")
        chain.insert(0, by_name[base])
    return chain


def _sidecar_of(snapshot: Snapshot) -> Sidecar:
    if snapshot.sidecar is None or snapshot.problem is not None:
        raise StoreError(snapshot.problem or f"{snapshot.id} has no sidecar")
    return snapshot.sidecar


def _files(store: SnapshotStore, snapshot: Snapshot, digests: FileDigests) -> FileList:
    """The list of files, each with the digest of its content.

    Raises:
        StoreError: there is no list, or a file has changed since the freeze (HTTP 500).
    """
    if snapshot.files is None:
        raise StoreError(
            f"{snapshot.name} cannot be sent: there is no list of the files that it depends on. Snapshots of an "
            f"earlier thawd have none: remove the snapshot (thawd snapshot rm {snapshot.id}) and publish the function "
            "again."
        )
    with using(snapshot.files):
        text = snapshot.files.read_bytes()
    files = file_lists.decode(text, where=snapshot.files)
    again = "Publish the function again, so that it is frozen with the files as they are now."
    return with_digests(files, digests, images=store.folder, what=snapshot.name, again=again)


def with_digests(files: FileList, digests: FileDigests, *, images: Path, what: str, again: str) -> FileList:
    """Add the digests of the contents to a list of files.

    Args:
        files: the list.
        digests: reads the files, or knows their digests.
        images: the folder of images.
        what: names the snapshot in messages.
        again: how to freeze it again, for messages.

    Raises:
        StoreError: the snapshot cannot be sent, or a file has changed since the freeze (HTTP 500).
    """
    if files.refused:
        raise StoreError(f"{what} cannot be sent: {files.refused}.")
    records, problems = file_lists.with_contents(files.files, digests, images=images)
    if problems:
        more = f", and {len(problems) - _SHOWN} more files" if len(problems) > _SHOWN else ""
        raise StoreError(f"{what} cannot be sent: {'; '.join(problems[:_SHOWN])}{more}. {again}")
    return msgspec.structs.replace(files, files=records)


def _read(snapshot: Snapshot, cutter: Cutter, files: FileList | None) -> SentSnapshot:
    """Cut an image and its disk snapshot into chunks.

    Raises:
        StoreError: the image is damaged, or a file cannot be sent (HTTP 500).
    """
    sidecar = _sidecar_of(snapshot)
    try:
        image = reader.read(snapshot.path)
    except reader.ImageError as error:
        raise StoreError(str(error)) from None
    with using(snapshot.path), open_as_is(snapshot.path) as fd:
        if digest_of(fd) != snapshot.sha256:
            raise StoreError(f"{snapshot.path} is damaged; remove it: thawd snapshot rm {snapshot.id}")
        extents = cut_image(cutter, fd, image)
        cutter.finish()
    disk = None
    if snapshot.disk is not None:
        with using(snapshot.disk):
            disk = Tree("", read_tree(snapshot.disk, cutter))
    return SentSnapshot(sidecar, extents, files, disk)


def _trees(records: Iterable[FileRecord], data: Path) -> list[str]:
    """The folders of packages that contain files of the snapshot, as paths in the data folder."""
    found: set[str] = set()
    for folder in TREE_FOLDERS:
        prefix = f"{data / folder}{os.sep}"
        for record in records:
            name = record.place.removeprefix(prefix).partition(os.sep)[0]
            if record.place.startswith(prefix) and _NAME.match(name):
                found.add(f"{folder}/{name}")
    return sorted(found)
