"""Metrics in Prometheus' protobuf format, with native histograms. It needs only a few messages of ``metrics.proto``.

Source: Prometheus, client model, ``metrics.proto``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.samples import Exemplar

from thawd.telemetry.distribution import SCHEMA, ZERO, ZERO_S, Distribution
from thawd.telemetry.protobuf_fields import double, integer, message, text, varint

Generate = Callable[[CollectorRegistry], bytes]
"""Makes a text of the metrics of a registry."""

_COUNTER, _GAUGE, _HISTOGRAM = 0, 1, 4
_TYPES = {"counter": _COUNTER, "gauge": _GAUGE, "histogram": _HISTOGRAM}
# Fields of Metric with the value of a counter or a gauge.
_VALUES = {"counter": 3, "gauge": 2}


def head(family: Metric) -> bytes:
    """Return the first fields of a MetricFamily: name, help, type. `samples` or `histogram` make the others."""
    name = family.name + "_total" if family.type == "counter" else family.name
    return text(1, name) + text(2, family.documentation) + integer(3, _TYPES[family.type])


def samples(family: Metric) -> bytes:
    """Return the fields of a MetricFamily with the samples of a counter or a gauge."""
    field = _VALUES[family.type]
    return b"".join(
        message(4, _labels(sample.labels) + message(field, double(1, sample.value))) for sample in family.samples
    )


def histogram(
    labels: Mapping[str, str],
    durations: Distribution,
    bounds: Sequence[tuple[int, int]],
    exemplars: Mapping[int, Exemplar],
) -> bytes:
    """Return the field of a MetricFamily with one series of a histogram.

    Args:
        labels: the series' labels.
        durations: its durations, which become a native histogram.
        bounds: pairs of p and the number of durations up to ``2 ** p`` seconds, which become classic buckets.
        exemplars: exemplars by p.
    """
    fields = [integer(1, durations.count), double(2, durations.sum_ms / 1000)]
    for exponent, count in bounds:
        bucket = integer(1, count) + double(2, 2.0**exponent)
        if exponent in exemplars:
            bucket += message(3, _exemplar(exemplars[exponent]))
        fields.append(message(3, bucket))
    fields += [integer(5, _zigzag(SCHEMA)), double(6, ZERO_S), integer(7, durations.buckets.get(ZERO, 0))]
    spans, deltas = _spans(durations)
    fields += [message(12, integer(1, _zigzag(offset)) + integer(2, length)) for offset, length in spans]
    fields += [integer(13, _zigzag(delta)) for delta in deltas]
    if not spans:
        fields.append(message(12, b""))  # an empty span says that this histogram without durations is a native one
    return message(4, _labels(labels) + message(7, b"".join(fields)))


def delimited(content: bytes) -> bytes:
    """Return a message with its length before it."""
    return varint(len(content)) + content


def _spans(durations: Distribution) -> tuple[list[tuple[int, int]], list[int]]:
    """Return the buckets as spans, each with its distance from the one before, and each count minus the one before."""
    spans: list[tuple[int, int]] = []
    deltas: list[int] = []
    end, before = 0, 0
    for bucket, count in sorted(durations.buckets.items()):
        if bucket == ZERO:
            continue
        if spans and bucket == end:
            spans[-1] = spans[-1][0], spans[-1][1] + 1
        else:
            spans.append((bucket - end, 1))
        end = bucket + 1
        deltas.append(count - before)
        before = count
    return spans, deltas


def _exemplar(exemplar: Exemplar) -> bytes:
    fields = b"".join(message(1, text(1, name) + text(2, value)) for name, value in exemplar.labels.items())
    fields += double(2, exemplar.value)
    if isinstance(exemplar.timestamp, float):
        seconds = int(exemplar.timestamp)
        fields += message(3, integer(1, seconds) + integer(2, int((exemplar.timestamp - seconds) * 1e9)))
    return fields


def _labels(labels: Mapping[str, str]) -> bytes:
    return b"".join(message(1, text(1, name) + text(2, value)) for name, value in labels.items())


def _zigzag(value: int) -> int:
    return value << 1 if value >= 0 else (-value << 1) - 1
