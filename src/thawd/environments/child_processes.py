"""Follows functions' processes: learns when and how each ends, and kills and reaps those that functions left behind.

Environments that a template forked are the template's children, so the template reaps them and reports their status.
When the template dies, the kernel makes them children of the server, because the server is their subreaper (prctl(2),
PR_SET_CHILD_SUBREAPER). In both cases a pidfd tells the server when such a process ends. If no descriptor is left for a
pidfd, the server polls the process.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

_STATUS_WAIT_S = 1.0
_STATUS_RETRY_S = 0.01
_POLL_S = 0.02
# While a process executes a new program, its environment variables cannot be read for a moment. So a process whose
# owner is unknown is killed only if the owner was still unknown after this time.
_EXECUTING_S = 0.1
# asyncio reaps the processes that it started, such as pip, as soon as they are dead. So no other code of this server
# will reap a child that has been dead for longer than this.
_UNCLAIMED_S = 5.0
_SESSIONS = 4096
_PF_EXITING = 0x4
_MARKER = b"THAWD_ENVIRONMENT="
_IN_GROUP = re.compile(r"/thawd-\d+-([0-9a-f]{32})$", re.MULTILINE)


class Child:
    """A process that the server follows until it ends.

    Attributes:
        pid: its process id; also its process group and session.
        ended: a future; done when the process has ended, with the wait status, or None when that is not known.
        killed: whether the platform killed it.
        leaving: whether it was asked to end (SIGTERM, or the SHUTDOWN event); a timer kills it if it does not.
        outlasts: whether it belongs to no function (the emulator of AWS). It is ended after all functions, and not by
            `kill_all`.
    """

    __slots__ = ("ended", "killed", "leaving", "outlasts", "pid")

    def __init__(self, pid: int, ended: asyncio.Future[int | None]) -> None:
        self.pid = pid
        self.ended = ended
        self.killed = False
        self.leaving = False
        self.outlasts = False

    def kill(self) -> None:
        """Kill the process and its group, unless it has ended."""
        if not self.ended.done():
            self.killed = True
            self._kill_group()

    def make_sure(self) -> None:
        """Kill the process and its group, in case they still run, for example after its channel was closed.

        Set `killed` only if the process still ran: the end of a process that something else has killed closes its
        channels, too.
        """
        if _runs(self.pid):
            self.kill()
        else:
            self._kill_group()

    def _kill_group(self) -> None:
        for kill in (os.killpg, os.kill):
            try:
                kill(self.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue


class Children:
    """All live processes of functions, and the processes that functions left behind."""

    def __init__(self) -> None:
        self._alive: dict[int, Child] = {}
        self._reported: dict[int, int | None] = {}
        self._strays: set[int] = set()
        self._zombies: dict[int, float] = {}
        self._sessions: dict[int, None] = {}  # sessions of followed processes, the most recent last
        self._unowned: dict[int, float] = {}
        self._kills_later = False

    def watch(self, pid: int) -> Child:
        """Follow the process `pid` until it ends."""
        loop = asyncio.get_running_loop()
        child = Child(pid, loop.create_future())
        if pid in self._reported:
            status = self._reported.pop(pid)
            if not _exists(pid):  # otherwise the report was about an earlier process with this id
                child.ended.set_result(status)
                return child
        self._alive[pid] = child
        self._note_session(pid)
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:  # the process has ended and was reaped already
            self._ended(child)
        except (AttributeError, OSError):  # this is not Linux, or no descriptors are left: poll instead
            loop.call_later(_POLL_S, self._poll, child)
        else:
            loop.add_reader(pidfd, self._readable, pidfd, child)
        if self._kills_later:
            child.kill()
        return child

    def _note_session(self, pid: int) -> None:
        """Remember the session that a followed process leads; it contains only processes of the same function."""
        self._sessions.pop(pid, None)
        self._sessions[pid] = None
        if len(self._sessions) > _SESSIONS and (oldest := next(iter(self._sessions))) not in self._alive:
            del self._sessions[oldest]

    def report_exit(self, pid: int, status: int | None) -> None:
        """Record that a template has reaped its child `pid`; `status` is the wait status, None when it is not known."""
        child = self._alive.get(pid)
        if child is None:
            # The process died before `watch` was called for it, or its end was handled long ago.
            self._reported[pid] = status
            asyncio.get_running_loop().call_later(_UNCLAIMED_S, self._reported.pop, pid, None)
        elif not child.ended.done():
            self._finish(child, status)

    def _readable(self, pidfd: int, child: Child) -> None:
        asyncio.get_running_loop().remove_reader(pidfd)
        os.close(pidfd)
        self._ended(child)

    def _poll(self, child: Child) -> None:
        if child.ended.done():
            return
        try:
            os.kill(child.pid, 0)
        except ProcessLookupError:
            self._ended(child)
            return
        if _is_zombie(child.pid):
            self._ended(child)
        else:
            asyncio.get_running_loop().call_later(_POLL_S, self._poll, child)

    def _ended(self, child: Child, until_s: float | None = None) -> None:
        """The process is dead: get its wait status. If that is not known yet, try again, until `until_s`."""
        if child.ended.done():
            return
        now_s = time.monotonic()
        until_s = until_s or now_s + _STATUS_WAIT_S
        try:
            pid, status = os.waitpid(child.pid, os.WNOHANG)
        except ChildProcessError:
            pid, status = 0, 0
        if pid:
            self._finish(child, status)
        elif now_s < until_s:
            # The process is a template's child. Either the template reports the status in a moment, or the template is
            # dead too and the process becomes this server's child.
            asyncio.get_running_loop().call_later(_STATUS_RETRY_S, self._ended, child, until_s)
        else:
            self._finish(child, int(signal.SIGKILL) if child.killed else None)

    def _finish(self, child: Child, status: int | None) -> None:
        if not child.ended.done():
            # Also kill the processes that this process left behind in its group.
            try:
                os.killpg(child.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass
            self._alive.pop(child.pid, None)
            child.ended.set_result(status)

    def kill_all(self, *, and_later: bool = False) -> None:
        """Kill every followed process and its group, except those with `leaving` or `outlasts` set.

        Args:
            and_later: also kill each process that is followed from now on, as soon as it is: its start had begun.
        """
        self._kills_later = self._kills_later or and_later
        for child in list(self._alive.values()):
            if not child.leaving and not child.outlasts:
                child.kill()

    async def all_ended(self) -> None:
        """Wait until every followed process has ended, except those with `outlasts` set."""
        while ended := [child.ended for child in self._alive.values() if not child.outlasts]:
            await asyncio.wait(ended)

    def orphans(self) -> list[int]:
        """Children of the server that are not followed: those that functions detached, and the platform's own."""
        return [pid for pid in _adopted_children() if pid not in self._alive]

    def kill_strays(
        self, is_alive: Callable[[str], bool], *, spare_unknown: bool, patience_s: float = _EXECUTING_S
    ) -> bool:
        """Kill strays (processes that functions left behind outside their process groups), and reap dead children.

        A stray has become the server's child, because the server is its subreaper. The stray's cgroup, or the
        identifier in its environment variables, shows to which environment or template it belongs.

        Args:
            is_alive: returns whether the environment or template with a given identifier is alive; if so, processes
                that belong to it are not killed.
            spare_unknown: whether to spare processes without an identifier, because the platform may have started them.
            patience_s: kill a process without an identifier only if it also had none this many seconds ago.

        Returns:
            Whether to look again soon, because a process was killed, is dead but not reaped, or has no known owner.
        """
        killed = 0
        self.reap()
        unowned, self._unowned = self._unowned, {}
        for pid in self.orphans():
            if pid in self._zombies:
                continue
            owner = owner_of(pid)
            if spare_unknown if owner is None else is_alive(owner):
                continue
            if owner is None:
                since_s = unowned.get(pid, time.monotonic())
                if time.monotonic() - since_s < patience_s:
                    self._unowned[pid] = since_s
                    continue
            self._strays.add(pid)
            try:
                os.kill(pid, signal.SIGKILL)
                killed += 1
            except (ProcessLookupError, PermissionError):
                continue  # it has ended, or runs as another user, for example as a set-user-id program
        return killed > 0 or bool(self._zombies or self._unowned)

    def reap(self) -> None:
        """Reap the dead children that the server does not follow. Until a child is reaped, it occupies a process id."""
        children = self.orphans()
        self._zombies = {pid: since_s for pid, since_s in self._zombies.items() if pid in children}
        for pid in children:
            state = _state_and_session(pid)
            if state is not None and state[0] == "Z":
                self._reap_left_over(pid, state[1])

    def _reap_left_over(self, pid: int, session: int) -> None:
        """Reap a dead child if a function started it, or if `kill_strays` killed it.

        Reap any other child only if the code of this server that started it has not done so within `_UNCLAIMED_S`.
        """
        since_s = self._zombies.setdefault(pid, time.monotonic())
        if session in self._sessions or pid in self._strays or time.monotonic() - since_s > _UNCLAIMED_S:
            try:
                reaped, status = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                reaped, status = 0, 0
            if reaped:
                # Perhaps it is a fork that died with its template, and `watch` is about to be called for it.
                self.report_exit(pid, status)
            self._strays.discard(pid)
            del self._zombies[pid]


def children_of(pid: int) -> list[int]:
    """Return the processes that `pid` has started and that are still its children; [] if the system does not list them.

    Source: proc_pid_task(5): the kernel lists the children of each thread, if it was built with CONFIG_PROC_CHILDREN.
    """
    try:
        threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208 - a fifth of the time of Path.iterdir
    except OSError:
        return []
    return [child for thread in threads for child in _children_of_thread(pid, thread)]


def with_descendants(pid: int) -> list[int]:
    """Return the process `pid` and its descendants.

    A descendant whose parent has ended is missing, because the kernel has given it another parent.
    """
    found = [pid]
    for parent in found:
        found += children_of(parent)
    return found


def _adopted_children() -> list[int]:
    """Return the children of the server's first thread. The kernel makes orphans the children of this thread."""
    return _children_of_thread(os.getpid(), os.getpid())


def _children_of_thread(pid: int, thread: int | str) -> list[int]:
    """Return the children that a thread has started; [] if it has ended."""
    text = b""
    try:
        fd = os.open(f"/proc/{pid}/task/{thread}/children", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        while part := os.read(fd, 1 << 16):  # one read may return only a part of the list
            text += part
    except OSError:
        pass  # the thread ends at this moment
    finally:
        os.close(fd)
    return [int(child) for child in text.split()]


def owner_of(pid: int) -> str | None:
    """Return the identifier of the environment or template that a process belongs to; None if unknown."""
    try:
        in_group = _IN_GROUP.search(Path(f"/proc/{pid}/cgroup").read_text())
        if in_group is not None:
            return in_group[1]
        variables = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return None
    for variable in variables.split(b"\0"):
        if variable.startswith(_MARKER):
            return variable[len(_MARKER) :].decode(errors="replace")
    return None


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _is_zombie(pid: int) -> bool:
    state = _state_and_session(pid)
    return state is not None and state[0] == "Z"


def _runs(pid: int) -> bool:
    """Return whether a process exists and is not about to end; False if that is unknown.

    Source: proc_pid_stat(5), state and flags; PF_EXITING in the kernel's include/linux/sched.h. The kernel sets this
    flag before it closes the descriptors of a process that ends.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return fields[0] not in (b"Z", b"X") and not int(fields[6]) & _PF_EXITING
    except (OSError, IndexError, ValueError):
        return False


def _state_and_session(pid: int) -> tuple[str, int] | None:
    """Return a process's state (a letter) and session id, see proc_pid_stat(5); None: the process no longer exists."""
    try:
        # Bytes, because a process gives itself any name.
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return fields[0].decode(), int(fields[3])
    except (OSError, IndexError, ValueError):
        return None


def kill_left_over(data: Path) -> int:
    """Kill the processes that a killed server left behind: those of functions whose code is in the data folder.

    Call it when a server starts: at that time no other server uses the data folder.

    Returns:
        How many processes were killed.
    """
    # Versions of thawd that did not set THAWD_CODE ran no function at Lambda's paths.
    marks = (f"THAWD_CODE={data}/".encode(), f"LAMBDA_TASK_ROOT={data}/packages/".encode())
    killed = 0
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            variables = (entry / "environ").read_bytes()
            if any(mark in variables for mark in marks) and int(entry.name) != os.getpid():
                os.kill(int(entry.name), signal.SIGKILL)
                killed += 1
        except OSError:
            continue  # the process has ended, or belongs to another user
    return killed
