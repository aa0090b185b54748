"""Rows that a Logs Insights query works on: a log event with the fields found in its message, or a row of results.

Source: CloudWatch Logs user guide, "Supported logs and discovered fields".
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from thawd.grammar.insights.values import Time, Value, scientific, text

_LAMBDA = "/aws/lambda/"
_ID = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_TYPE = re.compile(rf"(START|END|REPORT|INIT_START|RESTORE_START|RESTORE_REPORT)\b(?: RequestId: ({_ID}))?")
_REQUEST_ID = re.compile(rf"(?:RequestId: |^[^\t]*\t|^\[[A-Z]+\]\t[^\t]*\t|^\S+ )({_ID})\b")
_REPORTED = re.compile(
    r"(Billed Duration|Duration|Memory Size|Max Memory Used|Init Duration): (\d{1,12}(?:\.\d{1,12})?) (ms|MB)"
)
_FIELDS = {
    "Duration": "@duration",
    "Billed Duration": "@billedDuration",
    "Memory Size": "@memorySize",
    "Max Memory Used": "@maxMemoryUsed",
    "Init Duration": "@initDuration",
}
_BYTES_IN_MB = 1_000_000
# A message of more than this many characters is not searched for JSON that begins in the middle.
_SEARCHED = 1 << 20
_MOST_FIELDS = 1000  # Source: user guide: at most a thousand fields of a JSON event are extracted.
_MISSING = object()
_decode = json.JSONDecoder().raw_decode


@dataclass(frozen=True, slots=True)
class Record:
    """A log event as a query sees it.

    Attributes:
        time_ms: its time, milliseconds since 1970.
        ingested_ms: when it arrived.
        message: its message.
        stream: name of its log stream.
        group: name of its log group.
        account: account of the group.
        pointer: returns what identifies the event, the value of ``@ptr``.
    """

    time_ms: int
    ingested_ms: int
    message: str
    stream: str
    group: str
    account: str
    pointer: Callable[[], str]


_OF_EVENT: dict[str, Callable[[Record], Value]] = {
    "@message": lambda record: record.message,
    "@timestamp": lambda record: Time(record.time_ms),
    "@ingestionTime": lambda record: Time(record.ingested_ms),
    "@logStream": lambda record: record.stream,
    "@log": lambda record: f"{record.account}:{record.group}",
    "@ptr": lambda record: record.pointer(),
}


class Row:
    """The fields of one row. Those of a log event are looked for when they are asked for.

    Attributes:
        made: fields that the query made, by name.
        record: the log event; None for a row of ``stats``.
    """

    __slots__ = ("_document", "_platform", "made", "record")

    def __init__(self, record: Record | None, made: dict[str, Value] | None = None) -> None:
        self.record = record
        self.made: dict[str, Value] = {} if made is None else made
        self._document: Value = _MISSING
        self._platform: dict[str, Value] | None = None

    def get(self, name: str) -> Value:
        """The value of a field; None: the row has no such field."""
        if name in self.made:
            return self.made[name]
        record = self.record
        if record is None:
            return None
        if not name.startswith("@"):
            return self._in_json(name)
        if name in _OF_EVENT:
            return _OF_EVENT[name](record)
        if self._platform is None:
            self._platform = _platform_fields(record)
        return self._platform.get(name)

    def everything(self) -> dict[str, str]:
        """All fields of a log event as results show them, at most `_MOST_FIELDS` of them from its JSON."""
        assert self.record is not None
        found = {name: value for name in _OF_EVENT if (value := self.get(name)) is not None}
        found |= _platform_fields(self.record)
        for name in itertools.islice(_paths(_document(self.record.message), ""), _MOST_FIELDS):
            found[name] = self._in_json(name)
        return {name: text(value) for name, value in found.items() if value is not None}

    def _in_json(self, name: str) -> Value:
        if self._document is _MISSING:
            assert self.record is not None
            self._document = _document(self.record.message)
        found = _at(self._document, name)
        if isinstance(found, bool):
            return int(found)
        return json.dumps(found, separators=(",", ":")) if isinstance(found, (dict, list)) else found


def _document(message: str) -> Value:
    """The JSON object in a message, or the first one that begins in the middle of it; None: there is none."""
    begin = message.find("{", 0, _SEARCHED)
    if begin < 0:
        return None
    try:
        return _decode(message, begin)[0]
    except (ValueError, RecursionError):
        return None


def _paths(document: Value, path: str) -> Iterator[str]:
    """The paths of all values in a JSON document that are neither objects nor lists."""
    if isinstance(document, dict):
        pairs: Iterable[tuple[Any, Value]] = document.items()
    elif isinstance(document, list):
        pairs = enumerate(document)
    else:
        if path:
            yield path
        return
    for name, value in pairs:
        yield from _paths(value, f"{path}.{name}" if path else str(name))


def _at(document: Value, name: str) -> Value:
    """The value at a path such as ``user.roles.0``. The name of a field can itself contain dots."""
    if isinstance(document, dict):
        if name in document:
            return document[name]
        for at, character in enumerate(name):
            if character == "." and name[:at] in document:
                found = _at(document[name[:at]], name[at + 1 :])
                if found is not None:
                    return found
    elif isinstance(document, list):
        index, _, rest = name.partition(".")
        if index.isdecimal() and len(index) < 6 and int(index) < len(document):
            return _at(document[int(index)], rest) if rest else document[int(index)]
    return None


def _platform_fields(record: Record) -> dict[str, Value]:
    """The fields that Lambda's lines have."""
    if not record.group.startswith(_LAMBDA):
        return {}
    found: dict[str, Value] = {}
    match = _TYPE.match(record.message)
    if match is not None:
        found["@type"] = match[1]
        if match[2]:
            found["@requestId"] = match[2]
        if match[1] == "REPORT":
            for name, value, unit in _REPORTED.findall(record.message):
                amount = float(value)
                found[_FIELDS[name]] = scientific(amount if unit == "ms" else amount * _BYTES_IN_MB)
    elif identified := _REQUEST_ID.search(record.message[:300]):
        found["@requestId"] = identified[1]
    return found
