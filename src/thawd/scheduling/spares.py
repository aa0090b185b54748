"""Spares: copies that are thawed in advance, so that a version's next environment need not wait for a thaw.

When a version has no more invocations that run or wait, it gets one spare, if the machine has free room for which no
other version waits. In the machine's limits, a spare counts as one environment with its version's memory limit.
When another version needs room, spares are ended before any environment. There are at most `limit` spares in all
(``server.spares``). For one more, thawd ends the spare of the version that has been unused longest.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Protocol

from thawd.environments.environment import Environment
from thawd.environments.version import Version

# If a version's spare could not be started, thawd does not start another one for this version for this long.
_AGAIN_S = 60.0


class Owner(Protocol):
    """The attributes and methods of a pool that `Spares` uses."""

    version: Version
    retired: bool

    def reserve_spare(self) -> bool:
        """Reserve room for a spare, but end no environment for it. Return whether there was room."""

    def release_spare(self) -> None:
        """Release the room that was reserved for a spare which could not be started."""

    def spare_ended(self, spare: Environment) -> None:
        """Called when the process of a spare has ended, whether `end_spare` killed it or not."""

    def end_spare(self, spare: Environment) -> None:
        """End a spare and release its room."""


class Spares:
    """The spares of all versions.

    Args:
        park: starts a spare of a version and returns it; returns None if the version cannot have a spare.
        limit: highest number of spares at the same time; 0: no spares.
    """

    def __init__(self, park: Callable[[Version], Coroutine[None, None, Environment | None]], *, limit: int) -> None:
        self.limit = limit
        self._park = park
        self._held: dict[Owner, Environment] = {}  # the version that was invoked last is at the end
        self._parking: set[Owner] = set()
        self._not_before_s: dict[Owner, float] = {}

    def has(self, owner: Owner) -> bool:
        """Return whether `owner` has a spare."""
        return owner in self._held

    def concern(self, owner: Owner) -> bool:
        """Return whether `owner` has a spare, or a spare is being started for it."""
        return owner in self._held or owner in self._parking

    def want(self, owner: Owner, *, spawn_task: Callable[[Coroutine[None, None, None]], object]) -> None:
        """Start a spare for `owner`, whose invocations have just ended, unless `owner` has one or cannot have one."""
        if owner in self._held:
            self._held[owner] = self._held.pop(owner)
            return
        if not self.limit or owner.retired or owner in self._parking:
            return
        if owner in self._not_before_s and time.monotonic() < self._not_before_s[owner]:
            return
        is_full = len(self._held) + len(self._parking) >= self.limit
        if (is_full and not self._held) or not owner.reserve_spare():
            return
        if is_full:
            self.drop(next(iter(self._held)))
        self._parking.add(owner)
        spawn_task(self._make(owner))

    def take(self, owner: Owner) -> Environment | None:
        """Remove the spare of `owner` and return it; None: there is none. The spare's room stays reserved."""
        spare = self._held.pop(owner, None)
        if spare is not None:
            spare.on_end = lambda environment: None  # from now on, the start that uses the spare notices its end
        return spare

    def drop(self, owner: Owner) -> None:
        """End the spare of `owner`, if it has one."""
        self._not_before_s.pop(owner, None)
        spare = self._held.pop(owner, None)
        if spare is not None:
            owner.end_spare(spare)

    def died(self, owner: Owner, spare: Environment) -> bool:
        """Forget a spare whose process has ended. Return whether `spare` was still the spare of `owner`."""
        if self._held.get(owner) is not spare:
            return False
        del self._held[owner]
        return True

    async def _make(self, owner: Owner) -> None:
        spare: Environment | None = None
        try:
            # The invocation that has just ended is not answered yet: let the event loop send its answer first.
            await asyncio.sleep(0)
            spare = await self._park(owner.version)
        except Exception:
            pass  # no request needs a spare; `want` may start another one after `_AGAIN_S` seconds
        finally:
            self._parking.discard(owner)
            if spare is None or spare.ended.is_set():
                if not owner.retired:  # nothing would remove the entry of a retired version
                    self._not_before_s[owner] = time.monotonic() + _AGAIN_S
                owner.release_spare()
        if spare is None or spare.ended.is_set():
            return
        spare.on_end = owner.spare_ended
        self._held[owner] = spare
        if owner.retired or spare.dying:
            self.drop(owner)
