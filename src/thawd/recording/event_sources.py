"""Finds out where an event came from, by its shape. AWS's services mark their events; an HTTP request has a path.

Source: AWS Lambda developer guide, the page of each service with an example event.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

UNKNOWN = "Invoke"
"""The source of an event that no service made: the caller of the Invoke API made it."""
_LONGEST = 2000
_LONGEST_NAME = 200
_METHODS = frozenset(["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE"])


class _Http(msgspec.Struct):
    method: str = ""


class _Context(msgspec.Struct):
    http: _Http = msgspec.field(default_factory=_Http)
    elb: Any = None


class _S3Name(msgspec.Struct):
    name: str = ""


class _S3(msgspec.Struct):
    bucket: _S3Name = msgspec.field(default_factory=_S3Name)


class _Record(msgspec.Struct):
    eventSource: str = ""  # noqa: N815 - AWS's name
    EventSource: str = ""
    eventSourceARN: str = ""  # noqa: N815
    EventSubscriptionArn: str = ""
    s3: _S3 = msgspec.field(default_factory=_S3)


class _Event(msgspec.Struct):
    httpMethod: str = ""  # noqa: N815
    path: str = ""
    rawPath: str = ""  # noqa: N815
    routeKey: str = ""  # noqa: N815
    resource: str = ""
    requestContext: _Context = msgspec.field(default_factory=_Context)  # noqa: N815
    Records: list[_Record] = []
    source: str = ""
    resources: list[str] = []


_decode = msgspec.json.Decoder(_Event).decode


def source_of(event: bytes, *, asynchronous: bool) -> str:
    """Return where an event came from, for people: ``GET /path``, ``bucket uploads``, ``queue jobs`` or ``Invoke``.

    Args:
        event: JSON text.
        asynchronous: whether the invocation was queued.
    """
    otherwise = f"{UNKNOWN}, queued" if asynchronous else UNKNOWN
    try:
        found = _decode(event)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return otherwise
    return (_source(found) or otherwise)[:_LONGEST]


class Trigger(NamedTuple):
    """What caused an event, in the words of OpenTelemetry's semantic conventions.

    Attributes:
        kind: ``http``, ``datasource``, ``pubsub``, ``timer`` or ``other``.
        method: method of the HTTP request, ``_OTHER`` if it is an unusual one; empty: there was none.
        route: the route that matched, such as ``/images/{id}``, which contains nothing of the request; empty: none.
        collection: the bucket or table that has changed; empty: none.
    """

    kind: str
    method: str = ""
    route: str = ""
    collection: str = ""


_OTHER = Trigger("other")
_DATA_SOURCES = ("aws:s3", "aws:dynamodb")


def trigger_of(event: bytes) -> Trigger:
    """Return what caused an event.

    Args:
        event: JSON text.
    """
    try:
        found = _decode(event)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return _OTHER
    if found.requestContext.http.method or found.httpMethod:
        route = found.resource or found.routeKey.partition(" ")[2]
        method = found.requestContext.http.method or found.httpMethod
        return Trigger("http", method if method in _METHODS else "_OTHER", route[:_LONGEST_NAME])
    if found.Records:
        first = found.Records[0]
        service = first.eventSource or first.EventSource
        if service not in _DATA_SOURCES:
            return Trigger("pubsub" if service else "other")
        table = first.eventSourceARN.split("/")[1] if "/" in first.eventSourceARN else ""
        return Trigger("datasource", collection=(first.s3.bucket.name or table)[:_LONGEST_NAME])
    return Trigger("timer") if found.source == "aws.events" else _OTHER


def _source(event: _Event) -> str:
    if event.requestContext.http.method:
        return f"{event.requestContext.http.method} {event.rawPath}"
    if event.httpMethod:
        return f"{event.httpMethod} {event.path}"
    if event.Records:
        first = event.Records[0]
        if first.s3.bucket.name:
            return f"bucket {first.s3.bucket.name}"
        service = (first.eventSource or first.EventSource).removeprefix("aws:")
        name = (first.eventSourceARN or first.EventSubscriptionArn).split(":")
        named = name[5].split("/")[-1] if len(name) > 5 else ""
        if "/stream/" in first.eventSourceARN:
            named = first.eventSourceARN.split("/")[1]
        kind = {"sqs": "queue", "sns": "topic", "kinesis": "stream", "dynamodb": "stream of table"}.get(
            service, service
        )
        return f"{kind} {named}".strip()
    if event.source == "aws.events" and event.resources:
        return f"schedule {event.resources[0].rpartition('/')[2]}"
    return f"event of {event.source}" if event.source else ""
