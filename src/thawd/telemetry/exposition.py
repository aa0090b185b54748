"""The metrics as monitoring systems read them: Prometheus' text format, OpenMetrics, and Prometheus' protobuf format.

A client chooses the format by its ``Accept`` header. Only OpenMetrics and protobuf have exemplars: trace ids of single
invocations. Only protobuf has native histograms, whose buckets are 1.1 % wide; Prometheus asks for this format if its
native histograms are on.

Source: Prometheus, "Exposition formats"; OpenMetrics 1.0; client model, ``metrics.proto``.
"""

from __future__ import annotations

import asyncio
import itertools
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import version

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar

from thawd.invocation import StartKind
from thawd.telemetry import protobuf
from thawd.telemetry.distribution import Distribution
from thawd.telemetry.metrics import (
    COUNTERS,
    DELIVERIES,
    DISTRIBUTIONS,
    EVENT_COUNTERS,
    EVENT_GAUGES,
    FALLBACKS,
    GAUGES,
    KINDS,
    SOURCE_COUNTERS,
    SOURCE_GAUGES,
    Fallback,
    Metrics,
)

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
PROTOBUF = "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
BUILD_INFO = "The version of thawd and of its Python interpreter; always 1."
LEAST_POWER, MOST_POWER, POWER_STEP = -10, 10, 1
"""The bounds of the classic histograms' buckets are powers of two: from 1 ms (2 ** -10 s) to 17 minutes (2 ** 10 s)."""

# After this many functions, which take about ten milliseconds, `exposition` lets other tasks run.
_AT_A_TIME = 25
# Each metric begins with this text in both text formats.
_FAMILY = "# HELP "
_END = "# EOF\n"
_NONE = Distribution()
_ROOT = re.compile(r"(?:^|;)\s*[Rr]oot=1-([0-9a-fA-F]{8})-([0-9a-fA-F]{24})(?:;|$)")


def negotiated(accept: bytes | None) -> str:
    """Return the content type of the format that a client prefers: `TEXT`, `OPENMETRICS` or `PROTOBUF`.

    Args:
        accept: the value of its ``Accept`` header; None: it has none. A client that names none of them gets `TEXT`.
    """
    best, best_weight = TEXT, 0.0
    for entry in (accept or b"").decode("latin-1").lower().split(","):
        kind, *parameters = [part.strip() for part in entry.split(";")]
        given = dict(parameter.partition("=")[::2] for parameter in parameters)
        try:
            weight = float(given.get("q", 1))
        except ValueError:
            continue
        if kind == "application/openmetrics-text":
            found = OPENMETRICS
        elif kind == "application/vnd.google.protobuf" and given.get("encoding") == "delimited":
            found = PROTOBUF
        elif kind == "text/plain":
            found = TEXT
        else:
            continue
        if weight > best_weight:
            best, best_weight = found, weight
    return best


def trace_id_of(trace: str) -> str | None:
    """Return the trace id in an X-Ray trace header as 32 hexadecimal digits; None: the header has none."""
    found = _ROOT.search(trace)
    return found[1].lower() + found[2].lower() if found else None


async def exposition(metrics: Metrics, content_type: str = TEXT) -> bytes:
    """Return the metrics in one of the formats. Lets other tasks run between groups of functions."""
    named = dict.fromkeys([*metrics.functions, *metrics.events, *(function for _, function in metrics.sources)])
    names = list(named | dict.fromkeys(metrics.gauges))
    groups: list[list[Metric]] = [_of_process()]
    for start in range(0, max(len(names), 1), _AT_A_TIME):
        groups.append(list(_Selection(metrics, names[start : start + _AT_A_TIME]).collect()))
        await asyncio.sleep(0)
    if content_type == PROTOBUF:
        return await _as_protobuf(groups)
    return await _as_text(groups, generate_openmetrics if content_type == OPENMETRICS else generate_latest)


async def _as_text(groups: Sequence[list[Metric]], generate: protobuf.Generate) -> bytes:
    first, *others = groups
    families: list[list[str]] = []
    for group in others:
        texts = _text_of(group, generate).split(_FAMILY)[1:]
        if not families:
            families = [[] for _ in texts]
        for parts, text in zip(families, texts, strict=True):
            parts.append(text.split("\n", 2)[2] if parts else _FAMILY + text)
        await asyncio.sleep(0)
    text = _text_of(first, generate) + "".join(itertools.chain.from_iterable(families))
    return (text + _END if generate is generate_openmetrics else text).encode()


def _text_of(families: list[Metric], generate: protobuf.Generate) -> str:
    registry = CollectorRegistry()
    registry.register(_Given(families))
    return generate(registry).decode().removesuffix(_END)


async def _as_protobuf(groups: Sequence[list[Metric]]) -> bytes:
    heads: dict[str, bytes] = {}
    bodies: dict[str, list[bytes]] = {}
    for group in groups:
        for family in group:
            heads[family.name] = protobuf.head(family)
            bodies.setdefault(family.name, []).append(
                _durations(family) if isinstance(family, Durations) else protobuf.samples(family)
            )
        await asyncio.sleep(0)
    return b"".join(protobuf.delimited(b"".join([heads[name], *bodies[name]])) for name in heads)


class _Given(Collector):
    """Metrics, as a collector for the Prometheus client."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        return iter(self._families)


class Durations(HistogramMetricFamily):
    """A histogram of durations.

    Attributes:
        series: the labels and the durations of each series.
    """

    def __init__(self, name: str, text: str, labels: Sequence[str]) -> None:
        super().__init__(name, text, labels=labels)
        self.series: list[tuple[dict[str, str], Distribution]] = []

    def add(self, labels: dict[str, str], durations: Distribution) -> None:
        """Add a series. The classic buckets of a series without durations are left out."""
        self.series.append((labels, durations))
        bounds = durations.cumulative(LEAST_POWER, MOST_POWER, POWER_STEP) if durations.count else ()
        buckets: list[tuple[str, float] | tuple[str, float, Exemplar]] = []
        exemplars = _exemplars(durations)
        for exponent, count in bounds:
            if exponent in exemplars:
                buckets.append((str(2.0**exponent), count, exemplars[exponent]))
            else:
                buckets.append((str(2.0**exponent), count))
        buckets.append(("+Inf", durations.count))
        self.add_metric(list(labels.values()), buckets, durations.sum_ms / 1000)


def _exemplars(durations: Distribution) -> dict[int, Exemplar]:
    """Exemplars by the power of two that is the upper bound of their bucket."""
    found: dict[int, Exemplar] = {}
    for exponent, (trace, value_ms, at) in sorted(durations.exemplars.items()):
        trace_id = trace_id_of(trace)
        if trace_id is not None and exponent <= MOST_POWER:
            found[max(exponent, LEAST_POWER)] = Exemplar({"trace_id": trace_id}, value_ms / 1000, round(at, 3))
    return found


def _durations(family: Durations) -> bytes:
    return b"".join(
        protobuf.histogram(
            labels,
            durations,
            [*durations.cumulative(LEAST_POWER, MOST_POWER, POWER_STEP)] if durations.count else [],
            _exemplars(durations),
        )
        for labels, durations in family.series
    )


@cache
def _build() -> Metric:
    family = GaugeMetricFamily("thawd_build_info", BUILD_INFO, labels=["version", "python"])
    family.add_metric([version("thawd"), platform.python_version()], 1)
    return family


def _of_process() -> list[Metric]:
    return [_build(), *ProcessCollector(registry=None).collect()]


class _Selection:
    """The metrics of some functions."""

    def __init__(self, metrics: Metrics, names: Sequence[str]) -> None:
        wanted = set(names)
        self._functions = {name: metrics.functions[name] for name in names if name in metrics.functions}
        self._events = {name: metrics.events[name] for name in names if name in metrics.events}
        self._sources = {key: figures for key, figures in metrics.sources.items() if key[1] in wanted}
        self._gauges: dict[str, dict[tuple[str, str], float]] = {}
        for function in names:
            for (name, state), value in metrics.gauges.get(function, {}).items():
                self._gauges.setdefault(name, {})[function, state] = value

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics, always the same ones in the same order."""
        for name, text in COUNTERS.items():
            counter = CounterMetricFamily(f"thawd_{name}", text, labels=["function"])
            for function, metrics in self._functions.items():
                counter.add_metric([function], getattr(metrics, name))
            yield counter
        fallbacks = CounterMetricFamily("thawd_fallbacks", FALLBACKS, labels=["function", "reason"])
        for function, metrics in self._functions.items():
            for reason in Fallback:
                fallbacks.add_metric([function, reason.value], metrics.fallbacks.get(reason, 0))
        yield fallbacks
        deliveries = CounterMetricFamily("thawd_deliveries", DELIVERIES, labels=["function", "kind", "outcome"])
        for function, metrics in self._functions.items():
            for (kind, outcome), count in metrics.deliveries.items():
                deliveries.add_metric([function, kind, outcome.value], count)
        yield deliveries
        for name, text in DISTRIBUTIONS.items():
            family = Durations(f"thawd_{name}_seconds", text, ["function", "kind"])
            for function, metrics in self._functions.items():
                recorded: Mapping[StartKind, Distribution] = getattr(metrics, name)
                for kind in KINDS[name]:
                    family.add({"function": function, "kind": kind.value}, recorded.get(kind, _NONE))
            yield family
        for name, text in GAUGES.items():
            labels = ["function", "state"] if name == "environments" else ["function"]
            gauge = GaugeMetricFamily(f"thawd_{name}", text, labels=labels)
            for (function, state), value in self._gauges.get(name, {}).items():
                gauge.add_metric([function, state][: len(labels)], value)
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
