"""Floods a bucket: up to 10,000 files appear in it together, and each is an event for a no-op function.

What: whether each of 100, 1,000 and 10,000 files causes exactly one invocation; the time per event with 10,000 files,
divided by the time per event with 100 and with 1,000; how much more memory the server needs for a backlog of 10,000
events than for one of 1,000.

How: the files are written outside the bucket, on the same disk. Then they are renamed into a new folder of the bucket
as fast as possible, so that the whole backlog exists from the start. The time runs from the first rename to the last
answer. The benchmark polls the server's status for the counts, and reads the server's memory from ``/proc`` at every
poll. The two smaller loads are repeated and their medians are used.

Why: uploading a whole folder is the first thing people try. If the time per event grows with the number of files, this
shows only with many files.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks import progress, serving
from benchmarks.report import AT_MOST, EXACTLY, BenchmarkError, Figure

TITLE = "backlog: files dropped into a bucket at once"

MOST_COST_RATIO = 1.5
MOST_GROWTH_MIB = 16.0
SMALL, MIDDLE, LARGE = 100, 1_000, 10_000
LOADS = (SMALL, SMALL, SMALL, MIDDLE, MIDDLE, LARGE)
LOOK_EVERY_S = 0.05
STALLED_S = 60.0

CONFIGURATION = """
[functions.noop]
handler = "noop.handler"
code = "function"

[buckets.uploads]
notify = [{ function = "noop", suffix = ".txt" }]
"""


@dataclass(frozen=True, slots=True)
class Load:
    """The measurements of one load.

    Attributes:
        files: number of files.
        taken_s: from the first file to the last answer, seconds.
        processor_s: processor time that the server used meanwhile, seconds.
        peak_mib: highest resident memory of the server that was observed, MiB.
    """

    files: int
    taken_s: float
    processor_s: float
    peak_mib: float

    @property
    def per_event_ms(self) -> float:
        """Return the time per event, milliseconds."""
        return self.taken_s / self.files * 1000


def measure() -> Sequence[Figure]:
    """Measure invocations per file, time per event and memory growth.

    Raises:
        BenchmarkError: events were lost, ran twice or failed.
    """
    with serving.thawd(CONFIGURATION, {"function/noop.py": serving.NOOP}) as served:
        serving.invoke(served, "noop", {})
        loads = [
            _drop(served, files, number)
            for number, files in zip(progress.rounds(len(LOADS), "load"), LOADS, strict=True)
        ]
        invocations = _settled(served) - 1
    small, middle, large = (_median(loads, files) for files in (SMALL, MIDDLE, LARGE))
    peak_mib = {files: max(load.peak_mib for load in loads if load.files == files) for files in (MIDDLE, LARGE)}
    rates = f"{large:.2f} ms an event against {{:.2f}} ms"
    return [
        Figure("invocations per file", invocations / sum(LOADS), "x", EXACTLY, 1.0, f"{sum(LOADS):,} files"),
        Figure(
            f"cost per event with {LARGE:,}, relative to {SMALL:,}",
            large / small,
            "x",
            AT_MOST,
            MOST_COST_RATIO,
            rates.format(small),
        ),
        Figure(
            f"cost per event with {LARGE:,}, relative to {MIDDLE:,}",
            large / middle,
            "x",
            AT_MOST,
            MOST_COST_RATIO,
            rates.format(middle),
        ),
        Figure(
            f"extra memory with {LARGE:,} instead of {MIDDLE:,}",
            peak_mib[LARGE] - peak_mib[MIDDLE],
            "MiB",
            AT_MOST,
            MOST_GROWTH_MIB,
            f"peak {peak_mib[LARGE]:.0f} MiB",
        ),
        Figure("server's processor time per event", loads[-1].processor_s / LARGE * 1000, "ms"),
    ]


def _median(loads: list[Load], files: int) -> float:
    return statistics.median(load.per_event_ms for load in loads if load.files == files)


def _drop(served: serving.Served, files: int, number: int) -> Load:
    """Put `files` files into the bucket and wait until all are processed."""
    staging = served.folder / "staging"
    staging.mkdir(exist_ok=True)
    names = [f"{index:05}.txt" for index in range(files)]
    for name in names:
        (staging / name).write_text(name)
    target = served.folder / "uploads" / f"load-{number}"
    target.mkdir()
    expected = _processed(served) + files
    cpu_s = serving.cpu_s(served.pid)
    begun = time.monotonic()
    for name in names:
        (staging / name).rename(target / name)
    peak_mib = _await(served, expected)
    return Load(files, time.monotonic() - begun, serving.cpu_s(served.pid) - cpu_s, peak_mib)


def _await(served: serving.Served, expected: int) -> float:
    """Wait until `expected` invocations are answered. Return the highest memory of the server during the wait, MiB."""
    peak_mib = 0.0
    seen, seen_at = -1, time.monotonic()
    while True:
        peak_mib = max(peak_mib, serving.resident_mib(served.pid))
        processed = _processed(served)
        if processed >= expected:
            return peak_mib
        if processed != seen:
            seen, seen_at = processed, time.monotonic()
        if time.monotonic() - seen_at > STALLED_S:
            raise BenchmarkError(f"{expected - processed} of the events were not processed; {served.function('noop')}")
        time.sleep(LOOK_EVERY_S)


def _settled(served: serving.Served) -> int:
    """Wait until nothing is queued or running and return the number of invocations so far.

    An event that runs a second time does so later. The wait makes the count include such runs.
    """

    def at_rest() -> bool | None:
        function = served.function("noop")
        return None if function["queued"] or function["waiting"] or function["environments"]["busy"] else True

    serving.wait_for(at_rest, "the function to be at rest", within_s=30.0)
    return _processed(served)


def _processed(served: serving.Served) -> int:
    function = served.function("noop")
    if function["errors"]:
        raise BenchmarkError(f"{function['errors']} invocations failed: {function}")
    return sum(int(invocations["count"]) for invocations in function["invocations"].values())
