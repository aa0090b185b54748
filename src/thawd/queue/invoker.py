"""Asynchronous invocation: takes stored events to the dispatcher, retries, gives up; their outcomes go their own way.

An event is leased, run, its outcome stored at its destination, and only then acknowledged: a crash anywhere runs it
again with the same request id. Waits are Lambda's: function errors are retried after one and two minutes, throttles
and system errors with back-off until the event is too old.

Each function has a lane of its own, with a bound on what runs at once, so that a flooded function does not starve
another; events are read ahead, so that no environment waits for the disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable

from thawd.destinations.delivery import Delivery, Destinations
from thawd.errors import ResourceNotFoundException, StoreError, ThawdError, TooManyRequestsException
from thawd.invocation import Invocation, Result, in_a_line
from thawd.queue.lane import READ_AHEAD, SHORTEST_WAIT_S, Lane
from thawd.queue.outcomes import Burial, Outcome, Outcomes, RefusedError
from thawd.resources import Function
from thawd.scheduling.dispatcher import Dispatcher
from thawd.stores import clock
from thawd.stores.events.queue import EventQueue
from thawd.stores.events.records import Event, NewEvent, as_accepted
from thawd.telemetry.console import complain

# Source: Lambda developer guide, "Error handling for asynchronous invocation": back-off from 1 second to 5 minutes.
_BACKOFF_FIRST_S = 1.0
LONGEST_WAIT_S = 300.0
# A disk that has room again is to be noticed sooner than that.
_STORE_RETRY_S = 30.0
# Events of one function under way at once: enough to keep every core busy while others wait for their acknowledgement.
PER_CPU = 2
_ACKNOWLEDGING = 256
_RECHECK_S = 30.0
# An event that ran when the server died so often runs alone from then on, and after so many more times no longer.
_SUSPECT = 3
_POISON = 10


class _NotNowError(Exception):
    """The function takes no more work at the moment."""


class AsyncInvoker:
    """Runs stored events.

    Args:
        queue: where they are stored.
        dispatcher: runs them.
        stores: their destinations.
        outcomes: brings events that have run to their end.
        retry_wait_s: wait before the first retry of a function error, seconds; the second is twice as long.
        report: told in one line what an operator should know.
    """

    def __init__(
        self,
        queue: EventQueue,
        dispatcher: Dispatcher,
        stores: Destinations,
        outcomes: Outcomes,
        *,
        retry_wait_s: float,
        report: Callable[[str], None] = complain,
    ) -> None:
        self._queue = queue
        self._dispatcher = dispatcher
        self._stores = stores
        self._outcomes = outcomes
        outcomes.on_follow_ups = self.wake
        self._retry_wait_s = retry_wait_s
        self._report = report
        self._lanes: dict[str, Lane] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._suspects = asyncio.Lock()
        self._per_function = PER_CPU * (os.cpu_count() or 1)
        self._open = 0  # of all lanes: events begun and not acknowledged yet
        self.stopping = False
        self._settled = asyncio.Event()
        self._settled.set()

    async def accept(self, invocation: Invocation) -> None:
        """Store an asynchronous invocation; it is not lost once this returns.

        Raises:
            StoreError: it could not be stored.
            TooManyRequestsException: too many events wait already (429).
        """
        event = NewEvent(
            function=invocation.function,
            payload=invocation.payload,
            request_id=invocation.request_id,
            client_context=invocation.client_context,
            trace_id=invocation.trace_id,
            qualifier=invocation.qualifier,
        )
        now = clock.now()
        [event_id] = await self._queue.put([event], now=now)
        lane = self._lanes.get(event.function)
        if lane is not None:
            self._hand_over(lane, as_accepted(event, event_id, now))

    def _hand_over(self, lane: Lane, event: Event) -> None:
        """Have an event that is stored run: it need not be read again where it is the next one."""
        if not self.stopping and lane.has_room_for(event) and self._queue.take(event):
            lane.add(event)
            self._begin(lane)
        else:
            lane.look()

    def wake(self, functions: set[str]) -> None:
        """There are new events for these functions."""
        for name in functions:
            lane = self._lanes.get(name)
            if lane is not None:
                lane.look()

    def declare(self, names: list[str]) -> None:
        """Run events of these functions from now on."""
        assert self._tasks is not None, "run() comes first"
        for name in names:
            lane = self._lanes.get(name)
            if lane is None:
                self._lanes[name] = lane = Lane(name)
                self._tasks.create_task(self._run_lane(lane))
            elif lane.gone:
                lane.gone = False
                lane.look()
        for name in set(self._lanes) - set(names):
            self._lanes[name].gone = True
            self._lanes[name].awake.set()

    async def run(self, started: asyncio.Event) -> None:
        """Run stored events until cancelled; sets `started` when `declare` may be called."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            tasks.create_task(self._outcomes.run())
            tasks.create_task(self._look_again())
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.stopping = True  # what ends now begins nothing in its place

    def stop(self) -> None:
        """Begin no more events; those under way go on, and one that fails from now on has not been tried."""
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

    def most_at_once(self, function: str) -> int:
        """The most events of a function that run at once; 0 where there is no such function."""
        try:
            return max(1, min(self._per_function, self._dispatcher.most_at_once(function)))
        except ResourceNotFoundException:
            return 0

    async def _run_lane(self, lane: Lane) -> None:
        # It ends when nothing of it is under way: two lanes of one function would lease the same events.
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
            try:
                async with asyncio.timeout(wait_s):
                    await lane.awake.wait()
            except TimeoutError:
                lane.more = True
        self._give_back(lane)
        self._queue.forget(lane.function)
        del self._lanes[lane.function]

    async def _read_ahead(self, lane: Lane) -> None:
        lane.more = False  # who puts something in during the look sets it again
        for event in await self._lease(lane, READ_AHEAD - len(lane.ahead)):
            lane.add(event)
        lane.more = lane.more or not self._queue.exhausted(lane.function)
        if not lane.more:
            wait_s = await self._until_due_s(lane)
            lane.due_s = None if wait_s is None else time.monotonic() + wait_s

    def _give_back(self, lane: Lane) -> None:
        while lane.ahead:
            self._queue.give_back(lane.take())

    def _begin(self, lane: Lane) -> None:
        """Begin as many events as may run; called whenever one more may."""
        assert self._tasks is not None
        if self.stopping or lane.gone or lane.paused or not lane.ahead:
            return
        most = 1 if lane.backoff_s else self.most_at_once(lane.function)
        while lane.ahead and lane.running < most and lane.open < _ACKNOWLEDGING:
            lane.running += 1
            lane.open += 1
            self._open += 1
            self._settled.clear()
            self._tasks.create_task(self._process(lane, lane.take()))
            if lane.more:
                lane.awake.set()  # there may be room to read ahead

    async def _lease(self, lane: Lane, room: int) -> list[Event]:
        try:
            events = await self._queue.lease(lane.function, limit=room)
        except StoreError as error:
            lane.tell_once(self._tell, f"thawd: events of {lane.function} wait: {error}")
            await asyncio.sleep(_BACKOFF_FIRST_S)
            lane.look()
            return []
        lane.told = ""
        return events

    async def _until_due_s(self, lane: Lane) -> float | None:
        """How long until an event of the lane comes due, seconds; what is put meanwhile wakes the lane before.

        None: nothing will by itself.
        """
        now = clock.now()
        try:
            due = await self._queue.next_due(lane.function, now=now)
        except StoreError:
            return _BACKOFF_FIRST_S
        return None if due is None else min(_RECHECK_S, max(SHORTEST_WAIT_S, due - now))

    async def _look_again(self) -> None:
        """Wake the lanes of functions that have events, now and then: whoever forgot to has not lost them."""
        while True:
            await asyncio.sleep(_RECHECK_S)
            with contextlib.suppress(StoreError):
                self.wake(set(await self._queue.waiting()))

    async def _process(self, lane: Lane, event: Event) -> None:
        """Run one event to an acknowledged end; never raises."""
        running = True

        def freed() -> None:
            nonlocal running
            if running:
                running = False
                self._queue.ended(event)
                lane.running -= 1
                self._begin(lane)

        try:
            if event.interruptions >= _SUSPECT:
                async with self._suspects:
                    await self._attempt(lane, event, freed)
            else:
                await self._attempt(lane, event, freed)
            lane.backoff_s = 0.0
        except _NotNowError:
            self._put_back(lane, event)
        except StoreError as error:
            # Nothing is lost: the event is where it was. Its outcome is stored once the store may be well.
            lane.tell_once(self._tell, f"thawd: the outcome of event {event.request_id} could not be stored: {error}")
            self._put_back(lane, event, longest_s=_STORE_RETRY_S)
        except Exception as error:  # a bug of ours with one event must not end the lane
            self._tell(f"thawd: event {event.request_id} of {event.function} failed inside thawd: {error!r}")
            await self._failed_inside(lane, event, repr(error))
        finally:
            freed()
            lane.open -= 1
            self._open -= 1
            if lane.gone:
                lane.awake.set()
            self._begin(lane)
            if not self._open:
                self._settled.set()

    def _put_back(self, lane: Lane, event: Event, *, longest_s: float = LONGEST_WAIT_S) -> None:
        """The function or the store does not take work now: the event goes back to its place, the lane waits."""
        if lane.gone:
            self._queue.give_back(event)
            return
        lane.add_first(event)
        if lane.paused:
            return
        lane.paused = True
        lane.backoff_s = min(longest_s, max(_BACKOFF_FIRST_S, 2 * lane.backoff_s))
        asyncio.get_running_loop().call_later(lane.backoff_s, self._go_on, lane)

    def _go_on(self, lane: Lane) -> None:
        lane.paused = False
        self._begin(lane)
        lane.awake.set()

    async def _failed_inside(self, lane: Lane, event: Event, error: str) -> None:
        try:
            if event.attempts >= 2:
                await self._queue.bury(event.id, error=error, condition="InternalError")
            else:
                await self._retry(event, _BACKOFF_FIRST_S, error, counts=True)
        except StoreError:
            self._put_back(lane, event)

    async def _attempt(self, lane: Lane, event: Event, freed: Callable[[], None]) -> None:
        try:
            function = self._dispatcher.asynchronous(event.function, event.qualifier)
        except ResourceNotFoundException as error:
            if lane.gone:
                raise _NotNowError from None
            freed()  # the version or alias that it was for has been deleted
            await self._queue.bury(event.id, error=error.message, condition="ResourceNotFound", counts=False)
            return
        result = lane.take_result(event) or await self._run(event, function, freed)
        if result is None:
            return
        freed()
        try:
            await self._conclude(event, function, result)
        except StoreError:
            lane.keep_result(event, result)
            raise

    async def _run(self, event: Event, function: Function, freed: Callable[[], None]) -> Result | None:
        """What the function answers; None: it has not been asked, and the event has been dealt with."""
        age_s = max(0.0, clock.now() - event.accepted_at)
        if age_s > function.maximum_event_age_s:
            freed()
            await self._give_up(event, function, condition="EventAgeExceeded", result=None)
            return None
        if function.reserved_concurrency == 0:
            # Source: Lambda developer guide, "Capturing records of Lambda asynchronous invocations": no retries then.
            freed()
            error_text = "the function's reserved concurrency is 0"
            await self._give_up(event, function, condition="ZeroReservedConcurrency", result=None, error=error_text)
            return None
        if event.interruptions >= _POISON:
            freed()
            error_text = f"the server died {event.interruptions} times while this event ran"
            await self._give_up(event, function, condition="Interrupted", result=None, error=error_text)
            return None
        try:
            result = await self._invoke(event, wait_s=function.maximum_event_age_s - age_s)
        except TooManyRequestsException:
            raise _NotNowError from None
        except ThawdError as error:
            freed()
            await self._not_run(event, age_s, error.message)
            return None
        if self.stopping and result.function_error is not None:
            raise _NotNowError  # who knows whether it would have failed: a stop ends what runs too long
        return result

    async def _conclude(self, event: Event, function: Function, result: Result) -> None:
        """Have an event that has run end, or run again later."""
        if result.function_error is None:
            await self._succeed(event, function, result)
        elif event.attempts >= function.maximum_retry_attempts:
            await self._give_up(event, function, condition="RetriesExhausted", result=result)
        else:
            wait_s = self._retry_wait_s * 2**event.attempts
            await self._retry(event, wait_s, result.payload.decode(errors="replace"), counts=True)

    async def _invoke(self, event: Event, *, wait_s: float) -> Result:
        invocation = Invocation(
            event.function,
            event.payload,
            time.monotonic() + wait_s,
            event.request_id,
            client_context=event.client_context,
            trace_id=event.trace_id,
            asynchronous=True,
            qualifier=event.qualifier,
        )
        self._queue.begins(event)
        return await self._dispatcher.invoke(invocation)

    async def _succeed(self, event: Event, function: Function, result: Result) -> None:
        if function.on_success is None:
            await self._queue.done([event.id])
            return

        def if_failed() -> list[Delivery]:
            attempts = event.attempts + 1
            return self._stores.failures(
                function, event, condition="DestinationRefused", result=result, attempts=attempts
            )

        try:
            delivery = self._stores.success(function.on_success, event, result, arn=function.arn)
            await self._outcomes.settle(event.id, Outcome(delivery), if_failed=if_failed)
        except StoreError:
            raise
        except (RefusedError, ThawdError) as error:
            # The answer itself is not storable, and would not be the next time.
            await self._give_up(event, function, condition="DestinationRefused", result=result, error=str(error))

    def _tell(self, line: str) -> None:
        try:
            self._report(line)
        except OSError:
            return  # whoever listens has gone away; events go on

    async def _not_run(self, event: Event, age_s: float, error: str) -> None:
        """Not the function's failure: tried again, less and less often, without using up its retries."""
        wait_s = min(LONGEST_WAIT_S, max(_BACKOFF_FIRST_S, age_s))
        await self._retry(event, wait_s, error, counts=False)

    async def _retry(self, event: Event, wait_s: float, error: str, *, counts: bool) -> None:
        await self._queue.retry(event.id, at=clock.now() + wait_s, error=error, counts=counts)
        self.wake({event.function})

    async def _give_up(
        self, event: Event, function: Function, *, condition: str, result: Result | None, error: str | None = None
    ) -> None:
        counts = result is not None
        if error is None:
            error = result.payload.decode(errors="replace") if result is not None else condition
        made = self._stores.failures(
            function, event, condition=condition, result=result, attempts=event.attempts + counts
        )
        if made:
            outcome = Outcome(made[0], Burial(error, condition), rest=tuple(made[1:]))
            await self._outcomes.settle(event.id, outcome, counts=counts)
        else:
            await self._queue.bury(event.id, error=error, condition=condition, counts=counts)
        self._tell(
            f"thawd: {event.function}: event {event.request_id} was given up ({condition}): {in_a_line(error)[:200]}"
        )
