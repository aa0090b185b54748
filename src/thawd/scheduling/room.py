"""How many environments fit this machine, and whose turn it is when not all fit.

Each pool is a tenant: it asks for room before it starts an environment, and gives it back when the environment ends.
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
from thawd.environments.starts.spawner import Spawner
from thawd.environments.version import Version
from thawd.errors import NoRoomError
from thawd.resources import Function
from thawd.scheduling.cores import Cores

ENVIRONMENTS_PER_CPU = 16
MEMORY_SHARE = 0.8
_WATCH_S = 0.1
# Tries of a start where no process is left, and after how many of them one more idle environment is ended: what an
# ended environment held is free soon after.
_START_TRIES = 20
_TRIES_FOR_EACH = 5
_RETRY_S = 0.05


class Tenant(Protocol):
    """A pool, as the room sees it."""

    version: Version

    def wants_room(self) -> bool:
        """Whether it would start an environment if there were room."""

    def is_urgent(self) -> bool:
        """Whether a synchronous request waits: these go before asynchronous ones."""

    def oldest_idle_s(self) -> float | None:
        """When its longest idle environment that may be ended became idle; None when there is none."""

    def end_oldest_idle(self) -> None:
        """End the longest idle environment; its room is released immediately."""

    def grow(self) -> None:
        """There may be room now: start environments for what waits."""


def default_memory_mb() -> int:
    """Memory for environments in all, MiB: 80 % of the machine's, or of this process's cgroup when that is less."""
    total_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            total_bytes = min(total_bytes, int(Path(limit).read_text()))
        except (OSError, ValueError):
            continue
    return int(total_bytes * MEMORY_SHARE) >> 20


def default_max_environments() -> int:
    """Most environments at a time: 16 for each core that this process may use."""
    return ENVIRONMENTS_PER_CPU * len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 32


class Room:
    """This machine's room, and who gets it.

    Room is counted in environments and in MiB of their memory limits. A function with reserved concurrency has its
    share of the environments to itself; the others divide the rest. A tenant that finds no room waits in line, and no
    later tenant takes shared room before it; but tenants with synchronous requests go before those with only
    asynchronous ones.

    Args:
        spawner: starts environments.
        functions: as declared; their reserved concurrency is set aside.
        memory_mb: most of the memory limits of all environments together, MiB.
        max_environments: most environments at a time.
        patience_s: how long a function without any environment waits before a busy function has to give one up between
            two requests, seconds. A function with synchronous requests does not wait for one that has only
            asynchronous ones.
        cores: lets requests in; None: it lets in all.

    Attributes:
        cores: lets requests in.
        max_environments: most environments at a time.
        memory_mb: most of their memory limits together, MiB.
        storage: looks at the temporary folders of busy environments; None: nothing does.
    """

    def __init__(
        self,
        spawner: Spawner,
        *,
        functions: Mapping[str, Function],
        memory_mb: int,
        max_environments: int,
        patience_s: float = 1.0,
        cores: Cores | None = None,
    ) -> None:
        self._spawner = spawner
        self.memory_mb = memory_mb
        self.max_environments = max_environments
        self._patience_s = patience_s
        self.cores = cores or Cores()
        self._functions = dict(functions)
        self._count: dict[Tenant, int] = {}
        self._used_mb = 0
        self._tenants: list[Tenant] = []
        self._line: dict[Tenant, float] = {}  # tenants that wait for room, and since when; in order
        self._offering = False
        self.storage: StorageWatch | None = None
        self._busy: set[Environment] = set()
        self._any_busy = asyncio.Event()

    def declare(self, functions: Mapping[str, Function]) -> None:
        """Count reserved concurrency by these declarations from now on."""
        self._functions = dict(functions)
        self._offer_soon()

    def join(self, tenant: Tenant) -> None:
        """Let the tenant take part in the division of the room."""
        self._tenants.append(tenant)

    def leave(self, tenant: Tenant) -> None:
        """The tenant takes part no more; call it once the tenant has released all its room."""
        if tenant in self._tenants:
            self._tenants.remove(tenant)
        self._line.pop(tenant, None)
        self._count.pop(tenant, None)

    def most_at_once(self, function: Function) -> int:
        """The most environments that `function` can ever have here, at least 1."""
        by_memory = self.memory_mb // function.memory_mb
        by_count = self._shared_total() if function.reserved_concurrency is None else function.reserved_concurrency
        return max(1, min(by_memory, by_count))

    def reserve(self, tenant: Tenant) -> bool:
        """Reserve room for one more environment of `tenant`.

        The longest idle environments of other functions are ended where that makes the room.

        Returns:
            False when there is no room; `tenant.grow` is called when there may be.
        """
        if self._is_behind_another(tenant) or not self._make_room(tenant):
            self._line.setdefault(tenant, time.monotonic())
            return False
        self._line.pop(tenant, None)
        self._count[tenant] = self._count.get(tenant, 0) + 1
        self._used_mb += tenant.version.function.memory_mb
        return True

    def release(self, tenant: Tenant) -> None:
        """Release the room of one environment."""
        self._count[tenant] -= 1
        self._used_mb -= tenant.version.function.memory_mb
        self._offer_soon()

    def should_yield(self, tenant: Tenant) -> bool:
        """Whether an environment of `tenant` that has just become idle should end, as another tenant waits for room."""
        return any(self._would_help(tenant, other) for other in self._waiting_in_line())

    def must_yield(self, tenant: Tenant) -> bool:
        """Whether a busy environment of `tenant` is to end after its request, although more of them wait.

        Another tenant has none at all, and has waited long enough.
        """
        if not self._line:
            return False
        now_s = time.monotonic()
        must = any(
            self._has_waited_enough(other, now_s, before=tenant) and self._would_help(tenant, other)
            for other in self._waiting_in_line()
        )
        if must and self._line.pop(tenant, None) is not None:
            self._line[tenant] = now_s  # it had its turn, and goes to the end of the line
        return must

    def _has_waited_enough(self, other: Tenant, now_s: float, *, before: Tenant) -> bool:
        """Whether `other`, in the line, is to get room that `before` could go on using."""
        if before.is_urgent() and not other.is_urgent():
            return False  # `before` would get it back soon: one environment ended and one started for each request
        alone = self._count.get(other, 0) == 0
        if other.is_urgent() and not before.is_urgent():
            return alone or self._line[other] <= now_s - self._patience_s
        return alone and self._line[other] <= now_s - self._patience_s

    async def start(self, version: Version, *, provisioned: bool = False) -> Environment:
        """Start an environment in reserved room; where no process is left, end idle environments of any tenant.

        Raises:
            InitError: the function's init failed, or an after-restore hook.
            NoRoomError: no process or memory is left, also without the idle environments (500).
            ServiceException: the machine could not start a process (500).
        """
        for tries in range(_START_TRIES):
            try:
                return await self._spawner.start(version, provisioned=provisioned)
            except NoRoomError:
                ended = tries % _TRIES_FOR_EACH == 0 and self._end_idle(None)
                if (tries == 0 and not ended) or tries == _START_TRIES - 1:
                    raise
            await asyncio.sleep(_RETRY_S)
        raise AssertionError("the last try returns or raises")

    def began(self, environment: Environment) -> None:
        """An invocation begins in `environment`: its memory and its temporary folder are watched."""
        self._busy.add(environment)
        self._any_busy.set()
        if self.storage is not None:
            self.storage.began(environment)

    def finished(self, environment: Environment) -> None:
        """The invocation in `environment` has ended."""
        self._busy.discard(environment)
        if not self._busy:
            self._any_busy.clear()

    async def watch_memory(self) -> None:
        """Look at the memory of busy environments and kill those over their limit, until cancelled.

        With cgroups the kernel kills them first. Idle environments cost nothing.
        """
        while True:
            await self._any_busy.wait()
            await asyncio.sleep(_WATCH_S)
            started_s = time.monotonic()
            for environment in list(self._busy):
                if environment.memory_limit is not None and not environment.memory_limit.check():
                    environment.kill()
            # Reading the figures of large processes takes milliseconds: never more than a twentieth of the time.
            await asyncio.sleep(20 * (time.monotonic() - started_s))

    def _reserved(self, tenant: Tenant) -> int | None:
        """Reserved concurrency as it is declared now: a change of it makes no new version."""
        function = tenant.version.function
        return self._functions.get(function.name, function).reserved_concurrency

    def _is_unreserved(self, tenant: Tenant) -> bool:
        return self._reserved(tenant) is None

    def _shared_total(self) -> int:
        reserved = sum(f.reserved_concurrency or 0 for f in self._functions.values())
        return max(1, self.max_environments - reserved)

    def _shared_count(self) -> int:
        return sum(count for tenant, count in self._count.items() if self._is_unreserved(tenant))

    def _waiting_in_line(self) -> list[Tenant]:
        """Tenants that still want room; those whose requests have gone leave the line."""
        for tenant in [tenant for tenant in self._line if not tenant.wants_room()]:
            del self._line[tenant]
        return list(self._line)

    def _is_behind_another(self, tenant: Tenant) -> bool:
        """Whether room for `tenant` would be taken from a tenant before it in the line."""
        if not self._line:
            return False
        line = self._waiting_in_line()
        before = line[: line.index(tenant)] if tenant in line else line
        if tenant.is_urgent():
            before = [other for other in before if other.is_urgent()]
        else:
            before += [other for other in line if other.is_urgent() and other is not tenant and other not in before]
        return any(self._would_take_from(other, taking=tenant) for other in before)

    def _would_take_from(self, waiting: Tenant, *, taking: Tenant) -> bool:
        """Whether there would be no room for `waiting` once `taking` has room for one environment more."""
        if not self._is_unreserved(waiting) and not self._fits_count(waiting):
            return False  # it waits for its reserved share
        both_mb = waiting.version.function.memory_mb + taking.version.function.memory_mb
        if self._used_mb + both_mb > self.memory_mb:
            return True
        both_shared = self._is_unreserved(waiting) and self._is_unreserved(taking)
        return both_shared and self._shared_count() + 2 > self._shared_total()

    def _would_help(self, ending: Tenant, wanting: Tenant) -> bool:
        """Whether the end of an environment of `ending` brings `wanting` nearer to room."""
        if ending is wanting:
            return False
        if not self._fits_count(wanting):
            return self._is_unreserved(wanting) and self._is_unreserved(ending)
        return not self._fits_memory(wanting)

    def _make_room(self, tenant: Tenant) -> bool:
        while not self._fits_count(tenant):
            if not (self._is_unreserved(tenant) and self._end_idle(tenant, unreserved=True)):
                return False
        while not self._fits_memory(tenant):
            if not self._end_idle(tenant):
                return False
        return True

    def _fits_count(self, tenant: Tenant) -> bool:
        reserved = self._reserved(tenant)
        if reserved is not None:
            # By tenant, not by function: while a new version replaces the old one, each has the whole share.
            return self._count.get(tenant, 0) < reserved
        return self._shared_count() < self._shared_total()

    def _fits_memory(self, tenant: Tenant) -> bool:
        # A function larger than the whole budget may still run alone.
        return not self._used_mb or self._used_mb + tenant.version.function.memory_mb <= self.memory_mb

    def _end_idle(self, asking: Tenant | None, *, unreserved: bool = False) -> bool:
        """End the environment that has been idle longest, of any tenant but `asking`; False when there is none."""
        candidates = [
            (since, index)
            for index, tenant in enumerate(self._tenants)
            if tenant is not asking
            and (self._is_unreserved(tenant) or not unreserved)
            and (since := tenant.oldest_idle_s()) is not None
        ]
        if not candidates:
            return False
        self._tenants[min(candidates)[1]].end_oldest_idle()
        return True

    def _offer_soon(self) -> None:
        """Offer room in the loop's next turn: a tenant that gets room reserves it, and reserving may release room."""
        if self._line and not self._offering:
            self._offering = True
            asyncio.get_running_loop().call_soon(self._offer)

    def _offer(self) -> None:
        self._offering = False
        for tenant in sorted(self._waiting_in_line(), key=lambda tenant: not tenant.is_urgent()):
            tenant.grow()
            if not tenant.wants_room():
                self._line.pop(tenant, None)
