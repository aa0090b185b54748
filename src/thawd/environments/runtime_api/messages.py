"""Messages of the Runtime API: an invocation as headers and event, and the error documents that programs report.

The functions of this module have no side effects; some read the clock.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import time
from dataclasses import dataclass
from typing import Any

import msgspec

from thawd.environments.init_phase import error_document
from thawd.environments.runtime_api.http_server import Request
from thawd.invocation import MAX_PAYLOAD_BYTES
from thawd.streaming import BYTES
from thawd.wire.response_stream import CONTENT_TYPE

_decode = msgspec.json.Decoder().decode


@dataclass(slots=True)
class Current:
    """The current invocation.

    Attributes:
        identifier: its request id.
        headers: the headers of the answer to ``next``, as lines that end in CR LF.
        event: the body of the answer to ``next``.
        extension_event: the event that extensions get.
        sent_s: when the endpoint got it, ``time.monotonic()`` seconds.
        limit_bytes: size limit of a response that is passed on in parts as they arrive; None: it is passed on whole.
        begun: whether the program has got the invocation.
    """

    identifier: str
    headers: bytes
    event: bytes
    extension_event: dict[str, Any]
    sent_s: float
    limit_bytes: int | None
    begun: bool = False


def event_of(head: dict[str, Any], payload: bytes) -> Current:
    """Return the invocation in an INVOKE frame, from the frame's head and body."""
    deadline_ms = int(time.time() * 1000 + head["left_ms"])
    lines = [
        ("Content-Type", "application/json"),
        ("Lambda-Runtime-Aws-Request-Id", head["id"]),
        ("Lambda-Runtime-Deadline-Ms", str(deadline_ms)),
        ("Lambda-Runtime-Invoked-Function-Arn", head["arn"]),
    ]
    extension_event: dict[str, Any] = {
        "eventType": "INVOKE",
        "deadlineMs": deadline_ms,
        "requestId": head["id"],
        "invokedFunctionArn": head["arn"],
    }
    if trace := head.get("trace"):
        lines.append(("Lambda-Runtime-Trace-Id", trace))
        extension_event["tracing"] = {"type": "X-Amzn-Trace-Id", "value": trace}
    if tenant := head.get("tenant"):
        lines.append(("Lambda-Runtime-Aws-Tenant-Id", tenant))
    if client := head.get("client"):
        lines.append(("Lambda-Runtime-Client-Context", _one_line(client)))
    headers = "".join(f"{name}: {_printable(value)}\r\n" for name, value in lines)
    encoded = headers.encode("latin-1", "replace")
    return Current(head["id"], encoded, payload, extension_event, time.monotonic(), head.get("stream"))


def _one_line(text: str) -> str:
    """Return the caller's JSON text as one line of ASCII, so that it fits into a header.

    Other text is returned unchanged.
    """
    try:
        return json.dumps(json.loads(text), separators=(",", ":"))
    except (ValueError, RecursionError):
        return text


def _printable(value: str) -> str:
    """`value` with spaces instead of line breaks and null characters: with a line break, a caller could add headers."""
    return value.replace("\r", " ").replace("\n", " ").replace("\0", " ")


def document_of(request: Request) -> bytes:
    """Return the error document that a program sent, or a new one of its type if it sent none or one too large."""
    error_type = request.header(b"lambda-runtime-function-error-type") or "Runtime.Unknown"
    if request.is_too_large:
        message = f"The error document has {request.size_bytes} bytes, more than {MAX_PAYLOAD_BYTES}"
        return error_document(error_type, message)
    return bytes(request.body) or error_document(error_type, "Runtime reported an error without a document")


def message_of(document: bytes) -> str:
    """Type and message of an error document, as text for people; if it has none, its first 1,000 bytes."""
    try:
        decoded = _decode(document)
        return f"{decoded['errorType']}: {decoded['errorMessage']}"
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError, TypeError):
        return document[:1000].decode(errors="replace")


def type_of(request: Request) -> str:
    """Return the content type of a streamed response: the program's if that is valid, else `BYTES`."""
    given = request.header(b"content-type")
    return given if re.match(CONTENT_TYPE, given) else BYTES


def broken_off(request: Request, error_type: str) -> bytes:
    """Return the error document of a streamed response that broke off: the one in its trailers, else a new one."""
    try:
        body = base64.b64decode(request.header(b"lambda-runtime-function-error-body"), validate=True)
    except binascii.Error:
        body = b""
    return body or error_document(error_type, "The response broke off in the middle")
