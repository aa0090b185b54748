"""Folders as entries of a record, and back. Files keep permissions, modification times and hard links.

Owners do not travel: what is written belongs to the user of this process. What else a folder may contain (devices,
pipes, sockets, extended attributes) is refused when it is sent.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from thawd.errors import StoreError
from thawd.snapshot.store.file_digests import FileDigests
from thawd.stores.received_folders import COMPLETE
from thawd.transfer.cutting import Cutter
from thawd.transfer.record_body import Extent, TreeEntry

# Files of one package are cut together: lib, python3.12, site-packages, the package.
_GROUP_PARTS = 4
_LABELS = "security."
_BYTE_CODE = ".pyc"
_OPEN_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def read_tree(root: Path, cutter: Cutter, digests: FileDigests | None = None) -> list[TreeEntry]:
    """Read a folder and cut the files in it.

    Args:
        root: the folder.
        cutter: makes the chunks.
        digests: for the digests of the files, with which `differences` compares; None: none are needed.

    Raises:
        StoreError: it contains something that cannot be sent (HTTP 500).
        OSError: an entry cannot be read.
    """
    entries = [_folder("", root.lstat())]
    linked: dict[tuple[int, int], str] = {}
    group: tuple[str, ...] = ()
    for path, status in _walk(root):
        name = str(path.relative_to(root))
        _require_text(name, path)
        if (marks := [mark for mark in _attributes(path) if not mark.startswith(_LABELS)]) != []:
            raise StoreError(f"{path} has the extended attribute {marks[0]}, which cannot be sent")
        if stat.S_ISDIR(status.st_mode):
            entries.append(_folder(name, status))
        elif stat.S_ISLNK(status.st_mode):
            target = str(path.readlink())
            _require_text(target, path)
            entries.append(TreeEntry(name, "link", target=target))
        elif not stat.S_ISREG(status.st_mode):
            raise StoreError(f"{path} is neither a file nor a folder nor a link, so it cannot be sent")
        elif (first := linked.get((status.st_dev, status.st_ino))) is not None:
            entries.append(TreeEntry(name, "same", target=first))
        else:
            linked[status.st_dev, status.st_ino] = name
            if (now := Path(name).parts[:_GROUP_PARTS]) != group:
                cutter.pause()
                group = now
            entries.append(_read_file(path, name, status, cutter, digests))
    cutter.finish()
    return entries


def _require_text(name: str, path: Path) -> None:
    """Refuse a name or a target of a link that cannot be part of a record, which is JSON."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise StoreError(f"{os.fsencode(path)!r} has a name or a target that is not UTF-8; it cannot be sent") from None


def _read_file(path: Path, name: str, status: os.stat_result, cutter: Cutter, digests: FileDigests | None) -> TreeEntry:
    extents: list[Extent] = []
    fd = os.open(path, os.O_RDONLY | _OPEN_FLAGS)
    try:
        before = os.fstat(fd)
        cutter.cut(fd, 0, before.st_size, extents)
        if os.fstat(fd).st_mtime_ns != before.st_mtime_ns:
            raise StoreError(f"{path} was changed while it was sent; try again")
    finally:
        os.close(fd)
    sha256 = "" if digests is None else digests.of(path)[1]
    mode, modified_ns = status.st_mode & 0o777, before.st_mtime_ns
    return TreeEntry(
        name, "file", mode=mode, modified_ns=modified_ns, bytes=before.st_size, extents=extents, sha256=sha256
    )


def difference(
    root: Path, entries: Sequence[TreeEntry], digests: FileDigests, *, with_byte_code: bool = False
) -> str | None:
    """Compare a folder with a tree that was read with digests. Times and the marker are not compared.

    Args:
        root: the folder.
        entries: the tree.
        digests: reads the files of the folder, or knows their digests.
        with_byte_code: whether byte code is compared. It differs between installations of the same packages, but a
            folder that came from elsewhere may have any.

    Returns:
        The first path that differs, relative to the folder; None: none does.

    Raises:
        StoreError: a file cannot be read (HTTP 500).
        OSError: a folder cannot be listed.
    """

    def is_ignored(name: str) -> bool:
        return name == COMPLETE or (name.endswith(_BYTE_CODE) and not with_byte_code)

    there = {str(path.relative_to(root)): path for path, status in _walk(root) if not stat.S_ISDIR(status.st_mode)}
    expected = {entry.path: entry for entry in entries if entry.kind != "folder"}
    for name in sorted(there.keys() ^ expected.keys()):
        if not is_ignored(name):
            return name
    contents = {entry.path: entry.sha256 for entry in entries if entry.kind == "file"}
    for name in sorted(there.keys() & expected.keys()):
        entry, path = expected[name], there[name]
        if is_ignored(name):
            continue
        if entry.kind == "link":
            if not path.is_symlink() or str(path.readlink()) != entry.target:
                return name
        elif path.is_symlink() or digests.of(path)[1] != contents[entry.target or name]:
            return name
    return None


def _folder(name: str, status: os.stat_result) -> TreeEntry:
    return TreeEntry(name, "folder", mode=status.st_mode & 0o777, modified_ns=status.st_mtime_ns)


def _walk(root: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """All entries below a folder, each folder before its entries, in an order that only depends on the names."""
    with os.scandir(root) as children:
        found = sorted(children, key=lambda child: os.fsencode(child.name))
    for child in found:
        status = child.stat(follow_symlinks=False)
        yield Path(child.path), status
        if stat.S_ISDIR(status.st_mode):
            yield from _walk(Path(child.path))


def _attributes(path: Path) -> list[str]:
    try:
        return os.listxattr(path, follow_symlinks=False)
    except OSError:
        return []


def make_tree(root: Path, entries: Sequence[TreeEntry]) -> dict[Path, list[Extent]]:
    """Make the folders, links and empty files of a checked tree in a new folder.

    Returns:
        For each file whose content is still to be written: its path, and the extents. Then call `complete_tree`.

    Raises:
        OSError: an entry cannot be made.
    """
    contents: dict[Path, list[Extent]] = {}
    for entry in entries:
        path = root / entry.path
        if entry.kind == "folder":
            path.mkdir(mode=0o700)
        elif entry.kind == "link":
            path.symlink_to(entry.target)
        elif entry.kind == "same":
            os.link(root / entry.target, path, follow_symlinks=False)
        else:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN_FLAGS, 0o600)
            try:
                os.truncate(fd, entry.bytes)
            finally:
                os.close(fd)
            contents[path] = entry.extents
    return contents


def complete_tree(root: Path, entries: Sequence[TreeEntry]) -> None:
    """Give all files and folders their permissions and times, the innermost first. The contents must be written.

    Raises:
        OSError: an entry cannot be changed.
    """
    for entry in reversed(entries):
        if entry.kind in ("file", "folder"):
            path = root / entry.path
            path.chmod(entry.mode)
            os.utime(path, ns=(entry.modified_ns, entry.modified_ns))
