"""Compares two runs: ratios of their figures, with 95 % bootstrap intervals.

A bootstrap repeatedly draws random samples from the measured latencies of each run. The bounds of an interval are
chosen so that 95 of 100 ratios between such samples lie within them. No sample is drawn in full: the percentile of a
sample is one of the measured latencies, and its rank among them, divided by their number, has a Beta distribution. So
one number drawn from that distribution is enough. The interval says nothing about the differences that always exist
between two runs under the same conditions. To learn about these, measure more than once.

Source: Efron, Tibshirani, "An Introduction to the Bootstrap", 13.3 (percentile intervals); David, Nagaraja, "Order
Statistics", 2.1.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import msgspec

from thawd.bench.runs import Run
from thawd.bench.summary import PERCENTILES

_DRAWS = 4000
_TAIL = 0.025
_SEED = 1


class Ratio(msgspec.Struct, frozen=True):
    """One line of a comparison.

    Attributes:
        name: ``p50`` or another percentile, ``max`` or ``requests/s``.
        before: value in the first run.
        after: value in the second run.
        ratio: second value divided by the first.
        low: lower bound of the ratio's 95 % interval; None for ``max`` and ``requests/s``, which have no interval.
        high: upper bound of the ratio's 95 % interval; None for ``max`` and ``requests/s``.
    """

    name: str
    before: float
    after: float
    ratio: float
    low: float | None = None
    high: float | None = None

    def bounds(self) -> str:
        """Return the 95 % interval of the ratio as text, for example "0.912 to 1.034"; "-" if there is none."""
        return "-" if self.low is None or self.high is None else f"{self.low:.3f} to {self.high:.3f}"


def compare(before: Run, after: Run) -> list[Ratio]:
    """Return the ratios of the percentiles, the maximum and the rate of right answers of two runs.

    The list is empty if one of the runs has no right answer.
    """
    first, second = _sorted(before), _sorted(after)
    if not first or not second:
        return []
    chance = random.Random(_SEED)
    lines = [_percentile(p / 100, first, second, chance) for p in PERCENTILES]
    lines.append(_ratio("max", first[-1], second[-1]))
    lines.append(_ratio("requests/s", len(first) / before.took_s, len(second) / after.took_s))
    return lines


def regressions(lines: Sequence[Ratio], *, above: float) -> list[Ratio]:
    """Return the percentiles whose ratio is above `above` even at the lower bound of its 95 % interval."""
    return [line for line in lines if line.low is not None and line.low > above]


def differences(before: Run, after: Run) -> list[str]:
    """Describe the differences between the conditions of two runs, which may be the cause of a ratio."""
    pairs = {
        "targets": (before.target, after.target),
        "loads": (before.load.in_words(), after.load.in_words()),
        "engines": (before.engine, after.engine),
        "environments at the beginning": (before.begun_from, after.begun_from),
        "machines": (_machine(before), _machine(after)),
    }
    notes = [
        f"not the same {what}: {first or 'not set'} before, {second or 'not set'} after"
        for what, (first, second) in pairs.items()
        if first != second
    ]
    return notes + [f"the run {name} was ended by Ctrl-C" for name, run in _sides(before, after) if run.interrupted]


def _machine(run: Run) -> str:
    machine = run.machine
    return f"{machine.cores} cores of {machine.processor}, {machine.kernel}"


def _sides(before: Run, after: Run) -> tuple[tuple[str, Run], tuple[str, Run]]:
    return ("before", before), ("after", after)


def _sorted(run: Run) -> list[float]:
    return sorted(run.columns.latency_ms[i] for i in run.columns.right())


def _ratio(name: str, before: float, after: float) -> Ratio:
    return Ratio(name, before, after, after / before if before else math.inf)


def _percentile(fraction: float, first: Sequence[float], second: Sequence[float], chance: random.Random) -> Ratio:
    before, after = first[_rank(fraction, len(first)) - 1], second[_rank(fraction, len(second)) - 1]
    ratios = sorted(
        _drawn(fraction, second, chance) / max(1e-9, _drawn(fraction, first, chance)) for _ in range(_DRAWS)
    )
    low, high = ratios[int(_TAIL * _DRAWS)], ratios[int((1 - _TAIL) * _DRAWS) - 1]
    return Ratio(f"p{fraction * 100:g}", before, after, after / max(1e-9, before), low, high)


def _rank(fraction: float, count: int) -> int:
    """Return the rank of a percentile among `count` ascending values: at least `fraction` of them have no higher rank.

    The lowest value has the rank 1.
    """
    return max(1, math.ceil(fraction * count - 1e-9))


def _drawn(fraction: float, values: Sequence[float], chance: random.Random) -> float:
    """Return a percentile of a random bootstrap sample of `values`, which are ascending. See the module's docstring."""
    count = len(values)
    rank = _rank(fraction, count)
    return values[min(count - 1, int(count * chance.betavariate(rank, count - rank + 1)))]
