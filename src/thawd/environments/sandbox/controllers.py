"""Adds a limit on CPU time, or on the number of processes, to a memory limiter, by a controller of cgroup version 1.

In version 1 each controller has its own hierarchy of groups, so an environment gets one more group for each controller.

Source: Linux Documentation/admin-guide/cgroup-v1/cgroups.rst.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from thawd.environments.sandbox.memory import MemoryLimit, MemoryLimiter, move_into, own_group, remove_group, works
from thawd.system import threads

_HIERARCHIES = Path("/sys/fs/cgroup")


class AddedController(MemoryLimiter):
    """Limits memory with another limiter, and a second resource with one controller of version 1.

    Args:
        memory: the limiter for memory.
        parent: the group that contains the groups of environments.
        controller: name of the controller.
        files: gets a memory limit in MiB; returns the text to write into each file of a group, by the file's name.
        words: name of the second resource, shown to the operator.
    """

    def __init__(
        self,
        memory: MemoryLimiter,
        parent: Path,
        *,
        controller: str,
        files: Callable[[int], dict[str, str]],
        words: str,
    ) -> None:
        self.kind = f"{memory.kind}, {words} by cgroup v1"
        self.parent = parent
        self._memory = memory
        self._files = files
        self._thread = threads.pool(1, name=f"cgroup-{controller}")

    def limit(self, pid: int, *, identifier: str, limit_mib: int) -> MemoryLimit:
        """See `MemoryLimiter.limit`."""
        memory = self._memory.limit(pid, identifier=identifier, limit_mib=limit_mib)
        group = self.parent / f"thawd-{os.getpid()}-{identifier}"
        self._thread.submit(self._enter, group, pid, limit_mib)
        return _Both(memory, on_close=lambda: self._thread.submit(remove_group, group))

    def close(self) -> None:
        """See `MemoryLimiter.close`."""
        self._memory.close()
        self._thread.shutdown()

    def make(self, group: Path, limit_mib: int) -> None:
        """Create `group`, with the limit for a function with `limit_mib` of memory.

        Raises:
            OSError: the group cannot be created or limited.
        """
        group.mkdir(exist_ok=True)
        for name, text in self._files(limit_mib).items():
            (group / name).write_text(text)

    def _enter(self, group: Path, pid: int, limit_mib: int) -> None:
        try:
            self.make(group, limit_mib)
            move_into(group, pid)
        except OSError:
            pass  # the process has ended, or the group refuses it: the resource is then not limited


class _Both(MemoryLimit):
    """The memory limit, with a callback that runs when the environment has ended."""

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


def with_controller(
    memory: MemoryLimiter, controller: str, *, files: Callable[[int], dict[str, str]], words: str
) -> AddedController | None:
    """Return a limiter that uses `memory` and `controller`; None if thawd cannot write to this controller's groups."""
    path = own_group(controller)
    if path is None or not (_HIERARCHIES / controller / path).is_dir():
        return None
    parent = _HIERARCHIES / controller / path
    limiter = AddedController(memory, parent, controller=controller, files=files, words=words)
    return limiter if works(parent, lambda probe: limiter.make(probe, 64)) else None
