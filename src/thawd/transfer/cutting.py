"""Cuts images into chunks, so that equal memory of different images becomes equal chunks.

A large range of memory begins and ends a chunk: a model's weights are the same chunks in each version of a function,
wherever they are in its image. Small ranges share chunks. Zeros are left out.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator

from thawd.snapshot.disk.file_trees import data_ranges
from thawd.snapshot.inspect.records import Image
from thawd.transfer.chunk_format import MAX_CHUNK_BYTES
from thawd.transfer.record_body import Extent

LARGE_BYTES = 128 << 10
_ZEROS = bytes(MAX_CHUNK_BYTES)


class Cutter:
    """Cuts contents into chunks, and says where each part of them is.

    Args:
        add: stores the content of a chunk, and returns the chunk's index.
    """

    def __init__(self, add: Callable[[bytes], int]) -> None:
        self._add = add
        self._pending = bytearray()
        self._parts: list[tuple[list[Extent], int, int, int]] = []  # extents, offset, begin, length

    def cut(self, fd: int, begin: int, end: int, extents: list[Extent]) -> None:
        """Cut a range of a file; the extents are complete after `finish`.

        Raises:
            OSError: the file cannot be read, or is shorter.
        """
        is_large = end - begin >= LARGE_BYTES
        if is_large:
            self.finish()
        while begin < end:
            data = os.pread(fd, min(end - begin, MAX_CHUNK_BYTES - len(self._pending)), begin)
            if not data:
                raise OSError(errno.EIO, "the file is shorter than it was")
            if data != _ZEROS[: len(data)]:
                self._parts.append((extents, begin, len(self._pending), len(data)))
                self._pending += data
            begin += len(data)
            if len(self._pending) == MAX_CHUNK_BYTES:
                self.finish()
        if is_large:
            self.finish()

    def pause(self) -> None:
        """Begin a new chunk here, if the current one is not very small: what follows does not belong to it."""
        if len(self._pending) >= LARGE_BYTES:
            self.finish()

    def finish(self) -> None:
        """End the current chunk."""
        if self._pending:
            chunk = self._add(bytes(self._pending))
            for extents, offset, begin, length in self._parts:
                extents.append(Extent(offset, chunk, begin, length))
        self._pending.clear()
        self._parts.clear()


def cut_image(cutter: Cutter, fd: int, image: Image) -> list[Extent]:
    """Cut an image; the result is complete after `Cutter.finish`.

    Args:
        cutter: makes the chunks.
        fd: the open image.
        image: the same image, as it was read.

    Raises:
        OSError: the file cannot be read.
    """
    extents: list[Extent] = []
    cuts = sorted(_cuts(image))
    for begin, end in data_ranges(fd, image.file_bytes):
        inside = [cut for cut in cuts if begin < cut < end]
        for one, other in zip([begin, *inside], [*inside, end], strict=True):
            cutter.cut(fd, one, other, extents)
    return extents


def _cuts(image: Image) -> Iterator[int]:
    yield image.data_offset
    yield image.anonymous_offset
    for operation in image.operations:
        if operation.kind in ("data", "copy") and operation.length >= LARGE_BYTES:
            yield operation.offset
            yield operation.offset + operation.length
    for item in image.objects:
        yield item.offset
