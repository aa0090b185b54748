"""Simulates policies for keeping environments warm. The requests are given by their arrivals (times and durations).

The simulation follows the rules by which a running server manages a function's environments. A request gets the idle
environment that was used last; if none is idle, one is started. The class `Keeper` decides how long idle environments
are kept, and when to prewarm one: to start it before the next request is expected. The simulation differs from a server
in two points. It ignores the machine's limits, so each request gets an environment. And a request that has
caused a start waits for this start, even if another environment becomes free sooner.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from thawd.scheduling.keep_alive import Keeper, Policy


class Arrival(msgspec.Struct, frozen=True):
    """Arrival of a request.

    Attributes:
        at_s: time of arrival, seconds. If schedules are simulated, times are since the epoch; if not, they can be
            relative to any moment.
        duration_s: duration of the invocation in a warm environment, seconds.
    """

    at_s: float
    duration_s: float


class SimulationResult(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of a simulation.

    Attributes:
        invocations: number of invocations.
        starts: number of invocations that waited for the start of an environment.
        started_ahead: number of environments that were prewarmed.
        in_provisioned: number of invocations that provisioned environments served.
        idle_s: sum of the times in which environments were idle, without provisioned environments, seconds.
        busy_s: sum of the durations of all starts and invocations, seconds.
        most: highest number of environments at the same time, without idle provisioned ones.
        spent_s: simulated time, seconds: at least from the first arrival to the end of the last invocation.
    """

    invocations: int
    starts: int
    started_ahead: int
    in_provisioned: int
    idle_s: float
    busy_s: float
    most: int
    spent_s: float

    @property
    def start_share(self) -> float:
        """Share of the invocations that waited for a start."""
        return self.starts / self.invocations if self.invocations else 0.0

    @property
    def provisioned_share(self) -> float:
        """Share of the invocations that provisioned environments served."""
        return self.in_provisioned / self.invocations if self.invocations else 0.0


@dataclass(slots=True, eq=False)
class _IdleEnvironment:
    """An idle environment, with the time at which it became idle."""

    idle_since_s: float


@dataclass(slots=True)
class _Simulation:
    """State of a simulation.

    Attributes:
        keeper: decides how long environments are kept, and when one is prewarmed.
        start_s: by how much a start delays an invocation that waits for it, seconds.
        provisioned: returns the number of provisioned environments at a given time.
        now_s: time up to which everything has been simulated.
        idle: idle environments, the one that was used last at the end; without provisioned ones.
        running: for each running invocation its end, and whether a provisioned environment serves it; a heap, so the
            invocation that ends next is the first.
        provisioned_busy: number of provisioned environments that run an invocation.
        ahead_ready_s: time at which the prewarmed environment that is being started will be ready; None: there is none.
        prewarmed_at_s: time of the last prewarming, as `Keeper.prewarm_at_s` returned it, so that it is done once.
    """

    keeper: Keeper
    start_s: float
    provisioned: Callable[[float], int]
    now_s: float = -math.inf
    idle: deque[_IdleEnvironment] = field(default_factory=deque)
    running: list[tuple[float, bool]] = field(default_factory=list)
    provisioned_busy: int = 0
    ahead_ready_s: float | None = None
    prewarmed_at_s: float | None = None
    starts: int = 0
    started_ahead: int = 0
    in_provisioned: int = 0
    idle_s: float = 0.0
    busy_s: float = 0.0
    most: int = 0

    def advance(self, until_s: float) -> None:
        """Process everything that happens up to `until_s`, in order."""
        while True:
            free_s = self.running[0][0] if self.running else None
            moments = [at for at in (free_s, self._due_s(), self._prewarm_s(), self.ahead_ready_s) if at is not None]
            if not moments or min(moments) > until_s:
                return
            self.now_s = at_s = min(moments)
            if at_s == free_s:
                self._free()
            elif at_s == self.ahead_ready_s:
                self.ahead_ready_s = None
                self.idle.append(_IdleEnvironment(at_s))
            elif at_s == self._due_s():
                self._end_due(at_s)
            else:
                self._prewarm(at_s)

    def arrive(self, arrival: Arrival) -> None:
        """Process an arrival. `advance` must have processed everything that happens before it."""
        self.now_s = now_s = arrival.at_s
        self.keeper.asked(now_s)
        wait_s = 0.0
        provisioned = self.provisioned_busy < self.provisioned(now_s)
        if provisioned:
            self.provisioned_busy += 1
            self.in_provisioned += 1
        elif self.idle:
            self.idle_s += now_s - self.idle.pop().idle_since_s
        elif self.ahead_ready_s is not None:
            wait_s = self.ahead_ready_s - now_s  # the request waits for the environment that is being prewarmed
            self.ahead_ready_s = None
            self.starts += 1
        else:
            self.starts += 1
            wait_s = self.start_s
            self.busy_s += self.start_s
        self.busy_s += arrival.duration_s
        heapq.heappush(self.running, (now_s + wait_s + arrival.duration_s, provisioned))
        self.most = max(self.most, len(self.running) + len(self.idle))

    def finish(self, end_s: float) -> None:
        """Add the idle times of the remaining environments until the end of the simulated time."""
        for kept in self.idle:
            self.idle_s += max(0.0, end_s - kept.idle_since_s)

    def _free(self) -> None:
        now_s, provisioned = heapq.heappop(self.running)
        if provisioned:
            self.provisioned_busy -= 1
        else:
            self.idle.append(_IdleEnvironment(now_s))
        if not self.running:
            self.keeper.at_rest(now_s)

    def _due_s(self) -> float | None:
        """Return when the next idle environment is stopped; `now_s` if it should have been stopped earlier."""
        if not self.idle:
            return None
        first, last = self.idle[0], self.idle[-1]
        due_s = min(self.keeper.kept_until_s(one.idle_since_s, chosen=one is last) for one in (first, last))
        return max(due_s, self.now_s)

    def _end_due(self, now_s: float) -> None:
        kept_until_s = self.keeper.kept_until_s
        while len(self.idle) > 1 and kept_until_s(self.idle[0].idle_since_s, chosen=False) <= now_s:
            self.idle_s += now_s - self.idle.popleft().idle_since_s
        if kept_until_s(self.idle[-1].idle_since_s, chosen=True) <= now_s:
            self.idle_s += now_s - self.idle.pop().idle_since_s

    def _prewarm_s(self) -> float | None:
        at_s = self.keeper.prewarm_at_s()
        return None if at_s == self.prewarmed_at_s else at_s

    def _prewarm(self, now_s: float) -> None:
        self.prewarmed_at_s = self.keeper.prewarm_at_s()
        if not (self.idle or self.running or self.provisioned(now_s)):
            self.started_ahead += 1
            self.ahead_ready_s = now_s + self.start_s
            self.busy_s += self.start_s
            self.most = max(self.most, 1)


def simulate(
    arrivals: Sequence[Arrival],
    policy: Policy,
    *,
    surplus_s: float,
    start_s: float,
    provisioned: Callable[[float], int] = lambda _now: 0,
    span: tuple[float, float] | None = None,
) -> SimulationResult:
    """Simulate a policy.

    Args:
        arrivals: arrivals in the order of their times.
        policy: decides how long one environment of an idle function is kept. A policy learns from the arrivals, so use
            a new policy object for each simulation.
        surplus_s: how long the other idle environments are kept, seconds.
        start_s: by how much a start delays an invocation that waits for it, seconds.
        provisioned: returns the number of provisioned environments at a given time.
        span: beginning and end of the simulated time. It is extended if arrivals, or the end of the last invocation,
            are outside of it. None: from the first arrival to the end of the last invocation.
    """
    state = _Simulation(Keeper(policy, surplus_s=surplus_s), start_s, provisioned)
    for arrival in arrivals:
        state.advance(arrival.at_s)
        state.arrive(arrival)
    end_s = max((free_s for free_s, _ in state.running), default=0.0)
    begin_s = arrivals[0].at_s if arrivals else 0.0
    if span is not None:
        begin_s, end_s = min(begin_s, span[0]), max(end_s, span[1])
    while state.running:
        state.advance(state.running[0][0])
    state.advance(end_s)
    state.finish(end_s)
    return SimulationResult(
        invocations=len(arrivals),
        starts=state.starts,
        started_ahead=state.started_ahead,
        in_provisioned=state.in_provisioned,
        idle_s=state.idle_s,
        busy_s=state.busy_s,
        most=state.most,
        spent_s=max(0.0, end_s - begin_s),
    )
