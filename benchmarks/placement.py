"""A simulation of placement: the real code of `thawd.cluster.placement`, with simulated machines and a simulated clock.

    python -m benchmarks.placement [--machines 1000] [--functions 10000] [--requests 1000000]

The load has the shape of a day of the Azure Functions trace of 2019 (Shahrad et al., "Serverless in the Wild", USENIX
ATC 2020): 1 % of the functions get 90 % of the requests, half of the functions get at most one an hour, and the rate
rises and falls during the day. Everything is simulated but the decisions: no process runs, and no byte is copied.

Each request enters at a random machine. Summaries of machines are as old as `REFRESH_S` when they are used. A start on
a machine that does not have the function's snapshot moves the snapshot to it. Requests run `--longer` times as long as
in the trace, so that with fewer requests as many of them run at a time. Times of decisions are processor time.
"""

from __future__ import annotations

import argparse
import bisect
import hashlib
import heapq
import json
import math
import random
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from thawd.cluster.machine_index import MachineIndex, Summary
from thawd.cluster.placement import Demand, Placement, Strategy

DAY_S = 86_400.0
REFRESH_S = 0.1
KEEP_ALIVE_S = 300.0
_ENVIRONMENTS = 32
_MEMORY_MB = 16_384
_DISK_BYTES = 40 << 30
_POINTS = 100

Place = tuple[int, bool]
"""A machine, and whether the strategy expects an idle environment there."""


@dataclass(slots=True)
class SimulatedFunction:
    """A function: what it needs, and how often it is invoked relative to the others."""

    name: str
    memory_mb: int
    image_bytes: int
    weight: float
    mean_s: float
    demand: Demand


@dataclass(slots=True)
class Host:
    """A simulated machine."""

    name: str
    idle: dict[str, list[float]] = field(default_factory=dict)  # by function, since when each environment is idle
    images: OrderedDict[str, int] = field(default_factory=OrderedDict)  # least recently used first
    image_bytes: int = 0
    environments: int = 0
    memory_mb: int = 0
    busy: int = 0
    idle_mb: int = 0
    idle_count: int = 0
    changed: bool = False


@dataclass(slots=True)
class Outcome:
    """What a strategy led to."""

    requests: int = 0
    warm: int = 0
    moved_bytes: int = 0
    waited: int = 0
    imbalance: list[float] = field(default_factory=list)
    deciding_s: list[float] = field(default_factory=list)


def functions_of(count: int, source: random.Random) -> list[SimulatedFunction]:
    """Functions with the trace's shares of requests, memory limits and durations."""
    hot, rare = max(1, count // 100), count // 2
    weights = [0.9 * share for share in _zipf(hot)]
    middle = count - hot - rare
    weights += [0.0985 * share for share in _zipf(middle)]
    weights += [0.0015 / rare * source.uniform(0.2, 1.8) for _ in range(rare)]
    return [
        SimulatedFunction(
            f"f{number}",
            memory := source.choice([128, 128, 256, 512, 1024]),
            min(4 << 30, int(source.lognormvariate(math.log(150 << 20), 1.0))),
            weight,
            min(60.0, source.lognormvariate(math.log(0.7), 1.2)),
            Demand(f"f{number}", memory),
        )
        for number, weight in enumerate(weights)
    ]


def _zipf(count: int) -> list[float]:
    weights = [1 / rank for rank in range(1, count + 1)]
    return [weight / sum(weights) for weight in weights]


def requests_of(
    functions: list[SimulatedFunction], count: int, source: random.Random, *, longer: float
) -> Iterator[tuple[float, SimulatedFunction, float]]:
    """Yield about `count` requests of a day in order: when, for which function, and for how long each runs."""
    sums, total = [], 0.0
    for function in functions:
        total += function.weight
        sums.append(total)
    now_s = 0.0
    while True:
        rate = count / DAY_S * (1 + 0.5 * math.sin(2 * math.pi * now_s / DAY_S))
        now_s += source.expovariate(rate)
        if now_s >= DAY_S:
            return
        function = functions[bisect.bisect(sums, source.random() * total)]
        yield now_s, function, min(900.0, longer * source.expovariate(1 / function.mean_s))


class Fleet:
    """The simulated machines."""

    def __init__(self, count: int) -> None:
        self.hosts = [Host(f"h{number}") for number in range(count)]
        self._names = {host.name: number for number, host in enumerate(self.hosts)}
        self._ends: list[tuple[float, int, str, int]] = []
        self._expiries: list[tuple[float, int, str, int]] = []
        self.changed: set[int] = set()
        self.running = 0

    def number(self, name: str) -> int:
        """The number of the machine `name`."""
        return self._names[name]

    def advance(self, now_s: float) -> None:
        """End the requests and the idle environments whose time has come."""
        while self._ends and self._ends[0][0] <= now_s:
            at, number, function, memory_mb = heapq.heappop(self._ends)
            host = self.hosts[number]
            host.idle.setdefault(function, []).append(at)
            host.busy -= 1
            self.running -= 1
            host.idle_mb += memory_mb
            host.idle_count += 1
            heapq.heappush(self._expiries, (at + KEEP_ALIVE_S, number, function, memory_mb))
            self.changed.add(number)
        while self._expiries and self._expiries[0][0] <= now_s:
            at, number, function, memory_mb = heapq.heappop(self._expiries)
            idle = self.hosts[number].idle.get(function)
            if idle and idle[0] <= at - KEEP_ALIVE_S:
                self._end_idle(number, function, 0, memory_mb)

    def _end_idle(self, number: int, function: str, place: int, memory_mb: int) -> None:
        host = self.hosts[number]
        idle = host.idle[function]
        idle.pop(place)
        if not idle:
            del host.idle[function]
        host.environments -= 1
        host.memory_mb -= memory_mb
        host.idle_count -= 1
        host.idle_mb -= memory_mb
        self.changed.add(number)

    def run(self, number: int, function: SimulatedFunction, until_s: float, outcome: Outcome) -> bool:
        """Run a request on a machine. False: it has no room."""
        host = self.hosts[number]
        idle = host.idle.get(function.name)
        if idle:
            idle.pop()
            if not idle:
                del host.idle[function.name]
            host.idle_mb -= function.memory_mb
            host.idle_count -= 1
            outcome.warm += 1
        elif not self._start(number, function, outcome):
            return False
        host.busy += 1
        self.running += 1
        heapq.heappush(self._ends, (until_s, number, function.name, function.memory_mb))
        self.changed.add(number)
        return True

    def _start(self, number: int, function: SimulatedFunction, outcome: Outcome) -> bool:
        host = self.hosts[number]
        if host.busy >= _ENVIRONMENTS or host.memory_mb - host.idle_mb + function.memory_mb > _MEMORY_MB:
            return False
        while host.environments >= _ENVIRONMENTS or host.memory_mb + function.memory_mb > _MEMORY_MB:
            longest = min(host.idle, key=lambda name: host.idle[name][0])
            self._end_idle(number, longest, 0, MEMORY_OF[longest])
        host.environments += 1
        host.memory_mb += function.memory_mb
        if function.name in host.images:
            host.images.move_to_end(function.name)
            return True
        outcome.moved_bytes += function.image_bytes
        host.images[function.name] = function.image_bytes
        host.image_bytes += function.image_bytes
        while host.image_bytes > _DISK_BYTES:
            _, dropped = host.images.popitem(last=False)
            host.image_bytes -= dropped
        return True

    def summary(self, number: int) -> Summary:
        """The machine as it would describe itself."""
        host = self.hosts[number]
        return Summary(
            idle={name: len(times) for name, times in host.idle.items()},
            images=frozenset(host.images),
            free_environments=_ENVIRONMENTS - host.busy,
            free_mb=_MEMORY_MB - (host.memory_mb - host.idle_mb),
            zone=f"z{number % 10}",
        )


MEMORY_OF: dict[str, int] = {}


class Thawd:
    """The real placement code. One index stands for those of all machines; its summaries are REFRESH_S old."""

    def __init__(self, fleet: Fleet, strategy: Strategy, source: random.Random) -> None:
        self._fleet = fleet
        self._index = MachineIndex(silence_s=math.inf)
        for number, host in enumerate(fleet.hosts):
            self._index.update(host.name, fleet.summary(number), 0.0)
        self._placement = Placement("", self._index, strategy=strategy, draw=source.random)
        self._pending: list[tuple[float, int, Summary]] = []
        self._sent_s = 0.0

    def decide(self, own: int, function: SimulatedFunction, now_s: float) -> int:
        """Choose a machine."""
        self._placement.own = self._fleet.hosts[own].name
        return self._fleet.number(self._placement.place(function.demand, now_s).machine)

    def refresh(self, now_s: float) -> None:
        """Send the summaries of the machines that have changed."""
        if now_s - self._sent_s < REFRESH_S:
            return
        self._sent_s = now_s
        for number in self._fleet.changed:
            self._index.update(self._fleet.hosts[number].name, self._fleet.summary(number), now_s)
        self._fleet.changed.clear()


class Random:
    """A random machine."""

    def __init__(self, fleet: Fleet, source: random.Random) -> None:
        self._count = len(fleet.hosts)
        self._source = source

    def decide(self, own: int, function: SimulatedFunction, now_s: float) -> int:
        """Choose a machine."""
        return self._source.randrange(self._count)

    def refresh(self, now_s: float) -> None:
        """Nothing to do."""


class LeastLoaded(Random):
    """The machine with the fewest running requests of all, known exactly and without delay."""

    def __init__(self, fleet: Fleet, source: random.Random) -> None:
        super().__init__(fleet, source)
        self._hosts = fleet.hosts

    def decide(self, own: int, function: SimulatedFunction, now_s: float) -> int:
        """Choose a machine."""
        least = min(host.busy for host in self._hosts)
        return self._source.choice([number for number, host in enumerate(self._hosts) if host.busy == least])


class ConsistentHashing(Random):
    """The function's machine on a ring of hashes, or the next ones while they run 1.25 times the mean."""

    def __init__(self, fleet: Fleet, source: random.Random) -> None:
        super().__init__(fleet, source)
        self._fleet = fleet
        self._hosts = fleet.hosts
        self._ring = sorted((_hash(f"{n}/{point}"), n) for n in range(self._count) for point in range(_POINTS))
        self._hashes = [at for at, _ in self._ring]

    def decide(self, own: int, function: SimulatedFunction, now_s: float) -> int:
        """Choose a machine."""
        at = bisect.bisect(self._hashes, _hash(function.name))
        most = max(1, math.ceil(1.25 * (self._fleet.running + 1) / self._count))
        for step in range(len(self._ring)):
            number = self._ring[(at + step) % len(self._ring)][1]
            if self._hosts[number].busy < most:
                return number
        return own


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())


Decider = Thawd | Random
STRATEGIES: dict[str, Callable[[Fleet, random.Random], Decider]] = {
    "thawd, spread": lambda fleet, source: Thawd(fleet, Strategy.SPREAD, source),
    "thawd, pack": lambda fleet, source: Thawd(fleet, Strategy.PACK, source),
    "random": Random,
    "least loaded": LeastLoaded,
    "consistent hashing": ConsistentHashing,
}


def simulate(name: str, *, machines: int, functions: int, requests: int, longer: float, seed: int = 1) -> Outcome:
    """Simulate a day with one strategy. All strategies get the same requests."""
    declared = functions_of(functions, random.Random(seed))
    MEMORY_OF.update((function.name, function.memory_mb) for function in declared)
    fleet = Fleet(machines)
    choices = random.Random(seed + 1)
    decider = STRATEGIES[name](fleet, choices)
    outcome = Outcome()
    measured_s = 0.0
    for now_s, function, duration_s in requests_of(declared, requests, random.Random(seed + 2), longer=longer):
        fleet.advance(now_s)
        decider.refresh(now_s)
        own = choices.randrange(machines)
        begun = time.thread_time()
        chosen = decider.decide(own, function, now_s)
        outcome.deciding_s.append(time.thread_time() - begun)
        outcome.requests += 1
        # A machine that has no room after all refuses. Then the request runs, or waits, where it entered.
        if not fleet.run(chosen, function, now_s + duration_s, outcome) and not fleet.run(
            own, function, now_s + duration_s, outcome
        ):
            outcome.waited += 1
        if now_s - measured_s >= 60.0:
            measured_s = now_s
            busy = [host.busy for host in fleet.hosts]
            mean = sum(busy) / machines
            if mean:
                outcome.imbalance.append(math.sqrt(sum((each - mean) ** 2 for each in busy) / machines) / mean)
    return outcome


def report(name: str, outcome: Outcome) -> dict[str, object]:
    """The figures of one strategy."""
    deciding = sorted(outcome.deciding_s)
    return {
        "strategy": name,
        "requests": outcome.requests,
        "cold_percent": round(100 * (1 - outcome.warm / outcome.requests), 2),
        "moved_gib": round(outcome.moved_bytes / (1 << 30)),
        "imbalance": round(sum(outcome.imbalance) / max(1, len(outcome.imbalance)), 2),
        "waited": outcome.waited,
        "decision_us": round(1e6 * sum(deciding) / len(deciding), 1),
        "decision_p99_us": round(1e6 * deciding[int(0.99 * len(deciding))], 1),
    }


def main() -> None:
    """Simulate all strategies and print a line of JSON for each."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--machines", type=int, default=1000)
    parser.add_argument("--functions", type=int, default=10_000)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--longer", type=float, default=100.0)
    parser.add_argument("--strategy", choices=STRATEGIES, action="append")
    options = parser.parse_args()
    for name in options.strategy or STRATEGIES:
        outcome = simulate(
            name,
            machines=options.machines,
            functions=options.functions,
            requests=options.requests,
            longer=options.longer,
        )
        print(json.dumps(report(name, outcome)), flush=True)


if __name__ == "__main__":
    main()
