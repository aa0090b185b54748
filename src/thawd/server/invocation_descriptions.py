"""Describes invocations that have ended, for the lines of `thawd up`: in words, and by name and value.

A description contains no secrets: texts are redacted as in records, with the values that rules name in the event.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from thawd.environments.user_paths import as_user_knows
from thawd.environments.version import Version
from thawd.errors import ThawdError
from thawd.invocation import in_a_line
from thawd.recording.event_sources import UNKNOWN, source_of
from thawd.recording.record_making import ending_of, trace_root
from thawd.recording.redaction import Redactor
from thawd.scheduling.ended_invocations import EndedInvocation
from thawd.server.refusal_texts import refusal_text
from thawd.telemetry.console import harmless
from thawd.telemetry.logs.events import LogEvents
from thawd.wire.frames import LONGEST_LOGGED

_MOST_LOG_LINES = 40
_ERROR_LINE = b"[ERROR]"
# Between the lines of an invocation, there may be those of other environments.
_MOST_LOG_EVENTS = 800
_MOST_LOG_BYTES = 1 << 20
_LONGEST_ERROR = 2000
_LONGEST_TRACE = 64 << 10
_GONE = "the client has gone"
# An application that ends this soon after its answer does not work in the background.
_BACKGROUND_S = 0.05
_IS_HTTP = re.compile(r"[A-Z]+ /")
_PLATFORM_LINE = re.compile(rb'(START|END|REPORT) RequestId|\{.*"type":"platform\.([a-z]+)')


class _Error(msgspec.Struct):
    errorType: str = ""  # noqa: N815 - Lambda's name
    errorMessage: Any = ""  # noqa: N815
    stackTrace: list[str] = []  # noqa: N815


@dataclass(slots=True)
class Description:
    """An invocation that has ended.

    Attributes:
        words: what happened, for people; function first, without a time.
        status: HTTP status of the answer; of an invocation that no HTTP request made, ``ok`` or ``failed``; ``gone``.
        trace: lines of the traceback of a failed invocation, or what it has logged; control characters are escaped.
        fields: the same by name, without the traceback; a value that is not known is None.
    """

    words: list[str]
    status: str
    trace: list[str]
    fields: dict[str, Any]

    @property
    def has_failed(self) -> bool:
        """Whether the function failed, or its answer has status 500 or higher."""
        return _has_failed(self.status)


class InvocationDescriptions:
    """Describes invocations.

    Args:
        version_of: returns the version that serves a function, for the paths of its files; None: there is none.
        log_of: returns the path of a function's log.
        redactor: replaces secrets.
    """

    def __init__(
        self, version_of: Callable[[str], Version | None], log_of: Callable[[str], Path], redactor: Redactor
    ) -> None:
        self._version_of = version_of
        self._log_of = log_of
        self._redactor = redactor

    def describe(self, ended: EndedInvocation, *, runs_again: bool, is_last_try: bool) -> Description | None:
        """Describe an invocation.

        Args:
            ended: the invocation.
            runs_again: whether its event runs again after the next start.
            is_last_try: whether to do without what is not yet in its log.

        Returns:
            None: what the invocation has logged is needed and still to be written.
        """
        invocation, result = ended.invocation, ended.result
        found_source = source_of(invocation.payload, asynchronous=invocation.asynchronous)
        is_http = _IS_HTTP.match(found_source) is not None
        error = _Error()
        if result is not None and result.function_error is not None:
            error = _decoded(result.payload) or error
        status = _status(ended, is_http=is_http)
        trace: str | None = ""
        if _has_failed(status):
            trace = self._trace(ended, error, is_last_try=is_last_try)
            if trace is None:
                return None
        error_type, message = _reason(ended, error, status)
        values: frozenset[str] = frozenset()
        if trace or message or not found_source.startswith(UNKNOWN):
            values = self._redactor.secrets_of(invocation.payload)

        def without_secrets(text: str) -> str:
            return harmless(in_a_line(self._redactor.start_of(text, LONGEST_LOGGED, values=values))) if text else ""

        source, error_type = without_secrets(found_source), without_secrets(error_type)
        message = without_secrets(message)
        words = [
            invocation.function,
            *([] if found_source == UNKNOWN else [source]),
            status,
            *(["(runs again after the next start)"] if runs_again else []),
            f"{(_answered_s(ended) - ended.asked_s) * 1000:,.0f} ms",
        ]
        if (background_ms := _background_ms(ended)) is not None:
            words.append(f"(and {background_ms:,.0f} ms in the background)")
        if result is not None and result.init_ms is not None:
            words.append(f"({result.start_kind} {result.init_ms:,.0f} ms)")
        if ended.stands_for > 1:
            words.append(f"(one of {ended.stands_for:,})")
        words.append(": ".join(filter(None, (error_type, message))))
        if isinstance(ended.error, ThawdError):
            error_type = ended.error.type  # words do without it
        lines = self._redactor.start_of(trace, _LONGEST_TRACE, values=values).rstrip("\n").splitlines() if trace else []
        fields = {
            "event": "invocation",
            "function": invocation.function,
            "qualifier": invocation.qualifier,
            "version": None if result is None else result.executed_version,
            "request_id": invocation.request_id,
            "trace_id": trace_root(invocation) or None,
            "source": source,
            "status": _http_status(ended, is_http=is_http),
            "outcome": ended.outcome,
            "error_type": error_type or None,
            "error_message": message[:_LONGEST_ERROR] or None,
            **_measured(ended),
            "runs_again": True if runs_again else None,
            "stands_for": ended.stands_for,
        }
        return Description([each for each in words if each], status, [harmless(line) for line in lines], fields)

    def _trace(self, ended: EndedInvocation, error: _Error, *, is_last_try: bool) -> str | None:
        """The traceback of a failed invocation; what it has logged if the answer has none; None: try again later."""
        function = ended.invocation.function
        text = "".join(error.stackTrace)
        # Without the name of its log stream, another machine has run it, and has the log.
        if not text and ended.result is not None and ended.result.log_stream and not error.errorType:
            logged = self._logged(function, ended.invocation.request_id.encode(), ended.result.log_stream.encode())
            if logged is None and not is_last_try:
                return None
            text = "".join(f"  {line}\n" for line in (logged or "").splitlines())
        version = self._version_of(function)
        if version is not None:
            text = as_user_knows(text, version)
        return text[:_LONGEST_TRACE]

    def _logged(self, function: str, request_id: bytes, stream: bytes) -> str | None:
        """The last lines that an environment wrote between an invocation's start and its report, and all errors.

        None: the report is still to be written.
        """
        found: list[bytes] = []
        is_complete = False
        try:
            with LogEvents(self._log_of(function)) as events:
                for number, event in enumerate(events.backward()):
                    if number > _MOST_LOG_EVENTS or events.read_bytes > _MOST_LOG_BYTES:
                        break
                    if event.stream != stream:
                        continue
                    kind = _PLATFORM_LINE.match(event.message)
                    if kind is None:
                        found.append(event.message)
                    elif request_id in event.message:
                        if kind[kind.lastindex or 0].lower() == b"start":
                            break
                        is_complete = True
                        found.clear()  # the environment wrote these lines later
        except OSError:
            return None
        if not is_complete:
            return None
        # The error itself is before its traceback, of which web frameworks make more lines than are printed.
        errors = [line for line in found[_MOST_LOG_LINES:] if line.startswith(_ERROR_LINE)]
        return b"\n".join([*errors[::-1], *found[:_MOST_LOG_LINES][::-1]]).decode(errors="replace")


def _has_failed(status: str) -> bool:
    return status.startswith("5") or status == "failed"


def _status(ended: EndedInvocation, *, is_http: bool) -> str:
    """The HTTP status of the answer; of an invocation that no HTTP request made, ``ok`` or ``failed``."""
    if ended.error is not None:
        return str(ended.error.status) if isinstance(ended.error, ThawdError) else "gone"
    ending = ending_of(ended, is_http=is_http)
    return str(ending.status) if is_http else "failed" if ended.result is None or ended.result.function_error else "ok"


def _answered_s(ended: EndedInvocation) -> float:
    """When the client had the whole answer, ``time.monotonic()`` seconds; the application may have worked on."""
    stream = ended.invocation.stream
    answered_s = 0.0 if stream is None else stream.answered_s
    return answered_s if answered_s and ended.ended_s - answered_s >= _BACKGROUND_S else ended.ended_s


def _background_ms(ended: EndedInvocation) -> float | None:
    """How long an application worked in the background after its answer; None: hardly, or it is not known."""
    background_s = ended.ended_s - _answered_s(ended)
    return background_s * 1000 if background_s else None


def _http_status(ended: EndedInvocation, *, is_http: bool) -> int | None:
    """The HTTP status of the answer; None if no HTTP request made the invocation and it ran."""
    return ending_of(ended, is_http=is_http).status if is_http or ended.result is None else None


def _measured(ended: EndedInvocation) -> dict[str, Any]:
    """What Lambda's REPORT line measures. Times are in milliseconds, sizes in MB of 1,048,576 bytes, as Lambda's are.

    Source: Lambda pricing since August 2025: the init phase is billed, and a restore is not.
    """
    result = ended.result
    total_ms = round((_answered_s(ended) - ended.asked_s) * 1000, 3)
    background_ms = _background_ms(ended)
    if result is None:
        return {"total_ms": total_ms}
    init_ms = None if result.init_ms is None else round(result.init_ms, 3)
    billed_init_ms = 0.0 if result.init_ms is None or result.is_restored else result.init_ms
    return {
        "total_ms": total_ms,
        "background_ms": None if background_ms is None else round(background_ms, 3),
        "duration_ms": round(result.duration_ms, 3),
        "billed_ms": math.ceil(result.duration_ms + billed_init_ms),
        "memory_size_mb": result.memory_mb or None,
        "max_memory_used_mb": result.peak_mib or None,
        "restore_ms" if result.is_restored else "init_ms": init_ms,
        "start_kind": result.start_kind.value,
        "batch_size": result.batch_size if result.batch_size > 1 else None,
    }


def _reason(ended: EndedInvocation, error: _Error, status: str) -> tuple[str, str]:
    """Type and message of the error; of an answer that refuses the request, its text. Empty: there is none."""
    if ended.error is not None:
        if isinstance(ended.error, ThawdError):
            return "", ended.error.message
        return "", _GONE if isinstance(ended.error, asyncio.CancelledError) else repr(ended.error)
    if not error.errorType and ended.result is not None and ended.outcome == "failed" and ended.result.logged:
        return ended.result.logged
    stream = ended.invocation.stream
    if not error.errorType and stream is not None and stream.is_gone:
        return "", _GONE
    if not error.errorType and ended.result is not None and status.startswith("4"):
        return "", refusal_text(ended.result)
    return error.errorType, str(error.errorMessage)


def _decoded(payload: bytes) -> _Error | None:
    try:
        return msgspec.json.decode(payload, type=_Error)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
