"""Makes the rows of a record from what the dispatcher has reported. Runs in the thread that writes; no side effects."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from thawd.errors import RATE_EXCEEDED, ThawdError
from thawd.invocation import Invocation, Result
from thawd.recording.event_sources import UNKNOWN, source_of
from thawd.recording.redaction import Redactor
from thawd.scheduling.ended_invocations import EndedInvocation, http_head
from thawd.stores.invocations.record_rows import CUT, REDACTED, WHOLE, BodyRow, HandlerRow, InvocationRow
from thawd.streaming import HTTP_RESPONSE, SEPARATOR
from thawd.wire.frames import LONGEST_LOGGED

CLIENT_GONE = 499
"""Status if the client has gone before it had got the whole answer. Source: nginx, NGX_HTTP_CLIENT_CLOSED_REQUEST."""
KEPT_BYTES = 64 << 10
"""Events and answers that are larger are not stored."""
_LONGEST_ERROR = 2000
_LONGEST_TYPE = 200
_LONGEST_SOURCE = 200
_ROOT = re.compile(r"Root=([0-9a-f-]{10,40})")


class _ErrorDocument(msgspec.Struct):
    errorType: str = "Error"  # noqa: N815 - Lambda's names
    errorMessage: str | None = ""  # noqa: N815


class _HttpAnswer(msgspec.Struct):
    statusCode: int | str = 200  # noqa: N815


_decode_error = msgspec.json.Decoder(_ErrorDocument).decode
_decode_answer = msgspec.json.Decoder(_HttpAnswer).decode


class Ending(NamedTuple):
    """How an invocation ended.

    Attributes:
        status: HTTP status of the answer.
        failed: whether it failed.
        error_type: the error's type; empty: there was no error.
        error: the error's message.
    """

    status: int
    failed: bool
    error_type: str
    error: str


def rows_of(ended: EndedInvocation, number: int, redactor: Redactor) -> tuple[InvocationRow, BodyRow, frozenset[str]]:
    """Return the rows of an invocation's record, and the values that were redacted in its event.

    Args:
        ended: the invocation.
        number: the record's id.
        redactor: replaces secret values.
    """
    invocation, result = ended.invocation, ended.result
    event, values, event_state = _kept(invocation.payload, redactor, ())
    if event_state == CUT:
        values = redactor.values(invocation.payload)
    answer, answer_state = (b"", WHOLE) if result is None else _kept_answer(result, redactor, values)
    source = source_of(invocation.payload, asynchronous=invocation.asynchronous)
    ending = ending_of(ended, is_http=not source.startswith(UNKNOWN))
    total_ms = (ended.ended_s - ended.asked_s) * 1000
    start_ms = 0.0 if result is None or result.init_ms is None else result.init_ms
    waited_ms = total_ms if not invocation.leased_s else (invocation.leased_s - ended.asked_s) * 1000

    def without_secrets(text: str) -> str:
        # What a value is must be known before the text is cut, and before line ends are replaced.
        return " ".join(redactor.start_of(text, LONGEST_LOGGED, values=values).split())

    row = InvocationRow(
        id=number,
        began_ms=int(ended.ended_at * 1000 - total_ms),
        request_id=invocation.request_id,
        function=invocation.function,
        qualifier=invocation.qualifier or "",
        version="" if result is None else result.executed_version,
        source=without_secrets(source)[:_LONGEST_SOURCE],
        start_kind="" if result is None else result.start_kind.value,
        status=ending.status,
        failed=int(ending.failed),
        error_type=without_secrets(ending.error_type)[:_LONGEST_TYPE],
        error=without_secrets(ending.error)[:_LONGEST_ERROR],
        total_ms=round(total_ms, 3),
        gateway_ms=round((ended.asked_s - invocation.arrived_s) * 1000, 3) if invocation.arrived_s else 0.0,
        wait_ms=round(max(0.0, waited_ms - start_ms), 3),
        start_ms=round(start_ms, 3),
        prepare_ms=0.0 if not start_ms or result is None else round(result.prepare_ms, 3),
        hooks_ms=0.0 if not start_ms or result is None else round(result.hooks_ms, 3),
        handler_ms=0.0 if result is None else round(result.duration_ms, 3),
        event_bytes=len(invocation.payload),
        answer_bytes=0 if result is None else len(result.payload),
        stands_for=ended.stands_for,
        log_stream="" if result is None else result.log_stream,
        trace=trace_root(invocation),
    )
    return row, BodyRow(number, event, answer, event_state, answer_state), values


def trace_root(invocation: Invocation) -> str:
    """Return the id of the trace that an invocation belongs to, such as ``1-65f…``; empty: it is not known."""
    root = _ROOT.search(invocation.trace_id or "")
    return "" if root is None else root[1]


def handlers_of(
    ended: Sequence[EndedInvocation], rows: Sequence[InvocationRow], began_us: Mapping[str, int]
) -> list[HandlerRow]:
    """Return the rows of the handlers that are traced.

    Args:
        ended: the invocations.
        rows: their rows, in the same order.
        began_us: when the traced handlers began, microseconds since 1970, by the ids of their spans.
    """
    traced = ((row.id, each.invocation.traced) for each, row in zip(ended, rows, strict=True))
    found = ((number, each.handler_id) for number, each in traced if each is not None and each.handler_id in began_us)
    return [HandlerRow(number, handler, began_us[handler], 0) for number, handler in found]


def _kept(
    body: bytes, redactor: Redactor, values: frozenset[str] | tuple[str, ...]
) -> tuple[bytes, frozenset[str], str]:
    """Return what is stored of an event or answer, the values that were redacted in it, and its state."""
    if len(body) > KEPT_BYTES:
        return b"", frozenset(), CUT
    kept, found = redactor.body(body, values=values)
    return kept, found, WHOLE if kept is body else REDACTED


def _kept_answer(result: Result, redactor: Redactor, values: frozenset[str]) -> tuple[bytes, str]:
    """Return what is stored of an answer, and its state. The prelude of an HTTP answer is JSON; its body may be so."""
    if result.content_type != HTTP_RESPONSE or len(result.payload) > KEPT_BYTES:
        kept, _, state = _kept(result.payload, redactor, values)
        return kept, state
    prelude, separator, body = result.payload.partition(SEPARATOR)
    head, _, head_state = _kept(prelude, redactor, values)
    rest, _, rest_state = _kept(body, redactor, values)
    return head + separator + rest, head_state if rest_state == WHOLE else rest_state


def ending_of(ended: EndedInvocation, *, is_http: bool) -> Ending:
    """Return how an invocation ended.

    Args:
        ended: the invocation.
        is_http: whether its answer is that to an HTTP request.
    """
    result, error = ended.result, ended.error
    if result is None:
        if isinstance(error, ThawdError):
            return Ending(error.status, True, error.type, _message(error))
        return Ending(CLIENT_GONE, True, "Cancelled", "The caller did not wait for the answer, or the server stopped.")
    answered = ended.invocation.answered_status
    failed_status = answered or 500
    if result.function_error is not None:
        try:
            document = _decode_error(result.payload)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            message = result.payload[:KEPT_BYTES].decode("utf-8", "replace")
            return Ending(failed_status, True, result.function_error, message)
        return Ending(failed_status, True, document.errorType, document.errorMessage or "")
    status = answered or _sent_status(ended.invocation, result, is_http=is_http)
    if status < 500:
        return Ending(status, False, "", "")
    # A web framework has handled the exception, or the handler itself.
    return Ending(status, True, *(result.logged or (f"HTTP {status}", "")))


def _sent_status(invocation: Invocation, result: Result, *, is_http: bool) -> int:
    """Return the HTTP status of a handler's answer; `CLIENT_GONE` if the client did not get the whole."""
    if invocation.stream is not None and invocation.stream.is_gone:
        return CLIENT_GONE
    head = http_head(invocation, result)
    return _status_of(head) if is_http or head.startswith(b'{"statusCode"') else 200


def _message(error: ThawdError) -> str:
    """Return the message of an error; if it is Lambda's text for every limit, with the name of the limit."""
    message = error.message or ""
    return f"{message} ({error.reason})" if message == RATE_EXCEEDED and error.reason else message


def _status_of(head: bytes) -> int:
    """Return the HTTP status in the JSON of an answer (`http_head`); 200 if there is none."""
    try:
        status = int(_decode_answer(head).statusCode)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError, ValueError):
        return 200
    return status if 100 <= status <= 999 else 200
