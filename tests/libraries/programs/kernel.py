"""What the kernel guarantees about memory, tested on memory that was written before the freeze.

It can also remove thawd's hooks of madvise and mremap, which shows that the checks fail without them. It runs in the
frozen process and uses only the standard library.
"""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path

from memory import PAGE, C, MapHeap

PAGES = 512
OLD = 0x5A
NEW = 0xA5
CODE_BYTES = 16  # bytes at the start of a function; the jump that thawd writes there is shorter

C.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class WrittenBefore:
    """Private anonymous memory, written before the freeze."""

    def __init__(self) -> None:
        self._heap = MapHeap()
        self._blocks = [self._heap.unset(PAGES * PAGE) for _ in range(4)]
        for block in self._blocks:
            block.fill(OLD)

    def check(self) -> None:
        """Drop, free and grow this memory.

        Raises:
            AssertionError: a byte is not what the kernel guarantees.
        """
        dropped, freed, grown, moved = self._blocks
        start, length = PAGE * 7, PAGE * 100
        dropped.owner.madvise(mmap.MADV_DONTNEED, start, length)
        dropped.check(start)
        dropped.check(start + length, start=start, mark=0)
        dropped.check(start=start + length)

        freed.owner.madvise(mmap.MADV_FREE, start, length)
        freed.check(start)
        freed.check(start=start + length)
        freed.fill(NEW)  # data written after MADV_FREE stays
        freed.check()

        for block, times in ((grown, 2), (moved, 64)):
            longer = self._heap.resized(block, block.length * times)  # checks that the added part is zero
            longer.check(PAGES * PAGE)
            longer.fill(NEW)
            longer.check()
            self._heap.free(longer)


def unhook() -> None:
    """Restore the C library's own code of madvise and mremap from its file.

    Raises:
        AssertionError: it was not changed, so there is nothing to restore.
    """
    for name in ("madvise", "mremap"):
        address = ctypes.cast(getattr(C, name), ctypes.c_void_p).value
        assert address is not None
        original = code_in_file(address)
        assert ctypes.string_at(address, CODE_BYTES) != original, f"{name} is as the C library has it"
        page = address // PAGE * PAGE
        assert C.mprotect(page, 2 * PAGE, mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC) == 0
        ctypes.memmove(address, original, CODE_BYTES)


def code_in_file(address: int) -> bytes:
    """Return the bytes that the C library's file has for `address`, which is in its code."""
    nearest = None
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, _protection, offset, _device, _inode, *path = line.split(maxsplit=5)
        start = int(span.split("-")[0], 16)
        # The changed page itself is mapped from the image. The mapping before it shows where the file was mapped.
        if start <= address and path and path[0].endswith("/libc.so.6"):
            nearest = (path[0], address - start + int(offset, 16))
    assert nearest is not None, "there is no C library below that address"
    path, offset_in_file = nearest
    with open(path, "rb") as file:
        file.seek(offset_in_file)
        return file.read(CODE_BYTES)
