"""The memory limit of an execution environment: thawd watches its memory, and uses a cgroup where it can write to one.

Either way an environment over its limit is killed, and its invocation ends as on Lambda: ``Runtime.ExitError``,
"signal: killed". Memory that a forked environment shares with its template does not count for the environment.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from thawd.environments.child_processes import with_descendants
from thawd.system import threads

_CGROUPS = Path("/sys/fs/cgroup")
MIB = 1 << 20
# A process and its descendants are moved into a cgroup in at most this many rounds: processes that are forked during
# one round are moved in the next. A process whose parent is in the group already starts in the group.
_MOVES = 4
MAX_PROCESSES = 1024
"""Largest number of processes and threads of an environment. Source: Lambda quotas, "Execution processes/threads"."""


class MemoryLimit:
    """Enforces the memory limit of one environment.

    The process is watched from its start. If there is a cgroup, the kernel also enforces the limit as soon as the
    process is in it, and kills immediately instead of within a tenth of a second.
    """

    def __init__(self, pid: int, *, limit_mib: int) -> None:
        self._pid = pid
        self._limit_bytes = limit_mib * MIB

    def check(self) -> bool:
        """Return whether the process and its descendants are within the limit.

        Called during init and during invocations.
        """
        # The first sum is quick to read, but includes pages that are shared with the template. The second, exact sum is
        # slow to read, so it is computed only when the first one exceeds the limit.
        processes = with_descendants(self._pid)
        if sum(map(_anonymous_bytes, processes)) <= self._limit_bytes:
            return True
        return sum(map(private_bytes, processes)) <= self._limit_bytes

    def close(self) -> None:
        """The environment has ended: remove what the limit needed, for example its cgroup."""


class MemoryLimiter:
    """Limits memory by watching, which works on every machine.

    Attributes:
        kind: how limits are enforced, as text for the operator.
    """

    kind = "watching"

    def limit(self, pid: int, *, identifier: str, limit_mib: int) -> MemoryLimit:
        """Limit the process `pid` and its descendants to `limit_mib` from now on. Does not block."""
        del identifier
        return MemoryLimit(pid, limit_mib=limit_mib)

    def close(self) -> None:
        """Wait until work in the background is finished. Blocks."""


class Cgroup(MemoryLimiter):
    """Limits memory with the cgroup memory controller, version 1 or 2; the kernel kills processes to enforce a limit.

    Attributes:
        parent: the group that contains the groups of environments.
        is_v2: whether the cgroup is of version 2, where all controllers use the same group.
        settings: names of further files of a group; each value gets the memory limit in MiB, and returns the text to
            write.

    Moving a process into a group waits for a grace period in the kernel (13 ms measured). On the event loop this would
    delay every request, so all moves happen in one thread, in order.
    """

    def __init__(self, parent: Path, *, v2: bool) -> None:
        self.kind = "cgroup v2" if v2 else "cgroup v1"
        self.parent = parent
        self._limit_file = "memory.max" if v2 else "memory.limit_in_bytes"
        self._swap_file = "memory.swap.max" if v2 else "memory.memsw.limit_in_bytes"
        self.is_v2 = v2
        self.settings: dict[str, Callable[[int], str]] = (
            {"pids.max": lambda limit_mib: str(MAX_PROCESSES)} if v2 else {}
        )
        self._swap = "0" if v2 else ""  # version 1 counts memory and swap together
        self._thread = threads.pool(1, name="cgroup")

    def limit(self, pid: int, *, identifier: str, limit_mib: int) -> MemoryLimit:
        """See `MemoryLimiter.limit`."""
        group = self.parent / f"thawd-{os.getpid()}-{identifier}"
        self._thread.submit(self._enter, group, pid, limit_mib * MIB)
        return _Grouped(pid, limit_mib=limit_mib, on_close=lambda: self._thread.submit(remove_group, group))

    def close(self) -> None:
        """See `MemoryLimiter.close`."""
        self._thread.shutdown()

    def make(self, group: Path, limit_bytes: int) -> None:
        """Create the cgroup `group` with a memory limit, and with the further `settings` that this machine allows.

        Raises:
            OSError: the group cannot be created or limited.
        """
        group.mkdir(exist_ok=True)
        (group / self._limit_file).write_text(str(limit_bytes))
        try:
            (group / self._swap_file).write_text(self._swap or str(limit_bytes))
        except OSError:
            pass  # the kernel does not account swap: the limit applies to memory alone
        for name, text in self.settings.items():
            try:
                (group / name).write_text(text(limit_bytes // MIB))
            except OSError:
                continue  # this server is not allowed to use the controller that the file belongs to

    def _enter(self, group: Path, pid: int, limit_bytes: int) -> None:
        try:
            self.make(group, limit_bytes)
            move_into(group, pid)
        except OSError:
            pass  # the process has ended, or the group refuses it: thawd then only watches its memory


class _Grouped(MemoryLimit):
    def __init__(self, pid: int, *, limit_mib: int, on_close: Callable[[], object]) -> None:
        super().__init__(pid, limit_mib=limit_mib)
        self._on_close = on_close

    def close(self) -> None:
        self._on_close()


def remove_group(group: Path) -> None:
    """Kill the processes that remain in an environment's group, and remove the group."""
    for _ in range(20):
        try:
            for pid in map(int, (group / "cgroup.procs").read_text().split()):
                if pid > 0:  # 0 stands for a process in a namespace that is not visible here
                    os.kill(pid, signal.SIGKILL)
            group.rmdir()
        except FileNotFoundError:
            return
        except OSError:  # a process is still ending
            time.sleep(0.01)
        else:
            return


def move_into(group: Path, pid: int) -> None:
    """Move a process and its descendants into a group, including those that are started during the move.

    Raises:
        OSError: the process has ended, or the group refuses processes.
    """
    moved: set[int] = set()
    for _ in range(_MOVES):
        new = [process for process in with_descendants(pid) if process not in moved]
        for process in new:
            try:
                (group / "cgroup.procs").write_text(str(process))
            except ProcessLookupError:
                if process == pid:
                    raise
        moved.update(new)
        if not new:
            return


def _anonymous_bytes(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/statm").read_text().split()
        return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def proportional_bytes(pids: Iterable[int]) -> int:
    """Return the memory of processes and their descendants, with each shared page divided among all that map it (PSS).

    A process that has ended, or whose figures this process may not read, counts as 0. Blocks, for up to some
    milliseconds for each GiB. Source: proc(5), smaps_rollup.
    """
    total = 0
    for process in {each for pid in pids for each in with_descendants(pid)}:
        try:
            rollup = Path(f"/proc/{process}/smaps_rollup").read_text()
        except OSError:
            continue
        total += next((int(line.split()[1]) * 1024 for line in rollup.splitlines() if line.startswith("Pss:")), 0)
    return total


def private_bytes(pid: int) -> int:
    """Return how many bytes of memory only the process `pid` maps, including swap; 0 if that cannot be read."""
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    wanted = ("Private_Clean:", "Private_Dirty:", "Swap:")
    return sum(int(line.split()[1]) * 1024 for line in rollup.splitlines() if line.startswith(wanted))


def find_limiter() -> MemoryLimiter:
    """Return the best limiter that works for this process: cgroup v2, else cgroup v1, else watching."""
    for limiter in (_cgroup_v2(), _cgroup_v1()):
        if limiter is not None and works(limiter.parent, partial(limiter.make, limit_bytes=64 * MIB)):
            return limiter
    return MemoryLimiter()


def own_group(controller: str) -> str | None:
    """Return the path of this process's cgroup in the hierarchy of `controller`; None if it has none there.

    Each controller of version 1 has its own hierarchy. The empty string names the one hierarchy of version 2.
    """
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
    path = own_group("")
    if path is None:
        return None
    group = _CGROUPS / path
    try:
        if "memory" not in (group / "cgroup.subtree_control").read_text().split():
            _delegate(group)
    except OSError:
        return None
    with contextlib.suppress(OSError):
        (group / "cgroup.subtree_control").write_text("+pids")
    return Cgroup(group, v2=True)


def _delegate(group: Path) -> None:
    """Enable the memory controller for sub-groups of `group`.

    A group that contains processes must not enable controllers for its sub-groups, so the server first moves into a
    sub-group. It does so only if it is the only process in the group; it never moves other processes.

    Raises:
        OSError: this server is not allowed to change the group.

    Source: Linux Documentation/admin-guide/cgroup-v2.rst, "No Internal Process Constraint".
    """
    if (group / "cgroup.procs").read_text().split() == [str(os.getpid())]:
        server = group / "thawd-server"
        server.mkdir(exist_ok=True)
        (server / "cgroup.procs").write_text(str(os.getpid()))
    (group / "cgroup.subtree_control").write_text("+memory")


def _cgroup_v1() -> Cgroup | None:
    path = own_group("memory")
    if path is None:
        return None
    group = _CGROUPS / "memory" / path
    return Cgroup(group, v2=False) if group.is_dir() else None


def works(parent: Path, make: Callable[[Path], object]) -> bool:
    """Return whether `make` can create and limit a group below `parent`.

    Also removes groups of servers that have ended.
    """
    try:
        for left_over in parent.glob("thawd-[0-9]*"):
            if not Path(f"/proc/{left_over.name.split('-')[1]}").exists():
                with contextlib.suppress(OSError):  # processes of a server that was just killed are still ending
                    left_over.rmdir()
        probe = parent / f"thawd-{os.getpid()}-probe"
        try:
            make(probe)
        finally:
            probe.rmdir()
    except OSError:
        return False
    return True
