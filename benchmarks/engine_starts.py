"""Measures three ways to start a workload: a cold start, a fork of the loaded process, and a thaw of its image."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import engine_models, machine, progress
from benchmarks.engine_models import Workload
from benchmarks.engine_processes import Subject, inference_ms, started
from benchmarks.report import AT_LEAST, AT_MOST, BenchmarkError, Figure


@dataclass(frozen=True, slots=True)
class Start:
    """One start of a process, in any of the three ways.

    Attributes:
        first_ms: time from before the start to the end of the first inference, milliseconds.
        warm_ms: duration of a later inference of the same process, milliseconds.
        restore_ms: duration of the restore as the thawing program reports it, milliseconds; 0 for other starts.
    """

    first_ms: float
    warm_ms: float
    restore_ms: float = 0.0

    @property
    def overhead_ms(self) -> float:
        """Return how much longer the first inference took because of the start, milliseconds."""
        return self.first_ms - self.warm_ms


@dataclass(frozen=True, slots=True)
class Rounds:
    """How often a workload is started.

    Attributes:
        rounds: number of rounds; each has one cold start, `forks` forks and `thaws` thaws.
        warm: number of later inferences of each process; their median is used.
    """

    rounds: int
    forks: int
    thaws: int
    warm: int = 3


@dataclass(slots=True)
class Starts:
    """All starts of one workload, by kind of start."""

    cold: list[Start] = field(default_factory=list)
    fork: list[Start] = field(default_factory=list)
    thaw: list[Start] = field(default_factory=list)

    def over_warm(self, bound_ms: float, target_ms: float | None = None) -> Figure:
        """Return the time from thaw to first result, minus a warm inference of the same copy, as a figure.

        Args:
            bound_ms: largest time on the reference machine (`benchmarks.machine`), milliseconds.
            target_ms: the time to reach on the reference machine, milliseconds.
        """
        slowness = machine.slowness()
        first_ms, warm_ms = median(self.thaw, "first_ms"), median(self.thaw, "warm_ms")
        return Figure(
            "thaw to first result, minus a warm inference",
            median(self.thaw, "overhead_ms"),
            "ms",
            AT_MOST,
            bound_ms * slowness,
            f"{first_ms:.1f} ms against {warm_ms:.1f} ms",
            None if target_ms is None else target_ms * slowness,
        )

    def overhead_against_cold(
        self, bound: float, *, pick: Callable[[Iterable[float]], float] = statistics.median
    ) -> Figure:
        """Return the time that a cold start adds to an inference, divided by the time that a thaw adds, as a figure.

        Args:
            bound: the smallest acceptable ratio.
            pick: reduces several times to one. Use `min` if other load on the machine changes the time of an inference
                by more than a thaw adds to it.
        """
        cold_ms, thaw_ms = (
            pick(one.first_ms for one in kind) - pick(one.warm_ms for one in kind) for kind in (self.cold, self.thaw)
        )
        return Figure(
            "overhead of a start, cold relative to thaw",
            cold_ms / thaw_ms,
            "x",
            AT_LEAST,
            bound,
            f"{cold_ms:,.0f} ms against {thaw_ms:.1f} ms",
        )

    def overhead_against_fork(self) -> Figure:
        """Return the time that a fork of the loaded process adds to an inference, divided by the time that a thaw adds.

        The figure has no bound. A fork is possible only while the loaded process runs, so it does not replace a thaw.
        """
        fork_ms, thaw_ms = median(self.fork, "overhead_ms"), median(self.thaw, "overhead_ms")
        return Figure(
            "overhead of a start, fork relative to thaw",
            fork_ms / thaw_ms,
            "x",
            note=f"{fork_ms:.1f} ms against {thaw_ms:.1f} ms",
        )


def median(starts: Sequence[Start], attribute: str) -> float:
    """Return the median of one attribute of several starts."""
    return statistics.median(getattr(one, attribute) for one in starts)


def take_turns(workload: Workload, image: Path, original: Subject, result: str, *, times: Rounds) -> Starts:
    """In each round, start the workload cold, fork `original` and thaw `image`. Each process must produce `result`.

    Raises:
        BenchmarkError: one of them did not start or produced a different result.
    """
    thaw = engine_models.thaw_command(image)
    starts = Starts()
    # The first thaw is not counted: right after the freeze, the page cache may lack parts of the image, and this
    # benchmark measures thaws with the whole image in the page cache.
    start(thaw, result, warm=1)
    for _ in progress.rounds(times.rounds, f"{workload.name}: starts, round"):
        starts.cold.append(start(workload.command, result, warm=times.warm))
        starts.fork += [_fork(original, result, warm=times.warm) for _ in range(times.forks)]
        starts.thaw += [start(thaw, result, warm=times.warm) for _ in range(times.thaws)]
    return starts


def start(command: list[str], result: str, *, warm: int) -> Start:
    """Run `command` until it has answered its first inference, then request `warm` more inferences.

    Raises:
        BenchmarkError: its result is not `result`.
    """
    with started(command, engine_models.environment()) as subject:
        first = subject.answer()
        check(first["result"], result)
        return Start(subject.first_ms(first), _warm_ms(subject, warm), first.get("restore_ms", 0.0))


def check(found: str, expected: str) -> None:
    """Check that two results have the same digest.

    Raises:
        BenchmarkError: they differ.
    """
    if found != expected:
        raise BenchmarkError(f"a copy's result has the SHA-256 {found}, the original's has {expected}")


def _fork(original: Subject, result: str, *, warm: int) -> Start:
    warm_ms = _warm_ms(original, warm)
    forked = original.ask("fork")
    check(forked["result"], result)
    return Start(inference_ms(forked), warm_ms)


def _warm_ms(subject: Subject, inferences: int) -> float:
    return statistics.median(inference_ms(subject.ask("infer")) for _ in range(inferences))
