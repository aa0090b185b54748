"""The snapshot engine by itself: a process with a 1 GB model is frozen once and thawed repeatedly.

What: the time from exec of the thawing program to the end of the first inference, compared with the next inference of
the same process, a cold start, a fork of the loaded process, and CRIU where a working one is installed; the memory of
16 copies, and the time until 16 copies that start together have answered; the time of a freeze compared with a plain
write of as many bytes.

How: ONNX Runtime with 1 GiB of weights (`programs/onnx_stack.py`), one thread, everything in the page cache. Cold
starts, forks and thaws alternate. Each process reads the clock itself (`engine_processes`), and must produce the same
result as the original. "Warm" is the median of the later inferences of the same copy. For the 16 copies, "warm" is one
inference of each copy, all requested together. The plain write goes to the folder of the image, in pieces of 64 MiB,
with an fsync at the end, right after each freeze. All figures are medians.

Why: fast starts from snapshots are the purpose of thawd.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import engine_copies, engine_criu, engine_models, machine, needs, progress
from benchmarks.engine_processes import Subject, started
from benchmarks.engine_starts import Rounds, median, take_turns
from benchmarks.report import AT_MOST, BenchmarkError, Figure

TITLE = "engine: ONNX Runtime with a 1 GB model, frozen and thawed"

MOST_OVER_WARM_MS = 15.0
TARGET_OVER_WARM_MS = 4.0
LEAST_TIMES_LESS_OVERHEAD = 100.0
MOST_RESTORE_MS = 3.0
MOST_MEMORY = 1.15
MOST_BURST = 2.0
MOST_FREEZE = 1.5

TIMES = Rounds(rounds=3, forks=2, thaws=7)
FREEZES = 5
PIECE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Freeze:
    """The times of one freeze, and of a plain write of as many bytes right after it.

    Attributes:
        taken_ms: duration of the freeze, milliseconds.
        plain_ms: duration of the plain write with its fsync, milliseconds.
        written_bytes: size of the image on disk, bytes.
    """

    taken_ms: float
    plain_ms: float
    written_bytes: int


def measure() -> Sequence[Figure]:
    """Measure all figures of the engine with ONNX Runtime.

    Raises:
        BenchmarkError: a library is missing, a freeze was refused, or a copy failed or produced a different result.
    """
    lacking = needs.missing(sys.executable, ["numpy", "onnx", "onnxruntime"])
    if lacking:
        raise BenchmarkError(f"{', '.join(lacking)} is not installed; install the extra `demo`")
    progress.step("make the model, unless it is there")
    workload = engine_models.with_model("onnx_stack", sys.executable)
    with engine_models.image_folder() as folder:
        image = folder / "image"
        with started(workload.command, engine_models.environment()) as original:
            result = str(original.answer()["result"])
            freezes = [_freeze(original, image) for _ in progress.rounds(FREEZES, "freeze")]
            starts = take_turns(workload, image, original, result, times=TIMES)
        progress.step("16 copies")
        copies = engine_copies.figures(image, result, most_memory=MOST_MEMORY, most_time=MOST_BURST)
        image.unlink()
        criu = engine_criu.figure(workload, folder / "criu", result)
    return [
        starts.over_warm(MOST_OVER_WARM_MS, TARGET_OVER_WARM_MS),
        starts.overhead_against_cold(LEAST_TIMES_LESS_OVERHEAD),
        starts.overhead_against_fork(),
        Figure("restore step", median(starts.thaw, "restore_ms"), "ms", AT_MOST, machine.bound(MOST_RESTORE_MS)),
        *copies,
        _freeze_figure(freezes),
        criu,
    ]


def _freeze(original: Subject, image: Path) -> Freeze:
    """Freeze `original` to `image`, replacing an older image. Then write as many bytes to a file beside the image."""
    image.unlink(missing_ok=True)
    taken_ms = float(original.ask(f"freeze {image}")["took_ms"])
    written_bytes = image.stat().st_blocks * 512
    piece = memoryview(os.urandom(PIECE_BYTES))
    plain = image.with_name("plain")
    begun_s = time.monotonic()
    with plain.open("wb", buffering=0) as file:
        for offset in range(0, written_bytes, PIECE_BYTES):
            file.write(piece[: written_bytes - offset])
        os.fsync(file.fileno())
    plain_ms = (time.monotonic() - begun_s) * 1000
    plain.unlink()
    return Freeze(taken_ms, plain_ms, written_bytes)


def _freeze_figure(freezes: list[Freeze]) -> Figure:
    taken_ms, plain_ms = (statistics.median(getattr(one, name) for one in freezes) for name in ("taken_ms", "plain_ms"))
    return Figure(
        "freeze, relative to a plain write and fsync of as much",
        statistics.median(one.taken_ms / one.plain_ms for one in freezes),
        "x",
        AT_MOST,
        MOST_FREEZE,
        f"{taken_ms:,.0f} ms against {plain_ms:,.0f} ms for {freezes[-1].written_bytes >> 20:,} MiB",
    )
