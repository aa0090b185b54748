"""Uses every allocator of the process and checks every byte.

Memory of a thawed process is mapped from an image. When an allocator returns pages to the kernel (madvise) and uses
them again, it expects zeros. When it grows a block (mremap), it expects new pages at the end. Each block here is filled
with one byte value and is checked completely before it is freed or resized. A block that was requested as zeroed memory
is checked for zeros.

It runs in the frozen process and uses only the standard library, and those of numpy, torch, polars and pyarrow that the
program has loaded.
"""

from __future__ import annotations

import ctypes
import mmap
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

SMALLEST_POWER, LARGEST_POWER = 4, 23  # blocks of 16 bytes to 8 MiB
LIVE_BLOCKS = 24
SURVIVORS = 40
PAGE = 4096
JEMALLOC_ALL_ARENAS = 4096

C = ctypes.CDLL(None)
for _name in ("malloc", "calloc", "realloc", "mremap"):
    getattr(C, _name).restype = ctypes.c_void_p
C.malloc.argtypes = [ctypes.c_size_t]
C.calloc.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
C.realloc.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
C.free.argtypes = [ctypes.c_void_p]
C.memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
C.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]


@dataclass
class Block:
    """Memory of one allocation. All its bytes are `mark`."""

    address: int
    length: int
    owner: Any
    mark: int = 0

    def fill(self, mark: int) -> None:
        """Write `mark` into every byte."""
        self.mark = mark
        C.memset(self.address, mark, self.length)

    def check(self, length: int | None = None, *, start: int = 0, mark: int | None = None) -> None:
        """Check that `length` bytes from `start` on are all `mark`.

        Raises:
            AssertionError: a byte differs; the message names the first.
        """
        end = self.length if length is None else length
        mark = self.mark if mark is None else mark
        if end <= start:
            return
        at = self.address + start
        first = ctypes.c_ubyte.from_address(at).value
        if first == mark and C.memcmp(at, at + 1, end - start - 1) == 0:
            return
        data = ctypes.string_at(at, end - start)
        wrong = next(index for index, byte in enumerate(data) if byte != mark)
        raise AssertionError(
            f"block of {self.length} bytes at {self.address:#x}: byte {start + wrong} is {data[wrong]:#x}, "
            f"must be {mark:#x}; {sum(byte != mark for byte in data)} bytes are wrong"
        )


class Heap(Protocol):
    """An allocator."""

    name: str

    def zeroed(self, length: int) -> Block:
        """Return a new block that the allocator guarantees to be zero."""

    def unset(self, length: int) -> Block:
        """Return a new block with any contents."""

    def resized(self, block: Block, length: int) -> Block:
        """Return `block` with another length. The contents stay up to the shorter of the two lengths."""

    def free(self, block: Block) -> None:
        """Free `block`."""


class CHeap:
    """malloc, from whichever library provides it."""

    name = "malloc"

    def zeroed(self, length: int) -> Block:
        return Block(C.calloc(1, length), length, None)

    def unset(self, length: int) -> Block:
        return Block(C.malloc(length), length, None)

    def resized(self, block: Block, length: int) -> Block:
        return Block(C.realloc(block.address, length), length, None, block.mark)

    def free(self, block: Block) -> None:
        C.free(block.address)


class MapHeap:
    """mmap, mremap and munmap. Freed pages are dropped with madvise first and must then be zero."""

    name = "mmap"

    def zeroed(self, length: int) -> Block:
        area = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        return self._block(area, length)

    unset = zeroed

    def resized(self, block: Block, length: int) -> Block:
        before, mark = block.length, block.mark
        block.owner.resize(length)
        resized = self._block(block.owner, length)
        resized.mark = mark
        resized.check(start=-(-before // PAGE) * PAGE, mark=0)
        return resized

    def free(self, block: Block) -> None:
        block.owner.madvise(mmap.MADV_DONTNEED)
        block.check(mark=0)
        block.owner.close()

    def _block(self, area: mmap.mmap, length: int) -> Block:
        exported = ctypes.c_char.from_buffer(area)
        address = ctypes.addressof(exported)
        del exported  # a mapping that has an exported buffer cannot be resized or closed
        return Block(address, length, area)


class NumpyHeap:
    """numpy's arrays: calloc, realloc, and huge pages requested from 4 MiB on."""

    name = "numpy"

    def __init__(self, numpy: Any) -> None:
        self._numpy = numpy

    def zeroed(self, length: int) -> Block:
        return self._block(self._numpy.zeros(length, self._numpy.uint8))

    def unset(self, length: int) -> Block:
        return self._block(self._numpy.empty(length, self._numpy.uint8))

    def resized(self, block: Block, length: int) -> Block:
        before, mark = block.length, block.mark
        block.owner.resize(length, refcheck=False)  # zeroes the added part
        resized = self._block(block.owner)
        resized.mark = mark
        resized.check(start=before, mark=0)
        return resized

    def free(self, block: Block) -> None:
        block.owner = None

    def _block(self, array: Any) -> Block:
        return Block(array.ctypes.data, array.nbytes, array)


class TorchHeap:
    """torch's tensors."""

    name = "torch"

    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def zeroed(self, length: int) -> Block:
        return self._block(self._torch.zeros(length, dtype=self._torch.uint8), length)

    def unset(self, length: int) -> Block:
        return self._block(self._torch.empty(length, dtype=self._torch.uint8), length)

    def resized(self, block: Block, length: int) -> Block:
        mark = block.mark
        resized = self._block(block.owner.resize_(length), length)
        resized.mark = mark
        return resized

    def free(self, block: Block) -> None:
        block.owner = None

    def _block(self, tensor: Any, length: int) -> Block:
        return Block(tensor.data_ptr(), length, tensor)


class PolarsHeap:
    """polars' series, in the jemalloc built into polars.

    Zeroed vectors trust jemalloc that its fresh memory is zero.
    """

    name = "polars"

    def __init__(self, polars: Any) -> None:
        self._polars = polars

    def zeroed(self, length: int) -> Block:
        series = self._polars.zeros(length, dtype=self._polars.UInt8, eager=True)
        view = series.to_numpy(allow_copy=False)
        return Block(view.ctypes.data, view.nbytes, view)

    unset = zeroed

    def resized(self, block: Block, length: int) -> Block:
        longer = self.zeroed(length)
        longer.check(mark=0)
        ctypes.memmove(longer.address, block.address, min(length, block.length))
        longer.mark = block.mark
        self.free(block)
        return longer

    def free(self, block: Block) -> None:
        block.owner = None


class ArrowHeap:
    """A memory pool of pyarrow: the system's allocator, or jemalloc or mimalloc, which are built into pyarrow."""

    def __init__(self, arrow: Any, pool: Any) -> None:
        self.name = f"pyarrow {pool.backend_name}"
        self._arrow = arrow
        self._pool = pool

    def zeroed(self, length: int) -> Block:
        block = self.unset(length)
        block.fill(0)
        return block

    def unset(self, length: int) -> Block:
        buffer = self._arrow.allocate_buffer(length, memory_pool=self._pool, resizable=True)
        return Block(buffer.address, length, buffer)

    def resized(self, block: Block, length: int) -> Block:
        block.owner.resize(length, shrink_to_fit=True)
        return Block(block.owner.address, length, block.owner, block.mark)

    def free(self, block: Block) -> None:
        block.owner = None


def arrow_pools(arrow: Any) -> list[Any]:
    """Return the memory pools that this build of pyarrow has."""
    makers = {"system": arrow.system_memory_pool, "jemalloc": arrow.jemalloc_memory_pool}
    makers["mimalloc"] = arrow.mimalloc_memory_pool
    return [makers[name]() for name in arrow.supported_memory_backends()]


def loaded_heaps() -> list[Heap]:
    """Return every allocator of the libraries that are loaded."""
    heaps: list[Heap] = [CHeap(), MapHeap()]
    loaded = sys.modules.get
    if numpy := loaded("numpy"):
        heaps.append(NumpyHeap(numpy))
    if torch := loaded("torch"):
        heaps.append(TorchHeap(torch))
    if polars := loaded("polars"):
        heaps.append(PolarsHeap(polars))
    if arrow := loaded("pyarrow"):
        heaps += [ArrowHeap(arrow, pool) for pool in arrow_pools(arrow)]
    return heaps


def some_length(chance: random.Random) -> int:
    """Return a length in bytes. All powers of two are equally likely."""
    return int(2 ** chance.uniform(SMALLEST_POWER, LARGEST_POWER))


def churn(heap: Heap, *, seed: int, steps: int) -> None:
    """Allocate, fill, resize and free blocks at random, checking every byte.

    Raises:
        AssertionError: a byte has the wrong value.
    """
    chance = random.Random(seed)
    live: list[Block] = []
    for step in range(steps):
        mark = step % 255 + 1
        choice = chance.random()
        if not live or (choice < 0.5 and len(live) < LIVE_BLOCKS):
            block = heap.zeroed(some_length(chance)) if choice < 0.35 else heap.unset(some_length(chance))
            if choice < 0.35:
                block.check(mark=0)
            live.append(block)
        elif choice < 0.7:
            live.append(resize(heap, live.pop(chance.randrange(len(live))), some_length(chance)))
        else:
            block = live.pop(chance.randrange(len(live)))
            block.check()
            heap.free(block)
            continue
        live[-1].fill(mark)
    for block in live:
        block.check()
        heap.free(block)


def resize(heap: Heap, block: Block, length: int) -> Block:
    """Resize `block` and check that its contents are still there."""
    block.check()
    kept = min(block.length, length)
    resized = heap.resized(block, length)
    resized.check(kept)
    return resized


class Survivors:
    """Blocks kept through the freeze, with freed ones between them, so that the image holds old contents."""

    def __init__(self, heap: Heap, *, workers: ThreadPoolExecutor, seed: int) -> None:
        self.heap = heap
        self._lengths = [some_length(random.Random(seed * SURVIVORS + at)) for at in range(SURVIVORS)]
        # allocated in other threads, which use other arenas of malloc
        by_worker = list(workers.map(heap.unset, self._lengths))
        here = [heap.unset(length) for length in self._lengths]
        for at, block in enumerate(here + by_worker):
            block.fill(at + 1)
        self._live = here[::2] + by_worker[1::2]
        for block in here[1::2] + by_worker[::2]:
            heap.free(block)

    def check_and_release(self, workers: ThreadPoolExecutor) -> None:
        """Check the blocks after the thaw, free them, and allocate zeroed memory of the same sizes.

        Raises:
            AssertionError: a block changed, or memory that must be zero is not.
        """
        for block in self._live:
            block.check()
        for at, survivor in enumerate(self._live):
            block = survivor
            if at % 3 == 0:
                block = resize(self.heap, survivor, survivor.length * 2)
                block.fill(0xEE)
            if at % 2:
                self.heap.free(block)
            else:
                workers.submit(self.heap.free, block).result()
        give_back()
        again = [self.heap.zeroed(length) for length in self._lengths]
        again += list(workers.map(self.heap.zeroed, self._lengths))
        for block in again:
            block.check(mark=0)
            block.fill(0xDD)
        for block in again:
            block.check()
            self.heap.free(block)
        self._live = []


def give_back() -> None:
    """Make every allocator return to the kernel what it can."""
    if hasattr(C, "mallctl"):
        C.mallctl(b"thread.tcache.flush", None, None, None, ctypes.c_size_t(0))
        C.mallctl(f"arena.{JEMALLOC_ALL_ARENAS}.purge".encode(), None, None, None, ctypes.c_size_t(0))
    if hasattr(C, "mi_collect"):
        C.mi_collect(ctypes.c_bool(True))
    C.malloc_trim(ctypes.c_size_t(0))
    if arrow := sys.modules.get("pyarrow"):
        for pool in arrow_pools(arrow):
            pool.release_unused()
