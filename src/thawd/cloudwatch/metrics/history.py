"""Reads the history of metrics: which metrics there are, and their values in each period.

The metrics of ``AWS/Lambda`` are stored for each resource and executed version of a function. Those of the whole
function, and of all functions, are the sums of these, so they are put together when they are read.

Source: AWS Lambda developer guide, "Types of metrics for Lambda functions"; CloudWatch API reference.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from thawd.cloudwatch.metrics.recorder import LAMBDA, Dimensions
from thawd.stores.metric_history import KEPT_MINUTES, MetricStore, MinuteRow
from thawd.telemetry.samples import Samples

# The sets of dimensions that metrics of AWS/Lambda have.
_OF_LAMBDA = (
    frozenset[str](),
    frozenset({"FunctionName"}),
    frozenset({"FunctionName", "Resource"}),
    frozenset({"FunctionName", "Resource", "ExecutedVersion"}),
)
# This metric of all functions is not the sum of the functions' own, whose peaks come at different times.
_NOT_ADDED = "ConcurrentExecutions"
_decode = msgspec.msgpack.Decoder(dict[str, Samples]).decode


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric: its namespace, its name and its dimensions."""

    namespace: str
    name: str
    dimensions: Dimensions


@dataclass(frozen=True, slots=True)
class Periods:
    """Periods of time.

    Attributes:
        begin_s: start of the first period, seconds since 1970, a whole minute.
        end_s: end of the last period; exclusive.
        length_s: length of a period, a multiple of 60 seconds.
    """

    begin_s: int
    end_s: float
    length_s: int

    @property
    def count(self) -> int:
        """Number of periods."""
        return max(0, -(-int(self.end_s - self.begin_s) // self.length_s))

    def times(self, most: int) -> tuple[float, ...]:
        """The starts of the periods, at most `most`."""
        return tuple(float(self.begin_s + index * self.length_s) for index in range(min(most, self.count)))


class MetricHistory:
    """The history of metrics.

    Args:
        store: the stored history.
    """

    def __init__(self, store: MetricStore) -> None:
        self._store = store

    async def read(
        self, metric: Metric, periods: Periods, *, unit: str | None = None
    ) -> dict[float, tuple[Samples, str]]:
        """The values of a metric in each period that has any, and their unit, by the start of the period.

        Args:
            metric: the metric.
            periods: the periods.
            unit: only values of this unit count; None: those of the unit that comes first.

        Raises:
            StoreError: the history cannot be read.
        """
        wanted = [
            row.id
            for row in await self._store.series(metric.namespace)
            if _belongs(metric, tuple((name, value) for name, value in json.loads(row.dimensions)))
        ]
        first = max(periods.begin_s // 60, int(periods.end_s // 60) - KEPT_MINUTES - 1)
        last = -(-int(periods.end_s) // 60) - 1
        rows = await self._store.minutes(wanted, first, last)
        return await asyncio.to_thread(_merged, rows, metric.name, periods, unit)

    async def metrics(self, namespace: str | None) -> Sequence[Metric]:
        """The metrics with history, in order; None: those of all namespaces.

        Raises:
            StoreError: the history cannot be read.
        """
        names = await self._store.namespaces() if namespace is None else [namespace]
        found: set[Metric] = set()
        for each in names:
            for row in await self._store.series(each):
                document = await self._store.latest(row.id)
                if document is None:
                    continue
                dimensions = tuple((name, value) for name, value in json.loads(row.dimensions))
                for key in _decode(document):
                    name = key.split("\n", 1)[1]
                    found.update(Metric(each, name, shown) for shown in _shown(each, name, dimensions))
        return sorted(found, key=lambda metric: (metric.namespace, metric.name, metric.dimensions))


def _merged(
    rows: Sequence[MinuteRow], name: str, periods: Periods, unit: str | None
) -> dict[float, tuple[Samples, str]]:
    """The values of the metric `name` in rows, by the start of the period; see `MetricHistory.read`."""
    found: dict[float, tuple[Samples, str]] = {}
    for row in rows:
        index = (row.minute * 60 - periods.begin_s) // periods.length_s
        at = float(periods.begin_s + index * periods.length_s)
        for key, samples in _decode(row.document).items():
            of_unit, of_name = key.split("\n", 1)
            if of_name != name or unit not in (None, of_unit) or not samples.count:
                continue
            known = found.get(at)
            if known is None:
                found[at] = (samples, of_unit)
            elif known[1] == of_unit:
                known[0].merge(samples)
    return dict(sorted(found.items()))


def _belongs(metric: Metric, dimensions: Dimensions) -> bool:
    """Whether the values of a series with these dimensions are values of the metric."""
    if metric.namespace != LAMBDA or (metric.name == _NOT_ADDED and not metric.dimensions):
        return metric.dimensions == dimensions
    if frozenset(name for name, _ in metric.dimensions) not in _OF_LAMBDA:
        return False
    return bool(dimensions) and set(metric.dimensions) <= set(dimensions)


def _shown(namespace: str, name: str, dimensions: Dimensions) -> Iterator[Dimensions]:
    """The dimensions of the metrics to which the values of a series belong."""
    yield dimensions
    if namespace == LAMBDA:
        for names in _OF_LAMBDA:
            shown = tuple(pair for pair in dimensions if pair[0] in names)
            if len(shown) == len(names) and not (name == _NOT_ADDED and not shown):
                yield shown
