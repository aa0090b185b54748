"""Binds an image to this machine: gives its records of files the inodes and times that these files have here.

Thaw recognises a file by inode, size and modification time. After `thawd.snapshot.store.file_lists.located` has found
each file by its content, `bind` writes their inodes and times into the tables of an image that is not in the store yet.
So a thaw is the same program, and takes as long, as where the image was made. The image's pages stay as they are; its
SHA-256, and so its name in the store, becomes another one.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from pathlib import Path

from thawd.errors import StoreError
from thawd.snapshot.inspect import layout

# The device of a file on another machine says nothing. Thaw asks for the numbers of an earlier image's memory where
# this field differs from the device of the file, so it must be no device's number.
_NO_DEVICE = 0
_RECORD = struct.Struct("<QQQq")
_MOST_TABLES_BYTES = 64 << 20


def bind(image: Path, identities: Mapping[str, tuple[int, int]]) -> None:
    """Write identities of files into an image, and its checksums. The image must have been read without an error.

    Args:
        image: a file that nothing maps yet.
        identities: modification time in nanoseconds and inode, by path; records of other paths stay as they are.

    Raises:
        StoreError: the image has no valid tables (HTTP 500).
        OSError: the file cannot be read or written.
    """
    fd = os.open(image, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        size = layout.size_of("image_header")
        head = bytearray(os.pread(fd, size, 0))
        places = _places(head)
        tables = bytearray(os.pread(fd, places["strings"][1] - layout.PAGE_BYTES, layout.PAGE_BYTES))
        _write_identities(tables, places, identities)
        _put(head, "tables_checksum", layout.checksum(bytes(tables)))
        _put(head, "header_checksum", 0)
        _put(head, "header_checksum", layout.checksum(bytes(head)))
        os.pwrite(fd, tables, layout.PAGE_BYTES)
        os.pwrite(fd, head, 0)
        os.fsync(fd)
    finally:
        os.close(fd)


def _places(head: bytearray) -> dict[str, tuple[int, int]]:
    """First byte and end of each section in the file."""
    if len(head) != layout.size_of("image_header") or head[:8] != layout.MAGIC:
        raise StoreError("the received file is not an image")
    header = layout.unpack("image_header", bytes(head))
    places = {
        name: (one["offset"], one["offset"] + one["count"] * one["record_bytes"])
        for name, one in zip(layout.SECTIONS, header["sections"], strict=True)
    }
    if not layout.PAGE_BYTES <= places["strings"][1] <= _MOST_TABLES_BYTES:
        raise StoreError("the received image's tables are damaged")
    return places


def _write_identities(
    tables: bytearray, places: Mapping[str, tuple[int, int]], identities: Mapping[str, tuple[int, int]]
) -> None:
    begin, end = (at - layout.PAGE_BYTES for at in places["files"])
    strings = places["strings"][0] - layout.PAGE_BYTES
    size = layout.size_of("file_identity")
    for at in range(begin, end, size):
        record = layout.unpack("file_identity", bytes(tables[at : at + size]))
        text = strings + record["path"]
        path = os.fsdecode(bytes(tables[text : tables.index(0, text)]))
        if path in identities:
            modified_ns, inode = identities[path]
            _RECORD.pack_into(tables, at, _NO_DEVICE, inode, record["bytes"], modified_ns)


def _put(head: bytearray, name: str, value: int) -> None:
    place = next(field for field in layout.fields("image_header") if field.name == name)
    struct.pack_into("<" + place.code, head, place.offset, value)
