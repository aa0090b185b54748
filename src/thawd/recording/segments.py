"""Decodes documents of X-Ray and makes spans of them. No side effects.

Everything in a document is a function's claim: ids, times and texts are checked, and texts are redacted by the rules of
records.

Source: AWS X-Ray developer guide, "AWS X-Ray segment documents", "Sending segment documents to the X-Ray daemon"; the
names of attributes for annotations and metadata are those of the OpenTelemetry Collector's X-Ray receiver.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

import msgspec

from thawd.recording.redaction import MARK, Redactor
from thawd.recording.spans import CLIENT, INTERNAL, Span, error_type_of

TOO_LARGE = "[too large]"
"""What stands in the place of metadata that is too large."""
_LONGEST_NAME = 200
_LONGEST_TEXT = 1000
_LONGEST_METADATA_BYTES = 16 << 10
_MOST_ANNOTATIONS = 50
_MOST_NAMESPACES = 20
_ID = re.compile(r"(?!0{16})[0-9a-f]{16}")
_TRACE_ID = re.compile(r"1-([0-9a-f]{8})-([0-9a-f]{24})")
_ANNOTATION = re.compile(r"[A-Za-z0-9_.]{1,100}")
# A span may have begun before its invocation, by the accuracy of clocks, and may end after the current time.
_TOLERANCE_S = 60.0
_INT64 = 1 << 63
# A document's field ``aws``, and the attribute of OpenTelemetry's semantic conventions.
_OF_AWS = {
    "operation": "rpc.method",
    "region": "cloud.region",
    "request_id": "aws.request_id",
    "table_name": "db.collection.name",
    "bucket_name": "aws.s3.bucket",
    "function_name": "faas.invoked_name",
}


class Segment(msgspec.Struct):
    """A segment or subsegment; the fields are X-Ray's."""

    id: str
    name: str
    start_time: float
    end_time: float = 0.0
    trace_id: str = ""
    parent_id: str = ""
    in_progress: bool = False
    namespace: str = ""
    error: bool = False
    fault: bool = False
    throttle: bool = False
    http: Any = None
    aws: Any = None
    sql: Any = None
    annotations: Any = None
    metadata: Any = None
    cause: Any = None
    subsegments: list[Segment] = []


class _Header(msgspec.Struct):
    format: str
    version: int


_decode_header = msgspec.json.Decoder(_Header).decode
_decode_segment = msgspec.json.Decoder(Segment).decode
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


def decoded(datagram: bytes) -> Segment | None:
    """Return the document in a datagram; None: it is none, or its ids are invalid, or it is in progress."""
    header, _, document = datagram.partition(b"\n")
    try:
        what = _decode_header(header)
        segment = _decode_segment(document) if (what.format, what.version) == ("json", 1) else None
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
    if segment is None or segment.in_progress or not _ID.fullmatch(segment.parent_id):
        return None
    match = _TRACE_ID.fullmatch(segment.trace_id)
    if match is None:
        return None
    segment.trace_id = match[1] + match[2]
    return segment


def is_valid(segment: Segment, *, began_at: float, now: float) -> bool:
    """Whether a segment's id and times can be right.

    Args:
        segment: the segment.
        began_at: when the function's first invocation in the trace began, seconds since 1970.
        now: the current time, seconds since 1970.
    """
    earliest, latest = began_at - _TOLERANCE_S, now + _TOLERANCE_S
    times = (segment.start_time, segment.end_time)
    return (
        not segment.in_progress
        and _ID.fullmatch(segment.id) is not None
        and all(map(math.isfinite, times))
        and earliest <= segment.start_time <= segment.end_time <= latest
    )


def span_of(
    segment: Segment, function: str, ids: tuple[str, str], *, redactor: Redactor, values: Iterable[str]
) -> Span:
    """Return the span of a segment, without those of its subsegments.

    Args:
        segment: a valid segment.
        function: the function that it belongs to.
        ids: the trace's id and the parent's.
        redactor: replaces secret values.
        values: the values that were redacted in the function's events.
    """
    texts = _texts(segment)
    texts, annotations, metadata = _redacted(texts, segment, redactor, values)
    attributes: dict[str, str | int | float | bool] = {
        name: text[:_LONGEST_TEXT] for name, text in texts.items() if text and name
    }
    if segment.namespace == "aws":
        attributes["rpc.system"] = "aws-api"
    if (status := _status(segment)) is not None:
        attributes["http.response.status_code"] = status
    if failure := texts["error.type"]:
        attributes["error.type"] = error_type_of(failure)
    for name, value in list(annotations.items())[:_MOST_ANNOTATIONS]:
        if _ANNOTATION.fullmatch(name) and (known := _scalar(value)) is not None:
            attributes[f"aws.xray.annotation.{name}"] = known
    for namespace, value in metadata.items():
        attributes[f"aws.xray.metadata.{namespace}"] = _encode(value).decode()
    return Span(
        function,
        ids[0],
        segment.id,
        ids[1],
        texts[""][:_LONGEST_NAME] or "subsegment",
        CLIENT if segment.namespace in ("aws", "remote") else INTERNAL,
        segment.start_time,
        segment.end_time,
        attributes,
        segment.fault or segment.error or segment.throttle,
    )


def _texts(segment: Segment) -> dict[str, str]:
    """Return the texts of a segment by attribute; the name has the key ``""``."""
    texts = {"": segment.name}
    request = _table(_table(segment.http).get("request"))
    texts["http.request.method"] = _text(request.get("method"))
    texts["url.full"] = _without_query(_text(request.get("url")))
    aws = _table(segment.aws)
    texts |= {attribute: _text(aws.get(name)) for name, attribute in _OF_AWS.items()}
    texts["db.system.name"] = _text(_table(segment.sql).get("database_type")).lower()
    texts["error.type"] = _text(_exception(segment).get("type"))
    texts["exception.message"] = _text(_exception(segment).get("message"))
    return texts


def _redacted(
    texts: dict[str, str], segment: Segment, redactor: Redactor, values: Iterable[str]
) -> tuple[dict[str, str], dict[str, Any], dict[str, Any]]:
    """Return a segment's texts, annotations and metadata. What a rule names in one of them is replaced in all."""
    metadata = {
        namespace[:_LONGEST_NAME]: value if len(_encode(value)) <= _LONGEST_METADATA_BYTES else TOO_LARGE
        for namespace, value in list(_table(segment.metadata).items())[:_MOST_NAMESPACES]
    }
    document = [list(texts.values()), _table(segment.annotations), metadata]
    body, _ = redactor.body(_encode(document), values=values)
    changed = _decode(body)
    if not isinstance(changed, list):  # there is too much to be redacted
        return dict.fromkeys(texts, MARK), {}, {}
    return dict(zip(texts, changed[0], strict=True)), changed[1], changed[2]


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _exception(segment: Segment) -> dict[str, Any]:
    """Return the exception that a segment ended with; {}: none."""
    exceptions = _table(segment.cause).get("exceptions")
    return _table(exceptions[0]) if isinstance(exceptions, list) and exceptions else {}


def _status(segment: Segment) -> int | None:
    status = _table(_table(segment.http).get("response")).get("status")
    return status if type(status) is int and 100 <= status <= 999 else None


def _scalar(value: Any) -> str | int | float | bool | None:
    if isinstance(value, str):
        return value[:_LONGEST_TEXT]
    if isinstance(value, int):
        return value if -_INT64 <= value < _INT64 else None
    return value if isinstance(value, float) and math.isfinite(value) else None


def _without_query(url: str) -> str:
    """Return a URL without user, query and fragment, any of which may be a secret; empty: it is none of HTTP."""
    try:
        parts = urlsplit(url)
        host = f"{parts.hostname}:{parts.port}" if parts.port else parts.hostname
    except ValueError:
        return ""
    return f"{parts.scheme}://{host}{parts.path}" if parts.scheme in ("http", "https") and host else ""
