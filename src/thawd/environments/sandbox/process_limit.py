"""How many processes and threads an environment may have: 1,024, as on Lambda, so that none takes those of the machine.

By the pids controller where a cgroup of it may be written, version 2 or 1: then one more cannot be started (EAGAIN).
Elsewhere they are counted while an invocation runs, and an environment that has more is killed; besides, in a user
namespace of its own, which an unprivileged server gives each environment that has its own ``/tmp``, the kernel counts
(RLIMIT_NPROC, native/disk.c).

Source: Lambda quotas, "Execution processes/threads"; Linux Documentation/admin-guide/cgroup-v1/pids.rst.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from thawd.environments.children import owner_of
from thawd.environments.sandbox.controllers import with_controller
from thawd.environments.sandbox.memory import MAX_PROCESSES, Cgroup, MemoryLimit, MemoryLimiter, with_descendants

Orphans = Callable[[], list[int]]
"""Processes that have lost their parents and become the platform's children."""


class CountingLimiter(MemoryLimiter):
    """Limits memory as another limiter does, and counts processes.

    Attributes:
        orphans: set it to what knows them.
    """

    def __init__(self, memory: MemoryLimiter) -> None:
        self.kind = f"{memory.kind}, processes by counting"
        self.orphans: Orphans = list
        self._memory = memory

    def limit(self, pid: int, *, identifier: str, limit_mib: int) -> MemoryLimit:
        """See `MemoryLimiter.limit`."""
        memory = self._memory.limit(pid, identifier=identifier, limit_mib=limit_mib)
        return _Counted(pid, identifier, memory, self.orphans)

    def close(self) -> None:
        """See `MemoryLimiter.close`."""
        self._memory.close()


class _Counted(MemoryLimit):
    def __init__(self, pid: int, identifier: str, memory: MemoryLimit, orphans: Orphans) -> None:
        self._pid = pid
        self._identifier = identifier
        self._memory = memory
        self._orphans = orphans

    def check(self) -> bool:
        """See `MemoryLimit.check`; also whether it has no more processes and threads than it may."""
        return self._memory.check() and self._count() <= MAX_PROCESSES

    def close(self) -> None:
        """See `MemoryLimit.close`."""
        self._memory.close()

    def _count(self) -> int:
        family = set(with_descendants(self._pid))
        for orphan in self._orphans():
            if orphan not in family and owner_of(orphan) == self._identifier:
                family.update(with_descendants(orphan))
        return sum(map(_threads, family))


def _threads(pid: int) -> int:
    """Threads of a process: a folder has a link for each of its folders, and two more. A zombie has one."""
    try:
        return Path(f"/proc/{pid}/task").stat().st_nlink - 2
    except OSError:
        return 0


def with_process_limits(memory: MemoryLimiter) -> MemoryLimiter:
    """A limiter that bounds the number of processes besides."""
    if isinstance(memory, Cgroup) and memory.is_v2 and _has_pids(memory.parent):
        return memory
    limit = str(MAX_PROCESSES)
    by_group = with_controller(memory, "pids", files=lambda limit_mib: {"pids.max": limit}, words="processes")
    return by_group or CountingLimiter(memory)


def _has_pids(group: Path) -> bool:
    try:
        return "pids" in (group / "cgroup.subtree_control").read_text().split()
    except OSError:
        return False
