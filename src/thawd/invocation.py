"""A request to a function, and its answer, as they pass through the platform; makes request ids and trace headers, too.

Bodies are passed on as bytes.

Deadlines are absolute, in ``time.monotonic()`` seconds.
"""

from __future__ import annotations

import enum
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from thawd.wire.response_stream import ResponseStream

# Source: Lambda quotas, "Invocation payload (request and response)".
MAX_PAYLOAD_BYTES = 6_291_556
MAX_ASYNC_PAYLOAD_BYTES = 1_048_576
LOG_TAIL_BYTES = 4096


class StartKind(enum.StrEnum):
    """How the execution environment that served an invocation was started."""

    COLD = "cold"
    """A new process ran the function's init phase for this environment."""
    FORK = "fork"
    """The environment was forked from the version's template, a process that had run init or had been thawed."""
    THAW = "thaw"
    """The environment was thawed from the version's snapshot, the image of a process that had run init."""
    WARM = "warm"
    """The environment had served an invocation before, or was kept initialised by provisioned concurrency."""


_RANDOM_BYTES = 20
_READ_AHEAD = 128
_random: list[str] = []
os.register_at_fork(after_in_child=_random.clear)
_request_ids: list[str] = []  # made in advance, many at a time, which is quicker
os.register_at_fork(after_in_child=_request_ids.clear)
_VARIANT = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}


def _random_digits() -> str:
    """160 random bits, as 40 hexadecimal digits. They are read in blocks, because each read is a system call."""
    try:
        return _random.pop()
    except IndexError:
        size = 2 * _RANDOM_BYTES
        digits = os.urandom(_RANDOM_BYTES * _READ_AHEAD).hex()
        _random.extend(digits[at : at + size] for at in range(size, len(digits), size))
        return digits[:size]


def new_request_id() -> str:
    """A new request id in Lambda's form: a random UUID, 36 characters."""
    try:
        return _request_ids.pop()
    except IndexError:
        digits = [_random_digits() for _ in range(_READ_AHEAD)]
        _request_ids.extend(
            f"{each[:8]}-{each[8:12]}-4{each[13:16]}-{_VARIANT[each[16]]}{each[17:20]}-{each[20:32]}" for each in digits
        )
        return _request_ids.pop()


def in_a_line(error: str) -> str:
    """Convert a function's error document to ``Type: message`` on one line. Put any other text on one line, too."""
    try:
        document = json.loads(error)
        error = f"{document.get('errorType', 'Error')}: {document['errorMessage']}"
    except (ValueError, RecursionError, AttributeError, KeyError):
        pass
    return " ".join(error.split())


def new_trace_header() -> str:
    """A trace header for a request that came without one. ``Sampled=0`` says that no trace is recorded.

    The parent is the end of the root, and no span. This tells the header from one of a caller that wants no trace; see
    `thawd.grammar.trace_headers`.

    Source: AWS X-Ray developer guide, "Tracing header". ``Root`` contains the time in seconds and 96 random bits.
    """
    digits = _random_digits()
    return f"Root=1-{int(time.time()):08x}-{digits[:24]};Parent={digits[8:24]};Sampled=0"


def new_span_ids() -> tuple[str, str]:
    """The ids of two new spans, 16 hexadecimal digits each."""
    digits = _random_digits()
    return digits[:16], digits[16:32]


class TracedInvocation(NamedTuple):
    """The spans of an invocation that is traced.

    Attributes:
        trace_id: the trace, 32 hexadecimal digits.
        parent_id: span that the invocation belongs to, 16 hexadecimal digits; empty: the trace begins here.
        span_id: span of the whole invocation.
        handler_id: span of the handler, which is the parent of what the handler does; empty: the invocation itself is
            not traced, but is a request of a handler that is.
        header: trace header whose parent is the handler's span.
    """

    trace_id: str
    parent_id: str
    span_id: str
    handler_id: str
    header: str


@dataclass(slots=True)
class Invocation:
    """A request to run a function once.

    Attributes:
        function: plain name of the function; an ARN in the request is already resolved to it.
        payload: the event, JSON text in UTF-8.
        queue_deadline: time until which the request may wait for an environment, ``time.monotonic()`` seconds.
        request_id: identifies the invocation; all attempts of an asynchronous event share it.
        client_context: JSON text of the caller's client context, or None.
        trace_id: X-Ray trace header; None: the platform generates one.
        want_log_tail: whether the caller wants the last 4 KiB of the log.
        asynchronous: whether the invocation comes from the event queue.
        stream: receives the parts of the answer as the handler sends them; None: the answer is returned whole.
        qualifier: version number or alias in the request; None stands for ``$LATEST``.
        alone: whether it must not run in a batch with other requests.
        tenant_id: the tenant for which the function runs; None unless the function separates tenants.
        on_result: called with the result as soon as it is known, so that the caller can use it before the platform
            writes log lines, counts the invocation and releases the environment. It must not wait. It is not called if
            there is a log tail, or if no environment ran the invocation. The result is returned in any case.
        on_leased: called when it has got its environment, before it runs there. It must neither wait nor fail.
        forwarded: whether another machine of the cluster has sent it here, so that it must not be sent on.
        leased_s: when it got its environment, ``time.monotonic()`` seconds; 0: it has none yet.
        is_always_recorded: whether it is recorded even if others of its function are not.
        arrived_s: when the head of its HTTP request had arrived, the same clock; 0: unknown, or it came otherwise.
        queued_at: when its event was accepted, seconds since 1970; 0: it is no event, or not the event's first attempt.
        traced: its spans; None: it is not traced.
        answered_status: HTTP status that the client got, if it is not that of the handler's answer, for example because
            the answer is malformed; 0: it is that of the answer.
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
    alone: bool = False
    tenant_id: str | None = None
    on_result: Callable[[Result], None] | None = None
    on_leased: Callable[[], None] | None = None
    forwarded: bool = False
    leased_s: float = 0.0
    arrived_s: float = 0.0
    queued_at: float = 0.0
    traced: TracedInvocation | None = None
    is_always_recorded: bool = False
    answered_status: int = 0

    def lease_begins(self) -> None:
        """Record that it has got its environment now."""
        self.leased_s = time.monotonic()
        if self.on_leased is not None:
            self.on_leased()


@dataclass(slots=True)
class Result:
    """The answer to an invocation that reached an execution environment.

    Attributes:
        payload: the handler's answer, or the error document, JSON text in UTF-8; arbitrary bytes if `content_type`
            is set; empty if the answer was sent to `Invocation.stream`.
        function_error: ``Unhandled`` when the function failed, else None.
        executed_version: the version that ran.
        start_kind: how the environment was started for this invocation; `StartKind.WARM` if it was already there.
        duration_ms: time in the handler, milliseconds.
        init_ms: milliseconds from the request for the environment's start until the environment was ready; None if the
            invocation did not wait for a start.
        prepare_ms: the part of `init_ms` spent inside the process: init, fork or restore, with after-restore hooks.
        log_tail: last 4 KiB of this invocation's log; empty unless requested.
        content_type: content type that a streaming handler set; None for ordinary handlers.
        batch_size: number of invocations that ran together in the environment, this one included.
        hooks_ms: the part of `prepare_ms` spent in the after-restore hooks.
        log_stream: name of the environment's log stream; empty: unknown.
        is_recorded: whether the invocation was reported to be recorded.
        trace_id: trace header whose parent is the invocation's span; None: the invocation was not traced.
        logged: type and message of the last exception that the invocation has logged as an error; None: there is none.
        memory_mb: memory limit of the environment, MiB; 0: unknown.
        peak_mib: peak memory of the environment, MiB; 0: unknown.
        is_restored: whether `init_ms` is the time of a restore, which Lambda bills otherwise than an init phase.
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
    batch_size: int = 1
    hooks_ms: float = 0.0
    log_stream: str = ""
    is_recorded: bool = False
    trace_id: str | None = None
    logged: tuple[str, str] | None = None
    memory_mb: int = 0
    peak_mib: int = 0
    is_restored: bool = False
