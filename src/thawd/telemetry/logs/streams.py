"""The log streams of a log: one for each execution environment and template that wrote to it."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from thawd.telemetry.logs.events import LogEvents


@dataclass(slots=True)
class StreamSummary:
    """What a log tells of one stream.

    Attributes:
        name: of the stream.
        first_ms: time of its first event that is kept, milliseconds since 1970.
        last_ms: time of its last one.
    """

    name: str
    first_ms: int
    last_ms: int


def streams_by_name(
    path: Path, *, limit: int, prefix: str = "", after: str | None = None, descending: bool = False
) -> list[StreamSummary]:
    """The first `limit` streams by name, behind `after`; holds no more than these in memory.

    Raises:
        OSError: the log cannot be read.
    """
    found: dict[str, StreamSummary] = {}
    outer: str | None = None  # the last of a full page: what lies beyond it is for another page
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
    """The first `limit` streams by the time of their last event, and by name; one small entry for each is held.

    Args:
        path: the log.
        limit: most streams.
        after: time and name of the stream behind which to begin; None: the first one.
        descending: the one written to last comes first.

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
