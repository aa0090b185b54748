"""Subscription filters: deliver the events of log groups, as they arrive, to functions and Kinesis streams.

One task for each filter reads the group's events in the order of their arrival, in a thread, and delivers those that
match. After each delivery it stores how far it has read. So what arrives while the server ends, or while a destination
does not accept it, is delivered later, and each event is delivered at least once.

Source: CloudWatch Logs user guide, "Real-time processing of log data with subscriptions".
"""

from __future__ import annotations

import asyncio
import base64
import gzip
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import msgspec

from thawd.cloudwatch.logs.errors import LogsNotFoundException
from thawd.cloudwatch.logs.events import Arrival, Event, GroupSource, arrivals, arrived_until_now
from thawd.cloudwatch.logs.groups import LogGroups
from thawd.cloudwatch.logs.records import SubscriptionRecord
from thawd.errors import ResourceNotFoundException, ThawdError
from thawd.grammar import log_filters
from thawd.invocation import MAX_ASYNC_PAYLOAD_BYTES
from thawd.resources import ACCOUNT_ID
from thawd.stores.log_events import LogReading
from thawd.system.retry import SayOnce
from thawd.telemetry.console import complain
from thawd.telemetry.logs.events import LogPosition

# Events that arrive within this time of each other are delivered together.
_GATHER_S = 0.2
# One step of a task reads at most this much.
_STEP_BYTES = 1 << 20
_STEP_EVENTS = 10_000
_AGAIN_FIRST_S = 0.5
_AGAIN_LONGEST_S = 60.0
# A payload with a larger document is divided. Base64 twice, for events that cannot be compressed.
_MAX_DOCUMENT_BYTES = MAX_ASYNC_PAYLOAD_BYTES // 2

Deliver = Callable[[str, bytes, str], Awaitable[None]]
"""Delivers a compressed document: to the destination with this ARN, and with a key that is the stream's name.

Raises `ResourceNotFoundException` if the destination does not exist, and another `ThawdError` if it does not accept the
document now."""


class _Position(msgspec.Struct, frozen=True, array_like=True):
    file: int | None
    offset: int
    stored: int


@dataclass(slots=True)
class _Step:
    """What one step has read: the place after it, and documents to deliver, each with the name of its stream."""

    place: Arrival
    documents: list[tuple[str, bytes]] = field(default_factory=list)
    is_last: bool = True


class Subscriptions:
    """Delivers the events of all groups with subscription filters.

    Args:
        groups: all log groups.
        deliver: see `Deliver`.
    """

    def __init__(self, groups: LogGroups, deliver: Deliver) -> None:
        self._groups = groups
        self._deliver = deliver
        self._awake: dict[str, asyncio.Event] = {}
        self._tasks: dict[tuple[str, str], tuple[SubscriptionRecord, asyncio.Task[None]]] = {}
        self._group: asyncio.TaskGroup | None = None
        self._reports = SayOnce(complain, most_topics=100)

    async def run(self) -> None:
        """Deliver until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._group = tasks
            for name, record in self._groups.recorded():
                if record.subscriptions:
                    self.changed(name)
            await asyncio.Event().wait()

    def wake(self, name: str) -> None:
        """Events have arrived in the group `name`."""
        awake = self._awake.get(name)
        if awake is not None:
            awake.set()

    def changed(self, name: str) -> None:
        """The subscription filters of the group `name` have changed, or the group was deleted."""
        if self._group is None:
            return
        try:
            wanted = {record.name: record for record in self._groups.record(name).subscriptions}
        except LogsNotFoundException:
            wanted = {}
        for (group, filter_name), (record, task) in list(self._tasks.items()):
            if group == name and (wanted.get(filter_name) != record or task.done()):
                task.cancel()
                del self._tasks[group, filter_name]
        if wanted:
            self._awake.setdefault(name, asyncio.Event())
        else:
            self._awake.pop(name, None)
        for filter_name, record in wanted.items():
            if (name, filter_name) not in self._tasks:
                task = self._group.create_task(self._follow(name, record))
                self._tasks[name, filter_name] = record, task

    async def begin(self, name: str, filter_name: str) -> None:
        """Store that a new filter delivers what arrives from now on.

        Raises:
            LogsNotFoundException: there is no such group (400).
            StoreError: the place could not be stored.
            OSError: the group's files cannot be read.
        """
        self._groups.flush()
        source = self._groups.source(name)
        place = await asyncio.to_thread(arrived_until_now, source, self._groups.store.reading)
        await self._save(source, filter_name, place)

    async def end(self, name: str, filter_name: str) -> None:
        """Forget how far a filter that was deleted has delivered.

        Raises:
            LogsNotFoundException: there is no such group (400).
            StoreError: the change could not be stored.
        """
        source = self._groups.source(name)
        if source.stored is not None:
            await self._groups.store.save_position(source.stored, filter_name, None)

    async def _save(self, source: GroupSource, filter_name: str, place: Arrival) -> None:
        if source.stored is not None:
            file, offset = (None, 0) if place.file is None else place.file
            encoded = msgspec.json.encode(_Position(file, offset, place.stored))
            await self._groups.store.save_position(source.stored, filter_name, encoded)

    async def _follow(self, name: str, record: SubscriptionRecord) -> None:
        """Deliver the events of a group for one filter until cancelled, or until the group is deleted."""
        awake = self._awake[name]
        wait_s = _AGAIN_FIRST_S
        topic = (name, record.name)
        while True:
            try:
                await self._catch_up(name, record, awake)
            except LogsNotFoundException:
                return
            except (ThawdError, OSError) as error:
                line = f"thawd: the subscription filter {record.name} of {name} waits: {error}"
                self._reports.say(line, topic=topic, cause=str(error))
                await asyncio.sleep(wait_s)
                wait_s = min(_AGAIN_LONGEST_S, 2 * wait_s)
            except Exception as error:  # a bug in thawd must end neither the task nor the server
                self._reports.say(
                    f"thawd: the subscription filter {record.name} of {name} failed inside thawd: {error!r}",
                    topic=topic,
                )
                await asyncio.sleep(_AGAIN_LONGEST_S)
            else:
                self._reports.resolved(topic=topic)
                wait_s = _AGAIN_FIRST_S

    async def _catch_up(self, name: str, record: SubscriptionRecord, awake: asyncio.Event) -> None:
        """Deliver what has arrived, then wait for the next events."""
        source = self._groups.source(name)
        reading = self._groups.store.reading
        place = await self._place(source, record.name)
        if place is None:
            await self.begin(name, record.name)
            return
        while True:
            awake.clear()
            step = await asyncio.to_thread(_read_step, source, reading, record, place)
            for stream, document in step.documents:
                try:
                    await self._deliver(record.destination, document, stream)
                except ResourceNotFoundException as error:
                    line = f"thawd: the subscription filter {record.name} of {name} drops events: {error.message}"
                    self._reports.say(line, topic=(name, record.name, "gone"), cause=error.message)
            if step.place != place:
                place = step.place
                await self._save(source, record.name, place)
            if step.is_last:
                await awake.wait()
                await asyncio.sleep(_GATHER_S)
                source = self._groups.source(name)

    async def _place(self, source: GroupSource, filter_name: str) -> Arrival | None:
        if source.stored is None:
            return None
        stored = (await self._groups.store.positions()).get((source.stored, filter_name))
        if stored is None:
            return None
        position = msgspec.json.decode(stored, type=_Position)
        file = None if position.file is None else LogPosition(position.file, position.offset)
        return Arrival(file, position.stored)


def _read_step(source: GroupSource, reading: LogReading, record: SubscriptionRecord, place: Arrival) -> _Step:
    """Read some of the events after a place, and make documents of those that match. Blocks."""
    wanted = log_filters.parse(record.pattern)
    by_stream: dict[str, list[Event]] = {}
    step = _Step(place)
    size = 0
    for count, (event, after) in enumerate(arrivals(source, reading, place), 1):
        step.place = after
        if wanted(event.message.decode(errors="replace")):
            by_stream.setdefault(event.stream, []).append(event)
        size += len(event.message)
        if size >= _STEP_BYTES or count >= _STEP_EVENTS:
            step.is_last = False
            break
    for stream, events in by_stream.items():
        step.documents += [(stream, document) for document in _documents(source.name, stream, record.name, events)]
    return step


def _documents(group: str, stream: str, filter_name: str, events: list[Event]) -> list[bytes]:
    """The compressed documents with these events; each is small enough for an asynchronous invocation."""
    document = gzip.compress(
        msgspec.json.encode(
            {
                "messageType": "DATA_MESSAGE",
                "owner": ACCOUNT_ID,
                "logGroup": group,
                "logStream": stream,
                "subscriptionFilters": [filter_name],
                "logEvents": [{"id": event.id, "timestamp": event.time_ms, "message": event.text} for event in events],
            }
        ),
        compresslevel=6,
    )
    if len(document) <= _MAX_DOCUMENT_BYTES or len(events) == 1:
        return [document]
    half = len(events) // 2
    return [
        *_documents(group, stream, filter_name, events[:half]),
        *_documents(group, stream, filter_name, events[half:]),
    ]


def payload(document: bytes) -> bytes:
    """The event of a function for a compressed document."""
    return b'{"awslogs":{"data":"%s"}}' % base64.b64encode(document)
