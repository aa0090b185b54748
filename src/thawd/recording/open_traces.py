"""Remembers the traced invocations to whose spans a function may add its own.

A function knows the id of its handler's span from ``_X_AMZN_TRACE_ID``. The id is random, and other functions do not
get it, so whoever names it with its trace may add spans below it.

The event loop adds invocations; another thread looks them up. Each operation on a dictionary is one step for both.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections import deque
from collections.abc import Callable
from typing import Any

from thawd.invocation import Invocation, TracedInvocation

# Invocations that are remembered after they have ended, and the bytes of their events. A subsegment may arrive late,
# and X-Ray's SDK names the first invocation of a trace in all further ones of the same environment.
_MOST_ENDED = 4096
_MOST_BYTES = 16 << 20
# In case an invocation ends without a report.
_MOST_INVOCATIONS = 1 << 16
_SPANS_EACH = 2000
# Most invocations that may end in an environment while another one runs there, if it runs several at the same time.
_MOST_BESIDE = 200


class Run:
    """One invocation that is remembered.

    Attributes:
        handler_id: the id of its handler's span.
        began_at: when it got its environment, seconds since 1970; while it runs, when the dispatcher got it.
        ended_at: when it ended, the same clock; infinity: it runs.
        environment: log stream of the environment that has run it; empty: it runs, or none has run it.
        notes: what others keep about it until it is forgotten.
    """

    __slots__ = ("began_at", "ended_at", "environment", "handler_id", "notes")

    def __init__(self, handler_id: str, began_at: float) -> None:
        self.handler_id = handler_id
        self.began_at = began_at
        self.ended_at = math.inf
        self.environment = ""
        self.notes: Any = None

    def covers(self, at: float) -> bool:
        """Whether it ran, or waited to run, at a time, seconds since 1970."""
        return self.began_at <= at <= self.ended_at


class FunctionInTrace:
    """The invocations of one function that belong to one trace.

    Args:
        function: the function.
        trace_id: the trace, 32 hexadecimal digits.

    Attributes:
        began_at: when the first one began, seconds since 1970.
        runs: the invocations that are remembered, by the ids of their handlers' spans.
        values: values that were redacted in events.
        spans_left: how many more spans are accepted.
    """

    __slots__ = (
        "_ended",
        "_event",
        "_handler_id",
        "_more",
        "_running",
        "began_at",
        "function",
        "runs",
        "spans_left",
        "trace_id",
        "values",
    )

    def __init__(self, function: str, trace_id: str, began_at: float) -> None:
        self.function = function
        self.trace_id = trace_id
        self.began_at = began_at
        self.runs: dict[str, Run] = {}
        self.values: frozenset[str] = frozenset()
        self.spans_left = 0
        self._running: dict[str, Run] = {}  # in the order of their beginnings
        self._ended: dict[str, list[Run]] = {}  # by environment, in the order of their ends
        # The events that `take_event` is to return. Nearly always there is one invocation, which needs no dictionary.
        self._handler_id = ""
        self._event: bytes | None = None
        self._more: dict[str, bytes] | None = None

    def add(self, run: Run) -> None:
        """Remember an invocation that begins."""
        self.runs[run.handler_id] = self._running[run.handler_id] = run

    def end(self, run: Run, times: tuple[float, float], environment: str) -> None:
        """An invocation has ended; see `OpenTraces.ended`."""
        if self._running.pop(run.handler_id, None) is not None:
            (run.began_at, run.ended_at), run.environment = times, environment
            bisect.insort(self._ended.setdefault(environment, []), run, key=_end_of)

    def remove(self, handler_id: str) -> Run:
        """Forget an invocation, and return it."""
        run = self.runs.pop(handler_id)
        if self._running.pop(handler_id, None) is None:
            ended = self._ended[run.environment]
            ended.remove(run)  # as a rule, it is the first
            if not ended:
                del self._ended[run.environment]
        return run

    def ran_before(self, at: float) -> bool:
        """Whether an invocation that still runs began before a time, seconds since 1970."""
        first = next(iter(self._running.values()), None)
        return first is not None and first.began_at <= at

    def ended_in(self, environment: str, at: float) -> list[Run]:
        """Return the ended invocations that an environment ran at a time, seconds since 1970."""
        runs = self._ended.get(environment, [])
        first = bisect.bisect_left(runs, at, key=_end_of)
        return [run for run in itertools.islice(runs, first, first + _MOST_BESIDE) if run.began_at <= at]

    def add_event(self, handler_id: str, event: bytes) -> None:
        """Keep the event of an invocation for `take_event`."""
        if not self._handler_id:
            self._handler_id, self._event = handler_id, event
            return
        if self._more is None:
            self._more = {}
        self._more[handler_id] = event

    def remove_event(self, handler_id: str) -> None:
        """Forget the event of an invocation."""
        if handler_id == self._handler_id:
            self._event = None
        elif self._more is not None:
            self._more.pop(handler_id, None)

    def take_event(self) -> bytes | None:
        """Return an event that was not returned yet; None: there is none. The other thread calls this."""
        event, self._event = self._event, None
        if event is not None or not self._more:
            return event
        try:
            return self._more.popitem()[1]
        except KeyError:  # the event loop has just removed the last one
            return None


def _end_of(run: Run) -> float:
    return run.ended_at


class OpenTraces:
    """The traced invocations that run, and the latest that have ended.

    Attributes:
        on_forgotten: called with each invocation that is no longer remembered.
    """

    def __init__(self) -> None:
        self.on_forgotten: Callable[[Run], object] = lambda run: None
        self._by_handler: dict[str, FunctionInTrace] = {}
        self._by_trace: dict[str, dict[str, FunctionInTrace]] = {}
        self._ended: deque[str] = deque()
        self._sizes: deque[int] = deque()
        self._ended_bytes = 0

    def begin(self, invocation: Invocation, traced: TracedInvocation, began_at: float) -> Run:
        """Remember an invocation that begins.

        Args:
            invocation: the invocation.
            traced: its spans.
            began_at: the current time, seconds since 1970.

        Returns:
            The invocation.
        """
        functions = self._by_trace.setdefault(traced.trace_id, {})
        found = functions.get(invocation.function)
        if found is None:
            found = functions[invocation.function] = FunctionInTrace(invocation.function, traced.trace_id, began_at)
        run = Run(traced.handler_id, began_at)
        found.add(run)
        found.spans_left += _SPANS_EACH
        found.add_event(traced.handler_id, invocation.payload)
        self._by_handler[traced.handler_id] = found
        if len(self._by_handler) > _MOST_INVOCATIONS:
            self._forget(next(iter(self._by_handler)))
        return run

    def ended(
        self, invocation: Invocation, traced: TracedInvocation, *, times: tuple[float, float], environment: str
    ) -> Run | None:
        """An invocation has ended. It is remembered until many others have ended.

        Args:
            invocation: the invocation.
            traced: its spans.
            times: when it got its environment, or began if it got none, and the current time, seconds since 1970.
            environment: log stream of the environment that has run it; empty: none has run it.

        Returns:
            The invocation; None: it was forgotten while it ran.
        """
        owner = self._by_handler.get(traced.handler_id)
        run = None
        if owner is not None:
            run = owner.runs[traced.handler_id]
            owner.end(run, times, environment)
        size = len(invocation.payload)
        self._ended.append(traced.handler_id)
        self._sizes.append(size)
        self._ended_bytes += size
        while len(self._ended) > _MOST_ENDED or self._ended_bytes > _MOST_BYTES:
            self._ended_bytes -= self._sizes.popleft()
            self._forget(self._ended.popleft())
        return run

    def of_handler(self, handler_id: str) -> FunctionInTrace | None:
        """Return the function and the trace of a handler's span; None: no such handler is remembered."""
        return self._by_handler.get(handler_id)

    def knows(self, trace_id: str) -> bool:
        """Whether an invocation of a trace is remembered."""
        return trace_id in self._by_trace

    def _forget(self, handler_id: str) -> None:
        found = self._by_handler.pop(handler_id, None)
        if found is None:
            return
        found.remove_event(handler_id)
        self.on_forgotten(found.remove(handler_id))
        if not found.runs:
            functions = self._by_trace[found.trace_id]
            del functions[found.function]
            if not functions:
                del self._by_trace[found.trace_id]
