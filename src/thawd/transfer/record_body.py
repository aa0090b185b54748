"""What the record of a snapshot says. A record holds everything but the contents, which are in chunks.

`check` examines all numbers and paths of a record that was received. A record is authenticated, but whoever has the
function's key can write one; so it is not trusted with paths outside the folders that it may fill.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Literal

import msgspec

from thawd.snapshot.store.file_lists import IN_DISK, FileList, FileRecord
from thawd.snapshot.store.image_facts import Sidecar
from thawd.transfer.chunk_format import MAX_CHUNK_BYTES, ChunkError

LAYOUT = 1
_HEX = re.compile(r"[0-9a-f]{64}\Z")
# The folders of the data folder whose contents are named by content or by what they were made from.
TREE_FOLDERS = ("environments", "packages")
_MAX_FILE_BYTES = 1 << 44


class Extent(msgspec.Struct, frozen=True, array_like=True):
    """A part of a file, and where its bytes are.

    Attributes:
        offset: first byte in the file.
        chunk: index in `Body.chunks`.
        begin: first byte in the chunk's content.
        length: number of bytes.
    """

    offset: int
    chunk: int
    begin: int
    length: int


class ChunkEntry(msgspec.Struct, frozen=True, array_like=True):
    """A chunk; the ids are in the readable part of the record, in the same order.

    Attributes:
        sha256: digest of the content, hexadecimal.
        key: key of the chunk, hexadecimal.
        plain_bytes: size of the content.
    """

    sha256: str
    key: str
    plain_bytes: int


class TreeEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file, folder or link of a tree; bytes that no extent covers are zero.

    Attributes:
        path: relative to the tree's root, with ``/``; empty for the root.
        kind: ``folder``, ``file``, ``link``, or ``same``: a further name (hard link) of the file `target`.
        mode: permissions.
        modified_ns: modification time, nanoseconds since 1970.
        bytes: size of a file.
        extents: where the content of a file is.
        target: target of a link; of ``same``, the path in this tree.
        sha256: digest of a file's content, hexadecimal; empty in a disk snapshot.
    """

    path: str
    kind: Literal["folder", "file", "link", "same"]
    mode: int = 0
    modified_ns: int = 0
    bytes: int = 0
    extents: list[Extent] = []
    target: str = ""
    sha256: str = ""


class Tree(msgspec.Struct, frozen=True):
    """A folder.

    Attributes:
        at: path in the data folder, such as ``environments/3f…``; empty: the disk snapshot of an image.
        entries: its entries; each folder before its contents, and a file before further names of it.
    """

    at: str
    entries: list[TreeEntry]


class SentSnapshot(msgspec.Struct, frozen=True):
    """One snapshot.

    Attributes:
        sidecar: the sidecar where it was made.
        extents: where the image's bytes are; the others are zero.
        files: the files that it depends on, with their digests; None for a base, of which only the memory is used.
        disk: its disk snapshot; None: it has none.
    """

    sidecar: Sidecar
    extents: list[Extent]
    files: FileList | None = None
    disk: Tree | None = None


class Body(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a record.

    Attributes:
        layout: version of this format.
        function: the function.
        sha256: SHA-256 of the image, which is also the record's name.
        data: path of the data folder where the snapshot was made.
        sent_unix_s: when the snapshot was sent.
        chunks: all chunks of the record.
        snapshots: the bases that the snapshot refers to, the lowest first; then the snapshot itself.
        trees: folders that its files are in.
        kind: ``function``; or ``program`` for the image of a program that froze itself, which has no data folder.
    """

    layout: int = LAYOUT
    function: str
    sha256: str
    data: str
    sent_unix_s: float
    chunks: list[ChunkEntry]
    snapshots: list[SentSnapshot]
    trees: list[Tree]
    kind: Literal["function", "program"] = "function"


def decode(text: bytes, *, function: str, sha256: str) -> Body:
    """Read and check the body of a record.

    Args:
        text: the body's JSON text.
        function: the function under whose name the record is stored.
        sha256: the record's name.

    Raises:
        ChunkError: it breaks a rule of the format, or is the record of another snapshot (HTTP 500).
    """
    try:
        body = msgspec.json.decode(text, type=Body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ChunkError(f"the record is damaged: {error}") from None
    if body.layout != LAYOUT:
        raise ChunkError(f"the record has layout {body.layout}, but this thawd reads layout {LAYOUT}")
    if (body.function, body.sha256) != (function, sha256):
        raise ChunkError(f"the record is that of another snapshot, {body.function} {body.sha256[:12]}")
    check(body)
    return body


def check(body: Body) -> None:
    """Check every number and path of a body.

    Raises:
        ChunkError: a rule is broken (HTTP 500).
    """
    for chunk in body.chunks:
        if not (_HEX.match(chunk.sha256) and _HEX.match(chunk.key) and 0 < chunk.plain_bytes <= MAX_CHUNK_BYTES):
            raise ChunkError("the record is damaged: a chunk's digest, key or size is not valid")
    if not body.snapshots or body.snapshots[-1].sidecar.sha256 != body.sha256:
        raise ChunkError("the record is damaged: it does not end with the snapshot that it is named after")
    own = body.snapshots[-1]
    if own.files is None or own.sidecar.origin.function != body.function:
        raise ChunkError("the record is damaged: its snapshot is that of another function")
    if body.kind == "program" and (len(body.snapshots) > 1 or body.trees or own.disk is not None):
        raise ChunkError("the record is damaged: it brings more than the image of a program")
    seen: set[str] = set()
    for sent in body.snapshots:
        if sent is not own and sent.files is not None:
            raise ChunkError("the record is damaged: it brings a second snapshot that is no base")
        base = sent.sidecar.origin.base
        if not _HEX.match(sent.sidecar.sha256) or (base is not None and base not in seen):
            raise ChunkError("the record is damaged: a base is missing")
        seen.add(sent.sidecar.sha256)
        _check_extents(sent.extents, sent.sidecar.image_bytes, body)
        if sent.disk is not None:
            _check_tree(sent.disk, body)
        for file in sent.files.files if sent.files is not None else ():
            _check_file(file)
    for tree in body.trees:
        folder, _, name = tree.at.partition("/")
        if folder not in TREE_FOLDERS or not _HEX.match(name):
            raise ChunkError(f"the record is damaged: {tree.at!r} is no folder that a snapshot may bring")
        _check_tree(tree, body)


def _check_file(file: FileRecord) -> None:
    in_disk = file.at.startswith(IN_DISK)
    inside = file.at.removeprefix(IN_DISK)
    is_place = not file.at or (_is_inside(inside) if in_disk else file.at.startswith("/"))
    if not file.path.startswith("/") or "\0" in file.path + file.at or not is_place:
        raise ChunkError(f"the record is damaged: {file.path!r} is no path of a file that a process could have used")
    if file.sha256 and not _HEX.match(file.sha256):
        raise ChunkError(f"the record is damaged: the digest of {file.path!r} is not valid")


def _is_inside(path: str) -> bool:
    """Whether a path stays in the folder at which it begins, and is written in the one usual way."""
    pure = PurePosixPath(path)
    return str(pure) == path and path != "." and ".." not in pure.parts and not pure.is_absolute() and "\0" not in path


def _check_extents(extents: list[Extent], size: int, body: Body) -> None:
    if not 0 <= size <= _MAX_FILE_BYTES:
        raise ChunkError("the record is damaged: a file's size is not valid")
    for one in extents:
        if not 0 <= one.chunk < len(body.chunks):
            raise ChunkError("the record is damaged: it names a chunk that it does not list")
        inside = one.begin >= 0 and 0 < one.length <= body.chunks[one.chunk].plain_bytes - one.begin
        if not inside or not 0 <= one.offset <= size - one.length:
            raise ChunkError("the record is damaged: a part of a file is outside the file or its chunk")


def _check_tree(tree: Tree, body: Body) -> None:
    kinds: dict[str, str] = {}
    for entry in tree.entries:
        path = PurePosixPath(entry.path)
        parent = str(path.parent) if entry.path and str(path.parent) != "." else ""
        is_valid = entry.path == "" or _is_inside(entry.path)
        if not is_valid or entry.path in kinds or not 0 <= entry.mode <= 0o777:
            raise ChunkError(f"the record is damaged: the path or the mode of {entry.path!r} is not valid")
        if (entry.path and kinds.get(parent) != "folder") or (not entry.path and entry.kind != "folder"):
            raise ChunkError(f"the record is damaged: {entry.path!r} is in no folder")
        if entry.kind == "same" and kinds.get(entry.target) != "file":
            raise ChunkError(f"the record is damaged: {entry.path!r} is another name of no file")
        if entry.kind == "link" and ("\0" in entry.target or not entry.target):
            raise ChunkError(f"the record is damaged: the target of {entry.path!r} is not valid")
        if not -(1 << 62) < entry.modified_ns < 1 << 62:
            raise ChunkError(f"the record is damaged: the time of {entry.path!r} is not valid")
        kinds[entry.path] = entry.kind
        _check_extents(entry.extents, entry.bytes if entry.kind == "file" else 0, body)
    if kinds.get("") != "folder":
        raise ChunkError("the record is damaged: a tree has no root")
