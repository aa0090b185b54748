"""Admission: lets only as many invocations run at a time as the processor cores can carry; other requests wait in line.

If more handlers compute than there are cores, all of them become slower. Requests that arrive in the meantime then need
additional environments, and the slowest answers take much longer than the median. So while the cores are occupied, a
request waits, and no environment is started for it. A handler that sleeps, for example because it waits for the
network, occupies no core.

Loads are in millicores; 1000 is one core. The load of a version is the part of a core that one of its invocations uses.
It is measured: the processor time of the environment's process during an invocation, divided by the time in which the
process ran or slept. The time in which the process waited for a core is left out, because it depends on the other
processes. While requests wait, the load of everything that runs is measured again every `_LOOK_S` seconds, or less
often if measuring would take more than a twentieth of the time.

Guarantees:
- a request begins immediately if no other request waits and at least half of its expected load is free on the cores;
- otherwise the versions take turns: next is the one that has used the least processor time, and versions with a
  synchronous request come before the others. The requests of one version begin in order, synchronous ones first;
- if a version has no invocation that runs and no environment that starts, its first request waits for the other
  versions about `PATIENCE_S` seconds at most, however long their invocations take;
- until the load of a version is measured for the first time, each of its invocations counts as one core.

With ``server.admission = "all"``, and on systems that do not report the processor time of other processes, this module
delays no request.
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
from typing import Any, Protocol

from thawd.environments.environment import Environment
from thawd.environments.processor_time import Usage, runs_or_waits, usage_of
from thawd.environments.version import Version

CORE = 1000
PATIENCE_S = 0.05
_LOOK_S = 0.005
_LOOK_SHARE = 0.05
# The first `_MEASURED_FIRST` invocations of a version are all measured; later ones if none began to be measured in the
# last `_MEASURED_EVERY_S` seconds.
_MEASURED_FIRST = 8
_MEASURED_EVERY_S = 0.02
# From this load on, millicores, an environment is taken to compute without a pause.
_SATURATED = 700
# Weight of a new measurement in the averages.
_WEIGHT = 0.2
# Processor time that is expected of an invocation whose version is not measured yet.
_UNKNOWN_NS = 1e6
# While the platform sends the event and reads the answer, the environment's process uses no core. To account for that,
# this much time is added to the measured duration of each invocation.
_HANDING_OVER_NS = 300_000
_CAPACITY_S = 5.0
# A load is computed from two readings only if the process ran or slept at least this long between them. Over a shorter
# time, the load would be too inexact.
_SHORTEST_NS = 4_000_000


class Candidate(Protocol):
    """A version that may have waiting requests. These are the methods of its pool that `Cores` calls."""

    version: Version

    def is_urgent(self) -> bool:
        """Return whether a synchronous request waits. Synchronous requests begin before asynchronous ones."""

    def wants_core(self) -> bool:
        """Return whether a waiting request could begin in an idle environment, or needs a new environment."""

    def let_in(self) -> bool:
        """Begin the first waiting request, or start an environment for it.

        Returns:
            False if neither was possible, for example because the machine has no room for one more environment.
        """


class Share:
    """The processor time that a version has used, and what its next invocation is expected to use.

    Attributes:
        load: measured load of one invocation, millicores; None until an invocation was measured.
        guess: load of an invocation that still runs, millicores. Used while `load` is None.
        running: number of invocations that run and of environments that start.
        turn: the version's position among the versions in line: the version with the lowest value is next. The value
            grows by the expected processor time of each invocation that begins, nanoseconds.
    """

    __slots__ = ("_measured_s", "_open_ns", "_ran_ns", "_seen", "guess", "load", "running", "turn")

    def __init__(self) -> None:
        self.load: int | None = None
        self.guess: int | None = None
        self.running = 0
        self.turn = 0.0
        self._seen = 0
        self._measured_s = 0.0
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
        """Return whether to measure the invocation that begins."""
        now_s = time.monotonic()
        if self._seen >= _MEASURED_FIRST and now_s - self._measured_s < _MEASURED_EVERY_S:
            return False
        self._seen += 1
        self._measured_s = now_s
        return True

    def measured(self, ran_ns: int, took_ns: int, *, most: int) -> None:
        """Update the averages with a measurement.

        Args:
            ran_ns: processor time of one invocation.
            took_ns: how long the invocation took in the process, without the time in which the process waited for a
                core.
            most: upper limit of `load`, millicores.
        """
        weight = 1.0 if self.load is None else _WEIGHT
        self._ran_ns += weight * (ran_ns - self._ran_ns)
        open_ns = max(took_ns, ran_ns * CORE // most) + _HANDING_OVER_NS
        self._open_ns += weight * (open_ns - self._open_ns)
        self.load = min(most, round(CORE * self._ran_ns / self._open_ns))


class _Charge:
    """The load that is counted for an invocation that runs or for an environment that starts.

    Attributes:
        environment: the environment; None while the start has no process yet.
        runs: true for an invocation, false for a start.
        before: processor time that the process had used when the invocation began; None: this is not measured.
        seen: processor time that the process had used when `Cores` last measured it while requests waited.
        measured: whether `load` was measured since the invocation began.
    """

    __slots__ = ("before", "environment", "load", "measured", "runs", "seen", "share")

    def __init__(self, share: Share, environment: Environment | None, load: int) -> None:
        self.share = share
        self.environment = environment
        self.load = load
        self.runs = environment is not None
        self.before: Usage | None = None
        self.seen: Usage | None = None
        self.measured = False


class _Place:
    """The place of a version in the line.

    Attributes:
        since_s: when the version got this place, ``time.monotonic()`` seconds. The version's first request has waited
            since then.
        entry: the version's current entry in the heap.
    """

    __slots__ = ("entry", "share", "since_s")

    def __init__(self, share: Share) -> None:
        self.share = share
        self.since_s = time.monotonic()
        self.entry: _Entry | None = None


_Entry = tuple[bool, float, int, Candidate]
"""Entry of a version in the heap: three sort keys (has no synchronous request, turn, number of the entry), then the
candidate."""


class Cores:
    """Decides when requests may begin.

    Args:
        find_capacity: returns the number of cores for environments, millicores; None: every request begins immediately.
        read_usage: returns how long an environment's process has run and has waited for a core; None if that cannot be
            measured.
        is_runnable: returns whether a thread of an environment's process runs or waits for a core.

    Attributes:
        load: load of everything that runs or starts now, millicores.
    """

    def __init__(
        self,
        find_capacity: Callable[[], int] | None = None,
        *,
        read_usage: Callable[[Environment], Usage | None] = usage_of,
        is_runnable: Callable[[Environment], bool] = runs_or_waits,
    ) -> None:
        self.load = 0
        self._find_capacity = find_capacity
        self._usage = read_usage
        self._is_runnable = is_runnable
        self._capacity = 0
        self._found_at_s = -_CAPACITY_S
        self._charges: dict[Environment, _Charge] = {}
        self._starts: dict[int, list[_Charge]] = {}  # by the id() of the version
        self._line: list[_Entry] = []  # a heap; an entry that is not the `entry` of its candidate's place is outdated
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
        """Return whether a request of the version with this share may begin immediately.

        If so, the request's expected processor time is added to the version's `Share.turn`.
        """
        if self._find_capacity is None:
            return True
        if self._places or not self._carry(share):
            return False
        self._turn = max(self._turn, share.turn)
        share.turn = self._turn + share.expected_ns
        return True

    def queue(self, candidate: Candidate, share: Share) -> None:
        """Put `candidate` in line because one of its requests waits.

        When the candidate's turn comes, its method `let_in` is called.
        """
        place = self._places.get(candidate)
        if place is None:
            share.turn = max(share.turn, self._turn)
            place = self._places[candidate] = _Place(share)
            self._push(candidate, place)
        elif place.entry is not None and place.entry[0] and candidate.is_urgent():
            self._push(candidate, place)
        elif not self._offering:
            # The cores could not carry the first version in line, and nothing has ended since then.
            return
        self._offer()

    def holds(self, candidate: Candidate) -> bool:
        """Return whether `candidate` is in line."""
        return candidate in self._places

    def is_alone(self, candidate: Candidate) -> bool:
        """Return whether no other version than that of `candidate` is in line."""
        return not self._places or (len(self._places) == 1 and candidate in self._places)

    def is_saturated(self, environment: Environment) -> bool:
        """Return whether the environment's process has used most of a core in the last moments.

        A process that runs several invocations on one event loop can use one core. It is measured at most every
        `_MEASURED_EVERY_S` seconds.
        """
        charge = self._charges.get(environment)
        if charge is None:
            return False
        if charge.seen is None or time.monotonic_ns() - charge.seen.at_ns >= _MEASURED_EVERY_S * 1e9:
            self._measure(charge)
        return charge.measured and charge.load >= _SATURATED

    def carries_start(self) -> bool:
        """Return whether no version is in line and the cores carry one more environment that computes."""
        return not self._places and self.load + CORE // 2 <= self.capacity()

    def leave(self, candidate: Candidate) -> None:
        """Remove `candidate` from the line."""
        self._places.pop(candidate, None)

    def began(self, share: Share, environment: Environment) -> None:
        """Count an invocation that begins in `environment`."""
        if self._find_capacity is None:
            return
        share.running += 1
        charge = self._charges[environment] = _Charge(share, environment, share.expected_load)
        self.load += charge.load
        if share.is_measured_next():
            charge.before = charge.seen = self._usage(environment)

    def ended(self, environment: Environment) -> None:
        """Count the end of the invocation in `environment`, if one ran there."""
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
        """Count the start of an environment."""
        if self._find_capacity is None:
            return
        share.running += 1
        charge = _Charge(share, None, max(CORE, share.expected_load))
        self._starts.setdefault(id(version), []).append(charge)
        self.load += charge.load

    def spawned(self, environment: Environment) -> None:
        """Measure the load of a start from now on, because the environment's process exists."""
        for charge in self._starts.get(id(environment.version), ()):
            if charge.environment is None:
                charge.environment = environment
                return

    def start_ended(self, version: Version, environment: Environment | None) -> None:
        """Count the end of a start. `environment` is None if the start failed."""
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
        """Return the number of cores for environments, millicores.

        Read again every few seconds, because limits can change.
        """
        assert self._find_capacity is not None
        now_s = time.monotonic()
        if now_s - self._found_at_s >= _CAPACITY_S:
            self._found_at_s = now_s
            self._capacity = self._find_capacity()
        return self._capacity

    def describe(self) -> dict[str, Any]:
        """Return the entry in the status document: mode, cores for environments, their load, versions in line."""
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
            asyncio.get_running_loop().call_soon(self._offer_unless_done)

    def _offer_unless_done(self) -> None:
        if self._offering:  # nothing else has called `_offer` meanwhile
            self._offer()

    def _offer(self) -> None:
        """Let requests begin in the order of the line, while the cores can carry them.

        If requests still wait then, schedule the next `_look`.
        """
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
        """Let one request of `candidate` begin. If more of its requests wait, `candidate` gets a new place in line."""
        if candidate.wants_core() and candidate.let_in():
            place.share.turn = max(place.share.turn, self._turn) + place.share.expected_ns
            if candidate.wants_core():
                place.since_s = time.monotonic()
                self._push(candidate, place)
                return
        self._places.pop(candidate, None)

    def _carry(self, share: Share) -> bool:
        """Return whether the cores carry one more invocation: at least half of its load must be free."""
        if self._find_capacity is None:
            return True
        load = share.expected_load if share.load is None else share.load
        return self.load + load // 2 <= self.capacity()

    def _look_soon(self, wait_s: float) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._look)

    def _look(self) -> None:
        """Measure everything that runs or starts, and let waiting requests begin if the new loads leave cores free.

        Also let in the first request of each version that has nothing running and has waited `PATIENCE_S` seconds. This
        is repeated while requests wait.
        """
        self._timer = None
        if not self._places:
            return
        begun_s = time.monotonic()
        for charge in itertools.chain(self._charges.values(), *self._starts.values()):
            self._measure(charge)
        for candidate, place in list(self._places.items()):
            if not place.share.running and place.since_s <= begun_s - PATIENCE_S:
                self._let_in(candidate, place)
        if self._places:
            self._look_soon(max(_LOOK_S, (time.monotonic() - begun_s) / _LOOK_SHARE))
        self._offer()

    def _measure(self, charge: _Charge) -> None:
        """Replace the load counted for `charge` by the load of its process since the last measurement."""
        if charge.environment is None:
            return
        if charge.seen is not None and time.monotonic_ns() - charge.seen.at_ns < _SHORTEST_NS:
            return
        now = self._usage(charge.environment)
        if now is None:
            return
        if charge.seen is not None:
            ran_ns, waited_ns = now.since(charge.seen)
            open_ns = now.at_ns - charge.seen.at_ns - waited_ns
            if open_ns < _SHORTEST_NS:
                return  # the readings are too close together, or the process waited for a core most of the time
            load = min(self.capacity(), CORE * ran_ns // open_ns)
            if load < charge.load // 2 and self._is_runnable(charge.environment):
                # The process may be waiting for a core. The kernel counts a wait only once it has ended, so until then
                # the wait looks like sleep, and this load is too low.
                return
            self.load += load - charge.load
            charge.load = load
            charge.measured = True
            if charge.runs:
                charge.share.guess = load
        charge.seen = now


def processor_cores(*, own: Path = Path("/proc/self/cgroup"), groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the number of cores that environments may use, millicores, at least a tenth of a core.

    It is the lowest of these: the number of cores in the CPU affinity of this process, and the processor limits of its
    control group and of the groups above that one.

    Args:
        own: file that names the control group of this process.
        groups: folder of the control groups.

    Source: Linux kernel documentation, "Control Group v2", cpu.max.
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
