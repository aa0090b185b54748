"""Metric filters: make metrics from the events of log groups as they arrive.

Source: CloudWatch Logs user guide, "Creating metrics from log events using filters".
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from thawd.cloudwatch.logs.records import MetricFilterRecord
from thawd.cloudwatch.metrics.recorder import Dimensions, sorted_dimensions
from thawd.grammar import log_filters
from thawd.telemetry.samples import MOST_VALUE, Samples

MOST_FILTERS = 100  # Source: CloudWatch Logs quotas, "Metric filters".
MOST_DIMENSIONS = 3
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_SELECTOR = re.compile(r"\$((?:\.[\w-]+|\[\d+\])+)")
_STEP = re.compile(r"\.([\w-]+)|\[(\d+)\]")
# A text of more characters is no number, so a long text is not searched.
_LONGEST_NUMBER = 40
_LONGEST_DIMENSION = 1024


class Made(NamedTuple):
    """Values of a metric that a filter has made."""

    namespace: str
    dimensions: Dimensions
    metric: tuple[str, str]
    samples: Samples


def is_value(text: str) -> bool:
    """Whether a text can be the value of a metric or of a dimension: a number, or a selector such as ``$.took``."""
    return _NUMBER.fullmatch(text) is not None or _SELECTOR.fullmatch(text) is not None


def made_by(filters: Sequence[MetricFilterRecord], messages: Sequence[bytes]) -> list[Made]:
    """What filters make of some messages. Blocks: the time depends on the length of the messages."""
    found: dict[tuple[str, Dimensions, tuple[str, str]], Samples] = {}
    for record in filters:
        wanted = log_filters.parse(record.pattern)
        for message in messages:
            text = message.decode(errors="replace")
            if not wanted(text):
                if record.default is not None:
                    _add(found, record, (), record.default)
                continue
            document = _document(text) if record.needs_document else None
            value = _value(record.value, document)
            dimensions = list(_dimensions(record, document))
            if value is not None and len(dimensions) == len(record.dimensions):
                _add(found, record, sorted_dimensions(dimensions), value)
    return [Made(*key, samples) for key, samples in found.items()]


def _add(
    found: dict[tuple[str, Dimensions, tuple[str, str]], Samples],
    record: MetricFilterRecord,
    dimensions: Dimensions,
    value: float,
) -> None:
    key = (record.namespace, dimensions, (record.metric, record.unit))
    found.setdefault(key, Samples()).add(value)


def _document(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _dimensions(record: MetricFilterRecord, document: Any) -> Iterator[tuple[str, str]]:
    for name, selector in record.dimensions.items():
        value = _at(document, selector)
        if value is not None and not isinstance(value, dict | list) and 0 < len(str(value)) <= _LONGEST_DIMENSION:
            yield name, str(value)


def _value(text: str, document: Any) -> float | None:
    value = text if _NUMBER.fullmatch(text) else _at(document, text)
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, str) and not (len(value) <= _LONGEST_NUMBER and _NUMBER.fullmatch(value)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if abs(number) <= MOST_VALUE else None


def _at(document: Any, selector: str) -> Any:
    for name, index in _STEP.findall(selector):
        if name:
            document = document.get(name) if isinstance(document, dict) else None
        else:
            document = document[int(index)] if isinstance(document, list) and int(index) < len(document) else None
    return document
