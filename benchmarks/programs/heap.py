"""A process of a given size: a heap, waiting threads, and mappings of one page each.

The argument that other programs of this folder take as a folder is a size here: ``HEAP_MB:THREADS:MAPPINGS``. An
inference reads one byte of every page of the heap.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from collections.abc import Callable

PAGE = mmap.PAGESIZE
CHUNK_BYTES = 1 << 20


def load(folder: str) -> Callable[[], bytes]:
    """Give this process the size that `folder` describes.

    The pages of the heap contain random bytes, because a freeze does not store pages of zeros.
    """
    heap_mb, threads, mappings = map(int, folder.split(":"))
    heap = mmap.mmap(-1, heap_mb * 1_000_000 // PAGE * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    chunk = os.urandom(CHUNK_BYTES)
    for offset in range(0, len(heap), CHUNK_BYTES):
        piece = chunk[: len(heap) - offset]
        heap[offset : offset + len(piece)] = piece
    _wait_in_threads(threads)
    kept = _mappings(mappings)

    def infer() -> bytes:
        assert len(kept) == mappings
        return bytes(memoryview(heap)[::PAGE])

    return infer


def _wait_in_threads(count: int) -> None:
    never = threading.Event()
    for _ in range(count):
        threading.Thread(target=never.wait, daemon=True).start()


def _mappings(count: int) -> list[mmap.mmap]:
    """Make `count` mappings of one page each, and write to each page.

    Every second page is read-only, because the kernel merges neighbouring mappings with the same protection into one.
    """
    made = []
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    for number in range(count):
        page = mmap.mmap(-1, PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        page[:8] = number.to_bytes(8, "little")
        if number % 2:
            view = ctypes.c_char.from_buffer(page)
            address = ctypes.c_void_p(ctypes.addressof(view))
            del view
            if protect(address, ctypes.c_size_t(PAGE), mmap.PROT_READ):
                raise OSError(ctypes.get_errno(), "mprotect")
        made.append(page)
    return made
