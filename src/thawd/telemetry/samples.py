"""Values of a metric in a period of time: count, sum, extremes, and a histogram from which percentiles are computed."""

from __future__ import annotations

import math

import msgspec

_RATIO = math.log(1.02)
# The bucket of a positive value v is this number plus log(v) / log(1.02); of a negative value, the same, negative. The
# bucket of zero is 0. So buckets are in the order of their values.
_OFFSET = 100_000
MOST_VALUE = 2.0**360
"""Largest value of a metric. Sums of larger ones could be infinite. Source: CloudWatch API reference, "MetricDatum"."""


class Samples(msgspec.Struct, array_like=True):
    """Values of one metric. The buckets of the histogram are 2 % wide, so percentiles are exact to 1 %.

    Attributes:
        count: number of values.
        sum: their sum.
        minimum: the smallest value.
        maximum: the largest value.
        buckets: numbers of values by bucket; empty if only the figures above are known.
    """

    count: float = 0
    sum: float = 0.0
    minimum: float = math.inf
    maximum: float = -math.inf
    buckets: dict[int, float] = {}

    def add(self, value: float, count: float = 1) -> None:
        """Add `count` equal values."""
        self.count += count
        self.sum += value * count
        self.minimum = min(self.minimum, value)
        self.maximum = max(self.maximum, value)
        bucket = _bucket(value)
        self.buckets[bucket] = self.buckets.get(bucket, 0) + count

    def merge(self, other: Samples) -> None:
        """Add the values of `other`."""
        self.count += other.count
        self.sum += other.sum
        self.minimum = min(self.minimum, other.minimum)
        self.maximum = max(self.maximum, other.maximum)
        for bucket, count in other.buckets.items():
            self.buckets[bucket] = self.buckets.get(bucket, 0) + count

    def percentile(self, percent: float) -> float | None:
        """The value below which `percent` (0-100) of the values lie; None: there is no histogram."""
        total = sum(self.buckets.values())
        if not total:
            return None
        rank = percent / 100 * total
        seen = 0.0
        for bucket in sorted(self.buckets):
            seen += self.buckets[bucket]
            if seen >= rank:
                return min(self.maximum, max(self.minimum, _middle(bucket)))
        return self.maximum

    def trimmed_mean(self, low: float, high: float) -> float | None:
        """The mean of the values between two percentiles (0-100); None: there is no histogram."""
        total = sum(self.buckets.values())
        first, last = low / 100 * total, high / 100 * total
        seen = taken = weighted = 0.0
        for bucket in sorted(self.buckets):
            count = self.buckets[bucket]
            inside = max(0.0, min(seen + count, last) - max(seen, first))
            value = min(self.maximum, max(self.minimum, _middle(bucket)))
            taken += inside
            weighted += inside * value
            seen += count
        return weighted / taken if taken else None


def _bucket(value: float) -> int:
    if value > 0:
        return _OFFSET + int(math.log(value) / _RATIO // 1)
    return -_OFFSET - int(math.log(-value) / _RATIO // 1) if value < 0 else 0


def _middle(bucket: int) -> float:
    if bucket > 0:
        return math.exp((bucket - _OFFSET + 0.5) * _RATIO)
    return -math.exp((-bucket - _OFFSET + 0.5) * _RATIO) if bucket < 0 else 0.0
