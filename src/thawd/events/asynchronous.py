"""Asynchronous invocation: takes stored events to the dispatcher, retries, gives up, tells destinations.

An event is leased, run, its outcome stored at its destination, and only then acknowledged: a crash anywhere runs it
again with the same request id. Waits are Lambda's: function errors are retried after one and two minutes, throttles
and system errors with back-off until the event is too old.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable

from thawd.errors import ResourceNotFoundException, StoreError, ThawdError
from thawd.events.destinations import Delivery, Destinations
from thawd.execution.dispatcher import Dispatcher
from thawd.invocation import Invocation, Result
from thawd.resources import Function
from thawd.state.queue import Event, EventQueue, NewEvent
from thawd.telemetry.console import complain

# Source: Lambda developer guide, "Error handling for asynchronous invocation": back-off from 1 second to 5 minutes.
_BACKOFF_FIRST_S = 1.0
_BACKOFF_LAST_S = 300.0
# Events of one function under way at once: enough to keep every core busy while others wait for their acknowledgement.
PER_CPU = 2
_ACKNOWLEDGING = 64
_RECHECK_S = 30.0
_SHORTEST_WAIT_S = 0.01


class AsyncInvoker:
    """Runs stored events.

    Args:
        queue: where they are stored.
        dispatcher: runs them.
        stores: their destinations.
        retry_wait_s: wait before the first retry of a function error, seconds; the second is twice as long.
        report: told in one line what an operator should know.
    """

    def __init__(
        self,
        queue: EventQueue,
        dispatcher: Dispatcher,
        stores: Destinations,
        *,
        retry_wait_s: float,
        report: Callable[[str], None] = complain,
    ) -> None:
        self._queue = queue
        self._dispatcher = dispatcher
        self._stores = stores
        self._retry_wait_s = retry_wait_s
        self._report = report
        self._lanes: dict[str, _Lane] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self.stopping = False
        self._settled = asyncio.Event()
        self._settled.set()

    async def accept(self, invocation: Invocation) -> None:
        """Store an asynchronous invocation; it is not lost once this returns.

        Raises:
            StoreError: it could not be stored.
        """
        await self._queue.put(
            [
                NewEvent(
                    function=invocation.function,
                    payload=invocation.payload,
                    request_id=invocation.request_id,
                    source="invoke",
                    row_key=None,
                    client_context=invocation.client_context,
                    trace_id=invocation.trace_id,
                    qualifier=invocation.qualifier,
                )
            ]
        )
        self.wake({invocation.function})

    def wake(self, functions: set[str]) -> None:
        """There are new events for these functions."""
        for name in functions:
            lane = self._lanes.get(name)
            if lane is not None:
                lane.awake.set()

    def declare(self, names: list[str]) -> None:
        """Run events of these functions from now on."""
        assert self._tasks is not None, "run() comes first"
        for name in names:
            if name not in self._lanes:
                self._lanes[name] = lane = _Lane(name)
                self._tasks.create_task(self._run_lane(lane))
        for name in set(self._lanes) - set(names):
            self._lanes.pop(name).gone = True

    async def run(self, started: asyncio.Event) -> None:
        """Run stored events until cancelled; sets `started` when `declare` may be called."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            started.set()
            await asyncio.Event().wait()

    def stop(self) -> None:
        """Begin no more events; those under way go on."""
        self.stopping = True

    async def settled(self, patience_s: float) -> None:
        """Wait until the outcome of every event that ran is stored, at most `patience_s` seconds.

        What is not stored by then runs again after the next start.
        """
        try:
            async with asyncio.timeout(patience_s):
                await self._settled.wait()
        except TimeoutError:
            return

    async def _run_lane(self, lane: _Lane) -> None:
        assert self._tasks is not None
        while not lane.gone:
            lane.awake.clear()
            room = min(self._limit(lane.function) - lane.running, _ACKNOWLEDGING - lane.open)
            if room <= 0 or self.stopping:
                await _wait(lane, _RECHECK_S)  # whatever ends wakes the lane
                continue
            events = await self._lease(lane, room)
            for event in events:
                lane.running += 1
                lane.open += 1
                self._settled.clear()
                self._tasks.create_task(self._process(lane, event))
            if not events:
                await _wait(lane, await self._until_due_s(lane))

    def _limit(self, function: str) -> int:
        try:
            return max(1, min(PER_CPU * (os.cpu_count() or 1), self._dispatcher.most_at_once(function)))
        except ResourceNotFoundException:
            return 0

    async def _lease(self, lane: _Lane, room: int) -> list[Event]:
        try:
            return await self._queue.lease(lane.function, limit=room, now=time.time())
        except StoreError as error:
            self._tell(f"thawd: events of {lane.function} wait: {error}")
            await asyncio.sleep(_BACKOFF_FIRST_S)
            return []

    async def _until_due_s(self, lane: _Lane) -> float:
        """How long until an event of the lane comes due, seconds; what is put meanwhile wakes the lane before."""
        now = time.time()
        try:
            due = await self._queue.next_due(lane.function, now=now)
        except StoreError:
            due = None
        return _RECHECK_S if due is None else min(_RECHECK_S, max(_SHORTEST_WAIT_S, due - now))

    async def _process(self, lane: _Lane, event: Event) -> None:
        """Run one event to an acknowledged end; never raises."""
        running = True

        def freed() -> None:
            nonlocal running
            if running:
                running = False
                lane.running -= 1
                lane.awake.set()

        try:
            await self._attempt(event, freed)
        except StoreError as error:
            # It stays leased and runs again after the next start: nothing is lost, nothing is in a loop.
            self._tell(f"thawd: the outcome of event {event.request_id} could not be stored: {error}")
            await self._put_back(event, str(error))
        except Exception as error:  # a bug of ours with one event must not end the lane
            self._tell(f"thawd: event {event.request_id} of {event.function} failed inside thawd: {error!r}")
            await self._put_back(event, repr(error))
        finally:
            freed()
            lane.open -= 1
            lane.awake.set()
            if not any(other.open for other in self._lanes.values()):
                self._settled.set()

    async def _put_back(self, event: Event, error: str) -> None:
        await asyncio.sleep(_BACKOFF_FIRST_S)
        try:
            await self._queue.retry(event.id, at=time.time() + _BACKOFF_FIRST_S, error=error, counts=False)
        except StoreError:
            return

    async def _attempt(self, event: Event, freed: Callable[[], None]) -> None:
        try:
            function = self._dispatcher.asynchronous(event.function, event.qualifier)
        except ResourceNotFoundException as error:
            freed()  # the version or alias that it was for has been deleted
            await self._queue.bury(event.id, error=error.message, condition="ResourceNotFound", counts=False)
            return
        age_s = time.time() - event.accepted_at
        if age_s > function.maximum_event_age_s:
            freed()
            await self._give_up(event, function, condition="EventAgeExceeded", result=None)
            return
        invocation = Invocation(
            event.function,
            event.payload,
            time.monotonic() + function.maximum_event_age_s - age_s,
            event.request_id,
            client_context=event.client_context,
            trace_id=event.trace_id,
            asynchronous=True,
            qualifier=event.qualifier,
        )
        try:
            result = await self._dispatcher.invoke(invocation)
        except ThawdError as error:
            freed()
            await self._throttled(event, age_s, str(error))
            return
        freed()
        if result.function_error is None:
            await self._succeed(event, function, result)
        elif event.attempts >= function.maximum_retry_attempts:
            await self._give_up(event, function, condition="RetriesExhausted", result=result)
        else:
            wait_s = self._retry_wait_s * 2**event.attempts
            text = result.payload.decode(errors="replace")
            await self._queue.retry(event.id, at=time.time() + wait_s, error=text, counts=True)

    async def _succeed(self, event: Event, function: Function, result: Result) -> None:
        if function.on_success is not None:
            try:
                await self._bring(self._stores.success(function.on_success, event, result, arn=function.arn))
            except ThawdError as error:
                if error.retryable:
                    raise
                # The answer itself is not storable, and would not be the next time.
                await self._give_up(event, function, condition="DestinationRefused", result=result, error=str(error))
                return
        await self._queue.done([event.id])

    async def _bring(self, delivery: Delivery) -> None:
        event = self._stores.as_event(delivery)
        if event is None:
            await self._stores.deliver(delivery)
        else:
            await self._queue.put([event])
            self.wake({event.function})

    def _tell(self, line: str) -> None:
        try:
            self._report(line)
        except OSError:
            return  # whoever listens has gone away; events go on

    async def _throttled(self, event: Event, age_s: float, error: str) -> None:
        """Not the function's failure: tried again, less and less often, without using up its retries."""
        wait_s = min(_BACKOFF_LAST_S, max(_BACKOFF_FIRST_S, age_s))
        await self._queue.retry(event.id, at=time.time() + wait_s, error=error, counts=False)

    async def _give_up(
        self, event: Event, function: Function, *, condition: str, result: Result | None, error: str | None = None
    ) -> None:
        attempts = event.attempts + (result is not None)
        if error is None:
            error = result.payload.decode(errors="replace") if result is not None else condition
        for made in self._stores.failures(function, event, condition=condition, result=result, attempts=attempts):
            try:
                await self._bring(made)
            except ThawdError as refusal:
                if refusal.retryable:
                    raise
                error = f"{error}; and {made.destination} refused the record: {refusal}"
        await self._queue.bury(event.id, error=error, condition=condition, counts=result is not None)
        self._tell(f"thawd: {event.function}: event {event.request_id} was given up ({condition}): {error[:200]}")


async def _wait(lane: _Lane, wait_s: float) -> None:
    """Sleep until the lane is woken, at most `wait_s` seconds."""
    try:
        async with asyncio.timeout(wait_s):
            await lane.awake.wait()
    except TimeoutError:
        return


class _Lane:
    """The events of one function under way.

    Attributes:
        running: events that wait for or hold an environment.
        open: events not acknowledged yet.
        awake: set when there may be something to do.
        gone: the function is no longer declared.
    """

    def __init__(self, function: str) -> None:
        self.function = function
        self.running = 0
        self.open = 0
        self.awake = asyncio.Event()
        self.gone = False
