"""The processor time of an environment's process, and whether the process waits for a core."""

from __future__ import annotations

import os
import time
from typing import NamedTuple

from thawd.environments.environment import Environment


class Usage(NamedTuple):
    """Processor time that a process has used so far, nanoseconds.

    Attributes:
        at_ns: time of the reading, by the monotonic clock.
        ran_ns: processor time of all its threads.
        waited_ns: time in which its first thread was ready to run and waited for a core. Other threads wait about as
            long.
    """

    at_ns: int
    ran_ns: int
    waited_ns: int

    @classmethod
    def of(cls, pid: int) -> Usage:
        """Return the usage of the process `pid`.

        Raises:
            OSError: there is no such process, or the system does not report its usage.
            ValueError: the system reports it in an unknown format.

        Source: clock_getcpuclockid(3) for the number of a process's clock; proc(5), /proc/pid/schedstat.
        """
        ran_ns = time.clock_gettime_ns(~pid << 3 | 2)
        fd = os.open(f"/proc/{pid}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            _, waited_ns, _ = os.read(fd, 100).split()
        finally:
            os.close(fd)
        return cls(time.monotonic_ns(), ran_ns, int(waited_ns))

    def since(self, before: Usage) -> tuple[int, int]:
        """Processor time used since `before`, and time waited for a core since then; nanoseconds."""
        return self.ran_ns - before.ran_ns, self.waited_ns - before.waited_ns


def usage_of(environment: Environment) -> Usage | None:
    """Return the usage of the environment's process; None if the process has ended or cannot be measured."""
    child = environment.child
    if child is None:
        return None
    try:
        return Usage.of(child.pid)
    except (OSError, ValueError):
        return None


def runs_or_waits(environment: Environment) -> bool:
    """Return whether a thread of the environment's process runs or waits for a core at this moment.

    Source: proc(5), /proc/pid/task/tid/stat, field 3.
    """
    child = environment.child
    if child is None:
        return False
    try:
        threads = os.listdir(f"/proc/{child.pid}/task")  # noqa: PTH208 - a fifth of the time of Path.iterdir
    except OSError:
        return False
    return any(_state_of(child.pid, thread) == b"R" for thread in threads)


def _state_of(pid: int, thread: str) -> bytes:
    """Return the state of a thread, a letter; empty if the thread has ended."""
    try:
        fd = os.open(f"/proc/{pid}/task/{thread}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, 500).rpartition(b") ")[2][:1]
    except OSError:
        return b""
    finally:
        os.close(fd)


def can_measure() -> bool:
    """Return whether this system reports the processor time of processes, and the cores that they may use."""
    try:
        Usage.of(os.getpid())
    except (OSError, ValueError):
        return False
    return hasattr(os, "sched_getaffinity")
