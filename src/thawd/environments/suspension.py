"""Environments do not run between invocations: their processes are stopped (SIGSTOP) and continued (SIGCONT).

An environment is stopped a moment after its answer, and not when it is invoked again before: back-to-back invocations
cost nothing, and the runtime gets to where it waits. Background work goes on with the next invocation.

Besides the environment's process group, processes that have left it are stopped: descendants in groups of their own,
and orphans, which have become the server's children because the server is the subreaper. A stopped process can be
killed, by the platform and by its lifeline.

Source: AWS Lambda developer guide, "Lambda execution environment lifecycle"; signal(7).
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import Protocol

from thawd.environments.children import Child, Children, owner_of

IDLE_S = 0.02
"""How long an environment runs on after an answer, at least, seconds; at most twice as long."""

# Looks for new processes at most: one that forks during a look may hide the child.
_LOOKS = 3


class Suspendable(Protocol):
    """An environment, as the suspender sees it.

    Attributes:
        identifier: 32 hexadecimal digits, unique.
        child: its process.
        dying: whether it has been killed.
    """

    identifier: str
    child: Child | None
    dying: bool

    @property
    def is_quiet(self) -> bool:
        """Whether all work on the last invocation is done, also that of extensions."""

    @property
    def extension_groups(self) -> list[int]:
        """Process groups of its extensions."""


class Suspender:
    """Stops idle environments, and continues them before an invocation.

    Args:
        children: all processes of functions, to tell orphans from environments.
    """

    def __init__(self, children: Children) -> None:
        self._children = children
        self._idle: dict[Suspendable, float] = {}
        self._stopped: dict[Suspendable, list[int]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def idle(self, environment: Suspendable) -> None:
        """The environment is idle: stop it unless an invocation comes soon."""
        self._idle[environment] = time.monotonic()
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(IDLE_S, self._look)

    def busy(self, environment: Suspendable) -> None:
        """The environment is about to get an invocation, or is being ended: let it run."""
        self._idle.pop(environment, None)
        outside = self._stopped.pop(environment, None)
        if outside is not None and environment.child is not None:
            for group in (environment.child.pid, *environment.extension_groups):
                _signal_group(group, signal.SIGCONT)
            for pid in outside:
                _signal(pid, signal.SIGCONT)

    def forget(self, environment: Suspendable) -> None:
        """The environment has ended."""
        self._idle.pop(environment, None)
        self._stopped.pop(environment, None)

    def _look(self) -> None:
        """Stop environments that have been idle for long enough; look again while there are others."""
        self._timer = None
        before_s = time.monotonic() - IDLE_S / 2
        for environment in [environment for environment, since_s in self._idle.items() if since_s <= before_s]:
            if environment.is_quiet:
                del self._idle[environment]
                self._stop(environment)
        if self._idle:
            self._timer = asyncio.get_running_loop().call_later(IDLE_S, self._look)

    def _stop(self, environment: Suspendable) -> None:
        child = environment.child
        if child is None or child.ended.done() or environment.dying:
            return
        outside: list[int] = []
        self._stopped[environment] = outside
        # A fork is never stopped half-way: the kernel restarts a fork when a signal comes during it.
        for group in (child.pid, *environment.extension_groups):
            _signal_group(group, signal.SIGSTOP)
        for _ in range(_LOOKS):
            found = [pid for pid in self._outside(child.pid, environment.identifier) if pid not in outside]
            for pid in found:
                _signal(pid, signal.SIGSTOP)
            outside += found
            if not found:
                break

    def _outside(self, pid: int, identifier: str) -> list[int]:
        """Processes of the environment that are not in its process group."""
        family = [pid, *(orphan for orphan in self._children.orphans() if owner_of(orphan) == identifier)]
        for parent in family:
            family += [process for process in children_of(parent) if process not in family]
        return [process for process in family if process != pid and _group_of(process) not in (pid, None)]


def children_of(pid: int) -> list[int]:
    """The processes that `pid` has started and that are its children still; each thread has a list of its own."""
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - a fifth of the time of Path.iterdir
            fd = os.open(f"/proc/{pid}/task/{task}/children", os.O_RDONLY | os.O_CLOEXEC)
            try:
                found += map(int, os.read(fd, 1 << 16).split())
            finally:
                os.close(fd)
    except (OSError, ValueError):
        pass  # it has ended, or this system does not tell
    return found


def _group_of(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


def _signal_group(pid: int, number: int) -> None:
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        pass  # it has ended, or has made itself another user's


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass
