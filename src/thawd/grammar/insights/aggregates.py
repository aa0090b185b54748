"""The functions of Logs Insights queries that compute one value from all rows of a group, for ``stats``.

Source: CloudWatch Logs user guide, "stats".
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable

from thawd.grammar.insights.values import Value, number, order, text


class Aggregate:
    """Collects the values of a group's rows. The base class counts rows in which the value is present."""

    def __init__(self) -> None:
        self._count = 0

    def add(self, value: Value, time_ms: float) -> None:
        """Add the value of one row; `time_ms` is the time of its event, milliseconds since 1970."""
        if value is not None:
            self._count += 1

    def result(self) -> Value:
        """The value for the group; None: there is none."""
        return self._count


class _Sum(Aggregate):
    def __init__(self) -> None:
        super().__init__()
        self._sum: float | int = 0

    def add(self, value: Value, time_ms: float) -> None:
        found = number(value)
        if found is not None:
            self._count += 1
            self._sum += found

    def result(self) -> Value:
        return self._sum if self._count else None


class _Average(_Sum):
    def result(self) -> Value:
        return self._sum / self._count if self._count else None


class _Deviation(_Sum):
    """The deviation of a sample, by Welford's method."""

    def __init__(self) -> None:
        super().__init__()
        self._mean = 0.0
        self._squares = 0.0

    def add(self, value: Value, time_ms: float) -> None:
        found = number(value)
        if found is not None:
            self._count += 1
            delta = found - self._mean
            self._mean += delta / self._count
            self._squares += delta * (found - self._mean)

    def result(self) -> Value:
        return None if not self._count else math.sqrt(self._squares / (self._count - 1)) if self._count > 1 else 0.0


class _Extreme(Aggregate):
    """The smallest or the largest value: numbers of `min` and `max`, any values of `sortsFirst` and `sortsLast`."""

    def __init__(self, *, largest: bool, numbers: bool) -> None:
        super().__init__()
        self._largest = largest
        self._numbers = numbers
        self._best: Value = None

    def add(self, value: Value, time_ms: float) -> None:
        found = number(value) if self._numbers else value
        if found is None:
            return
        if self._best is None or (order(found) > order(self._best)) == self._largest:
            self._best = found

    def result(self) -> Value:
        return self._best


class _ByTime(Aggregate):
    """The value of the earliest or the latest event."""

    def __init__(self, *, latest: bool) -> None:
        super().__init__()
        self._latest = latest
        self._time_ms: float | None = None
        self._value: Value = None

    def add(self, value: Value, time_ms: float) -> None:
        if value is None:
            return
        if self._time_ms is None or (time_ms > self._time_ms if self._latest else time_ms <= self._time_ms):
            self._time_ms, self._value = time_ms, value

    def result(self) -> Value:
        return self._value


class _Distinct(Aggregate):
    def __init__(self) -> None:
        super().__init__()
        self._seen: set[str] = set()

    def add(self, value: Value, time_ms: float) -> None:
        if value is not None:
            self._seen.add(text(value))

    def result(self) -> Value:
        return len(self._seen)


class _Percentile(Aggregate):
    def __init__(self, percent: float) -> None:
        super().__init__()
        self._percent = percent
        self._values = array("d")

    def add(self, value: Value, time_ms: float) -> None:
        found = number(value)
        if found is not None:
            self._values.append(found)

    def result(self) -> Value:
        if not self._values:
            return None
        values = sorted(self._values)
        return values[max(0, math.ceil(self._percent / 100 * len(values)) - 1)]


AGGREGATES: dict[str, Callable[[], Aggregate]] = {
    "count": Aggregate,
    "count_distinct": _Distinct,
    "sum": _Sum,
    "avg": _Average,
    "stddev": _Deviation,
    "min": lambda: _Extreme(largest=False, numbers=True),
    "max": lambda: _Extreme(largest=True, numbers=True),
    "sortsfirst": lambda: _Extreme(largest=False, numbers=False),
    "sortslast": lambda: _Extreme(largest=True, numbers=False),
    "earliest": lambda: _ByTime(latest=False),
    "latest": lambda: _ByTime(latest=True),
}
"""By name in lower case; ``pct`` is made by `percentile`."""


def percentile(percent: float) -> Callable[[], Aggregate]:
    """What makes the aggregate for ``pct(field, percent)``."""
    return lambda: _Percentile(percent)
