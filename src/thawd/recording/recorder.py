"""Collects what the dispatcher reports about invocations, and writes it in batches, off the path of requests.

The path of a request only appends to a list. The rows are made and written in the file's own thread. What is not
written yet is lost if the server is killed: at most `FLUSH_S` seconds, and what a batch in progress contains. A full or
failing disk costs records and is reported once; serving goes on. So does a flood of failures that cannot be written as
fast as they come. The next record of the same function says for how many lost ones it stands.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

from thawd.destinations.delivery import Delivery
from thawd.errors import StoreError
from thawd.recording.calls import Calls, Taken
from thawd.recording.minute_counts import Counter
from thawd.recording.record_making import KEPT_BYTES, handlers_of, rows_of
from thawd.recording.redaction import Redactor
from thawd.scheduling.ended_invocations import EndedInvocation
from thawd.stores.invocations.record_file import RecordFile
from thawd.stores.invocations.record_rows import REDACTED, WHOLE, Batch, BodyRow, InvocationRow, StepRow
from thawd.system.retry import SayOnce
from thawd.telemetry.metrics import DeliveryOutcome
from thawd.telemetry.sampling import Sampler

FLUSH_S = 1.0
"""How long a record waits to be written, at most, seconds. A batch costs the event loop more than its rows do."""
_COUNT_S = 5.0
# If this waits to be written, the next batch begins.
_MANY_WAITING = 500
_MANY_BYTES = 4 << 20
# If this waits to be written, because the last batch is not finished, further records are lost. A record keeps the
# event and the answer of its invocation in memory.
_MOST_WAITING = 4000
_MOST_BYTES = 16 << 20
# Of most functions, the number of lost records is known.
_MOST_FUNCTIONS = 1000
# Most records whose redacted values are remembered, and most characters of these values.
_MOST_REMEMBERED = 10_000
_MOST_CHARACTERS = 8 << 20
# Most deliveries of answers that are recorded in a second, of all functions together.
_DELIVERIES_PER_S = 50.0


class Recorder:
    """Records invocations.

    Args:
        file: the file with the records.
        redactor: replaces secret values.
        counter: counts invocations by minute.
        spawn_task: runs a coroutine in the background.
        report: takes a line for the operator.

    Attributes:
        on_written: called after each batch; pages that show records live use it.
        lost: number of records that were not written, since the server has started.
        calls: collects what the handlers of traced invocations call; None: none is traced.
    """

    def __init__(
        self,
        file: RecordFile,
        redactor: Redactor,
        counter: Counter,
        *,
        spawn_task: Callable[[Coroutine[Any, Any, None]], object],
        report: Callable[[str], object],
    ) -> None:
        self.redactor = redactor
        self.on_written: Callable[[], None] = lambda: None
        self.lost = 0
        self.calls: Calls | None = None
        self._file = file
        self._counter = counter
        self._spawn_task = spawn_task
        self._reports = SayOnce(report)
        self._waiting: list[EndedInvocation] = []
        self._waiting_bytes = 0
        self._steps: list[StepRow] = []
        self._deliveries = Sampler(_DELIVERIES_PER_S)
        self._timer: asyncio.Handle | None = None
        self._is_soon = False  # whether the next batch begins in the next turn of the loop
        self._lost_of: dict[tuple[str, str], int] = {}
        self._writing: asyncio.Lock = asyncio.Lock()
        self._last_id = file.last_id
        self._values: dict[int, frozenset[str] | None] = {}
        self._characters = 0

    def record(self, ended: EndedInvocation) -> None:
        """Record an invocation; see `thawd.scheduling.ended_invocations.Record`."""
        if len(self._waiting) >= _MOST_WAITING or self._waiting_bytes >= _MOST_BYTES:
            self._reports.say(  # once, because a flood would end and begin again many times
                "thawd: invocations end faster than they can be recorded; the next record of a function says for how "
                "many it stands",
                topic="pace",
            )
            self._lose([ended])
            return
        if self._lost_of:
            ended.stands_for += self._lost_of.pop((ended.invocation.function, ended.outcome), 0)
        self._waiting.append(ended)
        self._waiting_bytes += len(ended.invocation.payload) + (
            0 if ended.result is None else len(ended.result.payload)
        )
        self._write_soon(at_once=len(self._waiting) >= _MANY_WAITING or self._waiting_bytes >= _MANY_BYTES)

    def _lose(self, ended: list[EndedInvocation]) -> None:
        self.lost += len(ended)
        for each in ended:
            key = (each.invocation.function, each.outcome)
            if key in self._lost_of or len(self._lost_of) < _MOST_FUNCTIONS:
                self._lost_of[key] = self._lost_of.get(key, 0) + each.stands_for

    def step(self, request_id: str, kind: str, detail: str) -> None:
        """Record what happens to an asynchronous event after an attempt; see `StepRow`."""
        if len(self._steps) < _MOST_WAITING:
            text = self.redactor.text(detail[:KEPT_BYTES])[:500]
            self._steps.append(StepRow(int(time.time() * 1000), request_id, kind, text))
            self._write_soon()

    def delivered(self, delivery: Delivery, outcome: DeliveryOutcome) -> None:
        """Record an attempt to deliver the outcome of an asynchronous event; of deliveries of answers, a sample."""
        is_answer = delivery.success and outcome is DeliveryOutcome.DELIVERED
        now_s = time.monotonic()
        if is_answer and now_s < self._deliveries.next_s:
            return
        if is_answer:
            self._deliveries.take(now_s)
        what = "answer" if delivery.success else "failure"
        self.step(delivery.request_id, outcome.value, f"the {what} to {delivery.destination}")

    def _write_soon(self, *, at_once: bool = False) -> None:
        loop = asyncio.get_running_loop()
        if at_once and not self._is_soon:
            self._is_soon = True
            if self._timer is not None:
                self._timer.cancel()
            self._timer = loop.call_soon(self._begin_writing)
        elif self._timer is None:
            self._timer = loop.call_later(FLUSH_S, self._begin_writing)

    def _begin_writing(self) -> None:
        self._spawn_task(self.write())

    async def run(self) -> None:
        """Count invocations by minute until cancelled."""
        while True:
            await asyncio.sleep(_COUNT_S)
            await self.write(counts=True)

    async def write(self, *, counts: bool = False) -> None:
        """Write what waits.

        Args:
            counts: whether to write the counts by minute, too.
        """
        async with self._writing:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self._is_soon = False
            waiting, steps = self._waiting, self._steps
            minutes = self._counter.take() if counts else []
            self._waiting, self._steps, self._waiting_bytes = [], [], 0
            calls = self._taken()
            if not (waiting or steps or minutes or (calls is not None and (calls.rows or calls.left_out))):
                return

            def make(last_id: int) -> Batch:
                invocations, bodies = self._rows(waiting, max(last_id, self._last_id))
                if calls is None:
                    return Batch(invocations, bodies, steps, minutes)
                handlers = handlers_of(waiting, invocations, calls.began_us)
                return Batch(invocations, bodies, steps, minutes, handlers, calls.rows, calls.left_out)

            try:
                await self._file.write(make)
            except StoreError as error:
                self._lose(waiting)
                self._reports.say(
                    f"thawd: invocations are not recorded, serving goes on: {error.message}", cause="down"
                )
                return
            except Exception as error:  # a bug in thawd that one invocation triggers must not end the recording
                self._lose(waiting)
                self._reports.report(f"thawd: recording invocations failed inside thawd: {error!r}")
                return
            self._last_id = self._file.last_id
            self._reports.resolved("thawd: invocations are recorded again")
            if calls is not None and calls.is_more:
                self._write_soon(at_once=True)
        self.on_written()

    def _taken(self) -> Taken | None:
        """Return the calls of handlers that can be written; None: there are none, or a bug in thawd is in the way."""
        try:
            return None if self.calls is None else self.calls.take()
        except Exception as error:  # it must not end the recording of invocations
            self._reports.report(f"thawd: recording the calls of handlers failed inside thawd: {error!r}")
            return None

    def _rows(self, waiting: list[EndedInvocation], last_id: int) -> tuple[list[InvocationRow], list[BodyRow]]:
        invocations, bodies = [], []
        for ended in waiting:
            last_id = max(last_id + 1, int(ended.ended_at * 1_000_000))
            invocation, body, values = rows_of(ended, last_id, self.redactor)
            if body.event_state != WHOLE:
                self._remember(last_id, values if body.event_state == REDACTED else None)
            invocations.append(invocation)
            bodies.append(body)
        return invocations, bodies

    def _remember(self, number: int, values: frozenset[str] | None) -> None:
        self._forget(number)  # the thread that writes may try a batch again
        self._values[number] = values
        self._characters += _count(values)
        while len(self._values) > _MOST_REMEMBERED or self._characters > _MOST_CHARACTERS:
            self._forget(next(iter(self._values)))

    def _forget(self, number: int) -> None:
        self._characters -= _count(self._values.pop(number, None))

    def redacted_in(self, number: int) -> frozenset[str] | None:
        """Return the values that were redacted in the event of a record; None: they are unknown.

        They are kept in memory only, to redact the log lines of the invocation. After a restart they are unknown.
        """
        return self._values.get(number)

    async def close(self) -> None:
        """Write what waits; call this when no more invocations run. The caller closes the file."""
        await self.write(counts=True)
        while self.calls is not None and self.calls.has_arrived:
            await self.write()


def _count(values: frozenset[str] | None) -> int:
    return 0 if values is None else sum(map(len, values))
