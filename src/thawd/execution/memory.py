"""The memory limit of an execution environment: by a cgroup where one may be written, else by watching.

Either way a process over its limit is killed, and its invocation ends as on Lambda: ``Runtime.ExitError``,
"signal: killed". Memory that a forked environment shares with its template is charged once, to the template.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

_CGROUPS = Path("/sys/fs/cgroup")
MIB = 1 << 20


class MemoryLimit(Protocol):
    """Holds one environment to its limit."""

    def check(self) -> bool:
        """Whether the environment is within its limit as far as this side has to look; called while it is busy."""

    def close(self) -> None:
        """Forget the environment, which has ended."""


class MemoryLimiter(Protocol):
    """A way to limit memory on this machine."""

    kind: str

    def limit(self, pid: int, *, identifier: str, limit_mib: int) -> MemoryLimit:
        """Hold the process `pid` and its descendants to `limit_mib`."""


class Cgroup:
    """Limits by the memory controller, version 1 or 2; the kernel kills.

    Attributes:
        kind: ``cgroup v1`` or ``cgroup v2``.
    """

    def __init__(self, parent: Path, *, v2: bool) -> None:
        self.kind = "cgroup v2" if v2 else "cgroup v1"
        self._parent = parent
        self._limit_file = "memory.max" if v2 else "memory.limit_in_bytes"
        self._swap_file = "memory.swap.max" if v2 else "memory.memsw.limit_in_bytes"

    def limit(self, pid: int, *, identifier: str, limit_mib: int) -> MemoryLimit:
        """Make a group for the process; see `MemoryLimiter.limit`.

        Raises:
            OSError: the group could not be made.
        """
        group = self._parent / f"thawd-{os.getpid()}-{identifier}"
        group.mkdir(exist_ok=True)
        (group / self._limit_file).write_text(str(limit_mib * MIB))
        try:
            (group / self._swap_file).write_text("0" if self.kind == "cgroup v2" else str(limit_mib * MIB))
        except OSError:
            pass  # no swap accounting: the limit holds for memory alone
        (group / "cgroup.procs").write_text(str(pid))
        return _Group(group)


class _Group:
    def __init__(self, group: Path) -> None:
        self._group = group

    def check(self) -> bool:
        return True

    def close(self) -> None:
        try:
            self._group.rmdir()
        except OSError:
            pass  # a process is still on its way out; remove_left_over() takes the empty group at the next start


class Watcher:
    """Limits by reading private memory while an invocation runs; kills within about a tenth of a second."""

    kind = "watching"

    def limit(self, pid: int, *, identifier: str, limit_mib: int) -> MemoryLimit:
        """See `MemoryLimiter.limit`."""
        del identifier
        return _Watched(pid, limit_mib * MIB)


class _Watched:
    def __init__(self, pid: int, limit_bytes: int) -> None:
        self._pid = pid
        self._limit_bytes = limit_bytes

    def check(self) -> bool:
        # The cheap figure counts pages shared with the template too; only above the limit is the exact one worth it.
        processes = _with_descendants(self._pid)
        if sum(map(_anonymous_bytes, processes)) <= self._limit_bytes:
            return True
        return sum(map(private_bytes, processes)) <= self._limit_bytes

    def close(self) -> None:
        pass


def _with_descendants(pid: int) -> list[int]:
    found = [pid]
    for parent in found:
        try:
            found += map(int, Path(f"/proc/{parent}/task/{parent}/children").read_text().split())
        except OSError:
            continue
    return found


def _anonymous_bytes(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/statm").read_text().split()
        return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def private_bytes(pid: int) -> int:
    """Memory that only the process `pid` maps, bytes, swap included; 0 where it cannot be read."""
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    wanted = ("Private_Clean:", "Private_Dirty:", "Swap:")
    return sum(int(line.split()[1]) * 1024 for line in rollup.splitlines() if line.startswith(wanted))


def find_limiter() -> MemoryLimiter:
    """The best way this process may use: cgroup v2, cgroup v1, else watching."""
    for limiter in (_cgroup_v2(), _cgroup_v1()):
        if limiter is not None and _works(limiter):
            return limiter
    return Watcher()


def _own_group(controller: str) -> str | None:
    """This process's cgroup path in the hierarchy of `controller` ("" is version 2)."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return path.lstrip("/")
    return None


def _cgroup_v2() -> Cgroup | None:
    own = _own_group("")
    if own is None:
        return None
    group = _CGROUPS / own
    try:
        if "memory" not in (group / "cgroup.subtree_control").read_text().split():
            _delegate(group)
    except OSError:
        return None
    return Cgroup(group, v2=True)


def _delegate(group: Path) -> None:
    """Enable the memory controller for sub-groups of `group`.

    A group with processes may not have controllers below it, so the server moves into a sub-group first, and only when
    it is alone: nobody else's processes are moved.

    Raises:
        OSError: it is not ours to do.

    Source: Linux Documentation/admin-guide/cgroup-v2.rst, "No Internal Process Constraint".
    """
    if (group / "cgroup.procs").read_text().split() == [str(os.getpid())]:
        server = group / "thawd-server"
        server.mkdir(exist_ok=True)
        (server / "cgroup.procs").write_text(str(os.getpid()))
    (group / "cgroup.subtree_control").write_text("+memory")


def _cgroup_v1() -> Cgroup | None:
    own = _own_group("memory")
    if own is None:
        return None
    group = _CGROUPS / "memory" / own
    return Cgroup(group, v2=False) if group.is_dir() else None


def _works(limiter: Cgroup) -> bool:
    """Whether a group can be made and limited here; removes what earlier servers left."""
    parent = limiter._parent
    try:
        for left_over in parent.glob("thawd-[0-9]*"):
            if not Path(f"/proc/{left_over.name.split('-')[1]}").exists():
                left_over.rmdir()
        probe = parent / f"thawd-{os.getpid()}-probe"
        probe.mkdir(exist_ok=True)
        try:
            (probe / limiter._limit_file).write_text(str(64 * MIB))
        finally:
            probe.rmdir()
    except OSError:
        return False
    return True
