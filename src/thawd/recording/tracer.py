"""Decides which invocations are traced, and gives them their place in the trace.

A trace that begins elsewhere is recorded if its sender records it. Of the traces that begin here, a share is recorded.
Whether a trace belongs to it depends only on the trace id, so that all attempts of an event, and all functions of a
chain, are recorded together.
"""

from __future__ import annotations

import time

from thawd.grammar import trace_headers
from thawd.invocation import Invocation, TracedInvocation, new_span_ids, new_trace_header
from thawd.recording.calls import Calls
from thawd.recording.open_traces import OpenTraces
from thawd.recording.span_sender import SpanSender
from thawd.recording.spans import DeliveryAttempt, span_of_accepted, span_of_delivery, span_of_request
from thawd.resources import ACTIVE, Function
from thawd.scheduling.ended_invocations import EndedInvocation

# Source: OpenTelemetry specification, "TraceIdRatioBased": the decision is a function of the trace id's last 56 bits.
_DIGITS = 14
_ALL = 1 << (4 * _DIGITS)
_ACCURATE_S = 20e-6
_READINGS = 5


class Tracer:
    """Traces invocations and events.

    Args:
        sender: sends spans of all functions to a collector; None: there is none, and only the functions whose `tracing`
            is active are traced.
        ratio: share of the traces that begin here that are recorded, 0-1.
        open_traces: remembers invocations for the spans that functions add themselves; None: they add none.
        calls: collects what handlers call, for records; None: nothing is recorded.
    """

    def __init__(
        self,
        sender: SpanSender | None,
        *,
        ratio: float,
        open_traces: OpenTraces | None = None,
        calls: Calls | None = None,
    ) -> None:
        self._sender = sender
        self._open = open_traces
        self._calls = calls
        self._below = int(ratio * _ALL)

    def begin(self, invocation: Invocation, function: Function | None = None) -> str | None:
        """See `thawd.scheduling.ended_invocations.Tracer`."""
        if self._sender is None and (function is None or function.tracing != ACTIVE):
            invocation.traced = self._passed_through(invocation)
            return invocation.trace_id
        traced = invocation.traced = self._traced(invocation)
        if traced is None:
            return invocation.trace_id
        if self._open is not None:
            run = self._open.begin(invocation, traced, time.time())
            if self._calls is not None:
                self._calls.begin(run)
        return traced.header

    def ended(self, ended: EndedInvocation) -> None:
        """See `thawd.scheduling.ended_invocations.Tracer`."""
        invocation, result = ended.invocation, ended.result
        traced = invocation.traced
        assert traced is not None
        if self._calls is not None and not invocation.asynchronous:
            self._calls.request(span_of_request(ended, traced))
        if not traced.handler_id:
            return  # it only passes the trace on
        if self._open is not None:
            environment = "" if result is None else result.log_stream
            offset_s = _wall_clock_offset_s()
            times = (_handler_began_s(ended) + offset_s, ended.ended_s + offset_s)
            run = self._open.ended(invocation, traced, times=times, environment=environment)
            if self._calls is not None and run is not None:
                self._calls.ended(run, result)
        if result is not None:
            result.trace_id = trace_headers.with_parent(traced.header, traced.trace_id, traced.span_id)
        elif invocation.asynchronous and getattr(ended.error, "status", 0) == 429:
            return  # the event waits in the queue, and is tried again
        if self._sender is not None:
            self._sender.ended(ended)

    def accepting(self, invocation: Invocation) -> TracedInvocation | None:
        """Make the span of an event that is about to be stored, and set the trace header to store with the event.

        Returns:
            The span for `accepted`; None: the event is not traced.
        """
        if self._sender is None:
            return self._passed_through(invocation)
        traced = self._traced(invocation)
        if traced is not None:
            invocation.trace_id = trace_headers.with_parent(traced.header, traced.trace_id, traced.span_id)
        return traced

    def accepted(self, invocation: Invocation, traced: TracedInvocation, began_at: float) -> None:
        """An event was stored, for which `accepting` was called at `began_at`, seconds since 1970."""
        span = span_of_accepted(invocation, traced, (began_at, time.time()))
        if self._sender is not None:
            self._sender.add(span)
        if self._calls is not None:
            self._calls.request(span)

    def delivered(self, attempt: DeliveryAttempt) -> None:
        """The outcome of an event was delivered, or not."""
        if self._sender is not None and (span := span_of_delivery(attempt)) is not None:
            self._sender.add(span)

    def _passed_through(self, invocation: Invocation) -> TracedInvocation | None:
        """Return the place of a request to a function that is not traced, if a traced handler here has sent it."""
        context = trace_headers.parsed(invocation.trace_id)
        if context is None or not context.sampled or self._open is None or not self._open.knows(context.trace_id):
            return None
        return TracedInvocation(context.trace_id, context.parent_id, new_span_ids()[0], "", invocation.trace_id or "")

    def _traced(self, invocation: Invocation) -> TracedInvocation | None:
        context = trace_headers.parsed(invocation.trace_id)
        if context is None:
            own = trace_headers.parsed(new_trace_header())
            assert own is not None
            context = own
        is_sampled = context.sampled
        if is_sampled is None:
            is_sampled = int(context.trace_id[-_DIGITS:], 16) < self._below
        if not is_sampled:
            return None
        span_id, handler_id = new_span_ids()
        header = trace_headers.with_parent(invocation.trace_id, context.trace_id, handler_id)
        return TracedInvocation(context.trace_id, context.parent_id, span_id, handler_id, header)


def _handler_began_s(ended: EndedInvocation) -> float:
    """Return when the handler began, ``time.monotonic()`` seconds; if none ran, when the invocation began."""
    leased_s = ended.invocation.leased_s or ended.asked_s
    if ended.result is None or ended.result.batch_size == 1:
        return leased_s
    # A batch waits in the environment for its other items.
    return max(leased_s, ended.ended_s - ended.result.duration_ms / 1000)


def _wall_clock_offset_s() -> float:
    """Return what makes seconds since 1970 of ``time.monotonic()`` seconds, accurate to `_ACCURATE_S` as a rule.

    Another thread may run between two readings of clocks. Calls are assigned to invocations by their times, so
    `EndedInvocation.ended_at` is not accurate enough: it is read some time after `ended_s`.
    """
    offset_s = 0.0
    for _ in range(_READINGS):
        before_s, at, after_s = time.monotonic(), time.time(), time.monotonic()
        offset_s = at - after_s
        if after_s - before_s < _ACCURATE_S:
            break
    return offset_s
