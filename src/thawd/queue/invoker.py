"""Asynchronous invocation: leases stored events, runs them through the dispatcher, retries or dead-letters them.

The invoker leases an event and runs it. If its function has a destination, the outcome is delivered, or stored for a
later delivery. Only then does the invoker acknowledge the event: it stores what became of the event, which has ended,
waits for a retry or for the delivery of its outcome, or is a dead letter. So if thawd crashes before that, the event
runs again with the same request id. As on Lambda, function errors are retried after one and two minutes by default.
Throttles and system errors are retried with back-off until the event is too old.

Each function has its own lane, which limits how many of its events run at the same time, so that others run, too. Lanes
read events ahead, so that no environment waits for the disk. `outcome_delivery` delivers the outcomes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import deque
from collections.abc import Callable
from functools import partial

from thawd.destinations.delivery import Destinations
from thawd.errors import (
    RecursiveInvocationException,
    ResourceNotFoundException,
    StoreError,
    ThawdError,
    TooManyRequestsException,
)
from thawd.invocation import Invocation, Result, in_a_line
from thawd.queue import retry_waits
from thawd.queue.lane import READ_AHEAD, SHORTEST_WAIT_S, Lane
from thawd.queue.outcome_delivery import DeadLetterCause, Outcome, Outcomes, RefusedError
from thawd.queue.refusals import NotNowError, refusal_of
from thawd.queue.suspects import Suspects
from thawd.resources import Function
from thawd.scheduling.dispatcher import Dispatcher
from thawd.stores import clock
from thawd.stores.events.event_queue import EventQueue
from thawd.stores.events.event_rows import Event, NewEvent, as_accepted
from thawd.system.inline import can_run_inline, run_inline
from thawd.system.retry import Backoff, SayOnce, is_set_within, time_left_s
from thawd.telemetry.console import complain

# The longest wait after a failed write to the state file. It is shorter than `retry_waits.LONGEST_WAIT_S`, so that
# thawd soon notices that disk space has become free.
_STORE_RETRY_S = 30.0
# Most events of one function that run at the same time, per CPU. With two, every core has work while events that have
# just ended are being acknowledged.
PER_CPU = 2
# Most events of one function that were started and are not acknowledged yet.
_ACKNOWLEDGING = 256
_RECHECK_S = 30.0


class AsyncInvoker:
    """Runs stored events.

    Args:
        queue: stores the events.
        dispatcher: runs the functions.
        destinations: makes the records of outcomes.
        outcomes: delivers the outcomes of events that have run, and then ends the events.
        retry_wait_s: wait before the first retry of a function error, seconds; the second is twice as long.
        report: takes a line for the operator.

    Attributes:
        stopping: true once no more events are started.
        on_step: called with request id, kind and detail when an event's retry is planned or it becomes a dead letter.
        without_secrets: returns an event's error without secrets, for the operator; see `Redactor.error`.
    """

    def __init__(
        self,
        queue: EventQueue,
        dispatcher: Dispatcher,
        destinations: Destinations,
        outcomes: Outcomes,
        *,
        retry_wait_s: float,
        report: Callable[[str], None] = complain,
    ) -> None:
        self._queue = queue
        self._dispatcher = dispatcher
        self._destinations = destinations
        self._outcomes = outcomes
        outcomes.on_follow_ups = self.wake
        self._retry_wait_s = retry_wait_s
        self._report = report
        self._reports = SayOnce(report)
        self._lanes: dict[str, Lane] = {}
        self._declared: frozenset[str] = frozenset()
        self._look_reports = SayOnce(report)
        self._tasks: asyncio.TaskGroup | None = None
        self._suspects = Suspects(queue.copies)
        self._per_function = PER_CPU * (os.cpu_count() or 1)
        self._due: deque[tuple[Lane, Event]] = deque()  # events that are to begin in this turn of the loop or the next
        self._open = 0  # events of all lanes that have begun and are not acknowledged yet
        self.stopping = False
        self.on_step: Callable[[str, str, str], None] = lambda request_id, kind, detail: None
        self.without_secrets: Callable[[bytes, str], str] = lambda event, error: ""
        self._settled = asyncio.Event()
        self._settled.set()

    def running(self, function: str) -> int:
        """How many events of a function have an environment, or have had one and are not acknowledged yet."""
        return self._lanes[function].in_environments() if function in self._lanes else 0

    async def accept(self, invocation: Invocation) -> None:
        """Store an asynchronous invocation. Once this returns, a crash cannot lose it.

        Raises:
            StoreError: the invocation could not be stored.
            TooManyRequestsException: too many events already wait (429).
        """
        event = NewEvent(
            function=invocation.function,
            payload=invocation.payload,
            request_id=invocation.request_id,
            client_context=invocation.client_context,
            trace_id=invocation.trace_id,
            qualifier=invocation.qualifier,
            tenant_id=invocation.tenant_id,
        )
        now = clock.now()
        [event_id] = await self._queue.put([event], now=now)
        if (lane := self._lane(event.function)) is not None:
            self._hand_over(lane, as_accepted(event, event_id, now))

    def _hand_over(self, lane: Lane, event: Event) -> None:
        """Give a newly stored event to its lane, if it is the lane's next event; otherwise the lane reads it later."""
        if not self.stopping and lane.has_room_for(event) and self._queue.take(event):
            lane.add(event)
            self._begin(lane)
        elif not lane.more:  # else the lane will read it anyway
            lane.look()

    def wake(self, functions: set[str]) -> None:
        """Make the lanes of these functions look for new events."""
        for name in functions:
            if (lane := self._lane(name)) is not None:
                lane.look()

    def resume(self) -> None:
        """Start events again, because `EventQueue.may_run` has become true."""
        for lane in list(self._lanes.values()):  # a copy, because events may begin within this call
            self._begin(lane)
            lane.look()

    def declare(self, names: list[str]) -> None:
        """From now on, run the events of these functions only."""
        assert self._tasks is not None, "call run() before declare()"
        has_more = not self._declared.issuperset(names)
        self._declared = frozenset(names)
        for name, lane in self._lanes.items():
            if name not in self._declared:
                lane.gone = True
                lane.awake.set()
            elif lane.gone:
                lane.gone = False
                lane.look()
        if has_more:
            self._tasks.create_task(self._look())

    def _lane(self, name: str) -> Lane | None:
        """Return the lane of a function, and make the lane if it is missing.

        Returns None if the function is not declared, or if it has no lane and the server is stopping. The function's
        events then stay stored.
        """
        lane = self._lanes.get(name)
        if lane is None and name in self._declared and self._tasks is not None and not self.stopping:
            backoff = Backoff(first_s=retry_waits.FIRST_WAIT_S, longest_s=retry_waits.LONGEST_WAIT_S)
            lane = self._lanes[name] = Lane(name, backoff, SayOnce(self._report))
            self._tasks.create_task(self._run_lane(lane))
        return lane

    async def _look(self) -> None:
        """Wake the lanes of functions that have events in the state file."""
        while not self.stopping:
            try:
                self.wake(set(await self._queue.waiting()))
            except StoreError as error:
                self._look_reports.say(f"thawd: queued events cannot be read: {error}", cause=str(error))
                await asyncio.sleep(retry_waits.FIRST_WAIT_S)
            else:
                self._look_reports.resolved()
                return

    async def run(self, started: asyncio.Event) -> None:
        """Run stored events until cancelled. Set `started` as soon as `declare` can be called."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            tasks.create_task(self._outcomes.run())
            tasks.create_task(self._look_again())
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.stopping = True  # so that no further event is started when a running one ends

    def stop(self) -> None:
        """Start no more events. Running events continue.

        If a running event then ends with a function error, its attempt is not counted, and the event runs again after
        the next start.
        """
        self.stopping = True

    async def settled(self, patience_s: float) -> None:
        """Wait until all events that were started are acknowledged, at most `patience_s` seconds.

        An event that is not acknowledged by then runs again after the next start.
        """
        await is_set_within(self._settled, patience_s)

    def most_at_once(self, function: str, *, wanted: int = 1 << 30, running: int = 0) -> int:
        """Return how many of the `wanted` events of a function can run together; 0 if there is no such function."""
        try:
            most = min(self._per_function, self._dispatcher.most_at_once(function), wanted)
            return max(1, self._dispatcher.family(function).at_once_here(most, running=running))
        except ResourceNotFoundException:
            return 0

    async def _run_lane(self, lane: Lane) -> None:
        # The lane of a removed function must not end while an event is unacknowledged: if the function came back, a
        # second lane would lease the same events.
        while not lane.gone or lane.open:
            lane.awake.clear()
            wait_s: float | None = None
            if lane.gone:
                self._give_back(lane)
            elif not self.stopping and not lane.paused:
                if lane.more and lane.wants_more():
                    await self._read_ahead(lane)
                wait_s = lane.until_due_s()
            self._begin(lane)
            if not await is_set_within(lane.awake, wait_s):
                lane.more = True
        self._give_back(lane)
        self._queue.forget(lane.function)
        del self._lanes[lane.function]

    async def _read_ahead(self, lane: Lane) -> None:
        lane.more = False  # cleared before the read, because an event that is queued during the read sets it again
        for event in await self._lease(lane, READ_AHEAD - len(lane.ahead)):
            if self.stopping:
                self._queue.give_back(event)
            else:
                lane.add(event)
        lane.more = lane.more or not self._queue.exhausted(lane.function)
        if not lane.more:
            wait_s = await self._until_due_s(lane)
            lane.due_s = None if wait_s is None else time.monotonic() + wait_s

    def _give_back(self, lane: Lane) -> None:
        while lane.ahead:
            self._queue.give_back(lane.take())

    def _begin(self, lane: Lane) -> None:
        """Start leased events up to the lane's limits. Called whenever the limits could allow one more."""
        may_begin = not (self.stopping or lane.gone or lane.paused) and self._queue.may_run
        if not lane.ahead or lane.running >= self._per_function or not may_begin:
            return
        wanted = 1 if lane.backoff.wait_s else lane.running + len(lane.ahead)
        most = self.most_at_once(lane.function, wanted=wanted, running=lane.running)
        # If an event starts inline and is throttled at once, it is in `ahead` again, and the lane is paused.
        while lane.ahead and lane.running < most and lane.open < _ACKNOWLEDGING and not lane.paused:
            lane.running += 1
            lane.open += 1
            self._open += 1
            self._settled.clear()
            self._due.append((lane, lane.take()))
            if lane.more and lane.wants_more():
                lane.awake.set()  # a leased event has left `ahead`, so the lane can perhaps read ahead again
            if can_run_inline():
                self._start_due()
            elif len(self._due) == 1:
                asyncio.get_running_loop().call_soon(self._start_due)

    def _start_due(self) -> None:
        """Start the events that are to begin, in order."""
        assert self._tasks is not None
        while self._due:
            lane, event = self._due.popleft()
            run_inline(self._process(lane, event), self._tasks.create_task)

    async def _lease(self, lane: Lane, room: int) -> list[Event]:
        try:
            events = await self._queue.lease(lane.function, limit=room)
        except StoreError as error:
            lane.reports.say(f"thawd: queued events of {lane.function} cannot be read: {error}", cause=str(error))
            await asyncio.sleep(retry_waits.FIRST_WAIT_S)
            lane.look()
            return []
        lane.reports.resolved()
        return events

    async def _until_due_s(self, lane: Lane) -> float | None:
        """Return how many seconds remain until the lane's next event is due; None: no event waits for a later time."""
        now = clock.now()
        try:
            due = await self._queue.next_due(lane.function, now=now)
        except StoreError:
            return retry_waits.FIRST_WAIT_S
        return None if due is None else time_left_s(due, now, shortest_s=SHORTEST_WAIT_S, longest_s=_RECHECK_S)

    async def _look_again(self) -> None:
        """Periodically wake the lanes of functions that have events, so that a missed wake-up loses no event."""
        while True:
            await asyncio.sleep(_RECHECK_S)
            with contextlib.suppress(StoreError):
                self.wake(set(await self._queue.waiting()))

    async def _process(self, lane: Lane, event: Event) -> None:
        """Run one event until it is acknowledged, or put it back in its lane. Never raises."""
        has_slot = True

        def free_slot() -> None:
            """Let the lane start another event, because `event` no longer needs an environment."""
            nonlocal has_slot
            if has_slot:
                has_slot = False
                self._queue.ended(event)
                lane.running -= 1
                self._begin(lane)

        try:
            if event.interruptions:
                async with self._suspects.running(event):
                    await self._run(lane, event, free_slot)
            else:
                await self._run(lane, event, free_slot)
            lane.backoff.succeeded()
        except NotNowError:
            self._put_back(lane, event)
        except StoreError as error:
            # Nothing is lost: the event is still queued. After a pause, thawd tries again to store the outcome. It runs
            # the event again only if the lane could not keep the result (`Lane.keep_result`).
            lane.reports.say(f"thawd: storing the outcome of {event.request_id} failed: {error}", cause=str(error))
            self._put_back(lane, event, longest_s=_STORE_RETRY_S)
        except Exception as error:  # a bug in thawd that one event triggers must not end the lane
            self._reports.report(f"thawd: event {event.request_id} of {event.function} failed inside thawd: {error!r}")
            await self._failed_inside(lane, event, repr(error))
        finally:
            free_slot()
            lane.close(event)
            self._open -= 1
            if lane.gone:
                lane.awake.set()
            self._begin(lane)
            if not self._open:
                self._settled.set()

    async def _run(self, lane: Lane, event: Event, free_slot: Callable[[], None]) -> None:
        """Invoke the function, and record what happens to the event.

        If the function has answered this event already, but its answer could not be stored, it is not invoked again.

        Raises:
            StoreError: the state file could not store the outcome. If there is an answer, `Lane.keep_result` got it.
            NotNowError: the function was not invoked, or its error does not count because the server is stopping.
        """
        if self._queue.has_moved(event):
            return
        try:
            function = self._dispatcher.asynchronous(event.function, event.qualifier)
        except ResourceNotFoundException as error:
            if lane.gone:
                raise NotNowError from None
            free_slot()  # the version or alias that the event is for has been deleted, so the event cannot run
            await self._queue.dead_letter(event.id, error=error.message, condition="ResourceNotFound", counts=False)
            self.on_step(event.request_id, "dead letter", "ResourceNotFound")
            return
        result = lane.take_result(event)
        if result is None:
            age_s = max(0.0, clock.now() - event.accepted_at)
            if (cause := refusal_of(event, function, age_s)) is not None:
                free_slot()
                await self._dead_letter(event, function, cause, result=None)
                return
            invocation = lane.invocation_of(event, wait_s=function.maximum_event_age_s - age_s)
            invocation.on_leased = partial(self._queue.begins, event)
            try:
                result = await self._dispatcher.invoke(invocation)
            except TooManyRequestsException:
                raise NotNowError from None
            except RecursiveInvocationException as error:
                free_slot()
                cause = DeadLetterCause(error.message, "RecursiveInvocation")
                await self._dead_letter(event, function, cause, result=None)
                return
            except ThawdError as error:
                # This is not the function's failure: try again with growing waits, without using up its retries.
                free_slot()
                wait_s = retry_waits.wait_after_platform_error_s(age_s)
                await self._retry(event, wait_s, error.message, counts=False)
                return
            if self.stopping and result.function_error is not None:
                raise NotNowError  # the invocation may have failed only because the server is stopping
        free_slot()
        try:
            await self._conclude(event, function, result)
        except StoreError:
            lane.keep_result(event, result)
            raise

    async def _conclude(self, event: Event, function: Function, result: Result) -> None:
        """Record what happens to an event after its answer: it is done, retried, delivered or a dead letter.

        Raises:
            StoreError: the state file could not record it; the event is unchanged.
        """
        if result.function_error is not None:
            error = result.payload.decode(errors="replace")
            if event.attempts < function.maximum_retry_attempts:
                wait_s = retry_waits.wait_after_function_error_s(event.attempts + 1, first_s=self._retry_wait_s)
                await self._retry(event, wait_s, error, counts=True)
            else:
                await self._dead_letter(event, function, DeadLetterCause(error, "RetriesExhausted"), result=result)
            return
        if function.on_success is None:
            await self._queue.done([event.id])
            return
        condition = "DestinationRefused"
        failures = partial(
            self._destinations.failures,
            function,
            event,
            condition=condition,
            result=result,
            attempts=event.attempts + 1,
        )
        try:
            delivery = self._destinations.success(function.on_success, event, result, arn=function.arn)
            await self._outcomes.settle(event.id, Outcome(delivery), if_failed=failures)
        except StoreError:
            raise
        except (RefusedError, ThawdError) as refusal:
            # The destination refuses this answer, and would refuse it again.
            await self._dead_letter(event, function, DeadLetterCause(str(refusal), condition), result=result)

    async def _retry(self, event: Event, wait_s: float, error: str, *, counts: bool) -> None:
        await self._queue.retry(event.id, at=clock.now() + wait_s, error=error, counts=counts)
        self.on_step(event.request_id, "retry", f"in {wait_s:.3g} s")
        self.wake({event.function})

    async def _dead_letter(
        self, event: Event, function: Function, cause: DeadLetterCause, *, result: Result | None
    ) -> None:
        """Make the event a dead letter, after its failure has been delivered to the function's destinations.

        If there is a delivery to make, this only stores the deliveries; `Outcomes.run` makes them and the dead letter.

        Raises:
            StoreError: the state file could not record it; the event is unchanged.
        """
        counts = result is not None
        deliveries = self._destinations.failures(
            function, event, condition=cause.condition, result=result, attempts=event.attempts + counts
        )
        if deliveries:
            outcome = Outcome(deliveries[0], cause, rest=tuple(deliveries[1:]))
            await self._outcomes.settle(event.id, outcome, counts=counts)
        else:
            await self._queue.dead_letter(event.id, error=cause.error, condition=cause.condition, counts=counts)
        self.on_step(event.request_id, "dead letter", cause.condition)
        error = in_a_line(self.without_secrets(event.payload, cause.error))[:200]
        self._reports.report(
            f"thawd: {event.function}: event {event.request_id} becomes a dead letter ({cause.condition}): {error}"
        )

    async def _failed_inside(self, lane: Lane, event: Event, error: str) -> None:
        try:
            if event.attempts >= 2:
                await self._queue.dead_letter(event.id, error=error, condition="InternalError")
                self.on_step(event.request_id, "dead letter", "InternalError")
            else:
                await self._retry(event, retry_waits.FIRST_WAIT_S, error, counts=True)
        except StoreError:
            self._put_back(lane, event)

    def _put_back(self, lane: Lane, event: Event, *, longest_s: float | None = None) -> None:
        """Put an event back at the head of its lane and pause the lane: the function or the state file is not ready."""
        if lane.gone:
            self._queue.give_back(event)
            return
        lane.add_first(event)
        if lane.paused:
            return
        lane.paused = True
        wait_s = lane.backoff.failed(time.monotonic(), longest_s=longest_s)
        asyncio.get_running_loop().call_later(wait_s, self._go_on, lane)

    def _go_on(self, lane: Lane) -> None:
        lane.paused = False
        self._begin(lane)
        lane.awake.set()
