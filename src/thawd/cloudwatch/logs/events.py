"""Reads the events of a log group in the order of their times, whether functions printed them or clients put them.

What functions print is in files (`thawd.telemetry.logs.events`); the events of ``PutLogEvents`` are in the state file
(`thawd.stores.log_events`). A group can have both. All methods block; call them in a thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Self

from thawd.stores.log_events import FIRST, LAST, Key, LogReading, StoredEvent
from thawd.telemetry.logs.events import LogEvent, LogEvents, LogPosition

_NOWHERE = LogPosition(0, 0)


class Place(NamedTuple):
    """A place between two events of a group, from which a later request continues.

    Attributes:
        file: position in the files.
        stored: boundary in the state file.
    """

    file: LogPosition
    stored: Key


START = Place(_NOWHERE, FIRST)


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a group.

    Attributes:
        time_ms: its time, milliseconds since 1970.
        ingested_ms: when it arrived.
        stream: name of its log stream.
        message: its message, without the newline that ends the messages of functions.
        end: what the API appends to the message.
        id: a permanent identifier, 56 decimal digits.
        before: the place before it.
        after: the place after it.
    """

    time_ms: int
    ingested_ms: int
    stream: str
    message: bytes
    end: str
    id: str
    before: Place
    after: Place

    @property
    def text(self) -> str:
        """The message as the API shows it. As on AWS, the message of a Lambda function's event ends with a newline."""
        return self.message.decode(errors="replace") + self.end


@dataclass(frozen=True, slots=True)
class GroupSource:
    """Where the events of a group are.

    Attributes:
        name: name of the group.
        path: the newest file of what functions print into the group; it need not exist.
        stored: the group's id in the state file; None: nothing of it is stored there.
        since_ms: events from before this time are no longer retained, milliseconds since 1970.
        hidden: streams that were deleted: events of a stream up to this time, in milliseconds since 1970, are gone.
    """

    name: str
    path: Path
    stored: int | None = None
    since_ms: int = 0
    hidden: dict[str, int] = field(default_factory=dict)


class GroupEvents:
    """The events that a group contains when this object is made. As a context manager, it closes files at the end.

    Raises:
        OSError: the files cannot be read.
    """

    def __init__(self, source: GroupSource, reading: LogReading) -> None:
        self._source = source
        self._reading = reading
        self._stored_bytes = 0
        self.files = LogEvents(source.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.files.__exit__()

    @property
    def read_bytes(self) -> int:
        """Number of bytes read so far."""
        return self.files.read_bytes + self._stored_bytes

    def forward(self, place: Place | None = None, *, start_ms: int = 0, stream: str | None = None) -> Iterator[Event]:
        """Yield events from `place` on, or all events, oldest first.

        Args:
            place: where to begin; None: at the first event.
            start_ms: events from before this time may be left out, milliseconds since 1970.
            stream: the stream whose events are wanted; None: events of all streams.

        Raises:
            StoreError: the state file cannot be read.
        """
        start_ms = max(start_ms, self._source.since_ms)
        at, bound = (None, FIRST) if place is None else place
        printed = self._printed(self.files.forward(at, start_ms=start_ms), stream)
        stored = self._put(self._stored_forward(bound, start_ms, stream))
        position = at or _NOWHERE
        of_file, of_store = next(printed, None), next(stored, None)
        while of_file is not None or of_store is not None:
            if of_file is not None and (of_store is None or of_file.time_ms <= of_store.time_ms):
                yield _printed(of_file, Place(of_file.begin, bound), Place(of_file.end, bound))
                position = of_file.end
                of_file = next(printed, None)
            elif of_store is not None:
                here = position if of_file is None else of_file.begin
                key = Key(of_store.time_ms, of_store.id)
                yield _put(of_store, Place(here, bound), Place(here, key))
                bound = key
                of_store = next(stored, None)

    def backward(self, place: Place | None = None, *, stream: str | None = None) -> Iterator[Event]:
        """Yield events before `place`, or all events, newest first; see `forward`."""
        at, bound = (None, LAST) if place is None else place
        printed = self._printed(self.files.backward(at), stream)
        stored = self._put(self._stored_backward(bound, stream))
        position = at
        of_file, of_store = next(printed, None), next(stored, None)
        while of_file is not None or of_store is not None:
            if of_file is not None and (of_store is None or of_file.time_ms > of_store.time_ms):
                yield _printed(of_file, Place(of_file.begin, bound), Place(of_file.end, bound))
                position = of_file.begin
                of_file = next(printed, None)
            elif of_store is not None:
                here = position or (_NOWHERE if of_file is None else of_file.end)
                after = Key(of_store.time_ms, of_store.id)
                bound = Key(of_store.time_ms, of_store.id - 1)
                yield _put(of_store, Place(here, bound), Place(here, after))
                of_store = next(stored, None)

    def has_stream(self, stream: str) -> bool:
        """Whether the group has this stream."""
        source = self._source
        if source.stored is not None and self._reading.stream(source.stored, stream) is not None:
            return True
        return next(self._printed(self.files.forward(), stream), None) is not None

    def _printed(self, events: Iterator[LogEvent], stream: str | None) -> Iterator[LogEvent]:
        """The events of files that are retained, and not of a deleted stream."""
        since_ms, hidden = self._source.since_ms, self._source.hidden
        wanted = None if stream is None else stream.encode()
        for event in events:
            if event.time_ms < since_ms or (wanted is not None and event.stream != wanted):
                continue
            if hidden and event.time_ms <= hidden.get(event.stream.decode(errors="replace"), -1):
                continue
            yield event

    def _put(self, events: Iterator[StoredEvent]) -> Iterator[StoredEvent]:
        for event in events:
            self._stored_bytes += len(event.message)
            if event.time_ms >= self._source.since_ms:
                yield event

    def _stored_forward(self, after: Key, start_ms: int, stream: str | None) -> Iterator[StoredEvent]:
        group = self._source.stored
        if group is None:
            return iter(())
        if stream is None:
            return self._reading.forward(group, after, start_ms=start_ms)
        row = self._reading.stream(group, stream)
        return iter(()) if row is None else self._reading.forward(group, after, start_ms=start_ms, stream=row.id)

    def _stored_backward(self, until: Key, stream: str | None) -> Iterator[StoredEvent]:
        group = self._source.stored
        if group is None:
            return iter(())
        if stream is None:
            return self._reading.backward(group, until)
        row = self._reading.stream(group, stream)
        return iter(()) if row is None else self._reading.backward(group, until, stream=row.id)


class Arrival(NamedTuple):
    """How far the events of a group have been read in the order of their arrival.

    Attributes:
        file: position in the files; None: before the first line.
        stored: id of the last event in the state file; 0: none has been read.
    """

    file: LogPosition | None
    stored: int


def arrived_until_now(source: GroupSource, reading: LogReading) -> Arrival:
    """The place after everything that a group contains now."""
    with LogEvents(source.path) as files:
        last = next(files.backward(), None)
    return Arrival(None if last is None else last.end, 0 if source.stored is None else reading.last_id(source.stored))


def arrivals(source: GroupSource, reading: LogReading, after: Arrival) -> Iterator[tuple[Event, Arrival]]:
    """Yield the events that have arrived after a place, each with the place after it.

    Within the files and within the state file, the order is that of arrival.

    Raises:
        OSError: the files cannot be read.
        StoreError: the state file cannot be read.
    """
    place = after
    with LogEvents(source.path) as files:
        for printed in files.forward(after.file):
            place = Arrival(printed.end, place.stored)
            yield _printed(printed, START, START), place
    if source.stored is not None:
        for put in reading.arrived(source.stored, after.stored):
            place = Arrival(place.file, put.id)
            yield _put(put, START, START), place


def _printed(event: LogEvent, before: Place, after: Place) -> Event:
    stream = event.stream.decode(errors="replace")
    return Event(event.time_ms, event.time_ms, stream, event.message, "\n", event.id, before, after)


def _put(event: StoredEvent, before: Place, after: Place) -> Event:
    identifier = f"{event.time_ms:014d}{0:020d}{event.id:022d}"
    return Event(event.time_ms, event.ingested_ms, event.stream, event.message, "", identifier, before, after)
