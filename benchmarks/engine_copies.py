"""Measures how much memory many copies of one image share, and how long they take to start together."""

from __future__ import annotations

import statistics
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks import engine_models
from benchmarks.engine_processes import started
from benchmarks.engine_starts import check
from benchmarks.report import AT_MOST, Figure

COPIES = 16
BURSTS = 3


@dataclass(frozen=True, slots=True)
class Burst:
    """`COPIES` copies started together.

    Attributes:
        start_ms: time from before the first start until all copies have answered, milliseconds.
        warm_ms: time for one more inference of each copy, all requested together, milliseconds.
        memory_mib: memory of all copies together after they have answered, MiB.
    """

    start_ms: float
    warm_ms: float
    memory_mib: float


def figures(image: Path, result: str, *, most_memory: float, most_time: float) -> list[Figure]:
    """Compare `COPIES` thawed copies with one copy (memory) and with warm copies (time to answer).

    Raises:
        BenchmarkError: a copy did not start, or its result is not `result`.
    """
    one_mib = _one_mib(image, result)
    bursts = [_burst(image, result) for _ in range(BURSTS)]
    all_mib, start_ms, warm_ms = (
        statistics.median(getattr(burst, name) for burst in bursts) for name in ("memory_mib", "start_ms", "warm_ms")
    )
    return [
        Figure(
            f"memory (PSS) of {COPIES} copies, relative to one",
            all_mib / one_mib,
            "x",
            AT_MOST,
            most_memory,
            f"{all_mib:,.0f} MiB against {one_mib:,.0f} MiB",
        ),
        Figure(
            f"{COPIES} copies started together, relative to {COPIES} warm copies",
            statistics.median(burst.start_ms / burst.warm_ms for burst in bursts),
            "x",
            AT_MOST,
            most_time,
            f"{start_ms:.0f} ms against {warm_ms:.0f} ms",
        ),
    ]


def _one_mib(image: Path, result: str) -> float:
    with started(engine_models.thaw_command(image), engine_models.environment()) as alone:
        check(alone.answer()["result"], result)
        return alone.pss_mib()


def _burst(image: Path, result: str) -> Burst:
    command, environment = engine_models.thaw_command(image), engine_models.environment()
    with ExitStack() as stack:
        copies = [stack.enter_context(started(command, environment)) for _ in range(COPIES)]
        first = [copy.answer() for copy in copies]
        memory_mib = sum(copy.pss_mib() for copy in copies)
        sent_ns = time.monotonic_ns()
        for copy in copies:
            copy.send("infer")
        warm = [copy.answer() for copy in copies]
    for answer in first + warm:
        check(answer["result"], result)
    first_ns, warm_ns = (max(answer["at_ns"] for answer in answers) for answers in (first, warm))
    return Burst((first_ns - copies[0].begun_ns) / 1e6, (warm_ns - sent_ns) / 1e6, memory_mib)
