"""Provisioned concurrency by the clock: as many initialised environments as each function's schedule asks for.

Nothing is stored: what is in force follows from the schedule and the time, so a server that was down, a clock that is
set, a machine that slept make no difference but for as long as they last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from thawd.errors import ResourceNotFoundException
from thawd.scheduling.provisioned import ProvisionedPlan
from thawd.sources.schedules import Clock, SystemClock, sleep_or
from thawd.telemetry.console import say

# The clock may be set at any time: nobody sleeps longer than this without another look at it.
_LONGEST_SLEEP_S = 30.0


class ProvisionedSchedules:
    """Those of all functions.

    Args:
        provision: has so many environments of a function kept initialised; None: as many as it says itself.
        clock: the time.
    """

    def __init__(self, provision: Callable[[str, int | None], None], *, clock: Clock | None = None) -> None:
        self._provision = provision
        self._clock = clock or SystemClock()
        self._plans: dict[str, ProvisionedPlan] = {}
        self._applied: dict[str, int] = {}
        self._changed = asyncio.Event()

    def declare(self, plans: Mapping[str, ProvisionedPlan]) -> None:
        """These are the plans from now on, by function; the others have what they say themselves."""
        for name in set(self._plans) - set(plans):
            self._applied.pop(name, None)
            self._set(name, None)
        self._plans = dict(plans)
        self.apply()
        self._changed.set()

    def apply(self) -> None:
        """Have what is in force now."""
        now = self._clock.now()
        for name, plan in self._plans.items():
            count = plan.count(now)
            if self._applied.get(name) != count and self._set(name, count):
                if name in self._applied:
                    say(f"{name}: {count} provisioned environments from now on, by its schedule")
                self._applied[name] = count

    async def run(self) -> None:
        """Apply what comes due until cancelled."""
        while True:
            self._changed.clear()
            self.apply()
            await self._sleep()

    def _set(self, name: str, count: int | None) -> bool:
        try:
            self._provision(name, count)
        except ResourceNotFoundException:
            return False  # removed meanwhile
        return True

    async def _sleep(self) -> None:
        now = self._clock.now()
        times = [at for plan in self._plans.values() if (at := plan.next_change(now)) is not None]
        wait_s = min([_LONGEST_SLEEP_S, *(max(0.0, at - now) for at in times)])
        await sleep_or(self._changed, wait_s, clock=self._clock)
