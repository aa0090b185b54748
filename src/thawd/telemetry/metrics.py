"""Every metric of the platform: name, unit, help. Numbers arrive in result frames; environments export nothing.

One set of counters per function feeds both ``/metrics`` (Prometheus) and ``/_thawd/status``.
"""

from __future__ import annotations

import asyncio
import collections
import enum
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from thawd.invocation import StartKind

_RATIO = math.log(1.02)
_SMALLEST_MS = 0.001


class Distribution:
    """Durations in logarithmic buckets 2 % wide: any quantile to 1 %, a few hundred integers at most.

    Attributes:
        count: how many were recorded.
        sum_ms: their sum, milliseconds.
        max_ms: the largest, milliseconds.
    """

    __slots__ = ("_buckets", "count", "max_ms", "sum_ms")

    def __init__(self) -> None:
        self.count = 0
        self.sum_ms = 0.0
        self.max_ms = 0.0
        self._buckets: dict[int, int] = {}

    def record(self, value_ms: float) -> None:
        """Add one duration, milliseconds."""
        self.count += 1
        self.sum_ms += value_ms
        self.max_ms = max(self.max_ms, value_ms)
        bucket = int(math.log(max(value_ms, _SMALLEST_MS) / _SMALLEST_MS) / _RATIO)
        self._buckets[bucket] = self._buckets.get(bucket, 0) + 1

    def quantile_ms(self, fraction: float) -> float:
        """The duration below which `fraction` (0-1) of those recorded lie, milliseconds; 0 when there is none."""
        rank = fraction * self.count
        seen = 0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if seen >= rank:
                return min(self.max_ms, _SMALLEST_MS * math.exp((bucket + 0.5) * _RATIO))
        return 0.0

    def summary(self) -> dict[str, float]:
        """Count, median, 99th percentile and maximum, for ``/_thawd/status``."""
        return {
            "count": self.count,
            "p50_ms": round(self.quantile_ms(0.5), 3),
            "p99_ms": round(self.quantile_ms(0.99), 3),
            "max_ms": round(self.max_ms, 3),
        }


class Fallback(enum.StrEnum):
    """What was in the way of the fastest start of an environment."""

    SNAPSHOT_REFUSED = "snapshot_refused"
    """The function could not be frozen, or its image failed the self-test."""
    THAW_FAILED = "thaw_failed"
    """This thaw failed, or so many before it did that the snapshot was given up."""
    FORK_REFUSED = "fork_refused"
    """A copy of the initialised process would lack threads."""
    TEMPLATE_LOST = "template_lost"
    """The template ended or hung."""


class DeliveryOutcome(enum.StrEnum):
    """What became of a try to bring a record to a destination."""

    DELIVERED = "delivered"
    """The destination took it."""
    UNAVAILABLE = "unavailable"
    """It did not, and may take it at another try."""
    REFUSED = "refused"
    """It does not take this record."""


class FunctionMetrics:
    """Counters of one function, kept across its versions.

    Attributes:
        starts: time from spawning an environment to its being ready, by how it was started.
        invocations: time from lease request to answer, by what served it.
        errors: invocations that ended in a function error.
        timeouts: of these, those that ran into the time limit.
        exits: of these, those whose environment ended under them.
        throttles: requests refused by a concurrency limit or a full queue.
        init_failures: starts that ended in an init error.
        destination_failures: tries to bring a record to a destination that failed.
        dead_letter_errors: tries to bring a payload to the function's dead-letter queue that failed.
        recursive_invocations_dropped: invocations that were not made, as they would have closed a loop once more.
        fallbacks: starts that were slower than they might be, by what was in the way of the faster one.
        deliveries: tries to bring something to a destination, by its kind and by what became of them.
    """

    __slots__ = (
        "dead_letter_errors",
        "deliveries",
        "destination_failures",
        "errors",
        "exits",
        "fallbacks",
        "init_failures",
        "invocations",
        "recursive_invocations_dropped",
        "starts",
        "throttles",
        "timeouts",
    )

    def __init__(self) -> None:
        self.starts: dict[StartKind, Distribution] = {
            kind: Distribution() for kind in (StartKind.COLD, StartKind.FORK, StartKind.THAW)
        }
        self.invocations = {kind: Distribution() for kind in StartKind}
        self.errors = 0
        self.timeouts = 0
        self.exits = 0
        self.throttles = 0
        self.init_failures = 0
        self.destination_failures = 0
        self.dead_letter_errors = 0
        self.recursive_invocations_dropped = 0
        self.fallbacks = dict.fromkeys(Fallback, 0)
        self.deliveries: collections.Counter[tuple[str, DeliveryOutcome]] = collections.Counter()

    def summary(self) -> dict[str, Any]:
        """The function's part of ``/_thawd/status``."""
        return {
            "starts": {kind.value: d.summary() for kind, d in self.starts.items() if d.count},
            "invocations": {kind.value: d.summary() for kind, d in self.invocations.items() if d.count},
            **{name: getattr(self, name) for name in COUNTERS},
            "fallbacks": sum(self.fallbacks.values()),
            "fallbacks_by_reason": {reason.value: count for reason, count in self.fallbacks.items() if count},
            "deliveries": self._deliveries(),
        }

    def _deliveries(self) -> dict[str, dict[str, int]]:
        """Counts by kind of destination, then by outcome."""
        counts: dict[str, dict[str, int]] = {}
        for (kind, outcome), count in self.deliveries.items():
            counts.setdefault(kind, {})[outcome.value] = count
        return counts


# Name of the attribute -> help of the metric; the metric is thawd_<name>_total.
COUNTERS: Mapping[str, str] = {
    "errors": "Invocations that ended in a function error.",
    "timeouts": "Invocations that ran into the function's time limit.",
    "exits": "Invocations whose execution environment ended under them.",
    "throttles": "Requests refused by a concurrency limit or a full queue.",
    "init_failures": "Starts of an execution environment that ended in an init error.",
    "destination_failures": "Tries to bring a record to a destination that failed; AWS's DestinationDeliveryFailures.",
    "dead_letter_errors": "Tries to bring a payload to a dead-letter queue that failed; AWS's DeadLetterErrors.",
    "recursive_invocations_dropped": "Invocations not made, as they would have closed a loop once more; AWS's "
    "RecursiveInvocationsDropped.",
}
DELIVERIES = "Tries to bring a record or a dead letter to a destination, by its kind and by what became of them."
FALLBACKS = "Starts that were slower than they might be, by what was in the way of the faster one."
DISTRIBUTIONS: Mapping[str, str] = {
    "starts": "Time from spawning an execution environment to its being ready, by start kind, in seconds.",
    "invocations": "Time from asking for an execution environment to its answer, by start kind, in seconds.",
}
# Labels of these are the source and its function; see `SourceSubsystem.measure`.
SOURCE_COUNTERS: Mapping[str, str] = {
    "source_events": "Messages received from a queue, runs of a schedule, or events of a bucket elsewhere.",
    "source_filtered": "Messages that matched no filter and were deleted.",
    "source_failed": "Messages that were handled and failed.",
}
SOURCE_GAUGES: Mapping[str, str] = {
    "source_enabled": "Whether the source works (1) or rests (0).",
    "source_waiting": "About how many messages wait in the queue.",
    "source_age_seconds": (
        "Age of the oldest message received last, or of the last listing, or how late the last run was, in seconds."
    ),
}
# Of asynchronous events; see `EventSubsystem.measure`. Counted since the state file was made.
EVENT_COUNTERS: Mapping[str, str] = {
    "events_accepted": "Asynchronous events stored.",
    "events_done": "Asynchronous events dealt with.",
    "events_retried": "Attempts of asynchronous events that failed and are followed by another.",
    "events_given_up": "Asynchronous events that became dead letters.",
}
EVENT_GAUGES: Mapping[str, str] = {
    "queued": "Asynchronous events stored and not yet begun.",
    "events_running": "Asynchronous events that run, or are about to.",
    "outcomes_waiting": "Outcomes of events that wait for their destination.",
    "dead_letters": "Asynchronous events that were given up and are kept.",
    "oldest_event_age_seconds": "Age of the oldest asynchronous event that is queued, in seconds.",
}
# So many functions are dealt with before others have their turn: some ten milliseconds.
_AT_A_TIME = 25
_FAMILY = "# HELP "
GAUGES: Mapping[str, str] = {
    "environments": "Execution environments alive, by state.",
    "waiting": "Requests waiting for an execution environment.",
}


class Metrics:
    """All metrics, by function."""

    def __init__(self) -> None:
        self.functions: dict[str, FunctionMetrics] = {}
        self.gauges: dict[str, dict[tuple[str, str], float]] = {}
        self.events: Mapping[str, Mapping[str, float]] = {}
        self.sources: dict[tuple[str, str], dict[str, float]] = {}

    def function(self, name: str) -> FunctionMetrics:
        """The counters of the function `name`, made when there are none yet."""
        if name not in self.functions:
            self.functions[name] = FunctionMetrics()
        return self.functions[name]

    def set_gauge(self, name: str, *, function: str, state: str = "", value: float) -> None:
        """Set one gauge of `GAUGES`."""
        self.gauges.setdefault(name, {})[function, state] = value

    async def exposition(self) -> bytes:
        """The metrics in Prometheus' text format; others have their turn while it is made."""
        named = dict.fromkeys([*self.functions, *self.events, *(function for _, function in self.sources)])
        named |= dict.fromkeys(function for values in self.gauges.values() for function, _ in values)
        names = list(named)
        families: list[list[str]] = []
        for start in range(0, max(len(names), 1), _AT_A_TIME):
            texts = _Selection(self, names[start : start + _AT_A_TIME]).text().split(_FAMILY)[1:]
            if not families:
                families = [[] for _ in texts]
            for parts, text in zip(families, texts, strict=True):
                parts.append(text.split("\n", 2)[2] if parts else _FAMILY + text)
            await asyncio.sleep(0)
        return "".join(itertools.chain.from_iterable(families)).encode()


class _Selection(Collector):
    """The metrics of some functions, as the Prometheus client takes them."""

    def __init__(self, metrics: Metrics, names: Sequence[str]) -> None:
        wanted = set(names)
        self._functions = {name: metrics.functions[name] for name in names if name in metrics.functions}
        self._events = {name: metrics.events[name] for name in names if name in metrics.events}
        self._sources = {key: figures for key, figures in metrics.sources.items() if key[1] in wanted}
        self._gauges = {
            name: {key: value for key, value in values.items() if key[0] in wanted}
            for name, values in metrics.gauges.items()
        }

    def text(self) -> str:
        """In Prometheus' text format."""
        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry).decode()

    def collect(self) -> Iterator[Metric]:
        """Called by the Prometheus client at each scrape."""
        for name, text in COUNTERS.items():
            counter = CounterMetricFamily(f"thawd_{name}", text, labels=["function"])
            for function, metrics in self._functions.items():
                counter.add_metric([function], getattr(metrics, name))
            yield counter
        fallbacks = CounterMetricFamily("thawd_fallbacks", FALLBACKS, labels=["function", "reason"])
        for function, metrics in self._functions.items():
            for reason, count in metrics.fallbacks.items():
                fallbacks.add_metric([function, reason.value], count)
        yield fallbacks
        deliveries = CounterMetricFamily("thawd_deliveries", DELIVERIES, labels=["function", "kind", "outcome"])
        for function, metrics in self._functions.items():
            for (kind, outcome), count in metrics.deliveries.items():
                deliveries.add_metric([function, kind, outcome.value], count)
        yield deliveries
        for name, text in DISTRIBUTIONS.items():
            summary = SummaryMetricFamily(f"thawd_{name}_seconds", text, labels=["function", "kind"])
            for function, metrics in self._functions.items():
                for kind, distribution in getattr(metrics, name).items():
                    labels = [function, kind.value]
                    summary.add_metric(labels, distribution.count, distribution.sum_ms / 1000)
            yield summary
        for name, text in GAUGES.items():
            gauge = GaugeMetricFamily(f"thawd_{name}", text, labels=["function", "state"])
            for (function, state), value in self._gauges.get(name, {}).items():
                gauge.add_metric([function, state], value)
            yield gauge
        yield from self._of_events()
        yield from self._of_sources()

    def _of_events(self) -> Iterator[Metric]:
        kinds = ((CounterMetricFamily, EVENT_COUNTERS), (GaugeMetricFamily, EVENT_GAUGES))
        for kind, texts in kinds:
            for name, text in texts.items():
                family = kind(f"thawd_{name}", text, labels=["function"])
                for function, figures in self._events.items():
                    family.add_metric([function], figures[name])
                yield family

    def _of_sources(self) -> Iterator[Metric]:
        kinds = ((CounterMetricFamily, SOURCE_COUNTERS), (GaugeMetricFamily, SOURCE_GAUGES))
        for kind, texts in kinds:
            for name, text in texts.items():
                family = kind(f"thawd_{name}", text, labels=["source", "function"])
                for labels, figures in self._sources.items():
                    if name in figures:
                        family.add_metric(list(labels), figures[name])
                yield family
