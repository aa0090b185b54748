"""Counts each function's invocations by minute, start kind and latency, from the counters that the server has anyway.

The path of a request counts nothing for this: every few seconds this module takes by how much the counters have grown.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

import msgspec

from thawd.stores.invocations.record_rows import MinuteRow
from thawd.telemetry.distribution import PER_DOUBLING
from thawd.telemetry.metrics import FunctionMetrics

FINE = PER_DOUBLING // 2
"""Number of the metrics' buckets in one bucket here; two of these make a doubling."""
SMALLEST = -40
"""The first bucket; shorter durations belong to it. It ends at a microsecond."""
_KEPT_MINUTES = 2


class MinuteCounts(msgspec.Struct, omit_defaults=True):
    """What a function did in one minute. Numbers are of all invocations, not only of recorded ones.

    Attributes:
        latencies: by start kind, the number of invocations by latency bucket; see `bucket_ms`.
        errors: invocations that ended in a function error.
        throttles: requests refused because of a limit.
    """

    latencies: dict[str, dict[int, int]] = {}
    errors: int = 0
    throttles: int = 0


def failures_in(rows: Iterable[tuple[str, int, bytes]]) -> tuple[int, int]:
    """Return the errors and the throttles in rows of `thawd.recording.records.Records.minutes`."""
    counts = [msgspec.json.decode(document, type=MinuteCounts) for _, _, document in rows]
    return sum(each.errors for each in counts), sum(each.throttles for each in counts)


def bucket_ms(bucket: int) -> float:
    """Return the upper bound of a latency bucket, milliseconds. The lower one is that of the bucket before."""
    return float(1000 * 2 ** (bucket / 2))


class Counter:
    """Takes the growth of the counters of all functions.

    Args:
        functions: the counters, by function.
    """

    def __init__(self, functions: Mapping[str, FunctionMetrics]) -> None:
        self._functions = functions
        self._seen: dict[str, tuple[int, dict[str, dict[int, int]], int, int]] = {}
        self._minutes: dict[tuple[str, int], MinuteCounts] = {}

    def take(self) -> list[MinuteRow]:
        """Return the rows of those functions and minutes that have changed since the last call."""
        minute = int(time.time() // 60)
        changed = [name for name, metrics in self._functions.items() if self._grow(name, metrics, minute)]
        rows = [MinuteRow(name, minute, msgspec.json.encode(self._minutes[name, minute])) for name in changed]
        for key in [key for key in self._minutes if key[1] <= minute - _KEPT_MINUTES]:
            del self._minutes[key]
        return rows

    def _grow(self, name: str, metrics: FunctionMetrics, minute: int) -> bool:
        count = sum(distribution.count for distribution in metrics.invocations.values())
        total, fine, errors, throttles = self._seen.get(name, (0, {}, 0, 0))
        if (count, metrics.errors, metrics.throttles) == (total, errors, throttles):
            return False
        now = {kind.value: dict(distribution.buckets) for kind, distribution in metrics.invocations.items()}
        counts = self._minutes.setdefault((name, minute), MinuteCounts())
        for kind, buckets in now.items():
            before = fine.get(kind, {})
            of_kind = counts.latencies.setdefault(kind, {})
            for bucket, number in buckets.items():
                if grown := number - before.get(bucket, 0):
                    coarse = max(SMALLEST, -(-bucket // FINE))
                    of_kind[coarse] = of_kind.get(coarse, 0) + grown
        counts.errors += metrics.errors - errors
        counts.throttles += metrics.throttles - throttles
        self._seen[name] = (count, now, metrics.errors, metrics.throttles)
        return True
