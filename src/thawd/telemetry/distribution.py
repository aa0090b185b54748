"""Durations in logarithmic buckets: quantiles for people, and the buckets of Prometheus' histograms.

The buckets are those of Prometheus' native histograms of schema 6: bucket i holds the values v, in seconds, with
``2 ** ((i - 1) / 64) < v <= 2 ** (i / 64)``. So they are 1.1 % wide, and every 64th bound is a power of two.
Source: Prometheus, client model, ``metrics.proto``, "Histogram".
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping

SCHEMA = 6
"""The schema of the buckets in Prometheus' native histograms."""
PER_DOUBLING = 1 << SCHEMA
"""Buckets from one power of two to the next."""
ZERO_S = 1e-6
"""Durations up to this, in seconds, are in the bucket `ZERO`."""
ZERO = -100_000
"""The bucket of the durations up to `ZERO_S`."""

_ZERO_MS = ZERO_S * 1000
# Milliseconds to seconds. The logarithm of a bound can be a little too large; the bound still belongs to its bucket.
_SHIFT = math.log2(1000) * PER_DOUBLING + 1e-9

Exemplar = tuple[str, float, float]
"""An example of a duration: the X-Ray trace header of its invocation, the duration in milliseconds, when it was
measured in seconds since the epoch."""


class Distribution:
    """Counts durations. It uses a few hundred integers; quantiles are exact to 1 %.

    Attributes:
        count: number of recorded durations.
        sum_ms: sum of the durations, milliseconds.
        max_ms: longest duration, milliseconds.
    """

    __slots__ = ("_buckets", "_exemplars", "count", "max_ms", "sum_ms")

    def __init__(self) -> None:
        self.count = 0
        self.sum_ms = 0.0
        self.max_ms = 0.0
        self._buckets: dict[int, int] | None = None  # a function that never runs needs none
        self._exemplars: dict[int, Exemplar] | None = None

    def record(self, value_ms: float, trace: str | None = None) -> None:
        """Add one duration.

        Args:
            value_ms: the duration, milliseconds.
            trace: the X-Ray trace header of what took so long. The latest of each power of two is kept as an example.
        """
        self.count += 1
        self.sum_ms += value_ms
        self.max_ms = max(self.max_ms, value_ms)
        bucket = math.ceil(math.log2(value_ms) * PER_DOUBLING - _SHIFT) if value_ms > _ZERO_MS else ZERO
        buckets = self._buckets
        if buckets is None:
            buckets = self._buckets = {}
        buckets[bucket] = buckets.get(bucket, 0) + 1
        if trace is not None:
            if self._exemplars is None:
                self._exemplars = {}
            self._exemplars[power(bucket)] = trace, value_ms, time.time()

    @property
    def buckets(self) -> Mapping[int, int]:
        """How many durations are in each bucket. Empty buckets are missing."""
        return self._buckets or {}

    @property
    def exemplars(self) -> Mapping[int, Exemplar]:
        """The latest duration with a trace header, by `power` of its bucket."""
        return self._exemplars or {}

    def quantile_ms(self, fraction: float) -> float:
        """Return the duration below which `fraction` (0-1) of all durations lie, milliseconds; 0: there are none."""
        rank = fraction * self.count
        seen = 0
        for bucket, count in sorted(self.buckets.items()):
            seen += count
            if seen >= rank:
                return min(self.max_ms, _middle_ms(bucket))
        return 0.0

    def cumulative(self, least: int, most: int, step: int) -> Iterator[tuple[int, int]]:
        """Yield pairs of p and the number of durations up to ``2 ** p`` seconds, exactly.

        Args:
            least: the smallest p.
            most: p is at most this.
            step: difference of one p to the next.
        """
        ordered = sorted(self.buckets.items())
        seen = at = 0
        for exponent in range(least, most + 1, step):
            while at < len(ordered) and ordered[at][0] <= exponent * PER_DOUBLING:
                seen += ordered[at][1]
                at += 1
            yield exponent, seen

    def summary(self) -> dict[str, float]:
        """Return count, median, 99th percentile and maximum, for ``/_thawd/status``."""
        return {
            "count": self.count,
            "p50_ms": round(self.quantile_ms(0.5), 3),
            "p99_ms": round(self.quantile_ms(0.99), 3),
            "max_ms": round(self.max_ms, 3),
        }


def power(bucket: int) -> int:
    """Return the smallest p for which the durations in a bucket are at most ``2 ** p`` seconds."""
    return -(-bucket // PER_DOUBLING)


def _middle_ms(bucket: int) -> float:
    return _ZERO_MS if bucket == ZERO else 1000 * math.exp2((bucket - 0.5) / PER_DOUBLING)
