"""The list of files that a snapshot depends on, named by content, and how their contents are verified.

A frozen process refers to files in two ways. Thaw maps and opens files by path, and a probe compares the files that
init read with their state at the freeze. Both recognise an unchanged file by inode, size and modification time, which
costs nothing; but on another machine the same file has another inode. So beside each image there is a list of these
files. When a snapshot is sent elsewhere, each is read once, and its SHA-256 is added to the list. Where the snapshot
arrives, each path must have a file with that content. `binding` then gives the image the inodes and times of these
files.

Used by `thawd.environments.starts.image_making`, which makes the list, and by `thawd.transfer`. All functions block.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import msgspec

from thawd.errors import StoreError
from thawd.snapshot.inspect.records import Image
from thawd.snapshot.store.file_digests import FileDigests
from thawd.snapshot.store.image_facts import IMAGE, digest_in

LIST_MAX_BYTES = 64 << 20
IN_DISK = "disk:"
"""Beginning of `FileRecord.at` for a file of the disk snapshot; the path in the process's temporary folder follows."""

_LAYOUT = 1
_READERS = 4
# Devices without a state of their own: they are the same on every machine.
_DEVICES = frozenset(f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom"))
# A copy opens its own file at such a path (native/thaw_descriptors.c).
_MADE_BY_KERNEL = ("/proc/", "/sys/")


class FileRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file that a snapshot depends on.

    Attributes:
        path: absolute path, as the frozen process sees it.
        bytes: size.
        modified_ns: modification time on this machine, nanoseconds since 1970; -1 if the file changed during init, so
            that no file fits.
        inode: inode on this machine.
        at: path on this machine, if the process sees the file at another one; see also `IN_DISK`.
        sha256: digest of the content, 64 hexadecimal digits; empty: not known yet.
        kind: ``file``; ``device`` for one of the devices that are the same on every machine; ``missing`` for a file
            that init tried to open and did not find: it must be missing elsewhere, too.
        frozen: modification time and inode at the freeze, if that was on another machine; None: as on this one.
    """

    path: str
    bytes: int
    modified_ns: int
    inode: int
    at: str = ""
    sha256: str = ""
    kind: Literal["file", "device", "missing"] = "file"
    frozen: tuple[int, int] | None = None

    @property
    def place(self) -> str:
        """Path of the file on this machine."""
        return self.at or self.path


class FileList(msgspec.Struct, frozen=True, kw_only=True):
    """The files that a snapshot depends on, each path once.

    Attributes:
        layout: version of this format.
        refused: why the snapshot cannot be sent to another machine, whatever the contents; empty: it can.
        files: the files.
    """

    layout: int = _LAYOUT
    refused: str = ""
    files: list[FileRecord] = []


Stamp = tuple[str, int, int, int]
"""Path, size (-1: it was missing), modification time and inode, as `thawd.runtime.changed_files` records them."""


def listed(stamps: Iterable[Stamp], image: Image, *, find: Callable[[str], str]) -> FileList:
    """Make the list for a new image.

    Args:
        stamps: the files that init read.
        image: the image, which refers to further files.
        find: returns the value of `FileRecord.at` for a path that the process sees; empty: the path itself.
    """
    records = {
        path: FileRecord(
            path=path,
            bytes=size,
            modified_ns=modified_ns,
            inode=inode,
            at=find(path),
            kind="missing" if size < 0 else "file",
        )
        for path, size, modified_ns, inode in stamps
    }
    refused = ""
    opened = {one.index: one for one in image.descriptors if one.kind in ("file", "device")}
    for index, file in enumerate(image.files):
        at = find(file.path)
        if at.startswith(IN_DISK) or (not file.checked and index not in opened):
            continue  # its size and time are compared, and both travel with the disk snapshot; or nothing is compared
        if file.path.startswith(_MADE_BY_KERNEL):
            continue
        is_device = not file.checked and file.path in _DEVICES
        if not file.checked and not is_device and Path(at or file.path).is_dir():
            refused = refused or f"the frozen process has a folder open, {file.path}"
        record = FileRecord(
            path=file.path,
            bytes=file.bytes,
            modified_ns=file.modified_ns,
            inode=file.inode,
            at=at,
            kind="device" if is_device else "file",
        )
        known = records.get(file.path)
        if known is not None and (known.modified_ns, known.inode) != (file.modified_ns, file.inode):
            refused = refused or f"{file.path} changed while the function was initialised"
        records[file.path] = record
    return FileList(refused=refused, files=[records[path] for path in sorted(records)])


def encode(files: FileList) -> bytes:
    """The JSON text of a list."""
    return msgspec.json.encode(files)


def decode(text: bytes, *, where: Path) -> FileList:
    """Read a list from its JSON text.

    Raises:
        StoreError: it is not a list, or of another layout (HTTP 500).
    """
    try:
        found = msgspec.json.decode(text, type=FileList)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StoreError(f"{where}, the list of a snapshot's files, is damaged: {error}") from None
    if found.layout != _LAYOUT:
        raise StoreError(f"{where} has layout {found.layout}, but this thawd reads layout {_LAYOUT}")
    return found


def with_contents(
    files: Sequence[FileRecord], digests: FileDigests, *, images: Path
) -> tuple[list[FileRecord], list[str]]:
    """Add the digests of the contents. Each file must still be the one that the snapshot was made with.

    Args:
        files: the records.
        digests: reads the files, or knows their digests.
        images: the folder of images. An image in it has its digest as its name.

    Returns:
        The records, and a sentence for each file that has changed or cannot be read.
    """
    found: list[FileRecord] = []
    problems: list[str] = []
    for record in files:
        if record.kind == "device" or record.at.startswith(IN_DISK) or record.sha256:
            found.append(record)
            continue
        place = Path(record.place)
        if record.kind == "missing":
            found.append(record)
            if os.path.lexists(place):
                problems.append(f"{place} was missing at the freeze, and exists now")
            continue
        if place.parent == images and (sha256 := digest_in(place.name, suffixes=(IMAGE,))) is not None:
            found.append(msgspec.structs.replace(record, sha256=sha256))
            continue
        try:
            status, sha256 = digests.of(place)
        except StoreError as error:
            problems.append(error.message)
            continue
        if (status.st_size, status.st_mtime_ns, status.st_ino) != (record.bytes, record.modified_ns, record.inode):
            when = "since the freeze" if record.modified_ns >= 0 else "during init, or a moment before"
            problems.append(f"{place} has changed {when}")
            continue
        found.append(msgspec.structs.replace(record, sha256=sha256))
    return found, problems


def unchanged(files: Sequence[FileRecord], *, disk: Path | None) -> bool:
    """Whether each file has the size, time and inode that the list says. Reads no file."""
    for record in files:
        in_disk = record.at.startswith(IN_DISK)
        if in_disk and disk is None:
            return False
        place = disk / "files" / record.at.removeprefix(IN_DISK) if in_disk and disk else Path(record.place)
        if record.kind == "missing":
            if place.exists():
                return False
            continue
        try:
            status = place.stat()
        except OSError:
            return False
        if record.kind != "device" and (status.st_size, status.st_mtime_ns, status.st_ino) != (
            record.bytes,
            record.modified_ns,
            record.inode,
        ):
            return False
    return True


def located(
    files: Sequence[FileRecord], digests: FileDigests, *, disk: Path | None, received: dict[str, Path]
) -> tuple[list[FileRecord], list[str]]:
    """Find the files of a snapshot that was made elsewhere, by path and content.

    Args:
        files: the records as they were sent, each file with its digest.
        digests: reads this machine's files, or knows their digests.
        disk: folder with the received files of the disk snapshot; None: it has none.
        received: the images that were received with the snapshot, by SHA-256.

    Returns:
        The records with this machine's inodes and times, and a sentence for each file that does not fit.
    """

    def located_one(record: FileRecord) -> FileRecord | str:
        if record.kind == "missing":
            is_there = not record.at.startswith(IN_DISK) and os.path.lexists(record.place)
            return f"{record.place} exists, but was missing where the snapshot was made" if is_there else record
        try:
            status = _status_here(record, digests, disk, received)
        except (StoreError, OSError) as error:
            return error.message if isinstance(error, StoreError) else f"{record.place}: {error.strerror}"
        frozen = record.frozen or (record.modified_ns, record.inode)
        return msgspec.structs.replace(record, modified_ns=status.st_mtime_ns, inode=status.st_ino, frozen=frozen)

    # A file that was written a moment ago has to be waited for; others are read meanwhile.
    with ThreadPoolExecutor(_READERS, thread_name_prefix="locate") as threads:
        results = list(threads.map(located_one, files))
    return [one for one in results if not isinstance(one, str)], [one for one in results if isinstance(one, str)]


def _status_here(
    record: FileRecord, digests: FileDigests, disk: Path | None, received: dict[str, Path]
) -> os.stat_result:
    """Status of the file that has the record's content.

    Raises:
        StoreError: there is no file at the path, or it has another content.
        OSError: it cannot be examined.
    """
    if record.at.startswith(IN_DISK):
        if disk is None:
            raise StoreError(f"{record.path} is missing from the received disk snapshot")
        return (disk / record.at.removeprefix(IN_DISK)).lstat()
    place = Path(record.place)
    if record.kind == "device":
        if record.path not in _DEVICES or not place.is_char_device():
            raise StoreError(f"{place} is not the device that it is elsewhere")
        return place.stat()
    if record.sha256 in received and digest_in(place.name, suffixes=(IMAGE,)) == record.sha256:
        return received[record.sha256].stat()
    status, sha256 = digests.of(place)
    if status.st_size != record.bytes or not record.sha256 or sha256 != record.sha256:
        raise StoreError(
            f"{place} has another content ({status.st_size:,} bytes, SHA-256 {sha256[:12]}) than where the snapshot "
            f"was made ({record.bytes:,} bytes, SHA-256 {record.sha256[:12]})"
        )
    return status
