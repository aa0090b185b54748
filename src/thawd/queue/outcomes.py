"""What becomes of an event that has run: its outcome is taken to its destination, at once or later, and then it ends.

The outcome is kept beside the event while its destination cannot take it, so that the handler does not run again for
that. Deliveries are at least once; their keys make a second one replace the first where the destination has keys.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import msgspec

from thawd.destinations.delivery import Delivery, Destinations, told_as
from thawd.errors import StoreError, ThawdError
from thawd.stores import clock
from thawd.stores.events.outbox import Outbox, Waiting
from thawd.stores.events.queue import EventQueue
from thawd.stores.events.records import NewEvent
from thawd.telemetry.console import complain

_BACKOFF_FIRST_S = 1.0
_BACKOFF_LAST_S = 300.0
_RECHECK_S = 30.0
_SHORTEST_WAIT_S = 0.01
# Deliveries tried again at once; first tries are as many as events that run.
_AT_ONCE = 16
# So long a destination may be away. The longest that Lambda keeps an event, for want of a figure for destinations.
_PATIENCE_S = 21_600.0


class Burial(msgspec.Struct, frozen=True):
    """An event is to be given up, in these words."""

    error: str
    condition: str


class Outcome(msgspec.Struct, frozen=True):
    """What is to be delivered, and how the event ends when it has been: given up, or done.

    Attributes:
        delivery: what is to be delivered first.
        burial: how the event is given up; None: it is done.
        rest: what is to be delivered after that; functions come last, as they are told when the event ends.
        if_failed: what is to be delivered instead when an event that is done has an outcome that will not get there.
        again: what a redrive of the event that is given up tries; None: it runs again.
    """

    delivery: Delivery
    burial: Burial | None = None
    rest: tuple[Delivery, ...] = ()
    if_failed: tuple[Delivery, ...] = ()
    again: Outcome | None = None

    def after(self, why: str | None = None) -> Outcome | None:
        """What is left of it once its first delivery has ended; None when nothing is.

        Args:
            why: why that did not get there; None: it did.
        """
        return Outcome(self.rest[0], self.ending(why), self.rest[1:], again=self.again) if self.rest else None

    def ending(self, why: str | None = None) -> Burial | None:
        """How the event ends once its first delivery has, `why` as in `after`."""
        if self.burial is None or why is None:
            return self.burial
        return Burial(f"{self.burial.error}; and {why}", self.burial.condition)


class RefusedError(Exception):
    """The destination will not take it, now or later; the message says why."""


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Outcome).decode


class Outcomes:
    """Brings events that have run to their end.

    Args:
        queue: the events.
        outbox: outcomes that wait.
        destinations: take them.
        report: told in one line what an operator should know.

    Attributes:
        under_way: kept outcomes that are being tried again.
        on_follow_ups: told of functions for which there are new events.
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
        self._report = report
        self._awake = asyncio.Event()
        self._down: set[str] = set()  # destinations whose trouble has been told
        self._store_trouble = ""  # of the state file, that has been told
        self._backoff_s = 0.0  # how long is waited for it; 0 once it has taken something since
        self._resume_s = 0.0
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
        """Deliver the outcome of a leased event and end it, or keep the outcome for later.

        A failure is always kept first, and delivered by `run`: were it told and then forgotten in a crash, the event
        would run again, and might succeed.

        Args:
            event_id: the event.
            outcome: of it.
            counts: whether it is of an attempt made since the event was leased.
            if_failed: what is to be delivered when it is kept for later and does not get there then either.

        Raises:
            RefusedError: the destination refuses the answer; the event is as before.
            StoreError: neither could be stored; the event is as before.
        """
        if outcome.burial is not None and self._destinations.as_event(outcome.delivery) is None:
            await self._queue.deliver_later(
                event_id, _encode(outcome), at=clock.now(), error=outcome.burial.error, counts=counts
            )
            self._awake.set()
            return
        try:
            follow_ups = await self._bring(outcome.delivery)
        except ThawdError as error:
            if not error.retryable:
                raise RefusedError(error.message) from error
            kept = msgspec.structs.replace(outcome, if_failed=tuple(if_failed()))
            await self._keep(event_id, kept, error, counts=counts)
        else:
            await self._end(event_id, outcome, outcome.burial, follow_ups, counts=counts)

    async def _bring(self, delivery: Delivery) -> list[NewEvent]:
        """Take it where it goes; the events that are to be stored with the end of its own.

        Raises:
            ThawdError: it was not taken.
        """
        follow_up = self._destinations.as_event(delivery)
        if follow_up is not None:
            return [follow_up]
        await self._destinations.deliver(delivery)
        return []

    async def _keep(self, event_id: int, outcome: Outcome, error: ThawdError, *, counts: bool) -> None:
        self._tell_down(outcome.delivery, error)
        at = clock.now() + _BACKOFF_FIRST_S
        await self._queue.deliver_later(event_id, _encode(outcome), at=at, error=error.message, counts=counts)
        self._awake.set()

    async def run(self) -> None:
        """Take kept outcomes to their destinations until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._awake.clear()
                most = 0 if self._stopping else 1 if self._backoff_s else _AT_ONCE
                for waiting in await self._lease(most - self.under_way) if self.under_way < most else []:
                    self.under_way += 1
                    tasks.create_task(self._carry(waiting))
                wait_s = _RECHECK_S if self.under_way >= most else await self._until_due_s()
                try:
                    async with asyncio.timeout(wait_s):
                        await self._awake.wait()
                except TimeoutError:
                    continue

    def break_off(self) -> None:
        """Keep what is on its way to its destination at this moment, and take nothing there any more: thawd stops."""
        self._stopping = True
        self._destinations.break_off()

    def wake(self) -> None:
        """There may be outcomes that are due."""
        self._awake.set()

    async def _lease(self, limit: int) -> list[Waiting]:
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
        return _RECHECK_S if due is None else min(_RECHECK_S, max(_SHORTEST_WAIT_S, due - now))

    async def _carry(self, waiting: Waiting) -> None:
        """Try one once more; never raises."""
        try:
            await self._try(waiting)
            self._backoff_s, self._store_trouble = 0.0, ""
        except StoreError as error:
            await self._back_off(error)
        finally:
            self._outbox.ended(waiting.id)
            self.under_way -= 1
            self._awake.set()

    async def _back_off(self, error: StoreError) -> None:
        """The state file takes nothing: each delivery would be repeated, so there are few until it does."""
        if error.message != self._store_trouble:
            self._store_trouble = error.message
            self._tell(f"thawd: outcomes of events wait: {error}")
        now_s = time.monotonic()
        if now_s >= self._resume_s:  # the first of those that failed together
            self._backoff_s = min(_RECHECK_S, max(_BACKOFF_FIRST_S, 2 * self._backoff_s))
            self._resume_s = now_s + self._backoff_s
        await asyncio.sleep(self._resume_s - now_s)

    async def _try(self, waiting: Waiting) -> None:
        try:
            outcome = _decode(waiting.document)
            follow_ups = await self._bring(outcome.delivery)
        except ThawdError as error:
            if not error.retryable:
                why = f"{outcome.delivery.destination} refused it: {error.message}"
                await self._give_up(waiting, outcome, Burial(why, "DestinationRefused"))
            elif clock.now() - waiting.since > _PATIENCE_S:
                why = f"{outcome.delivery.destination} was away: {error.message}"
                await self._give_up(waiting, outcome, Burial(why, "DestinationFailed"), again=outcome)
            else:
                self._tell_down(outcome.delivery, error)
                wait_s = min(_BACKOFF_LAST_S, _BACKOFF_FIRST_S * 2 ** min(waiting.tries + 1, 30))
                await self._outbox.retry(waiting.id, at=clock.now() + wait_s, error=error.message)
        except Exception as error:  # a bug of ours with one outcome must not end the others, nor come back for ever
            self._tell(f"thawd: an outcome of {waiting.function} failed inside thawd: {error!r}")
            await self._queue.bury(
                waiting.id, error=repr(error), condition="InternalError", counts=False, outcome=waiting.document
            )
        else:
            self._tell_up(outcome.delivery)
            if (left := outcome.after()) is not None:
                await self._outbox.advance(waiting.id, _encode(left))
            else:
                await self._end(waiting.id, outcome, outcome.burial, follow_ups, counts=False)

    async def _give_up(
        self, waiting: Waiting, outcome: Outcome, burial: Burial, *, again: Outcome | None = None
    ) -> None:
        """What comes first in `outcome` will not get there, `burial` says why; a redrive is to try `again`."""
        why = burial.error
        self._tell(f"thawd: {waiting.function}: the outcome of an event was given up: {why[:300]}")
        if (left := outcome.after(why)) is not None:
            await self._outbox.advance(waiting.id, _encode(left))
        elif outcome.burial is not None:
            await self._end(waiting.id, outcome, outcome.ending(why), [], counts=False)
        elif outcome.if_failed:
            first, *others = (told_as(made, burial.condition) for made in outcome.if_failed)
            instead = Outcome(first, burial, rest=tuple(others), again=again)
            await self._outbox.advance(waiting.id, _encode(instead))
        else:
            await self._end(waiting.id, Outcome(outcome.delivery, again=again), burial, [], counts=False)

    async def _end(
        self, event_id: int, outcome: Outcome, burial: Burial | None, follow_ups: list[NewEvent], *, counts: bool
    ) -> None:
        if burial is None:
            await self._queue.done([event_id], follow_ups=follow_ups)
        else:
            await self._queue.bury(
                event_id,
                error=burial.error,
                condition=burial.condition,
                counts=counts,
                outcome=None if outcome.again is None else _encode(outcome.again),
                follow_ups=follow_ups,
            )
        if follow_ups:
            self.on_follow_ups({event.function for event in follow_ups})

    def _tell_down(self, delivery: Delivery, error: ThawdError) -> None:
        name = str(delivery.destination)
        if name not in self._down:
            self._down.add(name)
            self._tell(
                f"thawd: {delivery.function}: {name} cannot be reached; outcomes are kept and tried again: "
                f"{error.message[:300]}"
            )

    def _tell_up(self, delivery: Delivery) -> None:
        name = str(delivery.destination)
        if name in self._down:
            self._down.discard(name)
            self._tell(f"thawd: {name} takes outcomes again")

    def _tell(self, line: str) -> None:
        try:
            self._report(line)
        except OSError:
            return  # whoever listens has gone away; outcomes go on
