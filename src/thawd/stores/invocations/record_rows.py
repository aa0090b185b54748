"""What a record of an invocation contains, and the schema of the file with the records.

A record's id is the time at which the invocation ended, in microseconds since 1970, or one more than the last id if
that is larger. So ids give the order and the time range of a list, and are its cursors. After the system clock was set
back, ids go on from the last one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

APPLICATION_ID = 0x74687772
"""Marks a file with records of invocations: "thwr" in ASCII."""

SCHEMA = """
CREATE TABLE invocations (
    id INTEGER PRIMARY KEY,
    began_ms INTEGER NOT NULL,
    request_id TEXT NOT NULL,
    function TEXT NOT NULL,
    qualifier TEXT NOT NULL,
    version TEXT NOT NULL,
    source TEXT NOT NULL,
    start_kind TEXT NOT NULL,
    status INTEGER NOT NULL,
    failed INTEGER NOT NULL,
    error_type TEXT NOT NULL,
    error TEXT NOT NULL,
    total_ms REAL NOT NULL,
    gateway_ms REAL NOT NULL,
    wait_ms REAL NOT NULL,
    start_ms REAL NOT NULL,
    prepare_ms REAL NOT NULL,
    hooks_ms REAL NOT NULL,
    handler_ms REAL NOT NULL,
    event_bytes INTEGER NOT NULL,
    answer_bytes INTEGER NOT NULL,
    stands_for INTEGER NOT NULL,
    log_stream TEXT NOT NULL,
    trace TEXT NOT NULL
) STRICT;
CREATE INDEX invocations_by_function ON invocations (function, id);
CREATE INDEX invocations_by_request ON invocations (request_id);
CREATE INDEX invocations_by_trace ON invocations (trace);
CREATE INDEX invocations_failed ON invocations (id) WHERE failed = 1;
CREATE INDEX invocations_failed_by_function ON invocations (function, error_type, id) WHERE failed = 1;
CREATE INDEX invocations_failed_by_type ON invocations (error_type, id) WHERE failed = 1;
CREATE TABLE bodies (
    id INTEGER PRIMARY KEY,
    event BLOB NOT NULL,
    answer BLOB NOT NULL,
    event_state TEXT NOT NULL,
    answer_state TEXT NOT NULL
) STRICT;
CREATE TABLE steps (
    id INTEGER PRIMARY KEY,
    at_ms INTEGER NOT NULL,
    request_id TEXT NOT NULL,
    kind TEXT NOT NULL,
    detail TEXT NOT NULL
) STRICT;
CREATE INDEX steps_by_request ON steps (request_id, id);
CREATE TABLE minutes (
    function TEXT NOT NULL,
    minute INTEGER NOT NULL,
    part INTEGER NOT NULL,
    document BLOB NOT NULL,
    PRIMARY KEY (function, minute, part)
) STRICT, WITHOUT ROWID;
CREATE INDEX minutes_by_age ON minutes (minute);
"""
CALLS_SCHEMA = """
CREATE TABLE handlers (
    id INTEGER PRIMARY KEY,
    handler TEXT NOT NULL,
    began_us INTEGER NOT NULL,
    left_out INTEGER NOT NULL
) STRICT;
CREATE INDEX handlers_by_span ON handlers (handler);
CREATE TABLE calls (
    id INTEGER PRIMARY KEY,
    handler TEXT NOT NULL,
    span TEXT NOT NULL,
    parent TEXT NOT NULL,
    name TEXT NOT NULL,
    detail TEXT NOT NULL,
    error TEXT NOT NULL,
    failed INTEGER NOT NULL,
    is_request INTEGER NOT NULL,
    began_us INTEGER NOT NULL,
    took_us INTEGER NOT NULL
) STRICT;
CREATE INDEX calls_by_handler ON calls (handler, began_us);
"""
"""What version 2 of the file adds: the handlers of traced invocations, and what these handlers called."""
MIGRATIONS = (SCHEMA, CALLS_SCHEMA)
"""From an empty file to the current schema."""

WHOLE = "whole"
"""State of an event or answer that is stored as it was."""
CUT = "cut"
"""State of an event or answer of which only the beginning is stored."""
REDACTED = "redacted"
"""State of an event or answer in which values were replaced."""


class InvocationRow(NamedTuple):
    """One attempt to run a function. Durations are in milliseconds; a stage that did not happen took 0.

    Attributes:
        id: identifies the record, see the module's text.
        began_ms: when the dispatcher got the invocation, milliseconds since 1970.
        request_id: the invocation's request id; all attempts of an asynchronous event share it.
        function: the function's name.
        qualifier: the version or alias in the request; empty: none.
        version: the version that ran; empty if none ran.
        source: where the invocation came from, for example ``POST /orders``, ``bucket uploads`` or ``Invoke``.
        start_kind: ``cold``, ``fork``, ``thaw`` or ``warm``; empty if no environment ran it.
        status: the HTTP status: of the answer, if the handler has given one; else that of the error; else 200.
        failed: 1 if it failed, else 0. An answer with a status from 500 counts as failed.
        error_type: type of the error; empty: none.
        error: the error's message in one line; empty: none.
        total_ms: from the dispatcher's receipt of the invocation to its answer.
        gateway_ms: from the arrival of the request's head until the dispatcher got the invocation.
        wait_ms: wait for publication and for an environment, without the environment's start.
        start_ms: start of the environment, for which the invocation waited.
        prepare_ms: part of `start_ms` inside the environment's process: init, fork or restore, with hooks.
        hooks_ms: part of `prepare_ms` for the after-restore hooks.
        handler_ms: time in the handler.
        event_bytes: size of the event.
        answer_bytes: size of the answer.
        stands_for: how many invocations it represents: itself, and those since the last record with the same outcome
            that were not recorded because there were too many.
        log_stream: the log stream of its environment; empty if no environment ran it.
        trace: the trace that it belongs to, ``Root`` of its trace header; empty: none.
    """

    id: int
    began_ms: int
    request_id: str
    function: str
    qualifier: str
    version: str
    source: str
    start_kind: str
    status: int
    failed: int
    error_type: str
    error: str
    total_ms: float
    gateway_ms: float
    wait_ms: float
    start_ms: float
    prepare_ms: float
    hooks_ms: float
    handler_ms: float
    event_bytes: int
    answer_bytes: int
    stands_for: int
    log_stream: str
    trace: str


class BodyRow(NamedTuple):
    """The event and the answer of the record `id`, as far as they are stored.

    Attributes:
        id: the record's id.
        event: the event, in UTF-8.
        answer: the answer or the error document.
        event_state: `WHOLE`, `CUT` or `REDACTED`.
        answer_state: the same for the answer.
    """

    id: int
    event: bytes
    answer: bytes
    event_state: str
    answer_state: str


class StepRow(NamedTuple):
    """What happened to an asynchronous event after an attempt.

    Attributes:
        at_ms: when it happened, milliseconds since 1970.
        request_id: the event's request id.
        kind: ``retry`` or ``dead letter``, or the outcome of a delivery: ``delivered``, ``unavailable``, ``refused``.
        detail: when the next attempt is, what was delivered where, or why the event became a dead letter.
    """

    at_ms: int
    request_id: str
    kind: str
    detail: str


class MinuteRow(NamedTuple):
    """What a function did in a minute; `minute` counts minutes since 1970; `document` is JSON, see `MinuteCounts`."""

    function: str
    minute: int
    document: bytes


class HandlerRow(NamedTuple):
    """The handler's run in a traced invocation. It connects a record with the calls of its handler.

    Attributes:
        id: the record's id.
        handler: the id of the handler's span, 16 hexadecimal digits.
        began_us: when the handler began, microseconds since 1970.
        left_out: how many of its calls were not stored.
    """

    id: int
    handler: str
    began_us: int
    left_out: int


class CallRow(NamedTuple):
    """Something that a handler did: a subsegment of its tracer, or a request to a function of this server.

    Attributes:
        handler: the id of the handler's span.
        span: the call's own id, 16 hexadecimal digits.
        parent: the id of the call that it is a part of; that of the handler's span, or an unknown one: of none.
        name: what was done.
        detail: operation, address and status, as far as they are known; empty: nothing is.
        error: type and message of the error; empty: none is known.
        failed: 1 if it failed, else 0.
        is_request: 1 if it is a request to something outside the handler's process, else 0.
        began_us: when it began, microseconds since 1970.
        took_us: how long it took, microseconds.
    """

    handler: str
    span: str
    parent: str
    name: str
    detail: str
    error: str
    failed: int
    is_request: int
    began_us: int
    took_us: int


class Batch(NamedTuple):
    """Rows to write together.

    Attributes:
        invocations: the records.
        bodies: their events and answers.
        steps: what happened to asynchronous events.
        minutes: counts by minute.
        handlers: the handlers of those `invocations` that are traced.
        calls: what handlers called: of these records, or of records that were written before.
        left_out: by handler, how many of its calls are not stored, all together.
    """

    invocations: list[InvocationRow]
    bodies: list[BodyRow]
    steps: list[StepRow]
    minutes: list[MinuteRow]
    handlers: Sequence[HandlerRow] = ()
    calls: Sequence[CallRow] = ()
    left_out: Mapping[str, int] = MappingProxyType({})
