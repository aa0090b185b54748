"""How many environments fit this machine, and whose turn it is when not all fit.

`Node` is the seam for other machines: the pools ask it for room and for environments and know nothing of processes.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from thawd.execution.environment import Environment
from thawd.execution.spawner import Spawner
from thawd.execution.version import Version
from thawd.resources import Function

ENVIRONMENTS_PER_CPU = 16
MEMORY_SHARE = 0.8
_WATCH_S = 0.1


class Tenant(Protocol):
    """A pool, as the node sees it."""

    version: Version

    def oldest_idle_s(self) -> float | None:
        """Since when its longest idle environment that may be ended is idle; None when there is none."""

    def end_oldest_idle(self) -> None:
        """End that one."""

    def grow(self) -> None:
        """There may be room now: start what is waited for."""


class Node(Protocol):
    """A machine that runs environments."""

    def reserve(self, tenant: Tenant) -> bool:
        """Set room for one more environment aside; False when there is none, and `grow` is called when there may be."""

    def release(self, tenant: Tenant) -> None:
        """Give the room of one environment back."""

    def is_wanted(self, tenant: Tenant) -> bool:
        """Whether another tenant waits for room, so that an idle environment of `tenant` had better end."""

    async def start(self, version: Version, *, provisioned: bool = False) -> Environment:
        """Start an environment in room set aside before."""

    def began(self, environment: Environment) -> None:
        """An invocation runs in `environment`: its memory is watched."""

    def finished(self, environment: Environment) -> None:
        """The invocation is over."""


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
    """Environments at once by CPU: 16 for each core this process may use."""
    return ENVIRONMENTS_PER_CPU * len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 32


class LocalNode:
    """This machine.

    Room is counted in environments and in MiB of their memory limits; a function with reserved concurrency has its
    share of the environments to itself, the others divide what is left.
    """

    def __init__(
        self, spawner: Spawner, *, functions: Mapping[str, Function], memory_mb: int, max_environments: int
    ) -> None:
        self.spawner = spawner
        self.memory_mb = memory_mb
        self.max_environments = max_environments
        self._functions = dict(functions)
        self._count: dict[Tenant, int] = {}
        self._used_mb = 0
        self._tenants: list[Tenant] = []
        self._wanting: dict[Tenant, None] = {}  # in order of asking
        self._busy: set[Environment] = set()
        self._any_busy = asyncio.Event()

    def declare(self, functions: Mapping[str, Function]) -> None:
        """Count by these declarations from now on."""
        self._functions = dict(functions)
        self._offer()

    def join(self, tenant: Tenant) -> None:
        """Take part in the division of the room."""
        self._tenants.append(tenant)

    def leave(self, tenant: Tenant) -> None:
        """Take part no more."""
        if tenant in self._tenants:
            self._tenants.remove(tenant)
        self._wanting.pop(tenant, None)
        self._count.pop(tenant, None)

    def most_at_once(self, function: Function) -> int:
        """The most environments that `function` can ever have here, at least 1."""
        by_memory = self.memory_mb // function.memory_mb
        by_count = self._shared_total() if function.reserved_concurrency is None else function.reserved_concurrency
        return max(1, min(by_memory, by_count))

    def reserve(self, tenant: Tenant) -> bool:
        """See `Node.reserve`; ends the longest idle environment of another function when that makes the room."""
        function = tenant.version.function
        while not self._fits_count(tenant):
            if function.reserved_concurrency is not None or not self._end_idle(tenant, unreserved=True):
                self._wanting[tenant] = None
                return False
        while self._used_mb and self._used_mb + function.memory_mb > self.memory_mb:
            if not self._end_idle(tenant):
                self._wanting[tenant] = None
                return False
        self._wanting.pop(tenant, None)
        self._count[tenant] = self._count.get(tenant, 0) + 1
        self._used_mb += function.memory_mb
        return True

    def release(self, tenant: Tenant) -> None:
        """See `Node.release`."""
        function = tenant.version.function
        self._count[tenant] -= 1
        self._used_mb -= function.memory_mb
        self._offer()

    def is_wanted(self, tenant: Tenant) -> bool:
        """See `Node.is_wanted`."""
        return any(other is not tenant for other in self._wanting)

    async def start(self, version: Version, *, provisioned: bool = False) -> Environment:
        """See `Node.start`."""
        return await self.spawner.start(version, provisioned=provisioned)

    def began(self, environment: Environment) -> None:
        """An invocation runs in `environment`: its memory is watched."""
        self._busy.add(environment)
        self._any_busy.set()

    def finished(self, environment: Environment) -> None:
        """The invocation is over."""
        self._busy.discard(environment)
        if not self._busy:
            self._any_busy.clear()

    async def watch_memory(self) -> None:
        """Until cancelled: look at the memory of busy environments and kill those over their limit.

        With cgroups the kernel does it and this finds nothing to do; idle environments cost nothing.
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

    def _shared_total(self) -> int:
        reserved = sum(f.reserved_concurrency or 0 for f in self._functions.values())
        return max(1, self.max_environments - reserved)

    def _fits_count(self, tenant: Tenant) -> bool:
        reserved = tenant.version.function.reserved_concurrency
        if reserved is not None:
            # By tenant, not by function: while a new version replaces the old one, each has its own.
            return self._count.get(tenant, 0) < reserved
        shared = sum(n for t, n in self._count.items() if t.version.function.reserved_concurrency is None)
        return shared < self._shared_total()

    def _end_idle(self, asking: Tenant, *, unreserved: bool = False) -> bool:
        """End the environment that has been idle longest, of any tenant but the one asking; False if there is none."""
        candidates = [
            (since, index)
            for index, tenant in enumerate(self._tenants)
            if tenant is not asking
            and not (unreserved and tenant.version.function.reserved_concurrency is not None)
            and (since := tenant.oldest_idle_s()) is not None
        ]
        if not candidates:
            return False
        self._tenants[min(candidates)[1]].end_oldest_idle()
        return True

    def _offer(self) -> None:
        for tenant in list(self._wanting):
            del self._wanting[tenant]
            tenant.grow()
