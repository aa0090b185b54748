"""All log groups: those that functions write to, which are files, and those that were created through the Logs API.

A group exists if it has a file or a record in the state file; it may have both. The records are held in memory and
written through. Only `LogGroups` changes them, one change at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from thawd.cloudwatch.logs.errors import (
    DeletionProtectedException,
    InvalidParameterException,
    LimitExceededException,
    ResourceAlreadyExistsException,
    TooManyTagsException,
    no_group,
    no_stream,
)
from thawd.cloudwatch.logs.events import GroupEvents, GroupSource
from thawd.cloudwatch.logs.records import GroupRecord, MetricFilterRecord
from thawd.errors import StoreError
from thawd.stores.log_events import LogStore
from thawd.system.retry import SayOnce
from thawd.telemetry.console import complain
from thawd.telemetry.logs.groups import group_names, path_of_group
from thawd.telemetry.logs.writer import KEPT_FILES, rotated

# The line that begins an invocation, as text and as JSON.
_STARTED = re.compile(rb'\tSTART RequestId: |"type":\s*"platform\.start"')
# A log that is longer counts as that of invocations.
_LONGEST_INIT_BYTES = 4 << 20

RETENTION_DAYS = (
    1,
    3,
    5,
    7,
    14,
    30,
    60,
    90,
    120,
    150,
    180,
    365,
    400,
    545,
    731,
    1096,
    1827,
    2192,
    2557,
    2922,
    3288,
    3653,
)
"""Source: PutRetentionPolicy."""
_MAX_TAGS = 50
_DAY_MS = 24 * 60 * 60 * 1000
# How far before now, and after now, the time of an event may be. Source: PutLogEvents.
_OLDEST_MS = 14 * _DAY_MS
_NEWEST_MS = 2 * 60 * 60 * 1000
# At most this many deleted streams of one group are remembered while the files still contain their events.
_MOST_HIDDEN = 1000
_SWEEP_S = 600.0


@dataclass(slots=True)
class Rejected:
    """Which events of a batch were not stored, as indexes in the batch; None: none for this reason.

    Attributes:
        too_new_from: the first event that is too new.
        too_old_until: one after the last event that is too old.
        expired_until: one after the last event that is no longer retained.
    """

    too_new_from: int | None = None
    too_old_until: int | None = None
    expired_until: int | None = None


@dataclass(slots=True)
class _Group:
    id: int
    record: GroupRecord


class LogGroups:
    """All log groups.

    Args:
        store: stores records, streams and events.
        folder: the folder with the files that functions write.
        max_bytes: size at which a file is rotated; the stored events of a group are limited to four times as much, as
            its files are.
        flush: writes buffered lines to the files.

    Attributes:
        store: see above.
        folder: see above.
        on_change: called with the name of a group whose subscription filters have changed, or which was deleted.
        on_events: called with the name of a group into which a client has put events, and with their messages.
    """

    def __init__(self, store: LogStore, folder: Path, *, max_bytes: int, flush: Callable[[], None]) -> None:
        self.store = store
        self.folder = folder
        self.flush = flush
        self.on_change: Callable[[str], None] = lambda name: None
        self.on_events: Callable[[str, Sequence[bytes]], None] = lambda name, messages: None
        self._max_bytes = max_bytes * (KEPT_FILES + 1)
        self._known: dict[str, _Group] = {}
        self._changing = asyncio.Lock()

    async def open(self) -> None:
        """Read the records.

        Raises:
            StoreError: they cannot be read.
        """
        for row in await self.store.groups():
            self._known[row.name] = _Group(row.id, msgspec.json.decode(row.document, type=GroupRecord))

    def names(self) -> list[str]:
        """The names of all groups, sorted. Blocks.

        Raises:
            OSError: the folder cannot be read.
        """
        return sorted({*group_names(self.folder), *self._known})

    def recorded(self) -> list[tuple[str, GroupRecord]]:
        """The groups that have a record, with their records."""
        return [(name, group.record) for name, group in self._known.items()]

    def metric_filters(self, name: str) -> Sequence[MetricFilterRecord]:
        """The metric filters of a group; none if there is no such group."""
        known = self._known.get(name)
        return () if known is None else known.record.metric_filters

    def record(self, name: str) -> GroupRecord:
        """The record of an existing group; an empty one if nothing is stored.

        Raises:
            LogsNotFoundException: there is no such group (400).
        """
        known = self._known.get(name)
        if known is not None:
            return known.record
        if not self._has_file(name):
            raise no_group()
        return GroupRecord()

    def source(self, name: str) -> GroupSource:
        """Where the events of a group are.

        Raises:
            LogsNotFoundException: there is no such group (400).
        """
        record = self.record(name)
        known = self._known.get(name)
        since_ms = 0 if record.retention_days is None else now_ms() - record.retention_days * _DAY_MS
        path = path_of_group(self.folder, name)
        return GroupSource(name, path, None if known is None else known.id, since_ms, dict(record.hidden))

    def _has_file(self, name: str) -> bool:
        path = path_of_group(self.folder, name)
        return any(file.exists() for file in _files(path))

    def _has_invocation(self, name: str) -> bool:
        """Whether a function has logged more than its init phase. Blocks."""
        files = [file for file in _files(path_of_group(self.folder, name)) if file.exists()]
        return any(file.stat().st_size > _LONGEST_INIT_BYTES or _STARTED.search(file.read_bytes()) for file in files)

    async def create(self, name: str, record: GroupRecord) -> None:
        """Create a group. That of a function exists on AWS from the first invocation on: init alone does not make it.

        Raises:
            ResourceAlreadyExistsException: there is such a group (400).
            InvalidParameterException: the name is reserved (400).
            StoreError: the group could not be stored.
        """
        if name.lower().startswith("aws/"):
            raise InvalidParameterException("Log groups starting with AWS/ are reserved for AWS.")
        async with self._changing:
            if name in self._known or await asyncio.to_thread(self._has_invocation, name):
                raise ResourceAlreadyExistsException("The specified log group already exists")
            await self._put(name, record)

    async def change(self, name: str, changed: Callable[[GroupRecord], GroupRecord]) -> None:
        """Replace a group's record.

        Args:
            name: name of the group.
            changed: returns the new record for the present one, or raises the error of the operation.

        Raises:
            LogsNotFoundException: there is no such group (400).
            StoreError: the change could not be stored.
        """
        async with self._changing:
            await self._put(name, changed(self.record(name)))

    async def set_fields(self, name: str, **fields: Any) -> None:
        """Set fields of a group's record; see `change`."""
        await self.change(name, lambda record: msgspec.structs.replace(record, **fields))

    async def _put(self, name: str, record: GroupRecord) -> int:
        identifier = await self.store.put_group(name, msgspec.json.encode(record))
        self._known[name] = _Group(identifier, record)
        return identifier

    async def delete(self, name: str) -> None:
        """Remove a group with everything in it. If a function writes to it again, it exists again, as on AWS.

        Raises:
            LogsNotFoundException: there is no such group (400).
            DeletionProtectedException: the group is protected (400).
            StoreError: the group could not be removed.
            OSError: a file could not be removed.
        """
        async with self._changing:
            if self.record(name).is_protected:
                raise DeletionProtectedException(
                    "Cannot delete log group because deletion protection is enabled. Disable deletion protection "
                    "and try again."
                )
            known = self._known.get(name)
            if known is not None:
                await self.store.delete_group(known.id)
                del self._known[name]
            self.flush()
            # Without a break between the flush and the removal, so that no line is written in between.
            for file in _files(path_of_group(self.folder, name)):
                file.unlink(missing_ok=True)
        self.on_change(name)

    async def create_stream(self, name: str, stream: str) -> None:
        """Create a log stream.

        Raises:
            LogsNotFoundException: there is no such group (400).
            ResourceAlreadyExistsException: the group has such a stream (400).
            StoreError: the stream could not be stored.
        """
        source = self.source(name)
        printed = await asyncio.to_thread(self._is_printed, source, stream)
        async with self._changing:
            record = self.record(name)
            known = self._known.get(name)
            identifier = await self._put(name, record) if known is None else known.id
            if printed or not await self.store.create_stream(identifier, stream, now_ms=now_ms()):
                raise ResourceAlreadyExistsException("The specified log stream already exists")

    def _is_printed(self, source: GroupSource, stream: str) -> bool:
        """Whether a function has printed into a stream. Blocks."""
        with GroupEvents(source, self.store.reading) as events:
            return events.files.has_stream(stream.encode()) and stream not in source.hidden

    async def delete_stream(self, name: str, stream: str) -> None:
        """Remove a log stream with its events.

        Raises:
            LogsNotFoundException: there is no such group or stream (400).
            LimitExceededException: too many streams of the group's functions were deleted lately (400).
            StoreError: the stream could not be removed.
        """
        self.flush()
        source = self.source(name)
        printed = await asyncio.to_thread(self._is_printed, source, stream)
        async with self._changing:
            record = self.record(name)
            known = self._known.get(name)
            was_put = known is not None and await self.store.delete_stream(known.id, stream)
            if printed:
                if len(record.hidden) >= _MOST_HIDDEN:
                    raise LimitExceededException(
                        f"At most {_MOST_HIDDEN} streams of functions can be deleted until their log is rotated; "
                        "delete the log group instead"
                    )
                await self._put(name, msgspec.structs.replace(record, hidden={**record.hidden, stream: now_ms()}))
            elif not was_put:
                raise no_stream()

    async def tag(self, name: str, tags: dict[str, str]) -> None:
        """Add tags to a group.

        Raises:
            LogsNotFoundException: there is no such group (400).
            TooManyTagsException: the group would have more than 50 tags (400).
            StoreError: the tags could not be stored.
        """

        def changed(record: GroupRecord) -> GroupRecord:
            together = {**record.tags, **tags}
            if len(together) > _MAX_TAGS:
                raise TooManyTagsException(f"A log group can have at most {_MAX_TAGS} tags.")
            return msgspec.structs.replace(record, tags=together)

        await self.change(name, changed)

    async def untag(self, name: str, keys: Sequence[str]) -> None:
        """Remove tags from a group.

        Raises:
            LogsNotFoundException: there is no such group (400).
            StoreError: the change could not be stored.
        """

        def changed(record: GroupRecord) -> GroupRecord:
            kept = {key: value for key, value in record.tags.items() if key not in keys}
            return msgspec.structs.replace(record, tags=kept)

        await self.change(name, changed)

    async def put_events(self, name: str, stream: str, events: Sequence[tuple[int, bytes]]) -> Rejected:
        """Store events in a stream; they are durable when this returns.

        Args:
            name: name of the group.
            stream: name of the stream.
            events: pairs of time (milliseconds since 1970) and message, in the order of their times.

        Returns:
            Which events were not stored, because they are too old or too new.

        Raises:
            LogsNotFoundException: there is no such group or stream (400).
            StoreError: the events could not be stored.
        """
        source = self.source(name)
        now = now_ms()
        kept: list[tuple[int, bytes]] = []
        rejected = Rejected()
        for index, event in enumerate(events):
            if event[0] > now + _NEWEST_MS:
                rejected.too_new_from = index if rejected.too_new_from is None else rejected.too_new_from
            elif event[0] < now - _OLDEST_MS:
                rejected.too_old_until = index + 1
            elif event[0] < source.since_ms:
                rejected.expired_until = index + 1
            else:
                kept.append(event)
        group = await self._with_stream(name, source, stream)
        if kept and not await self.store.put_events(group, stream, kept, now_ms=now, most_bytes=self._max_bytes):
            raise no_stream()
        if kept:
            self.on_events(name, [message for _, message in kept])
        return rejected

    async def _with_stream(self, name: str, source: GroupSource, stream: str) -> int:
        """The id of the group that has this stream; a stream that only a function has printed into is recorded."""
        reading = self.store.reading
        known = self._known.get(name)
        if known is not None and await asyncio.to_thread(reading.stream, known.id, stream) is not None:
            return known.id
        if not await asyncio.to_thread(self._is_printed, source, stream):
            raise no_stream()
        async with self._changing:
            identifier = await self._put(name, self.record(name))
            await self.store.create_stream(identifier, stream, now_ms=now_ms())
            return identifier

    async def run(self) -> None:
        """Remove events that are no longer retained, until cancelled."""
        reports = SayOnce(complain)
        while True:
            try:
                await self.expire()
            except (StoreError, OSError) as error:
                reports.say(f"thawd: expired log events could not be removed: {error}", cause=str(error))
            else:
                reports.resolved()
            await asyncio.sleep(_SWEEP_S)

    async def expire(self) -> None:
        """Remove events that are no longer retained. Requests do not see them before that, either.

        Files are removed as a whole, when their last line is too old.
        """
        for name, group in list(self._known.items()):
            if group.record.retention_days is None:
                continue
            since_ms = now_ms() - group.record.retention_days * _DAY_MS
            await self.store.expire(group.id, since_ms)
            self.flush()
            for file in _files(path_of_group(self.folder, name)):
                with contextlib.suppress(FileNotFoundError):
                    if file.stat().st_mtime * 1000 < since_ms:
                        file.unlink()


def now_ms() -> int:
    """The present time, milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def _files(path: Path) -> list[Path]:
    return [path, *(rotated(path, number) for number in range(1, KEPT_FILES + 1))]
