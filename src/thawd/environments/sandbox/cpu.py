"""Limits CPU time in proportion to memory, with a cgroup, if the operator asks for it.

As on Lambda, 1,769 MB of memory correspond to one vCPU.

The limit begins when the environment's process enters its cgroup: at the beginning of a cold start, or once a forked or
thawed environment is ready. Two kinds of processes have no CPU limit: a template, and a process that runs init to be
frozen. A fork starts in the cgroup of its template, so with a limit the template and all forks that are not ready yet
would share the CPU time of one environment.

Source: AWS Lambda developer guide, "Configure Lambda function memory"; Linux Documentation/scheduler/sched-bwc.rst.
"""

from __future__ import annotations

from thawd.environments.sandbox.controllers import with_controller
from thawd.environments.sandbox.memory import Cgroup, MemoryLimiter
from thawd.resources import MEMORY_MB_PER_VCPU

PERIOD_US = 20_000
"""Length of a period, microseconds. A group that has used up its share of a period waits for the next one, at most this
long."""

_LEAST_QUOTA_US = 1_000  # the smallest quota that the kernel accepts


def quota_us(memory_mb: int) -> int:
    """CPU time in each period for a function with `memory_mb` of memory, microseconds."""
    return max(_LEAST_QUOTA_US, memory_mb * PERIOD_US // MEMORY_MB_PER_VCPU)


def with_cpu_limits(memory: MemoryLimiter) -> MemoryLimiter | None:
    """Return a limiter that also limits the CPU share of environments; None if no cgroup for that is writable."""
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
    return with_controller(memory, "cpu", files=_files, words="CPU shares")


def _files(limit_mib: int) -> dict[str, str]:
    return {"cpu.cfs_period_us": str(PERIOD_US), "cpu.cfs_quota_us": str(quota_us(limit_mib))}
