"""Learning that a process has ended, and how, whether it is our child, the template's, or was left to us.

Environments forked by a template are its children, so the template reaps them and passes their status on; when the
template is dead they are ours, because the server is their subreaper. A pidfd tells of the end in either case.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

_STATUS_WAIT_S = 1.0
_STATUS_RETRY_S = 0.01
# asyncio reaps what it started (pip, for one) as soon as it is dead; what is dead for longer is nobody's.
_UNCLAIMED_S = 5.0
_MARKER = b"THAWD_ENVIRONMENT="


class Child:
    """A process whose end is awaited.

    Attributes:
        pid: its process id; also its process group and session.
        ended: done when the process has ended; the wait status, or None when nobody could tell it.
        killed: whether it was we who killed it.
    """

    __slots__ = ("ended", "killed", "pid")

    def __init__(self, pid: int, ended: asyncio.Future[int | None]) -> None:
        self.pid = pid
        self.ended = ended
        self.killed = False

    def kill(self) -> None:
        """Kill the process and its group, if it is still there."""
        if not self.ended.done():
            self.killed = True
            self.make_sure()

    def make_sure(self) -> None:
        """Kill the process, which has most likely ended by itself already: its channel is closed."""
        for kill in (os.killpg, os.kill):
            try:
                kill(self.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue


class Children:
    """All processes of functions that are alive."""

    def __init__(self) -> None:
        self._alive: dict[int, Child] = {}
        self._told: dict[int, int] = {}
        self._strays: set[int] = set()
        self._zombies: dict[int, float] = {}

    def watch(self, pid: int) -> Child:
        """Follow the process `pid` until it ends."""
        loop = asyncio.get_running_loop()
        child = Child(pid, loop.create_future())
        if pid in self._told:
            child.ended.set_result(self._told.pop(pid))
            return child
        self._alive[pid] = child
        try:
            pidfd = os.pidfd_open(pid)
        except AttributeError:  # not Linux: poll
            loop.call_later(0.02, self._poll, child)
        except OSError:  # ended and reaped already
            self._ended(child)
        else:
            loop.add_reader(pidfd, self._readable, pidfd, child)
        return child

    def told(self, pid: int, status: int) -> None:
        """A template reaped its child `pid`."""
        child = self._alive.get(pid)
        if child is None:
            self._told[pid] = status  # it died before anybody could follow it
        elif not child.ended.done():
            self._finish(child, status)

    def _readable(self, pidfd: int, child: Child) -> None:
        asyncio.get_running_loop().remove_reader(pidfd)
        os.close(pidfd)
        self._ended(child)

    def _poll(self, child: Child) -> None:
        try:
            if os.waitpid(child.pid, os.WNOHANG) == (0, 0):
                asyncio.get_running_loop().call_later(0.02, self._poll, child)
                return
        except ChildProcessError:
            pass
        self._ended(child)

    def _ended(self, child: Child, until_s: float | None = None) -> None:
        """The process is dead: find out how it ended."""
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
            # The template's child: it tells us in a moment; when it is dead too, the child becomes ours.
            asyncio.get_running_loop().call_later(_STATUS_RETRY_S, self._ended, child, until_s)
        else:
            self._finish(child, int(signal.SIGKILL) if child.killed else None)

    def _finish(self, child: Child, status: int | None) -> None:
        if not child.ended.done():
            # What the process left behind in its group goes with it.
            try:
                os.killpg(child.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass
            self._alive.pop(child.pid, None)
            child.ended.set_result(status)

    def kill_all(self) -> None:
        """Kill every process group that is followed."""
        for child in list(self._alive.values()):
            child.kill()

    async def all_ended(self) -> None:
        """Wait until every process that is followed has ended."""
        while self._alive:
            await asyncio.wait([child.ended for child in self._alive.values()])

    def kill_strays(self, is_alive: Callable[[str], bool]) -> int:
        """Kill processes that a function left behind outside its process group, reap the dead; how many were killed.

        Such a process has become our child (we are the subreaper), leads or joined a session of its own, and carries
        the identifier of its environment in its environment variables.

        Args:
            is_alive: whether the environment or template with an identifier is alive; its strays are left alone.
        """
        killed = 0
        for pid in _own_children():
            if pid in self._alive:
                continue
            if _is_zombie(pid):
                self._reap_left_over(pid)
            elif (owner := _owner(pid)) is not None and not is_alive(owner):
                # Without an owner it is the platform's own, for example pip.
                self._strays.add(pid)
                try:
                    os.kill(pid, signal.SIGKILL)
                    killed += 1
                except ProcessLookupError:
                    continue
        return killed

    def _reap_left_over(self, pid: int) -> None:
        """Reap a dead child that is nobody's: one we killed, or one that those who started it have not reaped."""
        since_s = self._zombies.setdefault(pid, time.monotonic())
        if pid in self._strays or time.monotonic() - since_s > _UNCLAIMED_S:
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                pass
            self._strays.discard(pid)
            del self._zombies[pid]


def _own_children() -> list[int]:
    try:
        return [
            int(pid) for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()
        ]
    except OSError:
        return []  # not Linux, or a kernel without CONFIG_PROC_CHILDREN


def _owner(pid: int) -> str | None:
    """The identifier in the process's environment variables, None when there is none."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return None
    for variable in variables.split(b"\0"):
        if variable.startswith(_MARKER):
            return variable[len(_MARKER) :].decode(errors="replace")
    return None


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (OSError, IndexError):
        return False
