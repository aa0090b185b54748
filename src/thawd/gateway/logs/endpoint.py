"""The Logs API: the part of the CloudWatch Logs API that reads functions' logs (groups, streams, events, filters).

Requests are ``POST /`` with ``X-Amz-Target: Logs_20140328.OPERATION`` and JSON (AWS JSON 1.1). Logs are read block by
block in a thread, one request at a time, so that a large log neither fills memory nor blocks the event loop.

Source: CloudWatch Logs API reference.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from thawd.errors import SerializationException, ThawdError
from thawd.gateway.http import ClientGoneError, Receive, Scope, Send, header, read_body, respond
from thawd.gateway.logs.requests import (
    MAX_EVENTS,
    MAX_PAGE,
    DescribeLogGroups,
    DescribeLogStreams,
    FilterLogEvents,
    GetLogEvents,
    InvalidParameterException,
    LogsRequest,
    check_period,
    parts_of,
    position_of,
    position_token,
    token_of,
    unmet,
    whole_of,
)
from thawd.grammar import log_filters
from thawd.invocation import new_request_id
from thawd.resources import ACCOUNT_ID, REGION
from thawd.telemetry.logs.events import LogEvent, LogEvents, LogPosition
from thawd.telemetry.logs.groups import group_names, path_of_group
from thawd.telemetry.logs.streams import StreamSummary, streams_by_name, streams_by_time

TARGET_PREFIX = b"Logs_20140328."
_MAX_BODY_BYTES = 1 << 20
# Source: GetLogEvents and FilterLogEvents: an answer has at most 1 MB. Each event counts as the length of its message
# plus 26 bytes.
_MAX_ANSWER_BYTES = 1 << 20
_EVENT_OVERHEAD_BYTES = 26
# A FilterLogEvents request reads this much of the log, and then stops. The answer has a token with which the next
# request continues from there. So a page can be empty although more events follow, as on AWS.
_SCAN_BYTES = 8 << 20
_JSON_1_1 = (b"content-type", b"application/x-amz-json-1.1")


def is_logs_request(scope: Scope) -> bool:
    """Whether a request is for the Logs API."""
    return scope["path"] == "/" and (header(scope, b"x-amz-target") or b"").startswith(TARGET_PREFIX)


class LogsNotFoundException(ThawdError):
    """The log group or log stream does not exist (HTTP 400; the Lambda API answers 404 for a missing resource)."""

    type = "ResourceNotFoundException"
    status = 400
    retryable = False


class UnknownOperationException(ThawdError):
    """The operation is not supported (HTTP 400)."""

    type = "UnknownOperationException"
    status = 400
    retryable = False


class LogsApi:
    """Serves the functions' logs.

    Args:
        folder: the folder with the logs.
        flush: writes buffered log lines to the files, so that answers contain everything that functions have printed.
    """

    def __init__(self, folder: Path, *, flush: Callable[[], None]) -> None:
        self._folder = folder
        self._flush = flush
        self._reading = asyncio.Lock()
        self._operations: dict[str, tuple[type[LogsRequest], Callable[[Any], dict[str, Any]]]] = {
            "DescribeLogGroups": (DescribeLogGroups, self._describe_log_groups),
            "DescribeLogStreams": (DescribeLogStreams, self._describe_log_streams),
            "GetLogEvents": (GetLogEvents, self._get_log_events),
            "FilterLogEvents": (FilterLogEvents, self._filter_log_events),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; errors are answered, not raised."""
        id_header = (b"x-amzn-requestid", new_request_id().encode())
        status = 200
        try:
            answer = await self._answer(scope, receive)
        except ThawdError as error:
            status = error.status
            answer = {"__type": error.type, "message": error.message}
        except OSError as error:
            status = 500
            answer = {"__type": "ServiceUnavailableException", "message": f"The log cannot be read: {error}"}
        except ClientGoneError:
            return
        await respond(send, status, [_JSON_1_1, id_header], msgspec.json.encode(answer))

    async def _answer(self, scope: Scope, receive: Receive) -> dict[str, Any]:
        name = (header(scope, b"x-amz-target") or b"").removeprefix(TARGET_PREFIX).decode("latin-1")
        body = await read_body(scope, receive, limit_bytes=_MAX_BODY_BYTES, operation=name)
        if name not in self._operations:
            raise UnknownOperationException(
                f"thawd does not support the operation {name}; it supports {', '.join(self._operations)}"
            )
        kind, operation = self._operations[name]
        try:
            request = msgspec.json.decode(body or b"{}", type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise SerializationException(str(error)) from None
        async with self._reading:
            self._flush()
            return await asyncio.to_thread(operation, request)

    def _describe_log_groups(self, request: DescribeLogGroups) -> dict[str, Any]:
        limit = request.page(MAX_PAGE)
        if request.log_group_name_prefix is not None and request.log_group_name_pattern is not None:
            raise InvalidParameterException("LogGroup name prefix and LogGroup name pattern are mutually exclusive.")
        prefix = request.log_group_name_prefix or ""
        pattern = (request.log_group_name_pattern or "").lower()
        (after,) = parts_of(request.next_token, 1) or ("",)
        names = [
            name
            for name in group_names(self._folder)
            if name.startswith(prefix) and pattern in name.lower() and name > after
        ]
        answer: dict[str, Any] = {"logGroups": [self._described(name) for name in names[:limit]]}
        if len(names) > limit:
            answer["nextToken"] = token_of(names[limit - 1])
        return answer

    def _described(self, group: str) -> dict[str, Any]:
        with LogEvents(path_of_group(self._folder, group)) as events:
            return {
                "logGroupName": group,
                "creationTime": events.begin_ms(),
                "metricFilterCount": 0,
                "arn": f"{_arn(group)}:*",
                "logGroupArn": _arn(group),
                "storedBytes": events.stored_bytes,
                "logGroupClass": "STANDARD",
            }

    def _log(self, group: str) -> Path:
        """The log file of a group.

        Raises:
            LogsNotFoundException: there is no such group (400).
        """
        if group not in group_names(self._folder):
            raise LogsNotFoundException("The specified log group does not exist.")
        return path_of_group(self._folder, group)

    def _describe_log_streams(self, request: DescribeLogStreams) -> dict[str, Any]:
        group, limit = request.group(), request.page(MAX_PAGE)
        order = request.order_by or "LogStreamName"
        prefix = request.log_stream_name_prefix or ""
        if order not in ("LogStreamName", "LastEventTime"):
            allowed = "Member must satisfy enum value set: [LastEventTime, LogStreamName]"
            raise unmet(order, "orderBy", allowed)
        by_time = order == "LastEventTime"
        if by_time and prefix:
            raise InvalidParameterException("Cannot order by LastEventTime with a logStreamNamePrefix.")
        path = self._log(group)
        after = parts_of(request.next_token, 2)
        descending = request.descending
        if by_time:
            behind = None if after is None else (whole_of(after[0]), after[1])
            streams = streams_by_time(path, limit=limit + 1, after=behind, descending=descending)
        else:
            name = None if after is None else after[1]
            streams = streams_by_name(path, limit=limit + 1, prefix=prefix, after=name, descending=descending)
        answer: dict[str, Any] = {"logStreams": [_stream(group, stream) for stream in streams[:limit]]}
        if len(streams) > limit:
            last = streams[limit - 1]
            answer["nextToken"] = token_of(str(last.last_ms), last.name)
        return answer

    def _get_log_events(self, request: GetLogEvents) -> dict[str, Any]:
        group, limit = request.group(), request.page(MAX_EVENTS)
        if request.log_stream_name is None:
            raise unmet(None, "logStreamName", "Member must not be null")
        start_ms, end_ms = check_period(request.start_time, request.end_time)
        stream = request.log_stream_name.encode()
        begin = position_of(request.next_token)
        forward = request.start_from_head if begin is None else begin[0] == "f"
        with LogEvents(self._log(group)) as events:
            source = (
                events.forward(begin and begin[1], start_ms=start_ms)
                if forward
                else events.backward(begin and begin[1])
            )
            page = _Page(limit)
            for event in source:
                # As on AWS, the end time is exclusive in GetLogEvents, but inclusive in FilterLogEvents.
                if event.stream == stream and start_ms <= event.time_ms and (end_ms is None or event.time_ms < end_ms):
                    if page.is_full(event):
                        break
                    page.add(event)
                    if len(page.events) == limit:
                        break
            if not page.events and begin is None and not events.has_stream(stream):
                raise LogsNotFoundException("The specified log stream does not exist.")
        found = page.events if forward else page.events[::-1]
        if found:
            first, last = found[0].begin, found[-1].end
        else:
            first = last = LogPosition(0, 0) if begin is None else begin[1]
        return {
            "events": [_event(event) for event in found],
            # The forward token continues after the last event of this page, the backward token before the first. If the
            # page is empty, both continue where this request began.
            "nextForwardToken": position_token("f", last),
            "nextBackwardToken": position_token("b", first),
        }

    def _filter_log_events(self, request: FilterLogEvents) -> dict[str, Any]:
        group, limit = request.group(), request.page(MAX_EVENTS)
        if request.log_stream_names is not None and request.log_stream_name_prefix is not None:
            raise InvalidParameterException("logStreamNames and logStreamNamePrefix cannot both be specified.")
        if request.log_stream_names is not None and not 1 <= len(request.log_stream_names) <= 100:
            allowed = "Member must have length less than or equal to 100, and greater than or equal to 1"
            raise unmet(request.log_stream_names, "logStreamNames", allowed)
        start_ms, end_ms = check_period(request.start_time, request.end_time)
        try:
            wanted = log_filters.parse(request.filter_pattern or "")
        except log_filters.FilterPatternError as error:
            raise InvalidParameterException(f"Invalid filter pattern: {error}") from None
        names = None if request.log_stream_names is None else {name.encode() for name in request.log_stream_names}
        prefix = (request.log_stream_name_prefix or "").encode()
        begin = position_of(request.next_token)
        page = _Page(limit)
        place: LogPosition | None = None  # where the next page begins; None: the log has been read to its end
        with LogEvents(self._log(group)) as events:
            for event in events.forward(begin and begin[1], start_ms=start_ms):
                if events.read_bytes > _SCAN_BYTES or page.is_full(event):
                    place = event.begin
                    break
                if not (start_ms <= event.time_ms and (end_ms is None or event.time_ms <= end_ms)):
                    continue
                is_asked = (names is None or event.stream in names) and event.stream.startswith(prefix)
                if is_asked and wanted(event.message.decode(errors="replace")):
                    page.add(event)
            is_whole = begin is None and place is None and not page.events
            if names and is_whole and not any(events.has_stream(name) for name in names):
                raise LogsNotFoundException("The specified log stream does not exist.")
        answer: dict[str, Any] = {
            "events": [
                {"logStreamName": event.stream.decode(errors="replace"), **_event(event), "eventId": event.id}
                for event in page.events
            ],
            "searchedLogStreams": [],
        }
        if place is not None:
            answer["nextToken"] = position_token("f", place)
        return answer


class _Page:
    """The events of one answer, in the order in which they were found."""

    def __init__(self, limit: int) -> None:
        self.events: list[LogEvent] = []
        self._limit = limit
        self._size_bytes = 0

    def is_full(self, event: LogEvent) -> bool:
        """Whether the page has no room for `event`; an empty page has room for an event of any size."""
        size_bytes = self._size_bytes + len(event.message) + _EVENT_OVERHEAD_BYTES
        return len(self.events) >= self._limit or (bool(self.events) and size_bytes > _MAX_ANSWER_BYTES)

    def add(self, event: LogEvent) -> None:
        self.events.append(event)
        self._size_bytes += len(event.message) + _EVENT_OVERHEAD_BYTES


def _event(event: LogEvent) -> dict[str, Any]:
    # As on AWS, the message of a Lambda function's log event ends with a newline.
    message = event.message.decode(errors="replace") + "\n"
    return {"timestamp": event.time_ms, "message": message, "ingestionTime": event.time_ms}


def _stream(group: str, stream: StreamSummary) -> dict[str, Any]:
    return {
        "logStreamName": stream.name,
        "creationTime": stream.first_ms,
        "firstEventTimestamp": stream.first_ms,
        "lastEventTimestamp": stream.last_ms,
        "lastIngestionTime": stream.last_ms,
        "arn": f"{_arn(group)}:log-stream:{stream.name}",
        "storedBytes": 0,  # Source: LogStream: always zero since 2019.
    }


def _arn(group: str) -> str:
    return f"arn:aws:logs:{REGION}:{ACCOUNT_ID}:log-group:{group}"
