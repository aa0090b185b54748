"""Records metrics minute by minute: collects them in memory, and writes them to the state file every few seconds.

Invocations are counted in `thawd.telemetry.metrics`, without regard to time. This module takes these counts at every
write, and at the end of every minute, so that they belong to their minute. A kill of the server loses what was counted
since the last write.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from thawd.errors import StoreError
from thawd.stores.metric_history import KEPT_MINUTES, MetricStore, WrittenRow
from thawd.system.retry import SayOnce
from thawd.telemetry.console import complain
from thawd.telemetry.metrics import InvocationCell, Metrics
from thawd.telemetry.samples import Samples

LAMBDA = "AWS/Lambda"
WRITE_S = 10.0
_TRIM_EVERY_S = 3600.0
# Most series and minutes that are collected between two writes; further ones are dropped with a message.
_MOST_COLLECTED = 20_000

Dimensions = tuple[tuple[str, str], ...]
"""Names and values, sorted by name."""
Sample = Callable[[], Awaitable[Mapping[str, Mapping[str, float]]]]
"""Returns counters of each function, by AWS's name of the metric; they only grow while the server runs."""

_encode = msgspec.msgpack.Encoder().encode


@dataclass(slots=True)
class _Collected:
    """What was measured for one series in one minute.

    Attributes:
        part: distinguishes its row in the state file.
        metrics: values by unit and name of the metric.
        changed: whether it has changed since the last write.
    """

    part: int
    metrics: dict[str, Samples] = field(default_factory=dict)
    changed: bool = True


class MetricRecorder:
    """Records the metrics of one server.

    Args:
        store: the history.
        metrics: the counts of invocations.
        sample: see `Sample`.
    """

    def __init__(self, store: MetricStore, metrics: Metrics, sample: Sample) -> None:
        self._store = store
        self._metrics = metrics
        self._sample = sample
        self._seen: dict[str, dict[str, float]] = {}
        self._collected: dict[tuple[int, str, str], _Collected] = {}
        self._parts = itertools.count(time.time_ns())
        self._writing = asyncio.Lock()
        self._reports = SayOnce(complain)

    def put(
        self, namespace: str, dimensions: Dimensions, metric: tuple[str, str], samples: Samples, at_s: float
    ) -> None:
        """Add values of a metric.

        Args:
            namespace: namespace of the metric.
            dimensions: its dimensions.
            metric: its name and its unit.
            samples: the values.
            at_s: when they were measured, seconds since 1970.
        """
        key = (int(at_s // 60), namespace, json.dumps(dimensions, separators=(",", ":")))
        collected = self._collected.get(key)
        if collected is None:
            if len(self._collected) >= _MOST_COLLECTED:
                self._reports.say(
                    f"thawd: metrics are lost: more than {_MOST_COLLECTED} series within {WRITE_S:.0f} s", topic="many"
                )
                return
            collected = self._collected[key] = _Collected(next(self._parts))
        name = f"{metric[1]}\n{metric[0]}"
        if name in collected.metrics:
            collected.metrics[name].merge(samples)
        else:
            collected.metrics[name] = samples
        collected.changed = True

    async def run(self) -> None:
        """Record until cancelled."""
        trimmed_s = time.monotonic()
        while True:
            now = time.time()
            # Also at the end of each minute, so that counts belong to their minute.
            await asyncio.sleep(min(WRITE_S, 60 - now % 60 - 0.001) if now % 60 < 59.99 else WRITE_S)
            try:
                await self.write()
                if time.monotonic() - trimmed_s > _TRIM_EVERY_S:
                    trimmed_s = time.monotonic()
                    await self._store.trim(before=int(time.time() // 60) - KEPT_MINUTES)
            except StoreError as error:
                self._reports.say(f"thawd: metrics could not be stored: {error}", topic="store", cause=str(error))
            else:
                self._reports.resolved(topic="store")

    async def write(self) -> None:
        """Write everything that was measured until now. It is durable when this returns.

        Raises:
            StoreError: it could not be stored; a later call writes it.
        """
        async with self._writing:
            await self._take()
            written = [(key, collected) for key, collected in self._collected.items() if collected.changed]
            rows = [
                WrittenRow(namespace, dimensions, minute, collected.part, _encode(collected.metrics))
                for (minute, namespace, dimensions), collected in written
            ]
            for _, collected in written:
                collected.changed = False
            try:
                if rows:
                    await self._store.write(rows)
            except StoreError:
                for _, collected in written:
                    collected.changed = True
                raise
            present = int(time.time() // 60)
            for key, collected in list(self._collected.items()):
                if key[0] != present and not collected.changed:
                    del self._collected[key]

    async def _take(self) -> None:
        """Take what the counters have counted since the last call."""
        counters = await self._sample()
        now = time.time()
        for function, metrics in self._metrics.functions.items():
            cells, peak = metrics.take_cells()
            for (qualifier, version), cell in cells.items():
                self._put_cell(_dimensions(function, qualifier, version), cell, now)
            if peak:
                self._put_value(function, "ConcurrentExecutions", peak, now)
            self._put_growth(function, counters.get(function, {}), now)
        of_all, self._metrics.peak = self._metrics.peak, 0
        if of_all:
            peak_of_all = Samples()
            peak_of_all.add(of_all)
            self.put(LAMBDA, (), ("ConcurrentExecutions", "Count"), peak_of_all, now)

    def _put_growth(self, function: str, counters: Mapping[str, float], now: float) -> None:
        """Record by how much counters have grown."""
        for name, value in counters.items():
            before = self._seen.get(function, {}).get(name, 0.0)
            if value != before:
                self._seen.setdefault(function, {})[name] = value
            if value > before:
                self._put_value(function, name, value - before, now)

    async def begin(self) -> None:
        """Remember what the counters say now; what they have counted before belongs to an earlier server.

        Raises:
            StoreError: the counters cannot be read.
        """
        for function, counters in (await self._sample()).items():
            # Most functions have counted nothing. A missing value means 0.
            if counted := {name: value for name, value in counters.items() if value}:
                self._seen[function] = counted

    def _put_value(self, function: str, name: str, value: float, now: float) -> None:
        samples = Samples()
        samples.add(value)
        self.put(LAMBDA, (("FunctionName", function),), (name, "Count"), samples, now)

    def _put_cell(self, dimensions: Dimensions, cell: InvocationCell, now: float) -> None:
        count = cell.durations.count
        if count:
            # As on AWS, each invocation has the value 1 of Invocations, and 1 or 0 of Errors.
            invocations, errors = Samples(), Samples()
            invocations.add(1, count)
            for value, times in ((1, cell.errors), (0, count - cell.errors)):
                if times:
                    errors.add(value, times)
            self.put(LAMBDA, dimensions, ("Invocations", "Count"), invocations, now)
            self.put(LAMBDA, dimensions, ("Errors", "Count"), errors, now)
            self.put(LAMBDA, dimensions, ("Duration", "Milliseconds"), cell.durations, now)
        if count or cell.throttles:
            throttles = Samples()
            for value, times in ((1, cell.throttles), (0, count)):
                if times:
                    throttles.add(value, times)
            self.put(LAMBDA, dimensions, ("Throttles", "Count"), throttles, now)


def _dimensions(function: str, qualifier: str | None, version: str) -> Dimensions:
    resource = function if qualifier is None else f"{function}:{qualifier}"
    is_alias = qualifier is not None and qualifier != "$LATEST" and not qualifier.isdigit()
    of_version = [("ExecutedVersion", version)] if is_alias and version else []
    return (*of_version, ("FunctionName", function), ("Resource", resource))


def sorted_dimensions(pairs: Sequence[tuple[str, str]]) -> Dimensions:
    """Dimensions in their order."""
    return tuple(sorted(pairs))
