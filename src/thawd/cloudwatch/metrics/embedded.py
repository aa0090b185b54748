"""Metrics in log lines: CloudWatch's embedded metric format, which Powertools Metrics writes.

Source: CloudWatch user guide, "Specification: Embedded metric format".
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from thawd.cloudwatch.metrics.recorder import Dimensions, sorted_dimensions
from thawd.telemetry.samples import MOST_VALUE, Samples

MARK = b'"_aws"'
_MOST_DIMENSIONS = 30
_MOST_METRICS = 100
_MOST_SETS = 30
# A line that describes more values of metrics than this has no more than these.
_MOST_IN_LINE = 1000
_MOST_VALUES = 100
_MOST_NAME = 255
_MOST_VALUE = 1024


class Embedded(NamedTuple):
    """Values of a metric in a log line; `at_s` is None if the line has no time."""

    namespace: str
    dimensions: Dimensions
    metric: tuple[str, str]
    samples: Samples
    at_s: float | None


def embedded(message: bytes) -> Iterator[Embedded]:
    """Yield the metrics in a message. What does not follow the format is left out."""
    yield from itertools.islice(_embedded(message), _MOST_IN_LINE)


def _embedded(message: bytes) -> Iterator[Embedded]:
    try:
        document = msgspec.json.decode(message)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return
    metadata = document.get("_aws") if isinstance(document, dict) else None
    if not isinstance(metadata, dict) or not isinstance(metadata.get("CloudWatchMetrics"), list):
        return
    time_ms = _finite(metadata.get("Timestamp"))
    at_s = None if time_ms is None else time_ms / 1000
    values: dict[str, Samples | None] = {}
    for directive in metadata["CloudWatchMetrics"]:
        if isinstance(directive, dict):
            yield from _of_directive(document, directive, values, at_s)


def _of_directive(
    document: dict[str, Any], directive: dict[str, Any], values: dict[str, Samples | None], at_s: float | None
) -> Iterator[Embedded]:
    """Yield the metrics of one directive; `values` keeps what was found in the document, by the metric's name."""
    namespace, metrics = directive.get("Namespace"), directive.get("Metrics")
    sets = directive.get("Dimensions") or [[]]
    if not isinstance(namespace, str) or not 0 < len(namespace) <= _MOST_NAME:
        return
    if not isinstance(metrics, list) or not isinstance(sets, list):
        return
    found = (_dimensions(document, names) for names in sets[:_MOST_SETS])
    known = list(dict.fromkeys(dimensions for dimensions in found if dimensions is not None))
    for metric in metrics[:_MOST_METRICS]:
        name = metric.get("Name") if isinstance(metric, dict) else None
        if not isinstance(name, str) or not 0 < len(name) <= _MOST_NAME:
            continue
        unit = metric.get("Unit", "None")
        if name not in values:
            values[name] = _samples(document.get(name))
        samples = values[name]
        if samples is None:
            continue
        for dimensions in known:
            own = Samples()  # the receiver may add other values to it
            own.merge(samples)
            yield Embedded(namespace, dimensions, (name, str(unit)), own, at_s)


def _dimensions(document: dict[str, Any], names: Any) -> Dimensions | None:
    if not isinstance(names, list) or len(names) > _MOST_DIMENSIONS:
        return None
    pairs: list[tuple[str, str]] = []
    for name in names:
        value = document.get(name) if isinstance(name, str) and len(name) <= _MOST_NAME else None
        if not isinstance(value, str | int | float) or not 0 < len(str(value)) <= _MOST_VALUE:
            return None
        pairs.append((name, str(value)))
    return sorted_dimensions(pairs)


def _samples(value: Any) -> Samples | None:
    values = value if isinstance(value, list) else [value]
    samples = Samples()
    for each in values[:_MOST_VALUES]:
        number = _finite(each)
        if number is not None:
            samples.add(number)
    return samples if samples.count else None


def _finite(value: Any) -> float | None:
    """A number of JSON as a float; None: it is no number, or larger than a metric's value may be."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if abs(number) <= MOST_VALUE else None
