"""Scheduled provisioned concurrency: keeps as many environments initialised as each function's schedule says.

Nothing is stored, because the number depends only on the schedule and the current time. So the number is correct
again after the server was down, the clock was changed or the machine was suspended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from thawd.errors import ResourceNotFoundException
from thawd.scheduling.provisioned import ProvisionedPlan
from thawd.sources.schedules import Clock, SystemClock, sleep_or
from thawd.system.retry import time_left_s
from thawd.telemetry.console import say

# The system clock may be changed at any time, so read it again after this many seconds at the latest.
_LONGEST_SLEEP_S = 30.0


class ProvisionedSchedules:
    """Applies the plans of all functions: their schedules of provisioned concurrency in thawd.toml.

    Args:
        provision: sets how many environments of a function are kept initialised; with None, as many as the function's
            option `provisioned_concurrency` says.
        clock: tells the time; None: the machine's clock.
    """

    def __init__(self, provision: Callable[[str, int | None], None], *, clock: Clock | None = None) -> None:
        self._provision = provision
        self._clock = clock or SystemClock()
        self._plans: dict[str, ProvisionedPlan] = {}
        self._applied: dict[str, int] = {}
        self._changed = asyncio.Event()

    def declare(self, plans: Mapping[str, ProvisionedPlan]) -> None:
        """Use `plans`, by function, from now on. A function without a plan follows `provisioned_concurrency` again."""
        for name in set(self._plans) - set(plans):
            self._applied.pop(name, None)
            self._set(name, None)
        self._plans = dict(plans)
        self.apply()
        self._changed.set()

    def apply(self) -> None:
        """Set the numbers that the plans require now."""
        now = self._clock.now()
        for name, plan in self._plans.items():
            count = plan.count(now)
            if self._applied.get(name) != count and self._set(name, count):
                if name in self._applied:
                    say(f"{name}: its schedule now requires {count} provisioned environments")
                self._applied[name] = count

    async def run(self) -> None:
        """Apply the plans whenever a number changes, until cancelled."""
        while True:
            self._changed.clear()
            self.apply()
            await self._sleep()

    def _set(self, name: str, count: int | None) -> bool:
        try:
            self._provision(name, count)
        except ResourceNotFoundException:
            return False  # the function was removed in the meantime
        return True

    async def _sleep(self) -> None:
        now = self._clock.now()
        times = [at for plan in self._plans.values() if (at := plan.next_change(now)) is not None]
        wait_s = time_left_s(min(times, default=None), now, longest_s=_LONGEST_SLEEP_S)
        await sleep_or(self._changed, wait_s, clock=self._clock)
