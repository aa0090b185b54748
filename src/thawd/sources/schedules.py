"""Schedules at work: puts the events of runs that have come due into the queue.

Guarantee: each time of a schedule gives its event once, neither lost nor repeated by a crash or by a clock that is set
back, as the event and the progress are stored in one transaction. Times that came due while nobody looked (no server
ran, or the machine slept) are dealt with as the schedule's ``missed`` says.

Source: Amazon EventBridge user guide, "Scheduled events"; EventBridge Scheduler user guide, "Schedule types".
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
import zoneinfo
from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from thawd.errors import StoreError
from thawd.grammar import schedule_expressions
from thawd.grammar.schedule_expressions import utc_text
from thawd.invocation import new_request_id
from thawd.resources import ACCOUNT_ID, REGION
from thawd.resources import Schedule as Declared
from thawd.stores.events.records import NewEvent
from thawd.stores.schedules import ScheduleState, ScheduleStore

# Source: EventBridge Scheduler: "invoke their targets with 60 second precision": what is later than that was missed.
ON_TIME_S = 60.0
# The clock may be set at any time: nobody sleeps longer than this without another look at it.
_LONGEST_SLEEP_S = 30.0
_STORE_RETRY_S = 2.0
# Missed runs that are made up for in one transaction.
_AT_ONCE = 500
_RESTING = " resting"
# A clock that is set back by less holds schedules up until it has caught up, so that nothing runs twice.
_CLOCK_FAULT_S = 86_400.0


class Clock(Protocol):
    """Tells the time."""

    def now(self) -> float:
        """Seconds since the epoch."""

    async def sleep(self, wait_s: float) -> None:
        """Wait so many seconds."""


class SystemClock:
    """The machine's."""

    def now(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    async def sleep(self, wait_s: float) -> None:
        """Wait so many seconds."""
        await asyncio.sleep(wait_s)


async def sleep_or(changed: asyncio.Event, wait_s: float, *, clock: Clock) -> None:
    """Sleep by the clock, seconds, or until the event is set."""
    sleeping = asyncio.ensure_future(clock.sleep(wait_s))
    waiting = asyncio.ensure_future(changed.wait())
    try:
        await asyncio.wait({sleeping, waiting}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        sleeping.cancel()
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await sleeping


class Schedules:
    """All schedules.

    Args:
        store: their progress.
        wake: told the functions that have new events in the queue.
        report: told in one line what an operator should know.
        clock: the time.
    """

    def __init__(
        self,
        store: ScheduleStore,
        *,
        wake: Callable[[set[str]], None],
        report: Callable[[str], None],
        clock: Clock | None = None,
    ) -> None:
        self._store = store
        self._wake = wake
        self._report = report
        self._clock = clock or SystemClock()
        self._declared: dict[str, Declared] = {}
        self._wanted: tuple[dict[str, Declared], frozenset[str]] | None = None  # declared, and not stored yet
        self._paused: frozenset[str] = frozenset()
        self._states: dict[str, ScheduleState] = {}
        self._changed = asyncio.Event()
        self._lock = asyncio.Lock()
        self._loaded = False
        self._told: str | None = None

    async def declare(self, schedules: Mapping[str, Declared], *, paused: frozenset[str]) -> None:
        """These are the schedules from now on, and these of them rest.

        What rests misses nothing: its times pass, and it goes on with the first one after it is resumed.

        Raises:
            StoreError: their progress cannot be read or stored; `run` tries again until it can.
        """
        async with self._lock:
            self._wanted = dict(schedules), paused
            try:
                await self._take_over(*self._wanted)
            finally:
                self._changed.set()

    async def _take_over(self, schedules: dict[str, Declared], paused: frozenset[str]) -> None:
        if not self._loaded:
            self._states = await self._store.load()
            self._loaded = True
        now = self._clock.now()
        resting = {name for name, one in schedules.items() if not one.enabled or name in paused}
        for name, schedule in schedules.items():
            state = self._states.get(name)
            definition = f"{schedule.schedule} {schedule.timezone}"
            # Kept, so that a server which finds it awake again knows that it rested.
            noted = definition + (_RESTING if name in resting else "")
            if state is None or state.definition.removesuffix(_RESTING) != definition:
                await self._advance(state, ScheduleState(name, noted, anchor=now, done_until=now))
            elif name in resting or state.definition != noted:
                after = msgspec.structs.replace(state, definition=noted, done_until=max(now, state.done_until))
                await self._advance(state, after)
        gone = set(self._states) - set(schedules)
        if gone:
            await self._store.forget(gone)
            for name in gone:
                del self._states[name]
        self._declared, self._paused = schedules, paused
        self._wanted = None

    async def run(self) -> None:
        """Run what comes due until cancelled."""
        while True:
            self._changed.clear()
            try:
                await self.catch_up()
                wait_s = self._until_due_s()
                self._told = None
            except StoreError as error:
                if error.message != self._told:
                    self._report(f"thawd: schedules wait: {error.message}")
                self._told, wait_s = error.message, _STORE_RETRY_S
            await sleep_or(self._changed, wait_s, clock=self._clock)

    async def catch_up(self) -> None:
        """Run what has come due by now.

        Raises:
            StoreError: it could not be stored; nothing is lost by that.
        """
        async with self._lock:
            if self._wanted is not None:
                await self._take_over(*self._wanted)
            for name, schedule in self._declared.items():
                if not self._rests(name):
                    while await self._run_due(schedule):
                        pass

    def next_run(self, name: str) -> float | None:
        """When it runs next, seconds since the epoch; None: it rests, or never runs again."""
        state = self._states.get(name)
        if state is None or name not in self._declared or self._rests(name):
            return None
        return _parse(self._declared[name]).after(state.done_until, anchor=state.anchor)

    def state(self, name: str) -> ScheduleState | None:
        """How far it has come."""
        return self._states.get(name)

    def _rests(self, name: str) -> bool:
        return not self._declared[name].enabled or name in self._paused

    async def _run_due(self, schedule: Declared) -> bool:
        """Run a schedule's times that have come; whether there may be more of them."""
        state = self._states[schedule.name]
        now = self._clock.now()
        parsed = _parse(schedule)
        if state.done_until > now + _CLOCK_FAULT_S:
            self._report(
                f"thawd: schedule {schedule.name} ran until {utc_text(state.done_until)} by a clock that was "
                "wrong; it goes on from now"
            )
            await self._advance(state, msgspec.structs.replace(state, done_until=now))
            return False
        first = parsed.after(state.done_until, anchor=state.anchor)
        if first is None or first > now:
            return False
        if schedule.missed == "all":
            wanted = _times(parsed, state, state.done_until, now)
            done_until = wanted[-1] if len(wanted) == _AT_ONCE else now
        else:
            wanted = _times(parsed, state, max(state.done_until, now - ON_TIME_S), now)
            if not wanted and schedule.missed == "once":
                wanted = [_last(parsed, state, first, now)]
            done_until = now
        changes: dict[str, float] = {"done_until": done_until}
        if wanted:
            changes |= {"last_run": wanted[-1], "last_late_s": now - wanted[-1], "runs": state.runs + len(wanted)}
        after = msgspec.structs.replace(state, **changes)
        await self._advance(state, after, [_event(schedule, at) for at in wanted])
        if schedule.missed != "all" and first not in wanted:
            self._report(f"thawd: schedule {schedule.name}: runs missed since {utc_text(first)} are not made up for")
        if wanted:
            self._wake({schedule.function})
        return done_until < now

    async def _advance(
        self,
        before: ScheduleState | None,
        after: ScheduleState,
        events: list[NewEvent] | None = None,
    ) -> None:
        if before == after:
            return
        if await self._store.advance(before, after, events or []):
            self._states[after.name] = after
        else:
            self._states = await self._store.load()

    def _until_due_s(self) -> float:
        times = [at for name in self._declared if (at := self.next_run(name)) is not None]
        return min([_LONGEST_SLEEP_S, *(max(0.0, at - self._clock.now()) for at in times)])


def _parse(schedule: Declared) -> schedule_expressions.ScheduleExpression:
    return schedule_expressions.parse(schedule.schedule, zone=zoneinfo.ZoneInfo(schedule.timezone))


def _times(
    parsed: schedule_expressions.ScheduleExpression, state: ScheduleState, after: float, until: float
) -> list[float]:
    """The first times of a schedule after `after` and up to `until`."""
    times: list[float] = []
    at = parsed.after(after, anchor=state.anchor)
    while at is not None and at <= until and len(times) < _AT_ONCE:
        times.append(at)
        at = parsed.after(at, anchor=state.anchor)
    return times


def _last(parsed: schedule_expressions.ScheduleExpression, state: ScheduleState, first: float, until: float) -> float:
    """The last time of a schedule up to `until`, of which `first` is one; looked for by halves."""
    found, high = first, until
    while high - found > 1.0:
        middle = (found + high) / 2
        at = parsed.after(middle, anchor=state.anchor)
        if at is not None and at <= until:
            found = at
        else:
            high = middle
    while (at := parsed.after(found, anchor=state.anchor)) is not None and at <= until:
        found = at
    return found


def _event(schedule: Declared, at: float) -> NewEvent:
    return NewEvent(
        function=schedule.function,
        payload=schedule.input if schedule.input is not None else _scheduled_event(schedule, at),
        request_id=new_request_id(),
        source=f"schedule:{schedule.name}",
    )


def _scheduled_event(schedule: Declared, at: float) -> bytes:
    """EventBridge's event; its ``id`` follows from schedule and time, so that a repeated attempt can be told."""
    return msgspec.json.encode(
        {
            "version": "0",
            "id": str(uuid.uuid5(uuid.NAMESPACE_URL, f"{schedule.name} {at}")),
            "detail-type": "Scheduled Event",
            "source": "aws.events",
            "account": ACCOUNT_ID,
            "time": utc_text(at),
            "region": REGION,
            "resources": [f"arn:aws:events:{REGION}:{ACCOUNT_ID}:rule/{schedule.name}"],
            "detail": {},
        }
    )
