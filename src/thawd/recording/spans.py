"""Makes the spans of an invocation from what the dispatcher has reported. No side effects.

A span contains no event, no answer, no message of an error and no path of a request, so no secret of a caller either.
The names of attributes are those of OpenTelemetry's semantic conventions; those that begin with ``thawd.`` are not.

Source: OpenTelemetry, semantic conventions for FaaS spans, HTTP spans and messaging spans.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from thawd.grammar import trace_headers
from thawd.invocation import Invocation, StartKind, TracedInvocation, new_span_ids
from thawd.recording.event_sources import trigger_of
from thawd.recording.record_making import ending_of
from thawd.scheduling.ended_invocations import EndedInvocation

INTERNAL, SERVER, CLIENT, PRODUCER, CONSUMER = 1, 2, 3, 4, 5
"""Kinds of spans, as OTLP numbers them."""
# A function chooses its errors' types; a text that is no name may contain anything.
_ERROR_TYPE = re.compile(r"[A-Za-z_][\w.:]{0,99}")
_MESSAGING = {"messaging.system": "thawd"}

Attributes = Mapping[str, str | int | float | bool]


class Span(NamedTuple):
    """A span.

    Attributes:
        function: function that it belongs to; becomes ``service.name``.
        trace_id: the trace, 32 hexadecimal digits.
        span_id: 16 hexadecimal digits.
        parent_id: the parent's span id; empty: there is none.
        name: what was done.
        kind: `INTERNAL`, `SERVER`, `CLIENT`, `PRODUCER` or `CONSUMER`.
        began_at: seconds since 1970.
        ended_at: seconds since 1970.
        attributes: attributes by name.
        failed: whether it failed.
    """

    function: str
    trace_id: str
    span_id: str
    parent_id: str
    name: str
    kind: int
    began_at: float
    ended_at: float
    attributes: Attributes = MappingProxyType({})
    failed: bool = False


class _Maker:
    """Makes the spans of one invocation.

    Args:
        ended: the invocation.
        traced: its spans' ids.
    """

    def __init__(self, ended: EndedInvocation, traced: TracedInvocation) -> None:
        self._ended = ended
        self._traced = traced
        # Adding this to ``time.monotonic()`` seconds makes seconds since 1970.
        self._offset_s = ended.ended_at - ended.ended_s
        self.spans: list[Span] = []

    def add(self, name: str, began_s: float, ended_s: float, parent_id: str = "") -> str:
        """Add a span with a new id, and return the id. Its parent is the invocation's, if no other is given."""
        span_id, _ = new_span_ids()
        self._append((span_id, parent_id or self._traced.span_id), name, INTERNAL, (began_s, ended_s))
        return span_id

    def add_invocation(self) -> None:
        """Add the span of the whole invocation."""
        ended, traced = self._ended, self._traced
        invocation, result = ended.invocation, ended.result
        trigger = trigger_of(invocation.payload)
        ending = ending_of(ended, is_http=trigger.kind == "http")
        attributes: dict[str, str | int | float | bool] = {
            "faas.invocation_id": invocation.request_id,
            "faas.trigger": trigger.kind,
            "faas.coldstart": result is not None and result.init_ms is not None,
        }
        if result is not None:
            attributes["faas.version"] = result.executed_version
            attributes["thawd.start"] = result.start_kind.value
        if invocation.qualifier:
            attributes["thawd.qualifier"] = invocation.qualifier
        if trigger.kind == "http":
            attributes["http.request.method"] = trigger.method
            if not invocation.asynchronous:
                attributes["http.response.status_code"] = ending.status
            if trigger.route:
                attributes["http.route"] = trigger.route
        if trigger.collection:
            attributes["faas.document.collection"] = trigger.collection
        if invocation.asynchronous:
            attributes |= _messaging(invocation, "process")
        if ending.failed:
            attributes["error.type"] = error_type_of(ending.error_type)
        began_s = invocation.arrived_s or ended.asked_s
        kind = CONSUMER if invocation.asynchronous else SERVER
        times = (began_s, ended.ended_s)
        ids = (traced.span_id, traced.parent_id)
        self._append(ids, invocation.function, kind, times, attributes=attributes, failed=ending.failed)

    def add_stages(self) -> None:
        """Add the spans of what the invocation did, one after the other."""
        ended, invocation, result = self._ended, self._ended.invocation, self._ended.result
        if invocation.arrived_s:
            self.add("gateway", invocation.arrived_s, ended.asked_s)
        if not invocation.leased_s:  # it got no environment
            self.add("wait", ended.asked_s, ended.ended_s)
            return
        ready_s = invocation.leased_s
        start_s = 0.0 if result is None or result.init_ms is None else result.init_ms / 1000
        self.add("wait", ended.asked_s, max(ended.asked_s, ready_s - start_s))
        if result is None:
            return
        if start_s:
            self._add_start(result.start_kind, ready_s - start_s, ready_s)
        duration_s = result.duration_ms / 1000
        # A batch waits in the environment for its other items.
        began_s = ready_s if result.batch_size == 1 else max(ready_s, ended.ended_s - duration_s)
        failed = result.function_error is not None
        times = (began_s, min(began_s + duration_s, ended.ended_s))
        self._append((self._traced.handler_id, self._traced.span_id), "handler", INTERNAL, times, failed=failed)

    def _add_start(self, kind: StartKind, began_s: float, ready_s: float) -> None:
        """Add the start of the environment, with what was done inside its process."""
        result = self._ended.result
        assert result is not None
        start = self.add(f"start {kind.value}", began_s, ready_s)
        prepare_s = result.prepare_ms / 1000
        if prepare_s:
            inside = "restore" if kind is StartKind.THAW else "init" if kind is StartKind.COLD else "fork"
            restored = self.add(inside, max(began_s, ready_s - prepare_s), ready_s, start)
            if result.hooks_ms:
                self.add("after-restore hooks", max(began_s, ready_s - result.hooks_ms / 1000), ready_s, restored)

    def add_queue(self) -> None:
        """Add the event's wait in the queue. It is a sibling of the invocation, which began only when it ended."""
        invocation, traced = self._ended.invocation, self._traced
        asked_at = self._ended.asked_s + self._offset_s
        span_id, _ = new_span_ids()
        parent_id = traced.parent_id or traced.span_id
        began_at = min(invocation.queued_at, asked_at)
        self.spans.append(
            Span(invocation.function, traced.trace_id, span_id, parent_id, "queue", INTERNAL, began_at, asked_at)
        )

    def _append(
        self,
        ids: tuple[str, str],
        name: str,
        kind: int,
        times: tuple[float, float],
        *,
        attributes: Attributes = MappingProxyType({}),
        failed: bool = False,
    ) -> None:
        began_at, ended_at = times[0] + self._offset_s, times[1] + self._offset_s
        function, trace_id = self._ended.invocation.function, self._traced.trace_id
        self.spans.append(Span(function, trace_id, *ids, name, kind, began_at, ended_at, attributes, failed))


def spans_of(ended: EndedInvocation) -> list[Span]:
    """Return the spans of an invocation; none if it is not traced."""
    traced = ended.invocation.traced
    if traced is None:
        return []
    maker = _Maker(ended, traced)
    maker.add_invocation()
    if ended.invocation.queued_at:
        maker.add_queue()
    maker.add_stages()
    return maker.spans


def span_of_request(ended: EndedInvocation, traced: TracedInvocation) -> Span:
    """Return the span of the request that has caused an invocation, as its sender sees it.

    Args:
        ended: a synchronous invocation.
        traced: its spans.
    """
    invocation, result = ended.invocation, ended.result
    error = "" if ended.error is None else getattr(ended.error, "type", type(ended.error).__name__)
    failed = result is None or result.function_error is not None
    began_s = invocation.arrived_s or ended.asked_s
    began_at = ended.ended_at - (ended.ended_s - began_s)
    return Span(
        invocation.function,
        traced.trace_id,
        traced.span_id,
        traced.parent_id,
        f"invoke {invocation.function}",
        CLIENT,
        began_at,
        ended.ended_at,
        {"error.type": error} if error else {},
        failed,
    )


def span_of_accepted(invocation: Invocation, traced: TracedInvocation, times: tuple[float, float]) -> Span:
    """Return the span of an event that was accepted: it lasts until the event is stored.

    Args:
        invocation: the event.
        traced: its trace; `span_id` is the span's.
        times: when it came, and when it was stored, seconds since 1970.
    """
    return Span(
        invocation.function,
        traced.trace_id,
        traced.span_id,
        traced.parent_id,
        f"send {invocation.function}",
        PRODUCER,
        *times,
        _messaging(invocation, "send"),
    )


class DeliveryAttempt(NamedTuple):
    """An attempt to deliver the outcome of an event to a destination.

    Attributes:
        function: function that was invoked.
        request_id: request id of the event.
        trace_id: trace header of the event or of its invocation; None: none.
        kind: kind of the destination. Its name is not here: it can be an address with a key.
        began_at: when the attempt began, seconds since 1970.
        ended_at: when it ended, seconds since 1970.
        error: type of the error; empty: the destination has the record.
    """

    function: str
    request_id: str
    trace_id: str | None
    kind: str
    began_at: float
    ended_at: float
    error: str


def span_of_delivery(delivery: DeliveryAttempt) -> Span | None:
    """Return the span of an attempt to deliver an outcome; None: the trace is not recorded."""
    context = trace_headers.parsed(delivery.trace_id)
    if context is None or not context.sampled:
        return None
    attributes = {
        "messaging.operation.type": "send",
        "messaging.operation.name": "deliver",
        "messaging.system": "thawd",
        "messaging.message.id": delivery.request_id,
        "thawd.destination": delivery.kind,
    }
    if delivery.error:
        attributes["error.type"] = delivery.error
    ids = (context.trace_id, new_span_ids()[0], context.parent_id)
    times = (delivery.began_at, delivery.ended_at)
    return Span(delivery.function, *ids, f"deliver {delivery.kind}", PRODUCER, *times, attributes, bool(delivery.error))


def _messaging(invocation: Invocation, operation: str) -> Attributes:
    return _MESSAGING | {
        "messaging.operation.type": operation,
        "messaging.operation.name": operation,
        "messaging.destination.name": invocation.function,
        "messaging.message.id": invocation.request_id,
    }


def error_type_of(text: str) -> str:
    """Return an error's type, or ``_OTHER`` if a function has chosen a text that is no name."""
    return text if _ERROR_TYPE.fullmatch(text) else text if text.startswith("HTTP ") else "_OTHER"
