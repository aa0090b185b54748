"""CPU by memory, when the operator asks for it: 1,769 MB are one vCPU, as on Lambda. By a cgroup, version 1 or 2.

Environments are held to it from the moment at which they enter their memory limit; the process that runs init for a
snapshot or for forks is not, as environments forked from it would begin in its group.

Source: AWS Lambda developer guide, "Configure Lambda function memory"; Linux Documentation/scheduler/sched-bwc.rst.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from thawd import threads
from thawd.execution.memory import (
    Cgroup,
    MemoryLimit,
    MemoryLimiter,
    own_group,
    remove_group,
    with_descendants,
    works,
)
from thawd.resources import MEMORY_MB_PER_VCPU

_CPU_V1 = Path("/sys/fs/cgroup/cpu")
PERIOD_US = 20_000
"""A group that has used up its share waits for the next period: a fiftieth of a second at most."""

_LEAST_QUOTA_US = 1_000  # the kernel's


def quota_us(memory_mb: int) -> int:
    """Processor time in each period for a function with so much memory, microseconds."""
    return max(_LEAST_QUOTA_US, memory_mb * PERIOD_US // MEMORY_MB_PER_VCPU)


class CpuLimiter(MemoryLimiter):
    """Limits memory as another limiter does, and CPU besides, by a cgroup of version 1."""

    def __init__(self, memory: MemoryLimiter, parent: Path) -> None:
        self.kind = f"{memory.kind}, CPU shares by cgroup v1"
        self.parent = parent
        self._memory = memory
        self._thread = threads.pool(1, name="cgroup-cpu")

    def limit(self, pid: int, *, identifier: str, limit_mib: int) -> MemoryLimit:
        """See `MemoryLimiter.limit`."""
        memory = self._memory.limit(pid, identifier=identifier, limit_mib=limit_mib)
        group = self.parent / f"thawd-{os.getpid()}-{identifier}"
        self._thread.submit(self._enter, group, pid, quota_us(limit_mib))
        return _Both(memory, on_close=lambda: self._thread.submit(remove_group, group))

    def close(self) -> None:
        """See `MemoryLimiter.close`."""
        self._memory.close()
        self._thread.shutdown()

    def make(self, group: Path, quota: int) -> None:
        """Make a group with a share.

        Raises:
            OSError: it cannot be made or limited.
        """
        group.mkdir(exist_ok=True)
        (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (group / "cpu.cfs_quota_us").write_text(str(quota))

    def _enter(self, group: Path, pid: int, quota: int) -> None:
        try:
            self.make(group, quota)
            for process in with_descendants(pid):
                (group / "cgroup.procs").write_text(str(process))
        except OSError:
            pass  # it has ended already


class _Both(MemoryLimit):
    """The memory limit, and what else ends with the environment."""

    def __init__(self, memory: MemoryLimit, *, on_close: Callable[[], object]) -> None:
        self._memory = memory
        self._on_close = on_close

    def check(self) -> bool:
        """See `MemoryLimit.check`."""
        return self._memory.check()

    def close(self) -> None:
        """See `MemoryLimit.close`."""
        self._memory.close()
        self._on_close()


def with_cpu_limits(memory: MemoryLimiter) -> MemoryLimiter | None:
    """A limiter that holds environments to their CPU share besides; None where no cgroup for it may be written."""
    if isinstance(memory, Cgroup) and memory.is_v2:
        try:
            subtree = memory.parent / "cgroup.subtree_control"
            if "cpu" not in subtree.read_text().split():
                subtree.write_text("+cpu")
        except OSError:
            return None
        memory.settings["cpu.max"] = lambda limit_mib: f"{quota_us(limit_mib)} {PERIOD_US}"
        memory.kind += ", CPU shares too"
        return memory
    own = own_group("cpu")
    if own is None or not (_CPU_V1 / own).is_dir():
        return None
    limiter = CpuLimiter(memory, _CPU_V1 / own)
    return limiter if works(limiter.parent, lambda probe: limiter.make(probe, PERIOD_US)) else None
