"""All machines of a cluster, as each describes itself, kept for whoever looks at them.

Nobody waits long for a machine that does not answer: `Overview.machines` waits a moment, and then returns what is
known. Machines are asked only while somebody looks, at most once a second each, and a few at a time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from thawd.errors import ThawdError
from thawd.system.retry import is_set_within

_ASK_AGAIN_S = 1.0
_FRESH_S = 5.0
PAGE_PATIENCE_S = 0.3
_MOST_AT_ONCE = 16


class State(StrEnum):
    """What a machine does."""

    SERVING = "serving"
    DRAINING = "draining"
    DRAINED = "drained"
    CUT_OFF = "cut off"
    SILENT = "no answer"
    GONE = "gone"


class MachineReport(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A machine as it describes itself. Machines with other versions of thawd may send fewer fields, or more.

    Attributes:
        state: a `State`.
        why: why it does not serve; empty: it serves.
        leads: whether it is the leader.
        version: version of thawd.
        url: URL of its port for requests.
        cores: processor cores for functions; 0: they are not limited.
        cores_used: cores that functions use at this moment.
        memory_mb: memory for environments, MiB.
        memory_used_mb: sum of the memory limits of its environments, MiB.
        environments: environments that are ready, by start kind.
        busy: how many of them run an invocation.
        starting: environments that start.
        free_environments: environments that could start in addition; idle ones count, because they can be ended.
        max_environments: highest number of environments.
        pledged: environments that the reserved and provisioned concurrency of all functions needs in the whole cluster.
        pledged_mb: sum of the memory limits of these, MiB.
        waiting: requests that wait for an environment.
        queued: events that wait to run.
        oldest_age_s: age of the oldest of these, seconds; None: no event waits.
        dead: dead letters.
        errors: invocations of the last `minutes` that ended in a function error; None: none are recorded.
        refused: requests of the last `minutes` that a limit refused; None: none are recorded.
        minutes: see `errors`.
    """

    state: str
    why: str = ""
    leads: bool = False
    version: str = ""
    url: str = ""
    cores: float = 0.0
    cores_used: float = 0.0
    memory_mb: int = 0
    memory_used_mb: int = 0
    environments: dict[str, int] = {}
    busy: int = 0
    starting: int = 0
    free_environments: int = 0
    max_environments: int = 0
    pledged: int = 0
    pledged_mb: int = 0
    waiting: int = 0
    queued: int = 0
    oldest_age_s: float | None = None
    dead: int = 0
    errors: int | None = None
    refused: int | None = None
    minutes: int = 15


class SeenMachine(msgspec.Struct, kw_only=True):
    """A machine as this one sees it.

    Attributes:
        name: its name.
        address: host and port at which it accepts connections of other machines.
        is_own: whether it is this machine.
        state: a `State`.
        why: why it does not serve, or why nothing is known about it; empty: it serves.
        report: its last report; None: there is none, or it is too old.
    """

    name: str
    address: str
    is_own: bool
    state: str
    why: str
    report: MachineReport | None


@dataclass(frozen=True, slots=True)
class Known:
    """A machine that belongs to the cluster, or did until a while ago.

    Attributes:
        address: host and port at which it accepts connections of other machines.
        is_alive: whether it belongs to the cluster and has sent a summary within the last seconds.
    """

    address: str
    is_alive: bool


@dataclass(slots=True)
class _Entry:
    report: MachineReport | None = None
    reported_s: float = 0.0
    failure: str = ""
    asked_s: float | None = None
    is_asking: bool = False


def _is_expected(entry: _Entry) -> bool:
    """Whether an answer is worth waiting for."""
    is_old = entry.asked_s is None or time.monotonic() - entry.asked_s > _FRESH_S
    return entry.is_asking and (is_old or not entry.failure)


class Overview:
    """Keeps the last report of each machine.

    Args:
        own: name of this machine.
        known: returns the machines that belong to the cluster, this one included.
        ask: asks a machine for its report; raises ThawdError if there is none. It needs a time limit of its own.
        spawn_task: runs a coroutine in the background.
    """

    def __init__(
        self,
        own: str,
        *,
        known: Callable[[], Mapping[str, Known]],
        ask: Callable[[str], Awaitable[bytes]],
        spawn_task: Callable[[Coroutine[None, None, None]], object],
    ) -> None:
        self._own = own
        self._known = known
        self._ask = ask
        self._spawn_task = spawn_task
        self._entries: dict[str, _Entry] = {}
        self._at_once = asyncio.Semaphore(_MOST_AT_ONCE)
        self._answered = asyncio.Event()

    async def machines(self, patience_s: float = PAGE_PATIENCE_S) -> list[SeenMachine]:
        """Return all machines, in the order of their names.

        Args:
            patience_s: how long to wait for answers at most, seconds. Nobody waits for a machine that has not answered
                a moment ago.
        """
        known = self._known()
        for name in [name for name in self._entries if name not in known]:
            del self._entries[name]
        now_s = time.monotonic()
        for name in known:
            entry = self._entries.setdefault(name, _Entry())
            if not entry.is_asking and (entry.asked_s is None or now_s - entry.asked_s >= _ASK_AGAIN_S):
                entry.is_asking = True
                self._spawn_task(self._refresh(name, entry))
        until_s = now_s + patience_s
        while any(map(_is_expected, self._entries.values())) and time.monotonic() < until_s:
            answered = self._answered
            await is_set_within(answered, until_s - time.monotonic())
        return [self._seen(name, machine) for name, machine in sorted(known.items())]

    async def _refresh(self, name: str, entry: _Entry) -> None:
        try:
            async with self._at_once:
                entry.report = msgspec.json.decode(await self._ask(name), type=MachineReport)
            entry.reported_s, entry.failure = time.monotonic(), ""
        except msgspec.DecodeError:
            entry.failure = "its answer cannot be read; it may have another version of thawd"
        except ThawdError as error:
            entry.failure = error.message
        finally:
            entry.asked_s, entry.is_asking = time.monotonic(), False
            self._answered.set()
            self._answered = asyncio.Event()

    def _seen(self, name: str, known: Known) -> SeenMachine:
        entry = self._entries.get(name, _Entry())
        report = entry.report
        if report is not None and (entry.failure or time.monotonic() - entry.reported_s > _FRESH_S):
            report = None
        if report is not None:
            state, why = report.state, report.why
        else:
            state = State.SILENT if known.is_alive or not entry.failure or self._is_cut_off() else State.GONE
            why = entry.failure or "it has not answered yet"
        return SeenMachine(
            name=name, address=known.address, is_own=name == self._own, state=state, why=why, report=report
        )

    def _is_cut_off(self) -> bool:
        """Whether this machine is no member at this moment, so that others do not talk with it."""
        own = self._entries.get(self._own)
        return own is not None and own.report is not None and own.report.state in (State.CUT_OFF, State.DRAINED)
