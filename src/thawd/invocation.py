"""One request to a function and its answer, as they travel through the platform. Bodies stay bytes.

Deadlines are absolute, in ``time.monotonic()`` seconds.
"""

from __future__ import annotations

import enum
import os
from dataclasses import dataclass, field

# Source: Lambda quotas, "Invocation payload (request and response)".
MAX_PAYLOAD_BYTES = 6_291_556
MAX_ASYNC_PAYLOAD_BYTES = 1_048_576
LOG_TAIL_BYTES = 4096


class StartKind(enum.StrEnum):
    """How the execution environment that served an invocation came to be."""

    COLD = "cold"
    """A new process that ran the function's init phase for this environment."""
    FORK = "fork"
    """Forked from the version's template process, which had run init already."""
    WARM = "warm"
    """It had served before, or had been provisioned ahead."""


def new_request_id() -> str:
    """A request id as Lambda makes them: a random UUID, 36 characters."""
    digits = os.urandom(16).hex()
    variant = "89ab"[int(digits[16], 16) & 3]
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"


@dataclass(slots=True)
class Invocation:
    """A request to run a function once.

    Attributes:
        function: name of the function, already resolved.
        payload: the event, JSON text in UTF-8.
        request_id: the same on every attempt of an asynchronous event.
        queue_deadline: until when it may wait for an environment, ``time.monotonic()`` seconds.
        client_context: JSON text of the caller's client context, or None.
        trace_id: X-Ray trace header, or None.
        want_log_tail: whether the last 4 KiB of the log are wanted back.
        asynchronous: whether it comes from the event queue.
    """

    function: str
    payload: bytes
    queue_deadline: float
    request_id: str = field(default_factory=new_request_id)
    client_context: str | None = None
    trace_id: str | None = None
    want_log_tail: bool = False
    asynchronous: bool = False


@dataclass(slots=True)
class Result:
    """The answer to an invocation that reached an execution environment.

    Attributes:
        payload: what the handler returned, or the error document, JSON text in UTF-8.
        function_error: ``Unhandled`` when the function failed, else None.
        executed_version: the version that ran.
        start_kind: how its environment came to be, as seen by this invocation.
        duration_ms: time in the handler, milliseconds.
        init_ms: time from spawning the environment to its being ready when this invocation was its first, else None.
        max_memory_mib: peak resident memory of the environment so far, MiB.
        log_tail: last 4 KiB of this invocation's log, when wanted.
    """

    payload: bytes
    function_error: str | None = None
    executed_version: str = "$LATEST"
    start_kind: StartKind = StartKind.WARM
    duration_ms: float = 0.0
    init_ms: float | None = None
    max_memory_mib: int = 0
    log_tail: bytes = b""
