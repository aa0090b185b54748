"""Ends events that have run: delivers an event's outcome to its destination, now or later, and then ends the event.

The outcome is kept beside the event while its destination cannot take it, so that the handler does not run again for
that. Deliveries are at least once; their keys make a second one replace the first where the destination has keys.
Stands between the invoker and the destinations; `thawd.stores.events.outbox` stores the outcomes that wait.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import msgspec

from thawd.destinations.delivery import Delivery, Destinations, under_condition
from thawd.errors import StoreError, ThawdError
from thawd.stores import clock
from thawd.stores.events.event_rows import NewEvent
from thawd.stores.events.outbox import Outbox, WaitingOutcome
from thawd.stores.events.queue import EventQueue
from thawd.system.retry import Backoff, SayOnce, backoff_s, is_set_within, time_left_s
from thawd.telemetry.console import complain

_BACKOFF_FIRST_S = 1.0
_BACKOFF_LAST_S = 300.0
_RECHECK_S = 30.0
_SHORTEST_WAIT_S = 0.01
# Kept outcomes that are delivered at the same time; first deliveries are as many as events that run.
_AT_ONCE = 16
# How long a destination may be away. The longest that Lambda keeps an event, for want of a figure for destinations.
_PATIENCE_S = 21_600.0
# Topic of reports about the state file; those about a destination have its name.
_STORE = "state file"


class DeadLetterCause(msgspec.Struct, frozen=True):
    """Why an event is to become a dead letter.

    Attributes:
        error: what was wrong.
        condition: ``RetriesExhausted``, ``EventAgeExceeded`` or another word for why.
    """

    error: str
    condition: str


class Outcome(msgspec.Struct, frozen=True):
    """What is to be delivered of an event, and how the event ends afterwards: done, or as a dead letter.

    Its JSON is in state files: the names in it, ``burial`` among them, stay.

    Attributes:
        delivery: the first delivery.
        cause: why the event is to become a dead letter; None: it is done.
        rest: deliveries after the first; those to functions come last, as they are stored when the event ends.
        if_failed: deliveries to make instead, when the event would be done and the first delivery cannot be made.
        again: what a redrive of the dead letter delivers; None: a redrive runs the event again.
    """

    delivery: Delivery
    cause: DeadLetterCause | None = msgspec.field(default=None, name="burial")
    rest: tuple[Delivery, ...] = ()
    if_failed: tuple[Delivery, ...] = ()
    again: Outcome | None = None

    def after(self, why: str | None = None) -> Outcome | None:
        """What is left once the first delivery has ended; None: nothing is.

        Args:
            why: why the first delivery was not made; None: it was.
        """
        return Outcome(self.rest[0], self.cause_after(why), self.rest[1:], again=self.again) if self.rest else None

    def cause_after(self, why: str | None = None) -> DeadLetterCause | None:
        """The cause once the first delivery has ended, `why` as in `after`."""
        if self.cause is None or why is None:
            return self.cause
        return DeadLetterCause(f"{self.cause.error}; and {why}", self.cause.condition)


class RefusedError(Exception):
    """The destination does not take the answer, now or later; the message says why."""


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Outcome).decode


class Outcomes:
    """Ends events that have run.

    Args:
        queue: the events.
        outbox: outcomes that wait.
        destinations: take deliveries.
        report: takes a line for the operator.

    Attributes:
        under_way: kept outcomes that are being delivered.
        on_follow_ups: called with the functions for which new events are queued.
    """

    def __init__(
        self,
        queue: EventQueue,
        outbox: Outbox,
        destinations: Destinations,
        *,
        report: Callable[[str], None] = complain,
    ) -> None:
        self._queue = queue
        self._outbox = outbox
        self._destinations = destinations
        self._reports = SayOnce(report)
        self._awake = asyncio.Event()
        self._store_backoff = Backoff(first_s=_BACKOFF_FIRST_S, longest_s=_RECHECK_S)
        self._stopping = False
        self.under_way = 0
        self.on_follow_ups: Callable[[set[str]], None] = lambda functions: None

    async def settle(
        self,
        event_id: int,
        outcome: Outcome,
        *,
        counts: bool = True,
        if_failed: Callable[[], list[Delivery]] = list,
    ) -> None:
        """Deliver the outcome of a leased event and end the event, or keep the outcome for `run` to deliver.

        A failure is always kept first: if it were delivered and then forgotten in a crash, the event would run again,
        and might succeed.

        Args:
            event_id: the event.
            outcome: of the event.
            counts: whether it is of an attempt made since the event was leased.
            if_failed: makes the deliveries for the case that a kept answer cannot be delivered later either.

        Raises:
            RefusedError: the destination refuses the answer; the event is as before.
            StoreError: neither the end nor the outcome could be stored; the event is as before.
        """
        if outcome.cause is not None:
            await self._keep(event_id, outcome, outcome.cause.error, at=clock.now(), counts=counts)
            return
        try:
            follow_ups = await self._destinations.deliver(outcome.delivery)
        except ThawdError as error:
            if not error.retryable:
                raise RefusedError(error.message) from error
            self._say_down(outcome.delivery, error)
            kept = msgspec.structs.replace(outcome, if_failed=tuple(if_failed()))
            await self._keep(event_id, kept, error.message, at=clock.now() + _BACKOFF_FIRST_S, counts=counts)
        else:
            await self._end(event_id, outcome, None, follow_ups, counts=counts)

    async def _keep(self, event_id: int, outcome: Outcome, error: str, *, at: float, counts: bool) -> None:
        await self._queue.deliver_later(event_id, _encode(outcome), at=at, error=error, counts=counts)
        self._awake.set()

    async def run(self) -> None:
        """Deliver kept outcomes until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._awake.clear()
                most = 0 if self._stopping else 1 if self._store_backoff.wait_s else _AT_ONCE
                for waiting in await self._lease(most - self.under_way) if self.under_way < most else []:
                    self.under_way += 1
                    tasks.create_task(self._deliver_kept(waiting))
                await is_set_within(self._awake, _RECHECK_S if self.under_way >= most else await self._until_due_s())

    def break_off(self) -> None:
        """End deliveries that are being made, keep their outcomes, and make no more: thawd stops."""
        self._stopping = True
        self._destinations.break_off()

    def wake(self) -> None:
        """Look for outcomes that are due."""
        self._awake.set()

    async def _lease(self, limit: int) -> list[WaitingOutcome]:
        try:
            return await self._outbox.lease(limit=limit)
        except StoreError as error:
            await self._back_off(error)
            return []

    async def _until_due_s(self) -> float:
        now = clock.now()
        try:
            due = await self._outbox.next_due(now=now)
        except StoreError:
            return _BACKOFF_FIRST_S
        return time_left_s(due, now, shortest_s=_SHORTEST_WAIT_S, longest_s=_RECHECK_S)

    async def _deliver_kept(self, waiting: WaitingOutcome) -> None:
        """Try to deliver a kept outcome once more; never raises."""
        try:
            await self._try(waiting)
            self._store_backoff.succeeded()
            self._reports.over(topic=_STORE)
        except StoreError as error:
            await self._back_off(error)
        finally:
            self._outbox.ended(waiting.id)
            self.under_way -= 1
            self._awake.set()

    async def _back_off(self, error: StoreError) -> None:
        """The state file takes nothing: each delivery would be repeated, so there are few until it does."""
        self._reports.say(f"thawd: outcomes of events wait: {error}", topic=_STORE)
        await asyncio.sleep(self._store_backoff.failed(time.monotonic()))

    async def _try(self, waiting: WaitingOutcome) -> None:
        try:
            outcome = _decode(waiting.document)
            follow_ups = await self._destinations.deliver(outcome.delivery)
        except ThawdError as error:
            destination = outcome.delivery.destination
            if not error.retryable:
                cause = DeadLetterCause(f"{destination} refused it: {error.message}", "DestinationRefused")
                await self._fail(waiting, outcome, cause)
            elif clock.now() - waiting.since > _PATIENCE_S:
                cause = DeadLetterCause(f"{destination} was away: {error.message}", "DestinationFailed")
                await self._fail(waiting, outcome, cause, again=outcome)
            else:
                self._say_down(outcome.delivery, error)
                wait_s = backoff_s(waiting.tries + 2, first_s=_BACKOFF_FIRST_S, longest_s=_BACKOFF_LAST_S)
                await self._outbox.retry(waiting.id, at=clock.now() + wait_s, error=error.message)
        except Exception as error:  # a bug of ours with one outcome must not end the others, nor come back for ever
            self._reports.report(f"thawd: an outcome of {waiting.function} failed inside thawd: {error!r}")
            await self._queue.dead_letter(
                waiting.id, error=repr(error), condition="InternalError", counts=False, outcome=waiting.document
            )
        else:
            name = str(outcome.delivery.destination)
            self._reports.over(f"thawd: {name} takes outcomes again", topic=name)
            if (left := outcome.after()) is not None:
                await self._outbox.advance(waiting.id, _encode(left))
            else:
                await self._end(waiting.id, outcome, outcome.cause, follow_ups, counts=False)

    async def _fail(
        self, waiting: WaitingOutcome, outcome: Outcome, cause: DeadLetterCause, *, again: Outcome | None = None
    ) -> None:
        """Go on without the first delivery of `outcome`, which will not be made.

        Args:
            waiting: the outcome as it is stored.
            outcome: the same.
            cause: why the delivery will not be made.
            again: what a redrive is to deliver; None: it runs the event again.
        """
        why = cause.error
        self._reports.report(f"thawd: {waiting.function}: the outcome of an event was not delivered: {why[:300]}")
        if (left := outcome.after(why)) is not None:
            await self._outbox.advance(waiting.id, _encode(left))
        elif outcome.cause is not None:
            await self._end(waiting.id, outcome, outcome.cause_after(why), [], counts=False)
        elif outcome.if_failed:
            first, *others = (under_condition(delivery, cause.condition) for delivery in outcome.if_failed)
            instead = Outcome(first, cause, rest=tuple(others), again=again)
            await self._outbox.advance(waiting.id, _encode(instead))
        else:
            await self._end(waiting.id, Outcome(outcome.delivery, again=again), cause, [], counts=False)

    async def _end(
        self,
        event_id: int,
        outcome: Outcome,
        cause: DeadLetterCause | None,
        follow_ups: list[NewEvent],
        *,
        counts: bool,
    ) -> None:
        """End the event, and queue `follow_ups` in the same transaction."""
        if cause is None:
            await self._queue.done([event_id], follow_ups=follow_ups)
        else:
            await self._queue.dead_letter(
                event_id,
                error=cause.error,
                condition=cause.condition,
                counts=counts,
                outcome=None if outcome.again is None else _encode(outcome.again),
                follow_ups=follow_ups,
            )
        if follow_ups:
            self.on_follow_ups({event.function for event in follow_ups})

    def _say_down(self, delivery: Delivery, error: ThawdError) -> None:
        name = str(delivery.destination)
        line = (
            f"thawd: {delivery.function}: {name} cannot be reached; outcomes are kept and tried again: "
            f"{error.message[:300]}"
        )
        self._reports.say(line, topic=name, cause="down")
