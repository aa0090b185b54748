"""Collects what the handlers of traced invocations called, until the recorder writes it beside their records.

A call comes from a subsegment that the handler's tracer sent, or is a request of the handler to this server, or an
operation on a table or bucket through ``import thawd``. Calls wait here until their invocation has ended, because only
then is it known whether it is recorded. Of an invocation, the calls that took longest are kept: what contains another
call took at least as long, so the kept calls are a whole tree.

Which invocation a call belongs to follows from its chain of parents and from its time. The chain alone does not say it:
in all invocations of one trace that run in one environment, X-Ray's SDK names the handler's span of the first.

The thread that receives segments calls `Calls.offer`; the event loop calls everything else.
"""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from thawd.environments.store_calls import NotedCall
from thawd.invocation import Result, new_span_ids
from thawd.recording.open_traces import OpenTraces, Run
from thawd.recording.segment_joining import Source
from thawd.recording.spans import INTERNAL, Span
from thawd.stores.invocations.handler_calls import MOST_CALLS
from thawd.stores.invocations.record_rows import CallRow

# Calls that were received and not looked at yet, and those that wait for the end of their invocation.
_MOST_ARRIVED_BYTES = 8 << 20
_MOST_HELD_BYTES = 8 << 20
# Requests to this server whose sender is not known yet: X-Ray's SDK reports a request only after its answer.
_MOST_REQUESTS = 2048
_LONGEST_WAIT_S = 120.0
# Calls that may belong to several invocations, one of which still runs. Further ones are dropped.
_MOST_UNDECIDED = 1000
# Most calls that `Calls.take` looks at, so that it does not stop the event loop for long.
_TAKEN_AT_ONCE = 1000
# Calls of tables and buckets whose invocation has not ended, of all environments. See `_StoreCalls.drop_half`.
_MOST_STORE_CALLS = 10_000
_MOST_SECONDS = 1000
_LONGEST_NAME = 100
_LONGEST_DETAIL = 300
_LONGEST_ERROR = 500
_ROW_BYTES = 400
_DETAILS = ("rpc.method", "aws.s3.bucket", "db.collection.name", "faas.invoked_name", "db.system.name")
_HTTP = ("http.request.method", "url.full")


class _Notes:
    """What is kept about one invocation.

    Attributes:
        is_recorded: whether it has a record; None: it runs.
        held: its calls, a heap by duration: duration, number, row.
        held_bytes: size of `held`.
        kept: number of its calls that are held or were given to the recorder.
        left_out: number of its other calls.
        refused: number of its calls for which there was no room; only `Calls.offer` changes this.
    """

    __slots__ = ("held", "held_bytes", "is_recorded", "kept", "left_out", "refused")

    def __init__(self) -> None:
        self.is_recorded: bool | None = None
        self.held: list[tuple[int, int, CallRow]] = []
        self.held_bytes = 0
        self.kept = 0
        self.left_out = 0
        self.refused = 0


class _StoreCalls:
    """The calls of tables and buckets of one environment whose invocations have not ended.

    Attributes:
        rows: the calls.
        dropped: number of further calls for which there was no room, by the second since 1970 in which they began.
    """

    __slots__ = ("dropped", "rows")

    def __init__(self) -> None:
        self.rows: list[CallRow] = []
        self.dropped: Counter[int] = Counter()

    def drop_half(self) -> int:
        """Drop the half of the calls that took the shortest time, and return how many these are."""
        self.rows.sort(key=lambda row: row.took_us)
        count = (len(self.rows) + 1) // 2
        self.dropped.update(row.began_us // 1_000_000 for row in self.rows[:count])
        del self.rows[:count]
        for second in sorted(self.dropped)[:-_MOST_SECONDS]:
            del self.dropped[second]
        return count

    def dropped_in(self, run: Run) -> int:
        """Return how many of the dropped calls began in an invocation, to the second."""
        return sum(count for second, count in self.dropped.items() if int(run.began_at) <= second <= run.ended_at)


class _Arrived(NamedTuple):
    """A call, and where its chain of parents leads; `size` is counted for what `Calls.offer` has taken."""

    row: CallRow
    source: Source
    size: int


class _Request(NamedTuple):
    """A request to this server: the call, its parent's id, and when it was noted, ``time.monotonic()`` seconds."""

    row: CallRow
    since_s: float


class Taken(NamedTuple):
    """What the recorder is to write.

    Attributes:
        rows: calls of invocations that are recorded.
        left_out: by handler, how many of its calls are not among those that were ever taken.
        began_us: when the handlers of the invocations began that have ended since, microseconds since 1970.
        is_more: whether further calls can be taken now.
    """

    rows: list[CallRow]
    left_out: dict[str, int]
    began_us: dict[str, int]
    is_more: bool = False


class Calls:
    """The calls of handlers.

    Args:
        open_traces: the traced invocations.

    Attributes:
        source_of: returns where the chain of parents of a span leads; None: it is not known.
    """

    def __init__(self, open_traces: OpenTraces) -> None:
        self.source_of: Callable[[str], Source | None] = lambda span_id: None
        self._open = open_traces
        self._arrived: deque[_Arrived] = deque()
        self._undecided: list[_Arrived] = []
        self._requests: deque[_Request] = deque(maxlen=_MOST_REQUESTS)
        self._last: tuple[Run, Result | None] | None = None
        self._recorded: deque[Run] = deque()
        self._numbers = itertools.count()
        self._store_calls: dict[str, _StoreCalls] = {}
        self._store_count = 0
        self._held_bytes = 0
        # Only the thread that offers changes the first, and only the event loop the second.
        self._offered_bytes = 0
        self._done_bytes = 0
        open_traces.on_forgotten = self._forget

    def offer(self, span: Span, source: Source) -> bool:
        """Take the span of a subsegment. Only one thread may call this.

        Returns:
            Whether there was room for it.
        """
        row = call_of(span)
        size = _size(row)
        if self._offered_bytes - self._done_bytes + size > _MOST_ARRIVED_BYTES:
            run = source.owner.runs.get(source.handler_id)
            if run is not None and run.notes is not None:
                run.notes.refused += 1
            return False
        self._offered_bytes += size
        self._arrived.append(_Arrived(row, source, size))
        return True

    def request(self, span: Span) -> None:
        """Note a request to this server that may have come from a handler: `span` says so by its parent."""
        if not span.parent_id or not self.knows(span.trace_id):
            return
        row = call_of(span)
        source = self.source_of(row.parent)
        run, is_decided = (None, False) if source is None else _run_of(source, row.began_us / 1e6)
        if is_decided and run is not None and run.notes is not None and run.notes.is_recorded is None:
            self._hold(run.notes, row._replace(handler=run.handler_id))  # as a rule, its sender still runs
        else:
            self._requests.append(_Request(row, time.monotonic()))

    def store_call(self, stream: str, call: NotedCall) -> None:
        """Note a call of ``thawd.table`` or ``thawd.bucket``; `stream` is the log stream of its environment."""
        began_us = int(call.began_at * 1e6)
        took_us = max(0, int(call.ended_at * 1e6) - began_us)
        name = _line(call.name, _LONGEST_NAME)
        row = CallRow("", new_span_ids()[0], "", name, "", "", int(call.failed), 1, began_us, took_us)
        self._store_calls.setdefault(stream, _StoreCalls()).rows.append(row)
        self._store_count += 1
        while self._store_count > _MOST_STORE_CALLS:
            first = next(iter(self._store_calls))
            noted = self._store_calls.pop(first)
            if noted.rows:
                self._store_count -= noted.drop_half()
                self._store_calls[first] = noted

    def _store_calls_of(self, run: Run) -> tuple[list[CallRow], int]:
        """Return the calls of tables and buckets in an invocation that has ended, and how many of them were dropped.

        Of those that were noted in its environment, earlier ones are forgotten: they are of invocations that were not
        traced. Later ones are kept for the next invocation.
        """
        noted = self._store_calls.pop(run.environment, None)
        if noted is None:
            return [], 0
        later = _StoreCalls()
        later.rows = [row for row in noted.rows if row.began_us / 1e6 > run.ended_at]
        if later.rows:
            self._store_calls[run.environment] = later
        self._store_count -= len(noted.rows) - len(later.rows)
        return [row for row in noted.rows if run.covers(row.began_us / 1e6)], noted.dropped_in(run)

    def knows(self, trace_id: str) -> bool:
        """Whether a request of this trace may come from a handler that is traced here."""
        return self._open.knows(trace_id)

    def begin(self, run: Run) -> None:
        """An invocation that may call something begins."""
        run.notes = _Notes()

    def ended(self, run: Run, result: Result | None) -> None:
        """An invocation has ended; `result` says, as soon as the event loop is free, whether it is recorded."""
        self._decide()
        self._last = (run, result)

    def _decide(self) -> None:
        """Find out whether the invocation that has ended last is recorded. No more than one result is kept for this."""
        if self._last is None:
            return
        (run, result), self._last = self._last, None
        noted, dropped = self._store_calls_of(run)
        notes: _Notes | None = run.notes
        if notes is None:  # it was forgotten
            return
        if result is None or not result.is_recorded or not run.environment:
            notes.is_recorded = False
            self._release(notes)
            return
        for row in noted:
            self._hold(notes, row._replace(handler=run.handler_id, parent=run.handler_id))
        notes.left_out += dropped
        self._recorded.append(run)

    def take(self) -> Taken:
        """Return the calls that can be written now. Calls of invocations that run wait, and others are dropped."""
        taken = Taken([], {}, {})
        self._decide()
        while self._recorded:
            self._settle(self._recorded.popleft(), taken)
        for arrived in itertools.chain(self._joined(), self._received()):
            self._place(arrived, taken)
        return taken._replace(is_more=self.has_arrived)

    @property
    def has_arrived(self) -> bool:
        """Whether subsegments have arrived that `take` has not looked at yet."""
        return bool(self._arrived)

    def _settle(self, run: Run, taken: Taken) -> None:
        """Take what is held for an invocation that has ended and is recorded."""
        notes: _Notes | None = run.notes
        if notes is None:  # it was forgotten
            return
        notes.is_recorded = True
        taken.began_us[run.handler_id] = int(run.began_at * 1e6)
        taken.rows.extend(row for _, _, row in notes.held)
        _count_left_out(run, notes, taken)
        self._release(notes)

    def _release(self, notes: _Notes) -> None:
        """Forget what is held for an invocation."""
        self._held_bytes -= notes.held_bytes
        notes.held, notes.held_bytes = [], 0

    def _joined(self) -> Iterator[_Arrived]:
        """Return the requests whose sender is known by now."""
        requests, now_s = list(self._requests), time.monotonic()
        self._requests.clear()
        for request in requests:
            source = self.source_of(request.row.parent)
            if source is not None:
                yield _Arrived(request.row, source, 0)
            elif now_s - request.since_s < _LONGEST_WAIT_S:
                self._requests.append(request)

    def _received(self) -> Iterator[_Arrived]:
        undecided, self._undecided = self._undecided, []
        yield from undecided
        for _ in range(_TAKEN_AT_ONCE):
            if not self._arrived:
                return
            yield self._arrived.popleft()

    def _place(self, arrived: _Arrived, taken: Taken) -> None:
        """Find the invocation that a call belongs to, and hold, write or drop the call."""
        run, is_decided = _run_of(arrived.source, arrived.row.began_us / 1e6)
        if not is_decided and len(self._undecided) < _MOST_UNDECIDED:
            self._undecided.append(arrived)
            return
        self._done_bytes += arrived.size
        if run is None or run.notes is None or run.notes.is_recorded is False:
            return
        row, notes = arrived.row._replace(handler=run.handler_id), run.notes
        if notes.is_recorded is None:
            self._hold(notes, row)
        elif notes.kept < MOST_CALLS:
            notes.kept += 1
            taken.rows.append(row)
        else:
            notes.left_out += 1
        if notes.is_recorded:
            _count_left_out(run, notes, taken)

    def _hold(self, notes: _Notes, row: CallRow) -> None:
        entry, size = (row.took_us, next(self._numbers), row), _size(row)
        if self._held_bytes + size > _MOST_HELD_BYTES:
            notes.left_out += 1
            return
        if notes.kept < MOST_CALLS:
            notes.kept += 1
            heapq.heappush(notes.held, entry)
        else:
            notes.left_out += 1
            size -= _size(heapq.heappushpop(notes.held, entry)[2])
        notes.held_bytes += size
        self._held_bytes += size

    def _forget(self, run: Run) -> None:
        notes: _Notes | None = run.notes
        if notes is not None:
            self._release(notes)
            run.notes = None


def _count_left_out(run: Run, notes: _Notes, taken: Taken) -> None:
    if count := notes.left_out + notes.refused:
        taken.left_out[run.handler_id] = count


def _run_of(source: Source, began_at: float) -> tuple[Run | None, bool]:
    """Return the invocation in which a call began.

    Args:
        source: where its chain of parents leads.
        began_at: when it began, seconds since 1970.

    Returns:
        The invocation, or None if it is not known; and whether this is decided. It is not while an invocation runs of
        which it is not known yet in which environment.
    """
    named = source.owner.runs.get(source.handler_id)
    if named is None or named.ended_at == math.inf or named.covers(began_at):
        return named, True
    if source.owner.ran_before(began_at):
        return None, False
    here = source.owner.ended_in(named.environment, began_at)
    if len(here) > 1:  # an environment that runs several invocations at the same time
        return None, True
    return (here[0] if here else named), True


def _size(row: CallRow) -> int:
    return _ROW_BYTES + len(row.name) + len(row.detail) + len(row.error)


def call_of(span: Span) -> CallRow:
    """Return the row of a span, which has no secrets any more; the row's handler is still empty."""
    attributes = span.attributes
    parts = [*(attributes.get(name) for name in _DETAILS), " ".join(str(attributes.get(name, "")) for name in _HTTP)]
    if "http.response.status_code" in attributes:
        parts.append(f"status {attributes['http.response.status_code']}")
    error = ": ".join(str(attributes[name]) for name in ("error.type", "exception.message") if attributes.get(name))
    began_us = int(span.began_at * 1e6)
    return CallRow(
        handler="",
        span=span.span_id,
        parent=span.parent_id,
        name=_line(span.name, _LONGEST_NAME) or "call",
        detail=_line(", ".join(text for part in parts if (text := str(part or "").strip())), _LONGEST_DETAIL),
        error=_line(error, _LONGEST_ERROR),
        failed=int(span.failed),
        is_request=int(span.kind != INTERNAL),
        began_us=began_us,
        took_us=max(0, int(span.ended_at * 1e6) - began_us),
    )


def _line(text: str, longest: int) -> str:
    """Return a text in one line, without what no file in UTF-8 can contain."""
    line = " ".join(text.encode("utf-8", "replace").decode().replace("\0", " ").split())
    return line if len(line) <= longest else f"{line[: longest - 1]}…"
