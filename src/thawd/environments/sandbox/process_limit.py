"""Limits an environment to 1,024 processes and threads, as on Lambda, so that the machine does not run out of them.

Where thawd can write to a cgroup with the pids controller (version 2 or 1), the kernel enforces the limit: starting one
more process or thread fails with EAGAIN. Elsewhere thawd counts them while an invocation runs, and kills an environment
that has more. In addition, an unprivileged server gives each environment with its own ``/tmp`` a user namespace, in
which the kernel enforces the limit too (RLIMIT_NPROC, native/disk.c).

Source: Lambda quotas, "Execution processes/threads"; Linux Documentation/admin-guide/cgroup-v1/pids.rst.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from thawd.environments.child_processes import owner_of, with_descendants
from thawd.environments.sandbox.controllers import with_controller
from thawd.environments.sandbox.memory import MAX_PROCESSES, Cgroup, MemoryLimit, MemoryLimiter

Orphans = Callable[[], list[int]]
"""Returns the processes that have lost their parents and so become the platform's children."""


class CountingLimiter(MemoryLimiter):
    """Limits memory with another limiter, and the number of processes by counting them.

    Attributes:
        orphans: returns the orphans that may belong to an environment; set after construction.
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
        """See `MemoryLimit.check`; also checks that there are at most `MAX_PROCESSES` processes and threads."""
        return self._count() <= MAX_PROCESSES and self._memory.check()

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
    """Return the number of threads of a process.

    The link count of its folder ``/proc/pid/task`` is two more than this number.
    """
    try:
        return Path(f"/proc/{pid}/task").stat().st_nlink - 2
    except OSError:
        return 0


def with_process_limits(memory: MemoryLimiter) -> MemoryLimiter:
    """Return a limiter that limits memory with `memory`, and also the number of processes."""
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
