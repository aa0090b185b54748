"""The operations of the Logs API on events: GetLogEvents, FilterLogEvents, PutLogEvents.

Logs are read block by block in a thread, one request at a time, so that a large log neither fills memory nor blocks the
event loop.
"""

from __future__ import annotations

import asyncio
from typing import Any

from thawd.cloudwatch.logs.errors import InvalidParameterException, no_stream
from thawd.cloudwatch.logs.events import START, Event, GroupEvents, Place
from thawd.cloudwatch.logs.groups import LogGroups
from thawd.gateway.logs.group_operations import sequence_token
from thawd.gateway.logs.requests import (
    MAX_EVENTS,
    Request,
    check_period,
    group_of,
    position_of,
    position_token,
)
from thawd.grammar import log_filters
from thawd.stores.log_events import EVENT_OVERHEAD_BYTES

# Source: GetLogEvents and FilterLogEvents: an answer has at most 1 MB. Each event counts as the length of its message
# plus 26 bytes. The same holds for a request of PutLogEvents.
_MAX_ANSWER_BYTES = 1 << 20
MAX_BATCH_BYTES = 1 << 20
_LONGEST_SPAN_MS = 24 * 60 * 60 * 1000
# A FilterLogEvents request reads this much of the log, and then stops. The answer has a token with which the next
# request continues from there. So a page can be empty although more events follow, as on AWS.
_SCAN_BYTES = 8 << 20


class EventOperations:
    """Operations on events. Each takes the checked input, and returns the answer.

    Args:
        groups: all log groups.
    """

    def __init__(self, groups: LogGroups) -> None:
        self._groups = groups
        self._reading = asyncio.Lock()

    async def get_log_events(self, request: Request) -> dict[str, Any]:
        async with self._reading:
            self._groups.flush()
            return await asyncio.to_thread(self._get_log_events, request)

    def _get_log_events(self, request: Request) -> dict[str, Any]:
        source, limit = self._groups.source(group_of(request)), request.get("limit", MAX_EVENTS)
        start_ms, end_ms = check_period(request)
        stream = request["logStreamName"]
        begin = position_of(request.get("nextToken"))
        forward = request.get("startFromHead", False) if begin is None else begin[0] == "f"
        with GroupEvents(source, self._groups.store.reading) as events:
            found_events = (
                events.forward(begin and begin[1], start_ms=start_ms, stream=stream)
                if forward
                else events.backward(begin and begin[1], stream=stream)
            )
            page = _Page(limit)
            for event in found_events:
                # As on AWS, the end time is exclusive in GetLogEvents, but inclusive in FilterLogEvents.
                if start_ms <= event.time_ms and (end_ms is None or event.time_ms < end_ms):
                    if page.is_full(event):
                        break
                    page.add(event)
                    if len(page.events) == limit:
                        break
            if not page.events and begin is None and not events.has_stream(stream):
                raise no_stream()
        found = page.events if forward else page.events[::-1]
        if found:
            first, last = found[0].before, found[-1].after
        else:
            first = last = START if begin is None else begin[1]
        return {
            "events": [_event(event) for event in found],
            # The forward token continues after the last event of this page, the backward token before the first. If the
            # page is empty, both continue where this request began.
            "nextForwardToken": position_token("f", last),
            "nextBackwardToken": position_token("b", first),
        }

    async def filter_log_events(self, request: Request) -> dict[str, Any]:
        async with self._reading:
            self._groups.flush()
            return await asyncio.to_thread(self._filter_log_events, request)

    def _filter_log_events(self, request: Request) -> dict[str, Any]:
        name, limit = group_of(request), request.get("limit", MAX_EVENTS)
        if "logStreamNames" in request and "logStreamNamePrefix" in request:
            raise InvalidParameterException("logStreamNames and logStreamNamePrefix cannot both be specified.")
        start_ms, end_ms = check_period(request)
        wanted = pattern_of(request.get("filterPattern"))
        source = self._groups.source(name)
        names = None if "logStreamNames" not in request else set(request["logStreamNames"])
        prefix = request.get("logStreamNamePrefix", "")
        begin = position_of(request.get("nextToken"))
        page = _Page(limit)
        place: Place | None = None  # where the next page begins; None: the log has been read to its end
        with GroupEvents(source, self._groups.store.reading) as events:
            only = next(iter(names)) if names is not None and len(names) == 1 else None
            for event in events.forward(begin and begin[1], start_ms=start_ms, stream=only):
                if events.read_bytes > _SCAN_BYTES or page.is_full(event):
                    place = event.before
                    break
                if not (start_ms <= event.time_ms and (end_ms is None or event.time_ms <= end_ms)):
                    continue
                is_asked = (names is None or event.stream in names) and event.stream.startswith(prefix)
                if is_asked and wanted(event.message.decode(errors="replace")):
                    page.add(event)
            is_whole = begin is None and place is None and not page.events
            if names and is_whole and not any(events.has_stream(stream) for stream in names):
                raise no_stream()
        answer: dict[str, Any] = {
            "events": [{"logStreamName": event.stream, **_event(event), "eventId": event.id} for event in page.events],
            "searchedLogStreams": [],
        }
        if place is not None:
            answer["nextToken"] = position_token("f", place)
        return answer

    async def put_log_events(self, request: Request) -> dict[str, Any]:
        events = [(event["timestamp"], event["message"].encode()) for event in request["logEvents"]]
        size = sum(len(message) + EVENT_OVERHEAD_BYTES for _, message in events)
        for _, message in events:
            if len(message) + EVENT_OVERHEAD_BYTES > MAX_BATCH_BYTES:
                raise InvalidParameterException(
                    f"Log event too large: {len(message) + EVENT_OVERHEAD_BYTES} bytes exceeds limit of "
                    f"{MAX_BATCH_BYTES}"
                )
        if size > MAX_BATCH_BYTES:
            raise InvalidParameterException(f"Upload too large: {size} bytes exceeds limit of {MAX_BATCH_BYTES}")
        times = [time_ms for time_ms, _ in events]
        if times != sorted(times):
            raise InvalidParameterException(
                "Log events in a single PutLogEvents request must be in chronological order."
            )
        if times[-1] - times[0] > _LONGEST_SPAN_MS:
            raise InvalidParameterException(
                "The batch of log events in a single PutLogEvents request cannot span more than 24 hours."
            )
        group, stream = request["logGroupName"], request["logStreamName"]
        rejected = await self._groups.put_events(group, stream, events)
        info = {
            "tooNewLogEventStartIndex": rejected.too_new_from,
            "tooOldLogEventEndIndex": rejected.too_old_until,
            "expiredLogEventEndIndex": rejected.expired_until,
        }
        answer: dict[str, Any] = {"nextSequenceToken": sequence_token(group, stream)}
        if shown := {name: index for name, index in info.items() if index is not None}:
            answer["rejectedLogEventsInfo"] = shown
        return answer


def pattern_of(text: str | None) -> log_filters.Wanted:
    """The filter that a pattern describes.

    Raises:
        InvalidParameterException: the text is not a pattern (400).
    """
    try:
        return log_filters.parse(text or "")
    except log_filters.FilterPatternError as error:
        raise InvalidParameterException(f"Invalid filter pattern: {error}") from None


class _Page:
    """The events of one answer, in the order in which they were found."""

    def __init__(self, limit: int) -> None:
        self.events: list[Event] = []
        self._limit = limit
        self._size_bytes = 0

    def is_full(self, event: Event) -> bool:
        """Whether the page has no room for `event`; an empty page has room for an event of any size."""
        size_bytes = self._size_bytes + len(event.message) + EVENT_OVERHEAD_BYTES
        return len(self.events) >= self._limit or (bool(self.events) and size_bytes > _MAX_ANSWER_BYTES)

    def add(self, event: Event) -> None:
        self.events.append(event)
        self._size_bytes += len(event.message) + EVENT_OVERHEAD_BYTES


def _event(event: Event) -> dict[str, Any]:
    return {"timestamp": event.time_ms, "message": event.text, "ingestionTime": event.ingested_ms}
