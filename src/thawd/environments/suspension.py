"""Stops the processes of an environment between invocations (SIGSTOP) and continues them for the next (SIGCONT).

An environment is stopped a moment after its answer, unless it is invoked again before that. So invocations in quick
succession need no signals, and the runtime has time to reach the point where it waits for the next invocation. Work
that a handler left running in the background continues during the next invocation.

Two kinds of processes outside the environment's process group are stopped too. One is descendants that have made their
own groups. The other is orphans: when their parent ends, they become children of the server, because the server is
their subreaper (prctl(2)). The platform and the lifeline can still kill a stopped process.

Source: AWS Lambda developer guide, "Lambda execution environment lifecycle"; signal(7).
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterable
from typing import Protocol

from thawd.environments.child_processes import Child, Children, children_of, owner_of

IDLE_S = 0.02
"""Time between two looks at the idle environments, seconds. An environment is stopped half to one and a half times this
after its answer, or later if its extensions still work."""

# A search for processes outside an environment's group can miss a child that is forked during the search, so it is
# repeated until it finds no new process: this many times at once, and again after `IDLE_S`.
_SEARCHES = 3


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
        """Whether all work on the last invocation is done, including the work of extensions."""

    @property
    def extension_groups(self) -> list[int]:
        """Process groups of the environment's extensions."""


class Suspender:
    """Stops idle environments, and continues them before an invocation.

    Args:
        children: the processes that the server follows; its other children are orphans.
    """

    def __init__(self, children: Children) -> None:
        self._children = children
        self._idle: dict[Suspendable, float] = {}
        self._stopped: dict[Suspendable, list[int]] = {}
        self._searched: dict[Suspendable, list[int]] = {}  # those of `_stopped` whose processes may not all be found
        self._timer: asyncio.TimerHandle | None = None

    def idle(self, environment: Suspendable) -> None:
        """Stop the environment, which is idle now, unless it gets an invocation soon."""
        self._idle[environment] = time.monotonic()
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(IDLE_S, self._look)

    def busy(self, environment: Suspendable) -> None:
        """Let the environment run, because it is about to get an invocation or to be ended."""
        self._idle.pop(environment, None)
        self._searched.pop(environment, None)
        outsiders = self._stopped.pop(environment, None)
        if outsiders is not None and environment.child is not None:
            for group in (environment.child.pid, *environment.extension_groups):
                _signal_group(group, signal.SIGCONT)
            for pid in outsiders:
                _signal(pid, signal.SIGCONT)

    def forget(self, environment: Suspendable) -> None:
        """Drop an environment that has ended."""
        self._idle.pop(environment, None)
        self._searched.pop(environment, None)
        self._stopped.pop(environment, None)

    def _look(self) -> None:
        """Stop environments that have been idle long enough; schedule another look if other idle ones remain."""
        self._timer = None
        before_s = time.monotonic() - IDLE_S / 2
        due = []
        for environment in [environment for environment, since_s in self._idle.items() if since_s <= before_s]:
            if environment.is_quiet:
                del self._idle[environment]
                due.append(environment)
        self._stop(due)
        self._stop_outsiders()
        if self._idle or self._searched:
            self._timer = asyncio.get_running_loop().call_later(IDLE_S, self._look)

    def _stop(self, environments: Iterable[Suspendable]) -> None:
        for environment in environments:
            child = environment.child
            if child is None or child.ended.done() or environment.dying:
                continue
            self._searched[environment] = self._stopped[environment] = []
            # SIGSTOP never stops a fork half-way: the kernel restarts a fork when a signal arrives during it.
            for group in (child.pid, *environment.extension_groups):
                _signal_group(group, signal.SIGSTOP)

    def _stop_outsiders(self) -> None:
        """Stop the processes outside the groups of the environments that are stopped."""
        for _ in range(_SEARCHES):
            orphans = _orphans_by_owner(self._children.orphans()) if self._searched else {}
            for environment, outsiders in list(self._searched.items()):
                assert environment.child is not None
                family = _outsiders(environment.child.pid, orphans.get(environment.identifier, []))
                found = [pid for pid in family if pid not in outsiders]
                for pid in found:
                    _signal(pid, signal.SIGSTOP)
                outsiders.extend(found)
                if not found:
                    del self._searched[environment]


def _orphans_by_owner(orphans: list[int]) -> dict[str | None, list[int]]:
    """Return the orphans of each environment; the key is the environment's identifier."""
    owned: dict[str | None, list[int]] = {}
    for orphan in orphans:
        owned.setdefault(owner_of(orphan), []).append(orphan)
    return owned


def _outsiders(pid: int, orphans: list[int]) -> list[int]:
    """Processes of the environment with the main process `pid` that are not in its process group."""
    family = [pid, *orphans]
    for parent in family:
        family += [process for process in children_of(parent) if process not in family]
    return [process for process in family if process != pid and _group_of(process) not in (pid, None)]


def _group_of(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


def _signal_group(pid: int, number: int) -> None:
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        pass  # the process has ended, or now runs as another user


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass
