"""Compares two runs: ratios of their figures, with 95 % bootstrap intervals.

A bootstrap repeatedly draws samples from the measured requests of each run. The bounds of an interval are chosen so
that 95 of 100 ratios between such samples lie within them. The rank of a sample's percentile is distributed like an
order statistic of uniform numbers (a Beta distribution), so only that rank is drawn, not the whole sample. The bounds
do not cover differences between runs under the same conditions: measure more than once.

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
        high: upper bound of the ratio's 95 % interval; None for these two.
    """

    name: str
    before: float
    after: float
    ratio: float
    low: float | None = None
    high: float | None = None

    def bounds(self) -> str:
        """The 95 % interval of the ratio as text, for example "0.912 to 1.034"; "-" if there is none."""
        return "-" if self.low is None or self.high is None else f"{self.low:.3f} to {self.high:.3f}"


def compare(before: Run, after: Run) -> list[Ratio]:
    """Ratios of the percentiles, the maximum and the rate of right answers; empty if a run has no right answer."""
    first, second = _sorted(before), _sorted(after)
    if not first or not second:
        return []
    chance = random.Random(_SEED)
    lines = [_percentile(p / 100, first, second, chance) for p in PERCENTILES]
    lines.append(_ratio("max", first[-1], second[-1]))
    lines.append(_ratio("requests/s", len(first) / before.took_s, len(second) / after.took_s))
    return lines


def regressions(lines: Sequence[Ratio], *, above: float) -> list[Ratio]:
    """Percentiles that rose by more than the factor `above`, even at the lower bound of their 95 % interval."""
    return [line for line in lines if line.low is not None and line.low > above]


def differences(before: Run, after: Run) -> list[str]:
    """Describe the differences between the conditions of two runs. They may explain a ratio."""
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
    """Rank, from 1, of a percentile: the smallest value that at least `fraction` of `count` values do not exceed."""
    return max(1, math.ceil(fraction * count - 1e-9))


def _drawn(fraction: float, values: Sequence[float], chance: random.Random) -> float:
    """A percentile of a random bootstrap sample of `values`; only its rank is drawn, not the sample."""
    count = len(values)
    rank = _rank(fraction, count)
    return values[min(count - 1, int(count * chance.betavariate(rank, count - rank + 1)))]
