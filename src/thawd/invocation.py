"""One request to a function and its answer, as they travel through the platform. Bodies stay bytes.

Deadlines are absolute, in ``time.monotonic()`` seconds.
"""

from __future__ import annotations

import enum
import json
import os
import time
from dataclasses import dataclass, field

from thawd.wire.response_stream import ResponseStream

# Source: Lambda quotas, "Invocation payload (request and response)".
MAX_PAYLOAD_BYTES = 6_291_556
MAX_ASYNC_PAYLOAD_BYTES = 1_048_576
LOG_TAIL_BYTES = 4096


class StartKind(enum.StrEnum):
    """How the execution environment that served an invocation came to be."""

    COLD = "cold"
    """A new process that ran the function's init phase for this environment."""
    FORK = "fork"
    """Forked from a template process of the version, which had run init already, or had been thawed."""
    THAW = "thaw"
    """Thawed from the version's snapshot, an image of a process that had run init already."""
    WARM = "warm"
    """It had served before, or had been provisioned ahead."""


def new_request_id() -> str:
    """A request id as Lambda makes them: a random UUID, 36 characters."""
    digits = os.urandom(16).hex()
    variant = "89ab"[int(digits[16], 16) & 3]
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"


def in_a_line(error: str) -> str:
    """A function's error document as ``Type: message``; anything else as it is, without its line breaks."""
    try:
        document = json.loads(error)
        error = f"{document.get('errorType', 'Error')}: {document['errorMessage']}"
    except (ValueError, RecursionError, AttributeError, KeyError):
        pass
    return " ".join(error.split())


def new_trace_header() -> str:
    """A trace header for a request that came without one; nothing is recorded of it, as it says itself.

    Source: AWS X-Ray developer guide, "Tracing header": the time in seconds and 96 random bits, then 64 bits.
    """
    digits = os.urandom(20).hex()
    return f"Root=1-{int(time.time()):08x}-{digits[:24]};Parent={digits[24:]};Sampled=0"


@dataclass(slots=True)
class Invocation:
    """A request to run a function once.

    Attributes:
        function: name of the function, already resolved.
        payload: the event, JSON text in UTF-8.
        request_id: the same on every attempt of an asynchronous event.
        queue_deadline: until when it may wait for an environment, ``time.monotonic()`` seconds.
        client_context: JSON text of the caller's client context, or None.
        trace_id: X-Ray trace header; None: one is made.
        want_log_tail: whether the last 4 KiB of the log are wanted back.
        asynchronous: whether it comes from the event queue.
        stream: where the parts of the answer go as they come; None: it is wanted whole.
        qualifier: version number or alias that was asked for; None: none, which means ``$LATEST``.
    """

    function: str
    payload: bytes
    queue_deadline: float
    request_id: str = field(default_factory=new_request_id)
    client_context: str | None = None
    trace_id: str | None = None
    want_log_tail: bool = False
    asynchronous: bool = False
    stream: ResponseStream | None = None
    qualifier: str | None = None


@dataclass(slots=True)
class Result:
    """The answer to an invocation that reached an execution environment.

    Attributes:
        payload: what the handler returned, or the error document, JSON text in UTF-8; bytes of any kind where
            `content_type` is set; empty when it went to `Invocation.stream`.
        function_error: ``Unhandled`` when the function failed, else None.
        executed_version: the version that ran.
        start_kind: how its environment came to be, as seen by this invocation.
        duration_ms: time in the handler, milliseconds.
        init_ms: time from spawning the environment to its being ready when this invocation was its first, else None;
            for a thawed one that is the time of the restore.
        prepare_ms: what of `init_ms` went by inside the process: init, fork or restore, with the after-restore hooks.
        log_tail: last 4 KiB of this invocation's log, when wanted.
        content_type: what a streaming handler said its answer is; None for ordinary handlers.
    """

    payload: bytes
    function_error: str | None = None
    executed_version: str = "$LATEST"
    start_kind: StartKind = StartKind.WARM
    duration_ms: float = 0.0
    init_ms: float | None = None
    prepare_ms: float = 0.0
    log_tail: bytes = b""
    content_type: str | None = None
