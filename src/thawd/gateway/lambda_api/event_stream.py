"""Encodes messages in AWS's event stream format. No side effects.

A message consists of a prelude (total length, length of the headers, CRC-32 of both), the headers, the payload, and
the CRC-32 of everything before it. Numbers are big-endian. All headers that thawd sends have type 7, text.

Source: Amazon Transcribe developer guide, "Event stream encoding"; Lambda API reference, "InvokeWithResponseStream".
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping

CONTENT_TYPE = b"application/vnd.amazon.eventstream"
_TEXT = 7
# Largest payload of one message. Clients refuse messages of more than 16 MiB; with smaller messages, they get the first
# data sooner.
_CHUNK_BYTES = 1 << 20


def message(headers: Mapping[str, str], payload: bytes) -> bytes:
    """Encode one message."""
    named = b"".join(
        struct.pack(f">B{len(name)}sBH", len(name), name, _TEXT, len(value)) + value
        for name, value in ((key.encode(), text.encode()) for key, text in headers.items())
    )
    prelude = struct.pack(">II", 12 + len(named) + len(payload) + 4, len(named))
    whole = prelude + struct.pack(">I", zlib.crc32(prelude)) + named + payload
    return whole + struct.pack(">I", zlib.crc32(whole))


def event(kind: str, payload: bytes, *, content_type: str) -> bytes:
    """Encode an event of the type `kind`, for example ``PayloadChunk``."""
    return message({":message-type": "event", ":event-type": kind, ":content-type": content_type}, payload)


def payload_chunks(data: bytes) -> Iterator[bytes]:
    """Encode `data` as ``PayloadChunk`` events."""
    for at in range(0, len(data), _CHUNK_BYTES):
        yield event("PayloadChunk", data[at : at + _CHUNK_BYTES], content_type="application/octet-stream")


def invoke_complete(details: bytes) -> bytes:
    """Encode the last event. `details` is a JSON object with any of ErrorCode, ErrorDetails and LogResult."""
    return event("InvokeComplete", details, content_type="application/json")
