"""The timer of a pool's idle environments: ends those that have been idle too long, and prewarms one when it is time.

The keep-alive policy (`thawd.scheduling.keep_alive`) decides both times. A different module,
`thawd.environments.suspension`, suspends processes between invocations (SIGSTOP), without ending them.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

from thawd.environments.environment import Environment
from thawd.scheduling.keep_alive import Keeper
from thawd.system.retry import TIMER_EARLY_S


class Idle(Protocol):
    """The methods of a pool that its timer calls."""

    def idle_longest_first(self) -> list[Environment]:
        """Return the idle environments except provisioned ones, in the order in which they became idle."""

    def prewarm(self) -> None:
        """Start an environment for the request that is expected, if the pool has no environment."""

    def end_idle(self, environment: Environment) -> None:
        """End an idle environment."""


class IdleTimer:
    """Ends and prewarms environments at the times that the policy gives.

    Args:
        pool: the pool.
        keeper: says until when an idle environment is kept, and when one is prewarmed.
    """

    __slots__ = ("_due_s", "_keeper", "_pool", "_prewarmed_at_s", "_timer")

    def __init__(self, pool: Idle, keeper: Keeper) -> None:
        self._pool = pool
        self._keeper = keeper
        self._prewarmed_at_s: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = 0.0

    @property
    def is_set(self) -> bool:
        """Whether the timer is set."""
        return self._timer is not None

    def cancel(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def set(self) -> None:
        """Set the timer to the next time at which an idle environment must end or one must be prewarmed.

        A timer that is set to an earlier time stays as it is.
        """
        idle = self._pool.idle_longest_first()
        dues = [self._keeper.kept_until_s(e.idle_since, chosen=e is idle[-1]) for e in {*idle[:1], *idle[-1:]}]
        prewarm_at_s = self._keeper.prewarm_at_s()
        if prewarm_at_s is not None and prewarm_at_s != self._prewarmed_at_s:
            dues.append(prewarm_at_s)
        if not dues or (self._timer is not None and self._due_s <= min(dues)):
            return
        self.cancel()
        self._due_s = min(dues)
        wait_s = max(0.0, self._due_s - time.monotonic())
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._fire)

    def _fire(self) -> None:
        """End environments that have been idle too long, prewarm one if its time has come, and set the timer again."""
        self._timer = None
        now_s = time.monotonic() + TIMER_EARLY_S
        idle = self._pool.idle_longest_first()
        for environment in idle:
            if self._keeper.kept_until_s(environment.idle_since, chosen=environment is idle[-1]) <= now_s:
                self._pool.end_idle(environment)
        self._prewarm(now_s)
        self.set()

    def _prewarm(self, now_s: float) -> None:
        """Prewarm one environment if the time for that has come, at most once in each idle time of the function."""
        at_s, until_s = self._keeper.prewarm_at_s(), self._keeper.prewarm_until_s()
        if at_s is None or until_s is None or at_s > now_s or at_s == self._prewarmed_at_s:
            return
        self._prewarmed_at_s = at_s
        if now_s < until_s:
            self._pool.prewarm()
