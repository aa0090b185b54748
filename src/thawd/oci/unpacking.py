"""Unpacks one layer into a folder of its own, without privileges.

    layers/HEX/tree/      the layer's files; HEX is from the digest of its uncompressed tar file
    layers/HEX/changes    whiteouts, owners and other facts that a folder cannot represent: see `Changes`

A layer is unpacked once for all images that contain it. Its digest is computed from the same bytes that are unpacked,
and the folder gets its name after the digest was verified. All files belong to the user that unpacks them. The
set-user-id and set-group-id bits are removed, because otherwise every user could run the file as that user. Devices and
FIFOs are left out.

Whiteouts are only recorded here, because they concern lower layers: `thawd.oci.merging` applies them. Source:
image-spec, layer.md.
"""

from __future__ import annotations

import errno
import math
import os
import stat
from pathlib import Path

import msgspec

from thawd.errors import ImageError
from thawd.oci.compression import decompressed
from thawd.oci.image_paths import resolve_folder
from thawd.oci.removing import remove_tree
from thawd.oci.tar_entries import Entry, Kind, LayerReader, Limits

TREE = "tree"
CHANGES = "changes"
_WHITEOUT = ".wh."
_OPAQUE = ".wh..wh..opq"
_AUFS = ".wh..wh."  # files with this prefix are records of aufs itself
_CHUNK_BYTES = 1 << 20
_LATEST_S = 1 << 33
_MOST_NOTES = 100
_FAULTS_OF_ENTRIES = {
    *(
        errno.ENAMETOOLONG,
        errno.EINVAL,
        errno.EILSEQ,
        errno.ENOTDIR,
        errno.EISDIR,
        errno.EEXIST,
        errno.ELOOP,
        errno.EMLINK,
    ),
    *(errno.ENOENT, errno.EFBIG),
}


class Changes(msgspec.Struct):
    """The facts of a layer besides its files. Paths are relative to the root, in the file system's bytes.

    Attributes:
        removed: paths that the layer removes from lower layers.
        opaque: folders whose contents in lower layers the layer removes.
        folders: folders that have an entry in the layer, with their modes. Another folder of the tree exists only
            because the layer has a file in it. If a lower layer has a link to a folder at that path, the link stays.
        links: hard links to files of lower layers, with their targets.
        owners: user id and group id of the paths that do not belong to root. On the disk, all files belong to the user
            that unpacked them.
        notes: messages about entries that were left out.
    """

    removed: list[bytes] = msgspec.field(default_factory=list)
    opaque: list[bytes] = msgspec.field(default_factory=list)
    folders: dict[bytes, int] = msgspec.field(default_factory=dict)
    links: dict[bytes, bytes] = msgspec.field(default_factory=dict)
    owners: dict[bytes, tuple[int, int]] = msgspec.field(default_factory=dict)
    notes: list[str] = msgspec.field(default_factory=list)


def unpack(blob: Path, folder: Path, *, diff_id: str, what: str, limits: Limits | None = None) -> None:
    """Unpack a layer into a new folder.

    Args:
        blob: the layer, compressed or not.
        folder: folder to make. After an error it is incomplete, and the caller removes it.
        diff_id: digest that the uncompressed layer must have.
        what: names the layer in messages.
        limits: highest size and number of entries; None: somewhat more than Lambda's limits on images.

    Raises:
        ImageError: the layer is broken, hostile or too large, or has another digest (HTTP 400).
        OSError: the disk failed or is full.
    """
    tree = folder / TREE
    tree.mkdir(parents=True)
    with blob.open("rb") as file, decompressed(file, what) as stream:
        limits = limits or Limits()
        reader = LayerReader(stream, what, limits)
        unpacking = _Unpacking(str(tree), what, limits)
        for entry in reader.entries():
            unpacking.take(entry)
        found = reader.digest()
    if found != diff_id:
        raise ImageError(f"{what}: unpacked it has the digest {found}, and the image says {diff_id}; it is not used")
    (folder / CHANGES).write_bytes(msgspec.msgpack.encode(unpacking.changes))


def read_changes(folder: Path) -> Changes:
    """Return the changes of an unpacked layer."""
    return msgspec.msgpack.decode((folder / CHANGES).read_bytes(), type=Changes)


class _Unpacking:
    """The tree of one layer while it is filled.

    Args:
        tree: the folder.
        what: names the layer in messages.
        limits: what the layer may consume.
    """

    def __init__(self, tree: str, what: str, limits: Limits) -> None:
        self.changes = Changes()
        self._tree = tree
        self._what = what
        self._limits = limits
        self._unnamed = 0  # folders that were made because something is in them
        self._parent: tuple[tuple[str, ...], str] = ((), tree)  # the last one; entries of a folder follow each other

    def take(self, entry: Entry) -> None:
        what = f"{self._what}: the entry {entry.path[:200]!r}"
        if not entry.parts:
            return
        try:
            self._take(entry, what)
        except OSError as error:
            # The entry's fault, not the disk's: a name is too long, a path too deep, or not one of this file system.
            if error.errno in _FAULTS_OF_ENTRIES:
                raise ImageError(f"{what} cannot be made: {error.strerror}") from None
            raise

    def _take(self, entry: Entry, what: str) -> None:
        name = entry.parts[-1]
        if name.startswith(_WHITEOUT):
            self._whiteout(entry, what)
            return
        if entry.kind is Kind.DEVICE:
            if len(self.changes.notes) < _MOST_NOTES:
                self.changes.notes.append(f"{entry.path}: a device or FIFO, which was left out")
            return
        path = f"{self._folder(entry.parts[:-1], what)}/{name}"
        self._make_way(path, entry)
        if entry.uid or entry.gid:
            self.changes.owners[self._inside(path)] = (entry.uid, entry.gid)
        if entry.kind is Kind.FOLDER:
            self._make_folder(path, entry)
        elif entry.kind is Kind.SYMLINK:
            os.symlink(entry.link, path)
        elif entry.kind is Kind.HARD_LINK:
            self._link(path, entry, what)
        else:
            self._write(path, entry, what)

    def _folder(self, parts: tuple[str, ...], what: str) -> str:
        if self._parent[0] == parts:
            return self._parent[1]
        found = resolve_folder(self._tree, parts, what=what, make=self._make_unnamed)
        assert found is not None
        self._parent = (parts, found)
        return found

    def _make_unnamed(self, path: str) -> None:
        self._unnamed += 1
        if self._unnamed > self._limits.entries:
            raise ImageError(f"{self._what}: it makes more than {self._limits.entries:,} folders that it does not name")
        os.mkdir(path)

    def _make_way(self, path: str, entry: Entry) -> None:
        """Remove what an earlier entry of the layer put at `path`. A folder stays if the entry is a folder, too."""
        self.changes.links.pop(self._inside(path), None)
        self.changes.owners.pop(self._inside(path), None)
        try:
            mode = os.lstat(path).st_mode
        except FileNotFoundError:
            return
        self._parent = ((), self._tree)
        if not stat.S_ISDIR(mode):
            os.unlink(path)
        elif entry.kind is not Kind.FOLDER:
            remove_tree(Path(path))
            gone = self._inside(path)
            for named in [named for named in self.changes.folders if named == gone or named.startswith(gone + b"/")]:
                del self.changes.folders[named]

    def _make_folder(self, path: str, entry: Entry) -> None:
        if not os.path.isdir(path):
            os.mkdir(path)
        self.changes.folders[self._inside(path)] = entry.mode & 0o1777

    def _write(self, path: str, entry: Entry, what: str) -> None:
        assert entry.content is not None
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(fd, "wb", buffering=0) as file:
            written = 0
            while chunk := entry.content.read(_CHUNK_BYTES):
                written += len(chunk)
                if entry.sparse and chunk.count(0) == len(chunk):
                    file.seek(len(chunk), os.SEEK_CUR)
                else:
                    _write_all(file.fileno(), chunk)
            if written != entry.size:
                raise ImageError(f"{what} ends after {written} of {entry.size} bytes")
            if entry.sparse:
                file.truncate(written)
            # The owner's right to read stays, for copies of the tree.
            os.fchmod(fd, entry.mode & 0o777 | 0o400)
            mtime_s = min(max(entry.mtime_s, 0), _LATEST_S) if math.isfinite(entry.mtime_s) else 0
            os.utime(fd, (mtime_s, mtime_s))

    def _link(self, path: str, entry: Entry, what: str) -> None:
        *folders, name = entry.link.split("/")
        parent = resolve_folder(self._tree, folders, what=f"{what}, a hard link to {entry.link!r}")
        target = f"{parent}/{name}"
        if parent is None or not name or not os.path.lexists(target):
            self.changes.links[self._inside(path)] = os.fsencode(entry.link)
            return
        if os.path.isdir(target) and not os.path.islink(target):
            raise ImageError(f"{what} is a hard link to the folder {entry.link!r}")
        os.link(target, path, follow_symlinks=False)

    def _whiteout(self, entry: Entry, what: str) -> None:
        name = entry.parts[-1]
        if name == _OPAQUE:
            self.changes.opaque.append(os.fsencode("/".join(entry.parts[:-1])))
            return
        if name.startswith(_AUFS):
            return
        removed = name[len(_WHITEOUT) :]
        if removed in ("", ".", ".."):
            raise ImageError(f"{what} removes {removed!r}, which is not the name of a file; it is refused")
        self.changes.removed.append(os.fsencode("/".join((*entry.parts[:-1], removed))))

    def _inside(self, path: str) -> bytes:
        return os.fsencode(path[len(self._tree) + 1 :])


def _write_all(fd: int, chunk: bytes) -> None:
    view = memoryview(chunk)
    while view:
        view = view[os.write(fd, view) :]
