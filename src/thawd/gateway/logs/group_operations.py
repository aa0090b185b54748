"""The operations of the Logs API on groups and streams: create, delete, describe, retention, tags."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from typing import Any

from thawd.cloudwatch.logs.errors import InvalidParameterException, LogsNotFoundException
from thawd.cloudwatch.logs.events import GroupEvents
from thawd.cloudwatch.logs.groups import RETENTION_DAYS, LogGroups, now_ms
from thawd.cloudwatch.logs.records import GroupRecord
from thawd.gateway.logs.requests import (
    MAX_PAGE,
    Request,
    arn_of,
    group_of,
    identified,
    parts_of,
    token_of,
    unmet,
    whole_of,
)
from thawd.telemetry.logs.streams import StreamSummary, streams_by_name, streams_by_time

_LIST_PAGE = 50


class GroupOperations:
    """Operations on groups and streams. Each takes the checked input, and returns the answer or None.

    Args:
        groups: all log groups.
    """

    def __init__(self, groups: LogGroups) -> None:
        self._groups = groups

    async def create_log_group(self, request: Request) -> None:
        record = GroupRecord(
            created_ms=now_ms(),
            tags=request.get("tags", {}),
            log_class=request.get("logGroupClass", "STANDARD"),
            kms_key=request.get("kmsKeyId"),
            is_protected=request.get("deletionProtectionEnabled", False),
        )
        await self._groups.create(request["logGroupName"], record)

    async def delete_log_group(self, request: Request) -> None:
        await self._groups.delete(request["logGroupName"])

    async def protect(self, request: Request) -> None:
        group = identified(request["logGroupIdentifier"])
        await self._groups.set_fields(group, is_protected=request["deletionProtectionEnabled"])

    async def create_log_stream(self, request: Request) -> None:
        await self._groups.create_stream(request["logGroupName"], request["logStreamName"])

    async def delete_log_stream(self, request: Request) -> None:
        await self._groups.delete_stream(request["logGroupName"], request["logStreamName"])

    async def put_retention_policy(self, request: Request) -> None:
        days = request["retentionInDays"]
        if days not in RETENTION_DAYS:
            allowed = ", ".join(map(str, RETENTION_DAYS))
            raise unmet(days, "retentionInDays", f"Member must satisfy enum value set: [{allowed}]")
        await self._groups.set_fields(request["logGroupName"], retention_days=days)

    async def delete_retention_policy(self, request: Request) -> None:
        await self._groups.set_fields(request["logGroupName"], retention_days=None)

    async def tag_log_group(self, request: Request) -> None:
        await self._groups.tag(request["logGroupName"], request["tags"])

    async def untag_log_group(self, request: Request) -> None:
        await self._groups.untag(request["logGroupName"], request["tags"])

    async def list_tags_log_group(self, request: Request) -> dict[str, Any]:
        return {"tags": self._groups.record(request["logGroupName"]).tags}

    async def tag_resource(self, request: Request) -> None:
        await self._groups.tag(identified(request["resourceArn"], "resourceArn"), request["tags"])

    async def untag_resource(self, request: Request) -> None:
        await self._groups.untag(identified(request["resourceArn"], "resourceArn"), request["tagKeys"])

    async def list_tags_for_resource(self, request: Request) -> dict[str, Any]:
        return {"tags": self._groups.record(identified(request["resourceArn"], "resourceArn")).tags}

    async def describe_log_groups(self, request: Request) -> dict[str, Any]:
        self._groups.flush()
        return await asyncio.to_thread(self._describe_log_groups, request)

    def _describe_log_groups(self, request: Request) -> dict[str, Any]:
        limit = request.get("limit", MAX_PAGE)
        prefix, pattern = request.get("logGroupNamePrefix"), request.get("logGroupNamePattern")
        if prefix is not None and pattern is not None:
            raise InvalidParameterException("LogGroup name prefix and LogGroup name pattern are mutually exclusive.")
        wanted = None
        if "logGroupIdentifiers" in request:
            wanted = {identified(each, "logGroupIdentifiers") for each in request["logGroupIdentifiers"]}
        pattern = (pattern or "").lower()
        (after,) = parts_of(request.get("nextToken"), 1) or ("",)
        names = [
            name
            for name in self._groups.names()
            if name.startswith(prefix or "") and pattern in name.lower() and name > after
            if (wanted is None or name in wanted) and self._is_of_class(name, request)
        ]
        described: list[dict[str, Any]] = []
        for name in names[:limit]:
            with contextlib.suppress(LogsNotFoundException):  # deleted in the meantime
                described.append(self._described(name))
        answer: dict[str, Any] = {"logGroups": described}
        if len(names) > limit:
            answer["nextToken"] = token_of(names[limit - 1])
        return answer

    def _is_of_class(self, name: str, request: Request) -> bool:
        """Whether a group has the class that the request asks for, and still exists."""
        with contextlib.suppress(LogsNotFoundException):
            return request.get("logGroupClass") in (None, self._groups.record(name).log_class)
        return False

    def _described(self, group: str) -> dict[str, Any]:
        record, source = self._groups.record(group), self._groups.source(group)
        with GroupEvents(source, self._groups.store.reading) as events:
            created_ms = record.created_ms or events.files.begin_ms()
            size = events.files.stored_bytes
        if source.stored is not None:
            size += self._groups.store.reading.size(source.stored)
        described: dict[str, Any] = {"logGroupName": group, "creationTime": created_ms or now_ms()}
        if record.retention_days is not None:
            described["retentionInDays"] = record.retention_days
        described |= {"metricFilterCount": len(record.metric_filters), "arn": f"{arn_of(group)}:*", "storedBytes": size}
        if record.kms_key is not None:
            described["kmsKeyId"] = record.kms_key
        described |= {"logGroupClass": record.log_class, "logGroupArn": arn_of(group)}
        if record.is_protected:
            described["deletionProtectionEnabled"] = True
        return described

    async def list_log_groups(self, request: Request) -> dict[str, Any]:
        return await asyncio.to_thread(self._list_log_groups, request)

    def _list_log_groups(self, request: Request) -> dict[str, Any]:
        limit = request.get("limit", _LIST_PAGE)
        pieces = (request.get("logGroupNamePattern") or "").split("|")
        (after,) = parts_of(request.get("nextToken"), 1) or ("",)
        names = [
            name
            for name in self._groups.names()
            if name > after and self._is_of_class(name, request)
            if any(name.startswith(piece[1:]) if piece.startswith("^") else piece in name for piece in pieces)
        ]
        listed: list[dict[str, Any]] = []
        for name in names[:limit]:
            with contextlib.suppress(LogsNotFoundException):
                log_class = self._groups.record(name).log_class
                listed.append({"logGroupName": name, "logGroupArn": arn_of(name), "logGroupClass": log_class})
        answer: dict[str, Any] = {"logGroups": listed}
        if len(names) > limit:
            answer["nextToken"] = token_of(names[limit - 1])
        return answer

    async def describe_log_streams(self, request: Request) -> dict[str, Any]:
        self._groups.flush()
        return await asyncio.to_thread(self._describe_log_streams, request)

    def _describe_log_streams(self, request: Request) -> dict[str, Any]:
        group, limit = group_of(request), request.get("limit", MAX_PAGE)
        prefix, descending = request.get("logStreamNamePrefix", ""), request.get("descending", False)
        by_time = request.get("orderBy") == "LastEventTime"
        if by_time and prefix:
            raise InvalidParameterException("Cannot order by LastEventTime with a logStreamNamePrefix.")
        source = self._groups.source(group)
        after = parts_of(request.get("nextToken"), 2)
        behind = None if after is None else (whole_of(after[0]), after[1])
        # A deleted stream can take the place of another one, so as many more are read as there are deleted ones.
        most = limit + 1 + len(source.hidden)
        if by_time:
            printed = streams_by_time(source.path, limit=most, after=behind, descending=descending)
        else:
            name = None if behind is None else behind[1]
            printed = streams_by_name(source.path, limit=most, prefix=prefix, after=name, descending=descending)
        found = {
            stream.name: _printed(group, stream)
            for stream in printed
            if stream.last_ms > max(source.since_ms - 1, source.hidden.get(stream.name, -1))
        }
        if source.stored is not None:
            for row in self._groups.store.reading.streams(source.stored, prefix=prefix):
                times = (row.first_ms, row.last_ms, row.ingested_ms)
                found[row.name] = _merged(found.get(row.name), _stream(group, row.name, row.created_ms, times))

        def order(stream: dict[str, Any]) -> tuple[int, str]:
            return (stream.get("lastEventTimestamp", 0) if by_time else 0, stream["logStreamName"])

        bound = None if behind is None else ((behind[0] if by_time else 0), behind[1])
        streams = [
            stream
            for stream in sorted(found.values(), key=order, reverse=descending)
            if bound is None or (order(stream) < bound if descending else order(stream) > bound)
        ]
        answer: dict[str, Any] = {"logStreams": streams[:limit]}
        if len(streams) > limit:
            last = streams[limit - 1]
            answer["nextToken"] = token_of(str(last.get("lastEventTimestamp", 0)), last["logStreamName"])
        return answer


def _printed(group: str, stream: StreamSummary) -> dict[str, Any]:
    times = (stream.first_ms, stream.last_ms, stream.last_ms)
    return _stream(group, stream.name, stream.first_ms, times)


def _stream(group: str, name: str, created_ms: int, times: tuple[int | None, int | None, int | None]) -> dict[str, Any]:
    """One stream as DescribeLogStreams shows it.

    Args:
        group: name of its group.
        name: its name.
        created_ms: when it was created, milliseconds since 1970.
        times: times of its first and its last event, and of the last arrival; None: it has no events.
    """
    described: dict[str, Any] = {"logStreamName": name, "creationTime": created_ms}
    for field, value in zip(("firstEventTimestamp", "lastEventTimestamp", "lastIngestionTime"), times, strict=True):
        if value is not None:
            described[field] = value
    # Source: CloudWatch Logs API reference, "PutLogEvents": the token is no longer used, but still there.
    described["uploadSequenceToken"] = sequence_token(group, name)
    described["arn"] = f"{arn_of(group)}:log-stream:{name}"
    described["storedBytes"] = 0  # Source: LogStream: always zero since 2019.
    return described


def _merged(printed: dict[str, Any] | None, put: dict[str, Any]) -> dict[str, Any]:
    """A stream into which both a function and a client have written."""
    if printed is None:
        return put
    merged = {**put, **printed}
    for field, choose in (("creationTime", min), ("firstEventTimestamp", min), ("lastEventTimestamp", max)):
        merged[field] = choose(each[field] for each in (printed, put) if field in each)
    return merged


def sequence_token(group: str, stream: str) -> str:
    """A sequence token in AWS's form, 56 digits. Requests need none, and thawd ignores those that are sent."""
    digest = hashlib.blake2b(f"{group}\n{stream}".encode(), digest_size=16).digest()
    return f"49{int.from_bytes(digest, 'big'):054d}"
