"""Ends events that have run: delivers an event's outcome to its destination, now or later, and then ends the event.

If a destination is unavailable, the outcome is stored with the event and delivered later, so that the handler does not
run again. Each outcome is delivered at least once, or its event becomes a dead letter. Where the destination has keys,
a repeated delivery replaces the first, because both have the same key. The invoker calls this module, which calls the
destinations; `thawd.stores.events.outbox` stores the outcomes that wait.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import msgspec

from thawd.destinations.delivery import Delivery, Destinations, under_condition
from thawd.errors import StoreError, ThawdError
from thawd.stores import clock
from thawd.stores.events.event_queue import EventQueue
from thawd.stores.events.event_rows import NewEvent
from thawd.stores.events.outbox import Outbox, WaitingOutcome
from thawd.system.inline import in_task
from thawd.system.retry import Backoff, SayOnce, backoff_s, is_set_within, time_left_s
from thawd.telemetry.console import complain

_BACKOFF_FIRST_S = 1.0
_BACKOFF_LAST_S = 300.0
_RECHECK_S = 30.0
_SHORTEST_WAIT_S = 0.01
# Most stored outcomes that are delivered at the same time. The first delivery of an answer is made right after the run
# and does not count here: the number of running events limits such deliveries.
_AT_ONCE = 16
# If an outcome could not be delivered for this long, its event becomes a dead letter. Lambda documents no figure for
# destinations, so this is the longest time that Lambda keeps an event: six hours.
_PATIENCE_S = 21_600.0
# A lasting problem is reported once per topic (`SayOnce`). This is the topic of problems with the state file; the topic
# of problems with a destination is the destination's name.
_STORE = "state file"


class DeadLetterCause(msgspec.Struct, frozen=True):
    """Why an event is to become a dead letter.

    Attributes:
        error: the error, as text.
        condition: ``RetriesExhausted``, ``EventAgeExceeded`` or another name of the reason.
    """

    error: str
    condition: str


class Outcome(msgspec.Struct, frozen=True):
    """The deliveries to make for an event, and how the event ends afterwards: done, or as a dead letter.

    State files contain this struct as JSON, so its field names there must not change (`cause` is called ``burial``).

    Attributes:
        delivery: the first delivery.
        cause: why the event is to become a dead letter; None: it is done.
        rest: deliveries after the first. Those to functions come last, because they are queued in the transaction that
            ends the event.
        if_failed: deliveries to make instead if `cause` is None and the first delivery cannot be made.
        again: the outcome that a redrive of the dead letter delivers; None: a redrive runs the event again.
    """

    delivery: Delivery
    cause: DeadLetterCause | None = msgspec.field(default=None, name="burial")
    rest: tuple[Delivery, ...] = ()
    if_failed: tuple[Delivery, ...] = ()
    again: Outcome | None = None

    def after(self, why: str | None = None) -> Outcome | None:
        """Return the outcome that remains after the first delivery; None: nothing remains.

        Args:
            why: why the first delivery was not made; None: it was made.
        """
        return Outcome(self.rest[0], self.cause_after(why), self.rest[1:], again=self.again) if self.rest else None

    def cause_after(self, why: str | None = None) -> DeadLetterCause | None:
        """Return `cause`, extended by `why`, the reason why the first delivery was not made (None: it was made)."""
        if self.cause is None or why is None:
            return self.cause
        return DeadLetterCause(f"{self.cause.error}; and {why}", self.cause.condition)


class RefusedError(Exception):
    """The destination refuses the answer for good; the message says why."""


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Outcome).decode


class Outcomes:
    """Ends events that have run.

    Args:
        queue: stores the events.
        outbox: stores the outcomes that wait for their destination.
        destinations: carries out deliveries.
        report: takes a line for the operator.

    Attributes:
        in_delivery: number of stored outcomes that are being delivered.
        on_follow_ups: called with the names of functions for which deliveries have queued new events.
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
        self.in_delivery = 0
        self.on_follow_ups: Callable[[set[str]], None] = lambda functions: None

    async def settle(
        self,
        event_id: int,
        outcome: Outcome,
        *,
        counts: bool = True,
        if_failed: Callable[[], list[Delivery]] = list,
    ) -> None:
        """Deliver the outcome of a leased event and end the event, or store the outcome for `run` to deliver.

        The outcome of an event that failed is always stored first. If it were delivered before it is stored, a crash in
        between would run the event again, and it might succeed although its failure was delivered.

        Args:
            event_id: the event's id in the state file.
            outcome: the event's outcome.
            counts: whether the outcome results from an attempt that was made since the event was leased.
            if_failed: returns the deliveries to make instead, if a stored answer cannot be delivered later either.

        Raises:
            RefusedError: the destination refuses the answer; the event is unchanged.
            StoreError: neither the event's end nor its outcome could be stored; the event is unchanged.
        """
        await in_task()  # clients of destinations need one
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
        """Deliver stored outcomes until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._awake.clear()
                most = 0 if self._stopping else 1 if self._store_backoff.wait_s else _AT_ONCE
                for waiting in await self._lease(most - self.in_delivery) if self.in_delivery < most else []:
                    self.in_delivery += 1
                    tasks.create_task(self._deliver_kept(waiting))
                await is_set_within(self._awake, _RECHECK_S if self.in_delivery >= most else await self._until_due_s())

    def break_off(self) -> None:
        """Abort the running deliveries and start no more, because thawd is stopping. Their outcomes stay stored."""
        self._stopping = True
        self._destinations.break_off()

    def wake(self) -> None:
        """Make `run` look for outcomes that are due now."""
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
        """Try once more to deliver a stored outcome. Never raises."""
        try:
            await self._try(waiting)
            self._store_backoff.succeeded()
            self._reports.resolved(topic=_STORE)
        except StoreError as error:
            await self._back_off(error)
        finally:
            self._outbox.ended(waiting.id)
            self.in_delivery -= 1
            self._awake.set()

    async def _back_off(self, error: StoreError) -> None:
        """Report and wait, because the state file is unusable.

        Until it is usable again, no delivery can be recorded and each would be repeated, so only one is made at a time.
        """
        self._reports.say(f"thawd: outcomes of asynchronous events cannot be delivered yet: {error}", topic=_STORE)
        await asyncio.sleep(self._store_backoff.failed(time.monotonic()))

    async def _try(self, waiting: WaitingOutcome) -> None:
        try:
            outcome = _decode(waiting.document)
            follow_ups = await self._destinations.deliver(outcome.delivery)
        except ThawdError as error:
            destination = outcome.delivery.destination
            if not error.retryable:
                cause = DeadLetterCause(f"{destination} refused the outcome: {error.message}", "DestinationRefused")
                await self._fail(waiting, outcome, cause)
            elif clock.now() - waiting.since > _PATIENCE_S:
                cause = DeadLetterCause(f"{destination} was unavailable: {error.message}", "DestinationFailed")
                await self._fail(waiting, outcome, cause, again=outcome)
            else:
                self._say_down(outcome.delivery, error)
                wait_s = backoff_s(waiting.tries + 2, first_s=_BACKOFF_FIRST_S, longest_s=_BACKOFF_LAST_S)
                await self._outbox.retry(waiting.id, at=clock.now() + wait_s, error=error.message)
        except Exception as error:  # after a bug in thawd, go on with other deliveries, and do not repeat this one
            self._reports.report(f"thawd: delivering an outcome of {waiting.function} failed inside thawd: {error!r}")
            await self._queue.dead_letter(
                waiting.id, error=repr(error), condition="InternalError", counts=False, outcome=waiting.document
            )
        else:
            name = str(outcome.delivery.destination)
            self._reports.resolved(f"thawd: {name} takes outcomes again", topic=name)
            if (left := outcome.after()) is not None:
                await self._outbox.advance(waiting.id, _encode(left))
            else:
                await self._end(waiting.id, outcome, outcome.cause, follow_ups, counts=False)

    async def _fail(
        self, waiting: WaitingOutcome, outcome: Outcome, cause: DeadLetterCause, *, again: Outcome | None = None
    ) -> None:
        """Give up the first delivery of `outcome`, and store the next one. If there is none, end the event.

        Args:
            waiting: the row of the stored outcome.
            outcome: the outcome decoded from that row.
            cause: why the delivery is given up.
            again: the outcome that a redrive delivers; None: a redrive runs the event again.
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
            f"thawd: {delivery.function}: outcomes cannot be delivered to {name} now, and are kept and tried again: "
            f"{error.message[:300]}"
        )
        self._reports.say(line, topic=name, cause="down")
