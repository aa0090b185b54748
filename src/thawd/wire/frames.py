"""Frames between the platform and the runtime, over a socketpair. Uses only the standard library; runs on Python 3.9.

A frame consists of a 9-byte header (``<IIB``: length of the head, length of the body, kind), the head (a small JSON
document: ids, deadline, measurements) and the body (the event or the answer, opaque bytes). Each side accepts lengths
only up to `MAX_HEAD_BYTES` and `MAX_BODY_BYTES`. The function's code can write to the runtime's end of the socketpair,
so a broken frame must end only the environment, never the platform.

The protocol: the runtime sends READY once, or INIT_ERROR. Then the platform sends INVOKE to an environment, which
answers with RESULT, or FORK to a template, which answers with FORKED. A template sends EXITED when a child has ended.

Freezing: the platform sends FREEZE after READY. The process reports its progress with STAGE frames and answers FROZEN.
Then it answers INVOKE frames, because the platform may send the priming event again, to compare the answer with that of
a copy. GO_ON makes the process a template; the process confirms this with a last STAGE.

Spares: a spare is a copy that is thawed before it is needed. It reports the stage `PARKED`, waits for GO_ON, and then
continues to READY. While it waits, the platform may send TOUCH: ranges of pages to touch in advance.

Batches: if the handler takes lists, the platform may send several INVOKE frames together. Each says in ``item`` which
item it is, counted from 0, and in ``of`` how many there are. The runtime sends a RESULT for each, in the same order.

Concurrency: if the handler runs several invocations at a time, each INVOKE has a ``number``, and its RESULT has the
same one. CANCEL with a ``number`` says that the platform waits for that invocation no longer; no RESULT follows. If the
answer is streamed, its PARTs have the ``number``, too. TAKEN says how many ``bytes`` of them the client has taken. GONE
says that it takes no more; the RESULT follows nevertheless.

Streaming: if INVOKE asks for the answer in parts, the runtime sends a PART for each part before the RESULT, and the
RESULT's body is empty.

A second socketpair is for the platform's tables and buckets: the runtime sends CALL, and the platform answers with
REPLY. Both have the same number ``n``, because a handler that was interrupted does not wait for the reply to its call.
"""

import json
import struct
from typing import Any, NamedTuple, Optional

DESCRIPTORS = (3, 4, 5)
"""The file descriptors by which a frozen process, and so each of its copies, communicates with the platform.

In this order: the socketpair for invocations; the socketpair for tables and buckets; the lifeline, a pipe that tells
the process that the platform has ended.
"""

PRIMING_FAILED = "the priming event failed"
"""First words of the reason why a process was not frozen, if its priming event failed. If a reason begins so, the
platform tries to freeze the version again when the function is republished."""

PARKED = "parked"
"""The stage that a spare reports: it waits for GO_ON, and then becomes an environment (see the module docstring)."""

PER_ENVIRONMENT = (
    "AWS_LAMBDA_LOG_STREAM_NAME",
    "AWS_LAMBDA_INITIALIZATION_TYPE",
    "THAWD_ENVIRONMENT",
    "TMPDIR",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
)
"""The environment variables that have a different value in each process of a version."""

HEADER = struct.Struct("<IIB")
_parse = json.JSONDecoder().raw_decode
_format = json.JSONEncoder(separators=(",", ":")).encode  # json.dumps would make a new encoder for each call
MAX_HEAD_BYTES = 1 << 20
MAX_BODY_BYTES = 64 << 20
LONGEST_LOGGED = 8192
"""Most characters of an exception's message in the head of a RESULT frame. People see fewer: where the message was cut,
it may end with a part of a secret."""

READY = 1
INIT_ERROR = 2
INVOKE = 3
RESULT = 4
FORK = 5
FORKED = 6
EXITED = 7
CALL = 8
REPLY = 9
FREEZE = 10
STAGE = 11
FROZEN = 12
GO_ON = 13
PART = 14
CANCEL = 15
TOUCH = 16
TAKEN = 17
GONE = 18


class Frame(NamedTuple):
    """One decoded frame."""

    kind: int
    head: Any
    body: bytes


class WireError(Exception):
    """The bytes received are not a frame."""


def encode(kind: int, head: Any, body: bytes = b"") -> bytes:
    """Return the bytes of a frame. `head` is any value that JSON can represent, or its JSON text as bytes."""
    text = head if type(head) is bytes else _format(head).encode()
    return HEADER.pack(len(text), len(body), kind) + text + body


def sizes(header: "bytes | bytearray", at: int = 0) -> "tuple[int, int, int]":
    """Return the head length, the body length and the kind from a frame's header, which begins at `at`.

    Raises:
        WireError: a length exceeds its limit.
    """
    head_bytes, body_bytes, kind = HEADER.unpack_from(header, at)
    if head_bytes > MAX_HEAD_BYTES or body_bytes > MAX_BODY_BYTES:
        raise WireError("a frame of %d + %d bytes exceeds the limit; the stream is broken" % (head_bytes, body_bytes))
    return head_bytes, body_bytes, kind


def decode_head(text: "bytes | bytearray") -> Any:
    """Return the head from its JSON text; None if the text is empty.

    Raises:
        WireError: the text is not one JSON value.
    """
    if not text:
        return None
    try:
        characters = text.decode()
        head, end = _parse(characters)  # json.loads would take longer: it first finds out the encoding
    except (ValueError, RecursionError) as error:
        raise WireError("the head of a frame is not JSON: %s" % error) from None
    if end != len(characters):
        raise WireError("the head of a frame is followed by other text")
    return head


class Decoder:
    """Cuts a stream of bytes into frames. Feed it received bytes, then take frames until `take` returns None."""

    __slots__ = ("_at", "_data", "_rest")

    def __init__(self) -> None:
        # Bytes that arrive together are mostly exactly one frame, which is taken from `_data` without another copy.
        # Bytes that arrive while a part of a frame is there are appended to `_rest`, whose memory is used again.
        self._data = b""
        self._at = 0
        self._rest = bytearray()

    def feed(self, data: bytes) -> None:
        """Append received bytes."""
        if self._at < len(self._data):
            self._rest += memoryview(self._data)[self._at :]
        if self._rest:
            self._data, self._at = b"", 0
            self._rest += data
        else:
            self._data, self._at = data, 0

    def missing_bytes(self) -> int:
        """How many bytes the next frame lacks; 0 if it is complete, or if its header has not arrived yet.

        Raises:
            WireError: a length in the header exceeds its limit.
        """
        buffer, at = (self._rest, 0) if self._rest else (self._data, self._at)
        there = len(buffer) - at
        if there < HEADER.size:
            return 0
        head_bytes, body_bytes, _ = sizes(buffer, at)
        return max(0, HEADER.size + head_bytes + body_bytes - there)

    def is_empty(self) -> bool:
        """Whether all bytes have been taken as frames."""
        return not self._rest and self._at >= len(self._data)

    def take(self) -> Optional[Frame]:
        """Return the next complete frame; None: more bytes are needed.

        Raises:
            WireError: the frame breaks the protocol, so no further frame can be found in the stream.
        """
        raw = self.take_raw()
        return None if raw is None else Frame(raw[0], decode_head(raw[1]), raw[2])

    def take_raw(self) -> "Optional[tuple[int, bytes, bytes]]":
        """Like `take`, but return kind, text of the head, and body.

        Raises:
            WireError: a length exceeds its limit.
        """
        rest = self._rest
        buffer, at = (rest, 0) if rest else (self._data, self._at)
        if len(buffer) - at < HEADER.size:
            return None
        head_bytes, body_bytes, kind = sizes(buffer, at)
        head_at = at + HEADER.size
        body_at = head_at + head_bytes
        end = body_at + body_bytes
        if len(buffer) < end:
            return None
        if rest:
            with memoryview(rest) as view:
                head, body = bytes(view[head_at:body_at]), bytes(view[body_at:end])
            del rest[:end]
        else:
            head, body = self._data[head_at:body_at], self._data[body_at:end]
            self._at = end
            if end == len(self._data):
                self._data, self._at = b"", 0
        return kind, head, body
