"""How many invocations run at the same time: as many as the processor cores carry.

More handlers that compute than there are cores only slow each other down: each of them needs longer, more environments
are started, and the slowest answer is much slower than the median. So a request waits in line, for an environment that
is there already, while the cores are occupied. A handler that sleeps, for example while it waits for a network, does
not occupy a core and holds nobody up.

Loads are in millicores: 1000 is one core. A version's load is measured: the processor time of its process over the time
in which the process ran or slept; the time in which it waited for a core is left out, since it says nothing about the
version. While anybody waits, the load of what runs is measured again every `_LOOK_S` seconds.

Guarantees:
- a request is let in at once while the cores have room and nobody waits;
- otherwise versions take turns by the processor time that they have used, synchronous requests first; the requests of
  one version go in their order;
- a version of which nothing runs waits at most `PATIENCE_S` seconds for others: a long computation does not hold it up;
- a version whose load is unknown counts as one core for each invocation until the first one has been measured.

Where the system does not report processor time, and with ``server.admission = "all"``, every request is let in.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from thawd.environments.environment import Environment
from thawd.environments.version import Version

CORE = 1000
PATIENCE_S = 0.05
_LOOK_S = 0.005
_LOOK_SHARE = 0.05
# A version's first invocations are all measured, later ones one in so many.
_MEASURED_FIRST = 8
_MEASURED_ONE_IN = 8
_WEIGHT = 0.2
_UNKNOWN_NS = 1e6
# Time of an environment's lease in which the platform works: it hands over the request and fetches the answer.
_HANDING_OVER_NS = 300_000
_CAPACITY_S = 5.0
# A look that comes so soon after the last one says nothing.
_SHORTEST_NS = 4_000_000


class Candidate(Protocol):
    """A pool, as the cores see it."""

    version: Version

    def is_urgent(self) -> bool:
        """Whether a synchronous request waits: these go before asynchronous ones."""

    def wants_core(self) -> bool:
        """Whether a request waits for which no environment is starting."""

    def let_in(self) -> bool:
        """Begin the first waiting request or start an environment for it; False if the machine has no room for it."""


class Usage(NamedTuple):
    """What a process has used so far, nanoseconds.

    Attributes:
        at_ns: when this was read, by the monotonic clock.
        ran_ns: processor time of all its threads.
        waited_ns: time in which its first thread waited for a core; other threads wait about as long.
    """

    at_ns: int
    ran_ns: int
    waited_ns: int

    @classmethod
    def of(cls, pid: int) -> Usage:
        """The usage of the process `pid`.

        Raises:
            OSError: there is no such process, or the system does not report this.
            ValueError: the system reports something else.

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
        """Processor time since `before`, and the time since then in which it waited for a core; nanoseconds."""
        return self.ran_ns - before.ran_ns, self.waited_ns - before.waited_ns


def usage_of(environment: Environment) -> Usage | None:
    """The usage of the environment's process; None if it has ended, or nothing is known of it."""
    child = environment.child
    if child is None:
        return None
    try:
        return Usage.of(child.pid)
    except (OSError, ValueError):
        return None


class Share:
    """What a version has used, and what one invocation of it is expected to use.

    Attributes:
        load: of one invocation, millicores; None until one was measured.
        guess: of an invocation that still runs, millicores; None until one was looked at. Stands in for `load`.
        running: number of invocations that run and environments that start.
        turn: processor time used, on the scale by which versions take turns, nanoseconds.
    """

    __slots__ = ("_open_ns", "_ran_ns", "_seen", "guess", "load", "running", "turn")

    def __init__(self) -> None:
        self.load: int | None = None
        self.guess: int | None = None
        self.running = 0
        self.turn = 0.0
        self._seen = 0
        self._ran_ns = 0.0
        self._open_ns = 0.0

    @property
    def expected_load(self) -> int:
        """Load of the next invocation, millicores."""
        if self.load is not None:
            return self.load
        return CORE if self.guess is None else self.guess

    @property
    def expected_ns(self) -> float:
        """Processor time of the next invocation, nanoseconds."""
        return _UNKNOWN_NS if self.load is None else self._ran_ns

    def is_measured_next(self) -> bool:
        """Whether the invocation that begins is to be measured."""
        self._seen += 1
        return self._seen <= _MEASURED_FIRST or self._seen % _MEASURED_ONE_IN == 0

    def measured(self, ran_ns: int, took_ns: int, *, most: int) -> None:
        """Take in a measurement.

        Args:
            ran_ns: processor time of one invocation.
            took_ns: its duration in the process, without the time in which it waited for a core.
            most: upper limit of `load`, millicores.
        """
        weight = 1.0 if self.load is None else _WEIGHT
        self._ran_ns += weight * (ran_ns - self._ran_ns)
        open_ns = max(took_ns, ran_ns * CORE // most) + _HANDING_OVER_NS
        self._open_ns += weight * (open_ns - self._open_ns)
        self.load = min(most, round(CORE * self._ran_ns / self._open_ns))


class _Charge:
    """An invocation that runs or an environment that starts, and the load that it counts for.

    Attributes:
        environment: in which it runs, or which starts; None while the start has no process.
        runs: whether it is an invocation.
        before: usage when the invocation began; None: it is not measured.
        seen: usage when it was last looked at.
    """

    __slots__ = ("before", "environment", "load", "runs", "seen", "share")

    def __init__(self, share: Share, environment: Environment | None, load: int) -> None:
        self.share = share
        self.environment = environment
        self.load = load
        self.runs = environment is not None
        self.before: Usage | None = None
        self.seen: Usage | None = None


class _Place:
    """A place in the line."""

    __slots__ = ("entry", "share", "since_s")

    def __init__(self, share: Share) -> None:
        self.share = share
        self.since_s = time.monotonic()
        self.entry: _Entry | None = None


_Entry = tuple[bool, float, int, Candidate]
"""Order in the line: not urgent, turn, number of the entry; whose it is."""


class Cores:
    """Lets requests in as far as the cores carry them.

    Args:
        find_capacity: returns the cores for environments, millicores; None: every request is let in.
        read_usage: returns what the process of an environment has used; None if it has ended, or nothing is known.

    Attributes:
        load: of what runs and starts now, millicores.
    """

    def __init__(
        self,
        find_capacity: Callable[[], int] | None = None,
        *,
        read_usage: Callable[[Environment], Usage | None] = usage_of,
    ) -> None:
        self.load = 0
        self._find_capacity = find_capacity
        self._usage = read_usage
        self._capacity = 0
        self._found_at_s = -_CAPACITY_S
        self._charges: dict[Environment, _Charge] = {}
        self._starts: dict[int, list[_Charge]] = {}  # by the identity of the version
        self._line: list[_Entry] = []  # a heap; entries that are not the current one of their place do not count
        self._places: dict[Candidate, _Place] = {}
        self._numbers = itertools.count()
        self._turn = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._offering = False

    @property
    def waiting(self) -> int:
        """Number of versions with requests in line."""
        return len(self._places)

    def passes(self, share: Share) -> bool:
        """Whether a request may begin now without waiting in line; counts it among the version's turns if so."""
        if self._find_capacity is None:
            return True
        if self._places or not self._carry(share):
            return False
        self._turn = max(self._turn, share.turn)
        share.turn = self._turn + share.expected_ns
        return True

    def queue(self, candidate: Candidate, share: Share) -> None:
        """A request of `candidate` waits: `let_in` is called when it is its turn, perhaps at once."""
        place = self._places.get(candidate)
        if place is None:
            share.turn = max(share.turn, self._turn)
            place = self._places[candidate] = _Place(share)
            self._push(candidate, place)
        elif place.entry is not None and place.entry[0] and candidate.is_urgent():
            self._push(candidate, place)
        self._offer()

    def holds(self, candidate: Candidate) -> bool:
        """Whether a request of `candidate` waits for a core."""
        return candidate in self._places

    def leave(self, candidate: Candidate) -> None:
        """Nothing of `candidate` waits any more."""
        self._places.pop(candidate, None)

    def began(self, share: Share, environment: Environment) -> None:
        """An invocation begins in `environment`."""
        if self._find_capacity is None:
            return
        share.running += 1
        charge = self._charges[environment] = _Charge(share, environment, share.expected_load)
        self.load += charge.load
        if share.is_measured_next():
            charge.before = charge.seen = self._usage(environment)

    def ended(self, environment: Environment) -> None:
        """The invocation in `environment` has ended, or the environment has; does nothing if none ran in it."""
        charge = self._charges.pop(environment, None)
        if charge is None:
            return
        charge.share.running -= 1
        self.load -= charge.load
        if charge.before is not None and not environment.dying:
            after = self._usage(environment)
            if after is not None:
                ran_ns, waited_ns = after.since(charge.before)
                took_ns = max(0, round(environment.duration_ms * 1e6) - waited_ns)
                charge.share.measured(ran_ns, took_ns, most=self.capacity())
        self._offer_soon()

    def start_began(self, share: Share, version: Version) -> None:
        """An environment is going to be started."""
        if self._find_capacity is None:
            return
        share.running += 1
        charge = _Charge(share, None, max(CORE, share.expected_load))
        self._starts.setdefault(id(version), []).append(charge)
        self.load += charge.load

    def spawned(self, environment: Environment) -> None:
        """The process of an environment that starts has been spawned; from now on its load is measured."""
        for charge in self._starts.get(id(environment.version), ()):
            if charge.environment is None:
                charge.environment = environment
                return

    def start_ended(self, version: Version, environment: Environment | None) -> None:
        """A start has ended, with `environment` or without one."""
        charges = self._starts.get(id(version))
        if not charges:
            return
        charge = next((each for each in charges if each.environment is environment), charges[0])
        charges.remove(charge)
        if not charges:
            del self._starts[id(version)]
        charge.share.running -= 1
        self.load -= charge.load
        self._offer_soon()

    def capacity(self) -> int:
        """The cores for environments, millicores; looked up every few seconds, since limits can change."""
        assert self._find_capacity is not None
        now_s = time.monotonic()
        if now_s - self._found_at_s >= _CAPACITY_S:
            self._found_at_s = now_s
            self._capacity = self._find_capacity()
        return self._capacity

    def describe(self) -> dict[str, Any]:
        """For the status document: the mode, the cores for environments, their load, and how many versions wait."""
        if self._find_capacity is None:
            return {"mode": "all"}
        return {
            "mode": "cores",
            "cores": self.capacity() / CORE,
            "load": round(self.load / CORE, 3),
            "waiting": len(self._places),
        }

    def _push(self, candidate: Candidate, place: _Place) -> None:
        place.entry = (not candidate.is_urgent(), place.share.turn, next(self._numbers), candidate)
        heapq.heappush(self._line, place.entry)

    def _offer_soon(self) -> None:
        if self._places and not self._offering:
            self._offering = True
            asyncio.get_running_loop().call_soon(self._offer)

    def _offer(self) -> None:
        """Let in what the cores carry, in turn; look again soon if somebody still waits."""
        self._offering = False
        while self._line:
            _, turn, _, candidate = entry = self._line[0]
            place = self._places.get(candidate)
            if place is not None and place.entry is entry:
                if not self._carry(place.share):
                    break
                heapq.heappop(self._line)
                self._turn = max(self._turn, turn)
                self._let_in(candidate, place)
            else:
                heapq.heappop(self._line)
        if self._places:
            self._look_soon(_LOOK_S)

    def _let_in(self, candidate: Candidate, place: _Place) -> None:
        """Begin one request of `candidate`, which then goes behind others with the same right."""
        if candidate.wants_core() and candidate.let_in():
            place.share.turn = max(place.share.turn, self._turn) + place.share.expected_ns
            if candidate.wants_core():
                place.since_s = time.monotonic()
                self._push(candidate, place)
                return
        self._places.pop(candidate, None)

    def _carry(self, share: Share) -> bool:
        """Whether the cores carry one more invocation: whether at least half of its load is free."""
        return self._find_capacity is None or self.load + share.expected_load // 2 <= self.capacity()

    def _look_soon(self, wait_s: float) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._look)

    def _look(self) -> None:
        """Measure what runs, and let in what there is room for now; repeated while somebody waits."""
        self._timer = None
        if not self._places:
            return
        begun_s = time.monotonic()
        for charge in itertools.chain(self._charges.values(), *self._starts.values()):
            self._measure(charge)
        for candidate, place in list(self._places.items()):
            if not place.share.running and place.since_s <= begun_s - PATIENCE_S:
                self._let_in(candidate, place)
        self._offer()
        if self._places:
            self._look_soon(max(_LOOK_S, (time.monotonic() - begun_s) / _LOOK_SHARE))

    def _measure(self, charge: _Charge) -> None:
        """Correct the load that `charge` counts for to what its process has used since the last look."""
        if charge.environment is None:
            return
        now = self._usage(charge.environment)
        if now is None:
            return
        if charge.seen is not None:
            ran_ns, waited_ns = now.since(charge.seen)
            open_ns = now.at_ns - charge.seen.at_ns - waited_ns
            if open_ns < _SHORTEST_NS:
                return  # it has waited for a core all the time
            load = min(self.capacity(), CORE * ran_ns // open_ns)
            self.load += load - charge.load
            charge.load = load
            if charge.runs:
                charge.share.guess = load
        charge.seen = now


def processor_cores(*, own: Path = Path("/proc/self/cgroup"), groups: Path = Path("/sys/fs/cgroup")) -> int:
    """The cores that environments may use, millicores: those of this process, or its cgroup's limit if that is less.

    Args:
        own: file that names the control group of this process.
        groups: folder of the control groups.

    Source: Linux kernel documentation, "Control Group v2", cpu.max of a group and of those above it.
    """
    found = CORE * len(os.sched_getaffinity(0))
    with contextlib.suppress(OSError, StopIteration):
        name = next(line for line in own.read_text().splitlines() if line.startswith("0::"))
        group = groups / name.removeprefix("0::").strip("/")
        while group != groups.parent:
            with contextlib.suppress(OSError, ValueError):
                quota, period = (group / "cpu.max").read_text().split()
                found = min(found, CORE * int(quota) // int(period))
            group = group.parent
    return max(CORE // 10, found)


def can_measure() -> bool:
    """Whether this system reports the processor time of other processes."""
    try:
        Usage.of(os.getpid())
    except (OSError, ValueError):
        return False
    return hasattr(os, "sched_getaffinity")
