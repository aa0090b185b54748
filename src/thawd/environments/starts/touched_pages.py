"""Learns which pages of its image a copy touches until its first answer.

A spare touches them in advance. A machine that receives the image fetches them first (`image_ranges`).

A copy takes a page fault for each page that it touches first, and a copy of the page if it writes to it. For a small
function, these faults are most of the time from the end of the thaw to the first answer. The kernel knows afterwards
which pages a copy has touched. A spare has the same pages at the same addresses, and touches them while it waits
(`thawd.runtime.spare`). This changes no byte of its memory, so a list that is wrong or old costs time and memory only.

Source: Linux Documentation/admin-guide/mm/pagemap.rst, PAGEMAP_SCAN (since Linux 6.7). Older kernels list no pages.
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import os
import struct
from collections.abc import Iterator
from pathlib import Path

from thawd.environments.environment import Environment

# A spare keeps at most this many bytes that it would otherwise have shared with other copies.
_MOST_WRITTEN_BYTES = 8 << 20
_MOST_RANGES = 8192
# The parts of an image are listed in its sidecar, so there are few. What is fetched for a part has up to half a MiB.
_GAP_BYTES = 128 << 10
_MOST_PARTS = 1000

_ARGUMENT = struct.Struct("12Q")  # struct pm_scan_arg
_REGION = struct.Struct("3Q")  # struct page_region: start, end, categories
_REGIONS = 512
_RANGE = struct.Struct("<QQ")
_PAGEMAP_SCAN = 3 << 30 | _ARGUMENT.size << 16 | ord("f") << 8 | 16
_FILE, _PRESENT = 1 << 2, 1 << 3


class TouchedPages:
    """The pages that copies of one image touch.

    Attributes:
        written: ranges of pages that a copy has written to, each two numbers (start, end); little-endian, 64 bits.
        read: ranges of pages that a copy has only read, in the same form.
    """

    def __init__(self) -> None:
        self.written = b""
        self.read = b""
        self._is_known = False
        self._copy: Environment | None = None

    def expect(self, copy: Environment) -> None:
        """Learn from this copy once it has answered, if nothing is known by then."""
        self._copy = None if self._is_known else copy

    async def learn(self) -> None:
        """Find out which pages the expected copy has touched, if it has answered and is idle now."""
        copy = self._copy
        if copy is None or copy.child is None or not copy.served or copy.busy_since is not None or copy.ended.is_set():
            return
        self._copy = None
        try:
            # In a thread: for a large image, the kernel takes some milliseconds.
            self.written, self.read = await asyncio.to_thread(touched, copy.child.pid)
        except (OSError, ValueError):
            return  # the process has ended, or this kernel cannot list pages
        self._is_known = True


def touched(pid: int) -> tuple[bytes, bytes]:
    """Return the ranges that the process has written to, and those that it has only read.

    Raises:
        OSError: the process has ended, or the kernel does not list its pages.
    """
    written, read = bytearray(), bytearray()
    left_bytes = _MOST_WRITTEN_BYTES
    pagemap = os.open(f"/proc/{pid}/pagemap", os.O_RDONLY | os.O_CLOEXEC)
    try:
        for start, end in _private_mappings(pid):
            for first, last, categories in _scan(pagemap, start, end):
                if categories & _FILE:
                    read += _RANGE.pack(first, last)
                elif left_bytes >= last - first:
                    left_bytes -= last - first
                    written += _RANGE.pack(first, last)
                if len(written) + len(read) >= _MOST_RANGES * _RANGE.size:
                    return bytes(written), bytes(read)
    finally:
        os.close(pagemap)
    return bytes(written), bytes(read)


def image_ranges(pid: int, image: Path) -> list[tuple[int, int]]:
    """Return the parts of its image that a process has touched, as first byte and end, in the image's order.

    Parts with a small gap between them are one part; if there are very many parts, larger gaps are small.

    Raises:
        OSError: the process has ended, or the kernel does not list its pages.
    """
    inode = str(image.stat().st_ino).encode()
    found: list[tuple[int, int]] = []
    pagemap = os.open(f"/proc/{pid}/pagemap", os.O_RDONLY | os.O_CLOEXEC)
    try:
        for start, end, offset in _mappings_of(pid, inode):
            found += [(a - start + offset, b - start + offset) for a, b, _ in _scan(pagemap, start, end)]
    finally:
        os.close(pagemap)
    found.sort()
    gap_bytes = _GAP_BYTES
    while len(joined := _joined(found, gap_bytes)) > _MOST_PARTS:
        gap_bytes *= 2
    return joined


def _joined(ranges: list[tuple[int, int]], gap_bytes: int) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for begin, end in ranges:
        if joined and begin - joined[-1][1] <= gap_bytes:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((begin, end))
    return joined


def _mappings_of(pid: int, inode: bytes) -> Iterator[tuple[int, int, int]]:
    """The mappings of a file, as (start, end, offset in the file)."""
    with open(f"/proc/{pid}/maps", "rb") as maps:
        for line in maps:
            addresses, _, offset, _, found = line.split(None, 5)[:5]
            if found == inode:
                start, _, end = addresses.partition(b"-")
                yield int(start, 16), int(end, 16), int(offset, 16)


def _private_mappings(pid: int) -> Iterator[tuple[int, int]]:
    """The private mappings of files, as (start, end). Memory from an image is such a mapping, too."""
    with open(f"/proc/{pid}/maps", "rb") as maps:
        for line in maps:
            addresses, permissions, _, _, inode = line.split(None, 5)[:5]
            if permissions[3:4] == b"p" and permissions[:1] == b"r" and inode != b"0":
                start, _, end = addresses.partition(b"-")
                yield int(start, 16), int(end, 16)


def _scan(pagemap: int, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """The ranges of present pages between two addresses, as (start, end, categories)."""
    regions = bytearray(_REGION.size * _REGIONS)
    address = ctypes.addressof((ctypes.c_char * len(regions)).from_buffer(regions))
    while start < end:
        argument = bytearray(
            _ARGUMENT.pack(_ARGUMENT.size, 0, start, end, 0, address, _REGIONS, 0, 0, _PRESENT, 0, _FILE | _PRESENT)
        )
        count = fcntl.ioctl(pagemap, _PAGEMAP_SCAN, argument)
        for index in range(count):
            yield _REGION.unpack_from(regions, index * _REGION.size)
        start = _ARGUMENT.unpack(argument)[4]
