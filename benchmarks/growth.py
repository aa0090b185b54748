"""Prints Markdown tables for the docs: how the times of freeze and thaw grow with a process, and those of a server.

    python -m benchmarks.growth             # both
    python -m benchmarks.growth process     # only freeze and thaw of one process
    python -m benchmarks.growth server      # only the server: functions, versions, objects (`benchmarks.growth_server`)

The figures have no bounds. The rest of this docstring describes the measurements of the process.

What: a heap from 10 MB to 4 GB, 1 to 64 threads, 100 to 20,000 mappings; only one of these varies at a time. For each
size, the table shows the times of the freeze, of the restore step, from exec to the end of the first pass over the
heap, and of a later pass. A pass reads one byte of each page.

How: `programs/heap.py`, with a hot page cache; medians of several freezes and thaws.

Why: the table shows which size each of these times depends on, and that no time grows faster than that size.
"""

from __future__ import annotations

import statistics
import sys
from dataclasses import dataclass

from benchmarks import engine_models, growth_server
from benchmarks.engine_models import Workload
from benchmarks.engine_processes import started
from benchmarks.engine_starts import Start, median, start

HEAPS_MB = (10, 100, 1000, 4000)
THREADS = (1, 8, 64)
MAPPINGS = (100, 1000, 20_000)
SMALLEST = (HEAPS_MB[0], THREADS[0], MAPPINGS[0])
FREEZES = 3
THAWS = 7

HEAD = """\
| heap | threads | mappings | image | freeze | restore | exec to first pass | a later pass |
|---|---|---|---|---|---|---|---|"""


@dataclass(frozen=True, slots=True)
class Size:
    """The size of one process: its heap in MB, its number of waiting threads, its number of one-page mappings."""

    heap_mb: int
    threads: int
    mappings: int


@dataclass(frozen=True, slots=True)
class Row:
    """The times of freezing and thawing a process of one size, and the size of its image.

    Attributes:
        size: size of the process.
        image_mib: size of the image on disk, MiB.
        freeze_ms: median duration of a freeze, milliseconds.
        thaws: all thaws.
    """

    size: Size
    image_mib: float
    freeze_ms: float
    thaws: list[Start]

    def markdown(self) -> str:
        """Return the row as a line of the table."""
        first_ms, warm_ms, restore_ms = (median(self.thaws, name) for name in ("first_ms", "warm_ms", "restore_ms"))
        return (
            f"| {self.size.heap_mb:,} MB | {self.size.threads} | {self.size.mappings:,} | {self.image_mib:,.0f} MiB "
            f"| {self.freeze_ms:,.1f} ms | {restore_ms:.1f} ms | {first_ms:.1f} ms | {warm_ms:.1f} ms |"
        )


def sizes() -> list[Size]:
    """Return the smallest size, and sizes that differ from it in one respect."""
    smallest = Size(*SMALLEST)
    return [
        smallest,
        *(Size(heap_mb, smallest.threads, smallest.mappings) for heap_mb in HEAPS_MB[1:]),
        *(Size(smallest.heap_mb, threads, smallest.mappings) for threads in THREADS[1:]),
        *(Size(smallest.heap_mb, smallest.threads, mappings) for mappings in MAPPINGS[1:]),
    ]


def measure(size: Size) -> Row:
    """Freeze and thaw a process of this size.

    Raises:
        BenchmarkError: it could not be frozen, or a copy produced a different result.
    """
    workload = Workload("heap", sys.executable, f"{size.heap_mb}:{size.threads}:{size.mappings}")
    with engine_models.image_folder() as folder:
        image = folder / "image"
        with started(workload.command, engine_models.environment()) as original:
            result = str(original.answer()["result"])
            freeze_ms = []
            for _ in range(FREEZES):
                image.unlink(missing_ok=True)
                freeze_ms.append(float(original.ask(f"freeze {image}")["took_ms"]))
        image_mib = image.stat().st_blocks * 512 / 2**20
        thaw = engine_models.thaw_command(image)
        thaws = [start(thaw, result, warm=3) for _ in range(THAWS + 1)][1:]
    return Row(size, image_mib, statistics.median(freeze_ms), thaws)


if __name__ == "__main__":
    wanted = sys.argv[1:] or ["process", "server"]
    if "process" in wanted:
        print(HEAD)
        for each in sizes():
            print(measure(each).markdown(), flush=True)
    if "server" in wanted:
        for line in growth_server.tables():
            print(line, flush=True)
