"""Finds out to which invocation a segment belongs, and makes spans of it and of its subsegments.

X-Ray's SDK sends a subsegment as soon as it ends, which is before its parent's end. So a segment whose parent is not
known yet waits for it. The chain of parents must lead to a handler's span of a traced invocation: nothing else enters a
trace. One thread uses this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from thawd.recording.open_traces import FunctionInTrace, OpenTraces
from thawd.recording.record_making import KEPT_BYTES
from thawd.recording.redaction import Redactor
from thawd.recording.segments import Segment, decoded, is_valid, span_of
from thawd.recording.spans import Span

# Accepted segments, below which further ones may be added.
_MOST_PARENTS = 16_384
# Segments that wait for their parents.
_MOST_WAITING = 2048
_MOST_WAITING_BYTES = 4 << 20


class Source(NamedTuple):
    """Where a chain of parents leads.

    Attributes:
        owner: the function and the trace.
        handler_id: the handler's span at the end of the chain. X-Ray's SDK takes that of the first invocation of the
            trace in its environment, also in further ones.
    """

    owner: FunctionInTrace
    handler_id: str


class _Place(NamedTuple):
    """A segment, and its parent."""

    segment: Segment
    parent_id: str


class SegmentJoiner:
    """Makes spans of datagrams.

    Args:
        open_traces: the traced invocations.
        redactor: replaces secret values.
        accept: takes a span, with where it comes from; returns whether there was room for it.
    """

    def __init__(self, open_traces: OpenTraces, redactor: Redactor, accept: Callable[[Span, Source], bool]) -> None:
        self._open = open_traces
        self._redactor = redactor
        self._accept = accept
        self._parents: dict[str, Source] = {}
        self._waiting: dict[str, list[bytes]] = {}
        self._waiting_count = 0
        self._waiting_bytes = 0

    def take(self, datagram: bytes, now: float) -> None:
        """Make spans of a datagram, and of the segments that have waited for it.

        Args:
            datagram: what a function has sent; anything.
            now: the current time, seconds since 1970.
        """
        datagrams = [datagram]
        while datagrams:
            datagram = datagrams.pop()
            segment = decoded(datagram)
            if segment is None:
                continue
            source = self.source_of(segment.parent_id)
            if source is None:
                self._wait(segment.parent_id, datagram)
            elif source.owner.trace_id == segment.trace_id:
                for accepted in self._add(segment, source, now):
                    datagrams += self._no_longer_waiting(accepted)

    def source_of(self, span_id: str) -> Source | None:
        """Return where the chain of parents of a span leads; None: it is not known. Any thread may call this."""
        owner = self._open.of_handler(span_id)
        return self._parents.get(span_id) if owner is None else Source(owner, span_id)

    def _add(self, segment: Segment, source: Source, now: float) -> Iterator[str]:
        """Make the spans of a segment and its subsegments; yields the id of each segment that was accepted."""
        owner = source.owner
        self._read_events(owner)
        left = [_Place(segment, segment.parent_id)]
        while left:
            place = left.pop()
            identifier = place.segment.id
            is_known = identifier in self._parents or self._open.of_handler(identifier) is not None
            if is_known or owner.spans_left <= 0 or not is_valid(place.segment, began_at=owner.began_at, now=now):
                continue
            ids = (owner.trace_id, place.parent_id)
            span = span_of(place.segment, owner.function, ids, redactor=self._redactor, values=owner.values)
            owner.spans_left -= 1
            if not self._accept(span, source):
                continue
            self._parents[identifier] = source
            if len(self._parents) > _MOST_PARENTS:
                del self._parents[next(iter(self._parents))]
            yield identifier
            left += [_Place(each, identifier) for each in reversed(place.segment.subsegments)]

    def _read_events(self, owner: FunctionInTrace) -> None:
        """Find out which values are to be redacted, because rules name them in the function's events."""
        redactor = self._redactor
        while (event := owner.take_event()) is not None:
            owner.values |= redactor.body(event)[1] if len(event) <= KEPT_BYTES else redactor.values(event)

    def _wait(self, parent_id: str, datagram: bytes) -> None:
        self._waiting.setdefault(parent_id, []).append(datagram)
        self._waiting_count += 1
        self._waiting_bytes += len(datagram)
        while self._waiting_count > _MOST_WAITING or self._waiting_bytes > _MOST_WAITING_BYTES:
            self._no_longer_waiting(next(iter(self._waiting)))

    def _no_longer_waiting(self, parent_id: str) -> list[bytes]:
        found = self._waiting.pop(parent_id, [])
        self._waiting_count -= len(found)
        self._waiting_bytes -= sum(map(len, found))
        return found
