"""Runs schedules: queues an event at each time of a schedule.

Guarantee: for each scheduled time that passes while a server is running, exactly one event is queued. The event and the
schedule's progress are stored in one transaction, so neither a crash nor setting the clock back (by up to a day) loses
or repeats an event. The schedule's ``missed`` option decides about the times that passed while no server ran or the
machine was suspended.

Source: Amazon EventBridge user guide, "Scheduled events"; EventBridge Scheduler user guide, "Schedule types".
"""

from __future__ import annotations

import asyncio
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
from thawd.stores.events.event_rows import NewEvent
from thawd.stores.schedules import ScheduleState, ScheduleStore
from thawd.system.retry import SayOnce, time_left_s

# A run that is later than this counts as missed.
# Source: EventBridge Scheduler: "invoke their targets with 60 second precision".
ON_TIME_S = 60.0
# The system clock may be changed at any time, so read it again after this many seconds at the latest.
_LONGEST_SLEEP_S = 30.0
_STORE_RETRY_S = 2.0
# Most missed runs that are queued in one transaction.
_AT_ONCE = 500
# Appended to the definition of a paused schedule in the state file.
_RESTING = " resting"
# If the clock is set back by no more than this, schedules wait until it shows the earlier time again, so that nothing
# runs twice. If it is set back by more, it is assumed to have been wrong, and schedules continue from the new time.
_CLOCK_FAULT_S = 86_400.0


class Clock(Protocol):
    """A wall clock."""

    def now(self) -> float:
        """Return the time, seconds since the epoch."""

    async def sleep(self, wait_s: float) -> None:
        """Sleep for `wait_s` seconds."""


class SystemClock:
    """The machine's wall clock."""

    def now(self) -> float:
        """Return the time, seconds since the epoch."""
        return time.time()

    async def sleep(self, wait_s: float) -> None:
        """Sleep for `wait_s` seconds."""
        await asyncio.sleep(wait_s)


async def sleep_or(changed: asyncio.Event, wait_s: float, *, clock: Clock) -> None:
    """Sleep for `wait_s` seconds of `clock`, or until `changed` is set."""
    sleeping = asyncio.ensure_future(clock.sleep(wait_s))
    waiting = asyncio.ensure_future(changed.wait())
    try:
        await asyncio.wait({sleeping, waiting}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        # Both tasks end by themselves. Waiting for the end of a cancelled task here could swallow a cancellation of the
        # caller, because the two raise the same exception.
        sleeping.cancel()
        waiting.cancel()


class Schedules:
    """Runs all schedules.

    Args:
        store: stores each schedule's progress.
        wake: called with the names of functions that have new events in the asynchronous queue.
        report: takes a line for the operator.
        clock: tells the time; None: the machine's clock.
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
        self._reports = SayOnce(report)
        self._clock = clock or SystemClock()
        self._declared: dict[str, Declared] = {}
        self._wanted: tuple[dict[str, Declared], frozenset[str]] | None = None  # declared, and not stored yet
        self._paused: frozenset[str] = frozenset()
        self._states: dict[str, ScheduleState] = {}
        self._changed = asyncio.Event()
        self._lock = asyncio.Lock()
        self._loaded = False

    async def declare(self, schedules: Mapping[str, Declared], *, paused: frozenset[str]) -> None:
        """From now on, run these schedules, except those that are `paused`.

        The times of a paused schedule do not count as missed. A resumed schedule continues with its next time.

        Raises:
            StoreError: the schedules' progress cannot be read or stored; `run` tries again until it can.
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
        pausing = {name for name, one in schedules.items() if not one.enabled or name in paused}
        for name, schedule in schedules.items():
            state = self._states.get(name)
            definition = f"{schedule.schedule} {schedule.timezone}"
            # The pause is stored: a server that finds the schedule enabled again must not count the times of the pause
            # as missed.
            noted = definition + (_RESTING if name in pausing else "")
            if state is None or state.definition.removesuffix(_RESTING) != definition:
                await self._advance(state, ScheduleState(name, noted, anchor=now, done_until=now))
            elif name in pausing or state.definition != noted:
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
        """Queue events at the times of the schedules, until cancelled."""
        while True:
            self._changed.clear()
            try:
                await self.catch_up()
                wait_s = self._until_due_s()
                self._reports.resolved()
            except StoreError as error:
                self._reports.say(f"thawd: schedules cannot run yet: {error.message}")
                wait_s = _STORE_RETRY_S
            await sleep_or(self._changed, wait_s, clock=self._clock)

    async def catch_up(self) -> None:
        """Queue the events for all times that have passed by now.

        Raises:
            StoreError: the events could not be stored; the next call tries again.
        """
        async with self._lock:
            if self._wanted is not None:
                await self._take_over(*self._wanted)
            for name, schedule in self._declared.items():
                if not self._is_paused(name):
                    while await self._run_due(schedule):
                        pass

    def next_run(self, name: str) -> float | None:
        """Return when a schedule runs next, seconds since the epoch; None: it is paused, or never runs again."""
        state = self._states.get(name)
        if state is None or name not in self._declared or self._is_paused(name):
            return None
        return _parse(self._declared[name]).after(state.done_until, anchor=state.anchor)

    def state(self, name: str) -> ScheduleState | None:
        """Return a schedule's progress; None: there is no such schedule."""
        return self._states.get(name)

    def _is_paused(self, name: str) -> bool:
        return not self._declared[name].enabled or name in self._paused

    async def _run_due(self, schedule: Declared) -> bool:
        """Queue the events for a schedule's times that have passed. Return whether there can be more such times."""
        state = self._states[schedule.name]
        now = self._clock.now()
        parsed = _parse(schedule)
        if state.done_until > now + _CLOCK_FAULT_S:
            self._reports.report(
                f"thawd: schedule {schedule.name} has already run up to {utc_text(state.done_until)}, more than a day "
                "ahead of this machine's clock, so the clock was wrong then. The schedule continues from now"
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
            self._reports.report(
                f"thawd: schedule {schedule.name}: runs were missed since {utc_text(first)}; the option "
                f'missed = "{schedule.missed}" says which of them are made up for'
            )
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
        return time_left_s(min(times, default=None), self._clock.now(), longest_s=_LONGEST_SLEEP_S)


def _parse(schedule: Declared) -> schedule_expressions.ScheduleExpression:
    return schedule_expressions.parse(schedule.schedule, zone=zoneinfo.ZoneInfo(schedule.timezone))


def _times(
    parsed: schedule_expressions.ScheduleExpression, state: ScheduleState, after: float, until: float
) -> list[float]:
    """Return the first times of a schedule after `after` and up to `until`, at most those of one transaction."""
    times: list[float] = []
    at = parsed.after(after, anchor=state.anchor)
    while at is not None and at <= until and len(times) < _AT_ONCE:
        times.append(at)
        at = parsed.after(at, anchor=state.anchor)
    return times


def _last(parsed: schedule_expressions.ScheduleExpression, state: ScheduleState, first: float, until: float) -> float:
    """Find by bisection the last time of a schedule up to `until`; `first` must be one of its times."""
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
    """Return EventBridge's event. Its ``id`` depends only on schedule and time, so it is the same in each attempt."""
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
