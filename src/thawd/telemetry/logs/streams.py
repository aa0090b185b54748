"""The log streams of a log: one for each execution environment and template that wrote to it."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from thawd.telemetry.logs.events import LogEvents


@dataclass(slots=True)
class StreamSummary:
    """First and last event of one log stream.

    Attributes:
        name: name of the stream.
        first_ms: time of the first event that is kept, milliseconds since 1970.
        last_ms: time of the last event, milliseconds since 1970.
    """

    name: str
    first_ms: int
    last_ms: int


def streams_by_name(
    path: Path, *, limit: int, prefix: str = "", after: str | None = None, descending: bool = False
) -> list[StreamSummary]:
    """Return the first `limit` streams after the name `after`, by name. Only these streams are kept in memory.

    Raises:
        OSError: the log cannot be read.
    """
    found: dict[str, StreamSummary] = {}
    outer: str | None = None  # the last stream of a full page; streams after it belong to another page
    for name, time_ms in _names(path):
        known = found.get(name)
        if known is not None:
            known.last_ms = time_ms
            continue
        if not name.startswith(prefix) or (after is not None and (name >= after if descending else name <= after)):
            continue
        if outer is not None and (name < outer if descending else name > outer):
            continue
        found[name] = StreamSummary(name, time_ms, time_ms)
        if len(found) > limit:
            del found[min(found) if descending else max(found)]
        if len(found) == limit:
            outer = min(found) if descending else max(found)
    return sorted(found.values(), key=lambda stream: stream.name, reverse=descending)


def streams_by_time(
    path: Path, *, limit: int, after: tuple[int, str] | None = None, descending: bool = False
) -> list[StreamSummary]:
    """Return the first `limit` streams by time of their last event, then by name.

    A small entry for each stream is kept in memory.

    Args:
        path: the log.
        limit: largest number of streams.
        after: time and name of the stream after which the page begins; None: the page begins with the first stream.
        descending: whether the stream with the newest event comes first.

    Raises:
        OSError: the log cannot be read.
    """
    found: dict[str, StreamSummary] = {}
    for name, time_ms in _names(path):
        known = found.get(name)
        if known is None:
            found[name] = StreamSummary(name, time_ms, time_ms)
        else:
            known.last_ms = time_ms
    wanted = (
        stream
        for stream in found.values()
        if after is None or ((_order(stream) < after) if descending else (_order(stream) > after))
    )
    return (heapq.nlargest if descending else heapq.nsmallest)(limit, wanted, key=_order)


def _order(stream: StreamSummary) -> tuple[int, str]:
    return stream.last_ms, stream.name


def _names(path: Path) -> Iterator[tuple[str, int]]:
    with LogEvents(path) as events:
        for event in events.forward():
            yield event.stream.decode(errors="replace"), event.time_ms
