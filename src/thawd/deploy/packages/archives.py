"""Writes zip files and compressed tar files. With the same zlib, equal items give equal bytes.

An item is a path with its permissions and contents. Items are sorted by path, times are those of 1980, owners are 0.

`write` returns when the disk has the file. The module `making` writes into a scratch folder and moves finished archives
to the output, so that a process that is killed leaves no half-written archive there.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, BinaryIO

from thawd.deploy.packages.contents import Item

LEVEL = 6
"""Level of compression: zlib's default, which `zipfile` uses for files that are written in parts."""
# The earliest time that zip files can represent.
_TIME = (1980, 1, 1, 0, 0, 0)
_TIME_S = 315_532_800
_UNIX = 3
_FILE_BYTES = 1 << 20


def write_zip(items: Sequence[Item], target: BinaryIO) -> None:
    """Write a zip file.

    Raises:
        OSError: a file cannot be read, or the archive cannot be written.
    """
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for item in sorted(items, key=lambda item: item.path):
            is_folder = not item.is_file and item.content is None
            info = zipfile.ZipInfo(item.path + ("/" if is_folder else ""), _TIME)
            info.create_system = _UNIX
            info.external_attr = item.mode << 16
            info.compress_type = zipfile.ZIP_DEFLATED if item.is_file else zipfile.ZIP_STORED
            info.file_size = item.size_bytes if item.is_file else len(item.read())
            with archive.open(info, "w") as file:
                for chunk in item.chunks():
                    file.write(chunk)


class _Chunks(io.RawIOBase):
    """A file object with an item's bytes."""

    def __init__(self, item: Item) -> None:
        self._chunks = item.chunks()
        self._left = memoryview(b"")

    def read(self, size: int = -1) -> bytes:
        """Return the next `size` bytes, fewer at the end; -1: all that are left."""
        parts = []
        while size != 0:
            self._left = self._left or memoryview(next(self._chunks, b""))
            if not self._left:
                break
            part = self._left if size < 0 else self._left[:size]
            self._left = self._left[len(part) :]
            size = size if size < 0 else size - len(part)
            parts.append(part)
        return b"".join(parts)


def write_tar(items: Sequence[Item], target: BinaryIO) -> None:
    """Write a tar file, compressed with gzip, which can be unpacked while it is downloaded.

    Raises:
        OSError: a file cannot be read, or the archive cannot be written.
    """
    with (
        gzip.GzipFile("", "wb", LEVEL, target, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for item in sorted(items, key=lambda item: item.path):
            info = tarfile.TarInfo(item.path)
            info.mode, info.mtime = item.mode & 0o777, _TIME_S
            if item.is_file:
                info.size = item.size_bytes
                chunks = _Chunks(item)
                archive.addfile(info, chunks)
                chunks.read(1)  # raises an error if the file has grown
            elif item.content is not None:
                info.type, info.linkname = tarfile.SYMTYPE, os.fsdecode(item.content)
                archive.addfile(info)
            else:
                info.type = tarfile.DIRTYPE
                archive.addfile(info)


def write(path: Path, items: Sequence[Item], writer: Callable[[Sequence[Item], BinaryIO], None]) -> tuple[int, str]:
    """Write an archive into a new file, and wait until the disk has it.

    Returns:
        Its size in bytes, and its SHA-256 as 64 hexadecimal digits.

    Raises:
        OSError: a file cannot be read, or the archive cannot be written.
    """
    with path.open("xb") as file:
        writer(items, file)
        file.flush()
        os.fsync(file.fileno())
    with path.open("rb") as file:
        return path.stat().st_size, _sha256(file)


def _sha256(file: IO[bytes]) -> str:
    digest = hashlib.sha256()
    while chunk := file.read(_FILE_BYTES):
        digest.update(chunk)
    return digest.hexdigest()
