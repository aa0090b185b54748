"""What the dispatcher reports about an invocation that has ended, to whoever records invocations."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from thawd.invocation import Invocation, Result
from thawd.resources import Function
from thawd.streaming import HTTP_RESPONSE, SEPARATOR
from thawd.telemetry.metrics import FunctionMetrics
from thawd.telemetry.sampling import Sampler

# Handlers write the status first, as a rule. To search all of a large answer would take too long.
_SERVER_ERROR = re.compile(rb'"statusCode"\s*:\s*"?5')
_SEARCHED_BYTES = 256


@dataclass(slots=True)
class EndedInvocation:
    """One invocation, after its end.

    Attributes:
        invocation: the invocation.
        result: its result; None: it ended with `error`.
        error: the error that the caller got instead of a result; None: there is a result.
        asked_s: when the dispatcher got it, ``time.monotonic()`` seconds.
        ended_s: when it ended, the same clock.
        ended_at: when it ended, seconds since 1970.
        stands_for: how many invocations its record stands for.
    """

    invocation: Invocation
    result: Result | None
    error: BaseException | None
    asked_s: float
    ended_s: float
    ended_at: float
    stands_for: int

    @property
    def outcome(self) -> str:
        """``refused`` if no environment has answered, ``failed``, or ``succeeded``."""
        if self.result is None:
            return "refused"
        failed = self.result.function_error is not None or _is_server_error(self.invocation, self.result)
        return "failed" if failed else "succeeded"


def http_head(invocation: Invocation, result: Result) -> bytes:
    """Return the JSON that has the answer's HTTP status in ``statusCode``, if there is one.

    A handler's answer is such a document itself. An answer that was sent in parts, or that a web application made,
    begins with one. Returns nothing for the answer of a streaming handler that sets no status.
    """
    stream = invocation.stream
    if stream is not None and stream.has_begun:
        return stream.prelude
    if result.content_type is None:
        return result.payload
    if result.content_type != HTTP_RESPONSE:
        return b""
    # The body after the separator may be large: it is not copied.
    end = result.payload.find(SEPARATOR)
    return result.payload if end < 0 else result.payload[:end]


def _is_server_error(invocation: Invocation, result: Result) -> bool:
    return _SERVER_ERROR.search(http_head(invocation, result), 0, _SEARCHED_BYTES) is not None


Record = Callable[[EndedInvocation], None]
"""Records an invocation. It must not wait."""


class Tracer(Protocol):
    """Makes the spans of invocations."""

    def begin(self, invocation: Invocation, function: Function | None) -> str | None:
        """Set `Invocation.traced`: its spans, or None if it is not to be traced.

        Args:
            invocation: the invocation.
            function: the version's settings, which say whether it is to be traced; None: there is no such version.

        Returns:
            The trace header for the function; None: a new one is to be made.
        """

    def ended(self, ended: EndedInvocation) -> None:
        """An invocation with spans has ended. This must not wait."""


class Reporting:
    """Reports those invocations of all functions that are to be recorded, and all those that are traced.

    Args:
        record: records one; None: none is recorded.
        per_s: most successes of one function that are reported in a second; failures and starts are always reported.
        tracer: makes the spans of invocations; None: none is traced.
    """

    def __init__(self, record: Record | None, *, per_s: float, tracer: Tracer | None = None) -> None:
        self._record = record
        self._per_s = per_s
        self._tracer = tracer

    def trace(self, tracer: Tracer) -> None:
        """From now on, report traced invocations to `tracer`."""
        self._tracer = tracer

    def also_to(self, other: Record, *, per_s: float) -> None:
        """From now on, report to `other`, too: what is recorded, or if nothing is, up to `per_s` successes a second."""
        first = self._record
        if first is None:
            self._record, self._per_s = other, per_s
            return

        def both(ended: EndedInvocation) -> None:
            first(ended)
            other(ended)

        self._record = both

    def ended(
        self, metrics: FunctionMetrics, invocation: Invocation, result: Result, times: tuple[float, float]
    ) -> None:
        """An invocation has ended with a result.

        Args:
            metrics: the metrics of its function, which have the function's sampler.
            invocation: the invocation.
            result: its result.
            times: when the dispatcher got it, and when it ended, ``time.monotonic()`` seconds.
        """
        if invocation.traced is not None and self._tracer is not None:
            self._tracer.ended(EndedInvocation(invocation, result, None, *times, time.time(), 1))
        if self._record is None:
            return
        sampler = metrics.sampler
        if sampler is None:
            sampler = metrics.sampler = Sampler(self._per_s)
        ended_s = times[1]
        is_success = result.function_error is None and not _is_server_error(invocation, result)
        if ended_s < sampler.next_s and is_success and result.init_ms is None and not invocation.is_always_recorded:
            sampler.skipped += 1
            return
        result.is_recorded = True
        stands_for = sampler.take(ended_s, is_success=is_success)
        self._record(EndedInvocation(invocation, result, None, times[0], ended_s, time.time(), stands_for))

    def refused(self, metrics: FunctionMetrics, invocation: Invocation, error: BaseException, asked_s: float) -> None:
        """An invocation has ended with an error instead of a result, for example because it was throttled.

        Args:
            metrics: the metrics of its function.
            invocation: the invocation.
            error: the error.
            asked_s: when the dispatcher got it, ``time.monotonic()`` seconds.
        """
        if invocation.traced is not None and self._tracer is not None:
            self._tracer.ended(EndedInvocation(invocation, None, error, asked_s, time.monotonic(), time.time(), 1))
        if self._record is None:
            return
        if metrics.refusals is None:
            metrics.refusals = Sampler(self._per_s or 1.0)
        now_s = time.monotonic()
        if now_s < metrics.refusals.next_s and not invocation.is_always_recorded:
            metrics.refusals.skipped += 1
            return
        stands_for = metrics.refusals.take(now_s)
        self._record(EndedInvocation(invocation, None, error, asked_s, now_s, time.time(), stands_for))
