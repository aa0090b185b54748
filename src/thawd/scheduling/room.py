"""Room: limits the environments on this machine, and decides which function gets room when not all environments fit.

Each pool is an occupant: it reserves room before it starts an environment, and releases the room when the environment
ends.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from thawd.environments.environment import Environment
from thawd.environments.sandbox.storage import StorageWatch
from thawd.environments.starts.fastest_start import Spawner
from thawd.environments.version import Version
from thawd.errors import NoRoomError
from thawd.resources import Function
from thawd.scheduling.core_admission import Cores
from thawd.scheduling.spares import Spares

ENVIRONMENTS_PER_CPU = 16
MEMORY_SHARE = 0.8
_WATCH_S = 0.1
# If a start fails because the machine is out of processes or memory, it is repeated after `_RETRY_S` seconds, up to
# `_START_TRIES` tries in all. To free memory, one idle environment is ended after the second failure, and another after
# every `_TRIES_FOR_EACH` further failures. No environment is ended after the first failure, because memory may become
# free anyway: if an environment was ended to make room for this start, its process is killed only after the first try
# (`thawd.scheduling.pool_spare._TURNS_TO_SPAWN`).
_START_TRIES = 20
_TRIES_FOR_EACH = 5
_RETRY_S = 0.05


class Occupant(Protocol):
    """The attributes and methods of a pool that `Room` uses.

    Attributes:
        version: the version whose environments the pool has.
        account: all pools with the same account share the reserved concurrency of their function: the pools of a
            version that separates tenants have the same account, every other pool has its own.
    """

    version: Version
    account: object

    def wants_room(self) -> bool:
        """Return whether the occupant would start an environment if it got room."""

    def is_urgent(self) -> bool:
        """Return whether a synchronous request waits. Such requests are served before asynchronous ones."""

    def idle_longest_since_s(self) -> float | None:
        """Return when the environment that has been idle longest became idle; None: there is none.

        Provisioned environments do not count."""

    def end_oldest_idle(self) -> None:
        """End the environment that has been idle longest. Its room is released immediately."""

    def grow(self) -> None:
        """Start environments for the waiting requests. Called when there may be room now."""


def default_memory_mb() -> int:
    """Return the memory for all environments, MiB: 80 % of the machine's memory, or of a container's limit if lower.

    The limit is read from the files at the top of ``/sys/fs/cgroup``. Inside a container, they contain its limit.
    """
    total_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            total_bytes = min(total_bytes, int(Path(limit).read_text()))
        except (OSError, ValueError):
            continue
    return int(total_bytes * MEMORY_SHARE) >> 20


def default_max_environments() -> int:
    """Return the highest number of environments at a time: 16 per core that this process may use; 32 outside Linux."""
    return ENVIRONMENTS_PER_CPU * len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 32


class Room:
    """The machine's room for environments, and its division among the occupants.

    Room is counted in environments and in MiB of their memory limits. The reserved concurrency of a function is set
    aside for it; the other functions share the rest. An occupant that finds no room waits in line. No occupant behind
    it may take room that the waiting occupant needs. But occupants with synchronous requests go before occupants with
    only asynchronous ones.

    Args:
        spawner: starts environments.
        functions: the declared functions; their reserved concurrency is set aside.
        memory_mb: limit for the sum of the memory limits of all environments, MiB.
        max_environments: highest number of environments at a time.
        patience_s: how long an occupant without any environment waits in line before a busy occupant must end one of
            its environments between two requests, seconds. `_has_waited_enough` says what differs if only one of the
            two has synchronous requests.
        cores: decides when requests may begin; None: every request may begin immediately.
        spares: highest number of spares at the same time.

    Attributes:
        cores: decides when requests may begin.
        max_environments: highest number of environments at a time.
        memory_mb: limit for the sum of the memory limits of all environments, MiB.
        storage: checks the temporary folders of busy environments; None: they are not checked.
    """

    def __init__(  # noqa: PLR0913 - limits
        self,
        spawner: Spawner,
        *,
        functions: Mapping[str, Function],
        memory_mb: int,
        max_environments: int,
        patience_s: float = 1.0,
        cores: Cores | None = None,
        spares: int = 0,
    ) -> None:
        self._spawner = spawner
        self.memory_mb = memory_mb
        self.max_environments = max_environments
        self._patience_s = patience_s
        self.cores = cores or Cores()
        self.spares = Spares(spawner.park, limit=spares)
        self._functions = dict(functions)
        self._all_reserved = sum(function.reserved_concurrency or 0 for function in functions.values())
        self._count: dict[Occupant, int] = {}
        self._used_mb = 0
        self._occupants: list[Occupant] = []
        self._line: dict[Occupant, float] = {}  # occupants that wait for room, in order, and since when
        self._offering = False
        self.storage: StorageWatch | None = None
        self._busy: set[Environment] = set()
        self._any_busy = asyncio.Event()

    def declare(self, functions: Mapping[str, Function]) -> None:
        """From now on, use the reserved concurrency that `functions` declares."""
        self._functions = dict(functions)
        self._all_reserved = sum(function.reserved_concurrency or 0 for function in functions.values())
        self._offer_soon()

    def join(self, occupant: Occupant) -> None:
        """Add an occupant to those that share the room."""
        self._occupants.append(occupant)

    def leave(self, occupant: Occupant) -> None:
        """Remove an occupant, which must have released all its room."""
        if occupant in self._occupants:
            self._occupants.remove(occupant)
        self._line.pop(occupant, None)
        self._count.pop(occupant, None)

    def occupied(self) -> list[Occupant]:
        """Return the occupants that have environments, or start some."""
        return [occupant for occupant, count in self._count.items() if count]

    def most_at_once(self, function: Function) -> int:
        """Return how many environments `function` can have on this machine at most; the result is at least 1."""
        by_memory = self.memory_mb // function.memory_mb
        by_count = self._shared_total() if function.reserved_concurrency is None else function.reserved_concurrency
        return max(1, min(by_memory, by_count))

    def reserve(self, occupant: Occupant) -> bool:
        """Reserve room for one more environment of `occupant`.

        If necessary, environments of other occupants are ended to make room, those that have been idle longest first.

        Returns:
            Whether there was room. If not, `occupant.grow` is called when there may be room.
        """
        if occupant.version.debugged and self._count.get(occupant):
            return False  # its one environment has the debugger's port and the terminal
        if self._is_behind_another(occupant) or not self._make_room(occupant):
            self._line.setdefault(occupant, time.monotonic())
            return False
        self._line.pop(occupant, None)
        self._count[occupant] = self._count.get(occupant, 0) + 1
        self._used_mb += occupant.version.function.memory_mb
        return True

    def reserve_spare(self, occupant: Occupant) -> bool:
        """Reserve room for a spare of `occupant`. Return whether there was room.

        There is none if any occupant waits in line. No environment is ended for a spare.
        """
        if self._line or not self._fits_count(occupant) or not self._fits_memory(occupant):
            return False
        self._count[occupant] = self._count.get(occupant, 0) + 1
        self._used_mb += occupant.version.function.memory_mb
        return True

    def release(self, occupant: Occupant) -> None:
        """Release the room of one environment."""
        self._count[occupant] -= 1
        self._used_mb -= occupant.version.function.memory_mb
        self._offer_soon()

    def move(self, giving: Occupant, taking: Occupant) -> None:
        """Transfer the room of one environment to another pool of the same version."""
        self._count[giving] -= 1
        self._count[taking] = self._count.get(taking, 0) + 1

    def should_yield(self, occupant: Occupant) -> bool:
        """Return whether a newly idle environment of `occupant` should end because that helps another one in line."""
        return bool(self._line) and any(self._would_help(occupant, other) for other in self._waiting_in_line())

    def must_yield(self, occupant: Occupant) -> bool:
        """Return whether an environment of `occupant` must end after its request, although more requests wait for it.

        It must end if its room helps another occupant in line that has waited long enough (`_has_waited_enough`).
        """
        if not self._line:
            return False
        now_s = time.monotonic()
        must = any(
            self._has_waited_enough(other, now_s, holder=occupant) and self._would_help(occupant, other)
            for other in self._waiting_in_line()
        )
        if must and self._line.pop(occupant, None) is not None:
            self._line[occupant] = now_s  # `occupant` has had its turn, so it goes to the end of the line
        return must

    def _has_waited_enough(self, other: Occupant, now_s: float, *, holder: Occupant) -> bool:
        """Return whether `other`, which waits in line, should get room that `holder` could continue to use.

        If both occupants have synchronous requests, or neither has any, `other` gets it if it has no environment and
        has waited `patience_s`. If only `other` has synchronous requests, one of these two conditions is enough.
        """
        if holder.is_urgent() and not other.is_urgent():
            # The synchronous requests of `holder` would soon get the room back. An environment would then be ended and
            # another one started for each request.
            return False
        alone = self._count.get(other, 0) == 0
        if other.is_urgent() and not holder.is_urgent():
            return alone or self._line[other] <= now_s - self._patience_s
        return alone and self._line[other] <= now_s - self._patience_s

    async def start(
        self, version: Version, *, provisioned: bool = False, spare: Environment | None = None
    ) -> Environment:
        """Start an environment in reserved room.

        If the machine is out of processes or memory, try again for about a second, and end idle environments of any
        occupant in that time.

        Raises:
            InitError: the function's init phase or an after-restore hook failed.
            NoRoomError: the machine is out of processes or memory, even after idle environments were ended (500).
            ServiceException: no process could be started (500).
        """
        for tries in range(_START_TRIES):
            try:
                return await self._spawner.start(version, provisioned=provisioned, spare=spare)
            except NoRoomError:
                if tries == _START_TRIES - 1:
                    raise
                if tries % _TRIES_FOR_EACH == 1:
                    self._end_idle(None)
            await asyncio.sleep(_RETRY_S)
        raise AssertionError("the last try returns or raises")

    def began(self, environment: Environment) -> None:
        """Watch the memory and the temporary folder of `environment`, in which an invocation begins."""
        self._busy.add(environment)
        self._any_busy.set()
        if self.storage is not None:
            self.storage.began(environment)

    def finished(self, environment: Environment) -> None:
        """Stop watching `environment`, in which an invocation has ended."""
        self._busy.discard(environment)
        if not self._busy:
            self._any_busy.clear()

    async def watch_memory(self) -> None:
        """Check the memory of busy environments and kill those that exceed their limit, until cancelled.

        If environments have cgroups, the kernel enforces the limit and usually kills them first. Idle environments are
        not checked.
        """
        while True:
            await self._any_busy.wait()
            await asyncio.sleep(_WATCH_S)
            started_s = time.monotonic()
            for environment in list(self._busy):
                if environment.memory_limit is not None and not environment.memory_limit.check():
                    environment.kill()
            # Reading the memory use of large processes takes milliseconds. This wait keeps the checks below a twentieth
            # of the time.
            await asyncio.sleep(20 * (time.monotonic() - started_s))

    def _reserved(self, occupant: Occupant) -> int | None:
        """Return the reserved concurrency that the function of `occupant` is declared with now.

        The value that its version was published with may be older.
        """
        function = occupant.version.function
        return self._functions.get(function.name, function).reserved_concurrency

    def _is_unreserved(self, occupant: Occupant) -> bool:
        return self._reserved(occupant) is None

    def _shared_total(self) -> int:
        return max(1, self.max_environments - self._all_reserved)

    def _shared_count(self) -> int:
        return sum(count for occupant, count in self._count.items() if self._is_unreserved(occupant))

    def _waiting_in_line(self) -> list[Occupant]:
        """Return the occupants in line that still want room, and remove the others from the line."""
        for occupant in [occupant for occupant in self._line if not occupant.wants_room()]:
            del self._line[occupant]
        return list(self._line)

    def _is_behind_another(self, occupant: Occupant) -> bool:
        """Return whether room for `occupant` would be taken from an occupant before it in the line."""
        if not self._line:
            return False
        line = self._waiting_in_line()
        before = line[: line.index(occupant)] if occupant in line else line
        if occupant.is_urgent():
            before = [other for other in before if other.is_urgent()]
        else:
            before += [other for other in line if other.is_urgent() and other is not occupant and other not in before]
        return any(self._would_take_from(other, taking=occupant) for other in before)

    def _would_take_from(self, waiting: Occupant, *, taking: Occupant) -> bool:
        """Return whether one more environment of `taking` would leave no room for `waiting`."""
        shares_limit = self._shares_limit(waiting, taking)
        if not (self._is_unreserved(waiting) or shares_limit or self._fits_count(waiting)):
            return False  # `waiting` waits for its reserved share, which `taking` cannot use
        both_mb = waiting.version.function.memory_mb + taking.version.function.memory_mb
        if self._used_mb + both_mb > self.memory_mb:
            return True
        counted, limit = self._counted(taking)
        return shares_limit and counted + 2 > limit

    def _would_help(self, ending: Occupant, wanting: Occupant) -> bool:
        """Return whether ending an environment of `ending` would help `wanting` to get room."""
        if ending is wanting:
            return False
        if not self._fits_count(wanting):
            return self._shares_limit(wanting, ending)
        return not self._fits_memory(wanting)

    def _make_room(self, occupant: Occupant) -> bool:
        while not self._fits_count(occupant):
            if not self._end_idle(occupant, sharing_limit=True):
                return False
        while not self._fits_memory(occupant):
            if not self._end_idle(occupant):
                return False
        return True

    def _shares_limit(self, one: Occupant, other: Occupant) -> bool:
        """Return whether the environments of both count towards the same limit on their number."""
        if one.account is other.account:
            return True
        return self._is_unreserved(one) and self._is_unreserved(other)

    def _counted(self, occupant: Occupant) -> tuple[int, int]:
        """Return how many environments count towards the limit for those of `occupant`, and that limit."""
        reserved = self._reserved(occupant)
        if reserved is None:
            return self._shared_count(), self._shared_total()
        # Counted by account, not by function: while a new version replaces the old one, each may have as many
        # environments as the function's reserved concurrency.
        return sum(count for one, count in self._count.items() if one.account is occupant.account), reserved

    def _fits_count(self, occupant: Occupant) -> bool:
        counted, limit = self._counted(occupant)
        return counted < limit

    def _fits_memory(self, occupant: Occupant) -> bool:
        # A function whose memory limit exceeds `memory_mb` can still run, but only while no other environment exists.
        return not self._used_mb or self._used_mb + occupant.version.function.memory_mb <= self.memory_mb

    def _end_idle(self, asking: Occupant | None, *, sharing_limit: bool = False) -> bool:
        """End the environment that has been idle longest, and return whether there was one.

        Args:
            asking: the occupant whose environments are left alone.
            sharing_limit: whether to end only an environment that counts towards the same limit as those of `asking`.
        """
        candidates = [
            (since, index)
            for index, occupant in enumerate(self._occupants)
            if occupant is not asking
            and not (sharing_limit and asking is not None and not self._shares_limit(asking, occupant))
            and (since := occupant.idle_longest_since_s()) is not None
        ]
        if not candidates:
            return False
        self._occupants[min(candidates)[1]].end_oldest_idle()
        return True

    def _offer_soon(self) -> None:
        """Offer room to the waiting occupants in the event loop's next turn.

        Room is not offered directly, because an occupant that is offered room reserves it. Reserving can end an
        environment, which releases room, and so would lead back to this method.
        """
        if self._line and not self._offering:
            self._offering = True
            asyncio.get_running_loop().call_soon(self._offer)

    def _offer(self) -> None:
        self._offering = False
        for occupant in sorted(self._waiting_in_line(), key=lambda occupant: not occupant.is_urgent()):
            occupant.grow()
            if not occupant.wants_room():
                self._line.pop(occupant, None)
