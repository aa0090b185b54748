"""Faults of a cluster's machines, chosen by a seed, and how long the cluster takes to recover from each."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from tests.integration.cluster_history import Disturbance, History, recoveries
from tests.integration.cluster_machines import BOTH, RECEIVED, SENT, Machines, Site

PAUSE_S = 5.0  # longer than a lease
LONG_S = 11.0  # longer than a lease, the timeout of a function and what it takes to end it
_WRONG_S = 60.0
_PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class _Over:
    """A fault that is over. Times are ``time.monotonic()`` seconds.

    Attributes:
        at_s: when it was over, or the kill.
        hit: the machines that it hit.
        ready_s: when a machine that was started again was ready.
    """

    at_s: float
    hit: tuple[str, ...]
    ready_s: dict[str, float] = field(default_factory=dict)


class Faults:
    """Makes the machines of a cluster fail.

    Args:
        machines: the cluster.
        history: what its clients are told meanwhile.
        seed: chooses the faults.

    Attributes:
        counts: how often each fault has happened.
        took_s: for each disturbance, how long each thing that it hit took to succeed, seconds.
    """

    def __init__(self, machines: Machines, history: History, *, seed: int) -> None:
        self._machines = machines
        self._history = history
        self._random = random.Random(seed)
        self._one_way: dict[str, tuple[str, ...]] = {}
        self.counts: Counter[str] = Counter()
        self.took_s: list[tuple[str, dict[str, float]]] = []

    @property
    def known(self) -> list[str]:
        """The faults that can happen here."""
        return [*_OF_MACHINES, *(["full disk"] if self._machines.has_disks else []), "database restarts"]

    def disturb(self, *faults: str) -> None:
        """Let these faults happen at about the same time, each on another machine; wait until all is well again.

        Raises:
            AssertionError: something did not recover.
        """
        sites = self._random.sample(self._machines.sites, len(faults))
        with ThreadPoolExecutor(len(faults)) as threads:
            begun = [
                threads.submit(self._happen, fault, site, self._random.uniform(0, 2), self._random.random())
                for fault, site in zip(faults, sites, strict=True)
            ]
        over = [each.result() for each in begun]
        over_s = max(each.at_s for each in over)
        ready_s = {site.name: over_s for site in self._machines.sites}
        for each in over:
            ready_s |= {name: max(over_s, at_s) for name, at_s in each.ready_s.items()}
        hit = {name for each in over for name in each.hit}
        self.counts.update(faults)
        self._recover(Disturbance(" + ".join(sorted(faults)), over_s, ready_s, hit))

    def sample(self, most: int) -> list[str]:
        """Choose one to `most` faults of different kinds."""
        return self._random.sample(self.known, self._random.randint(1, most))

    def _happen(self, fault: str, site: Site, delay_s: float, chance: float) -> _Over:
        time.sleep(delay_s)
        if fault == "database restarts":
            self._machines.server.stop()
            time.sleep(chance * PAUSE_S)
            self._machines.start_database()
            return _Over(time.monotonic(), tuple(each.name for each in self._machines.sites))
        if fault == "full disk":
            with site.full():
                time.sleep(PAUSE_S)
            return _Over(time.monotonic(), (site.name,))
        return _OF_MACHINES[fault](site, chance)

    def _recover(self, fault: Disturbance) -> None:
        until_s = time.monotonic() + _PATIENCE_S
        while True:
            took = recoveries(list(self._history.told), self._history.first_ends(), fault)
            missing = [what for what, each in took.items() if each is None]
            if not missing:
                break
            if time.monotonic() >= until_s:
                print(self._machines.state())
            assert time.monotonic() < until_s, f"{fault.name}: not recovered: {missing[:20]} ({len(missing)})"
            time.sleep(0.2)
        self.took_s.append((fault.name, {what: each for what, each in took.items() if each is not None}))

    def report(self) -> str:
        """How long recovery took, by disturbance and in all."""
        every = sorted(each for _, took in self.took_s for each in took.values())
        longest = sorted(max(took.values()) for _, took in self.took_s)
        lines = [
            f"{max(took.values()):6.2f} s  {name}: {max(took, key=lambda what: took[what])}, {len(took)} things"
            for name, took in self.took_s
        ]
        lines.append(f"faults: {dict(self.counts)}")
        lines.append(
            f"recovery of {len(every)} things: p50 {_part(every, 0.5):.2f} s, p99 {_part(every, 0.99):.2f} s, "
            f"longest {every[-1]:.2f} s; of {len(longest)} disturbances: p50 {_part(longest, 0.5):.2f} s, "
            f"p99 {_part(longest, 0.99):.2f} s"
        )
        return "\n".join(lines)

    def p99_s(self) -> float:
        """The time within which 99 % of what was hit had succeeded, seconds."""
        return _part(sorted(each for _, took in self.took_s for each in took.values()), 0.99)


def _part(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _kill(site: Site, chance: float) -> _Over:
    at_s = time.monotonic()
    site.kill(has_no_power=chance < 0.5)
    time.sleep(chance * PAUSE_S)
    site.start()
    return _Over(at_s, (site.name,), {site.name: time.monotonic()})


def _kill_with_wrong_clock(site: Site, chance: float) -> _Over:
    at_s = time.monotonic()
    site.kill()
    time.sleep(chance * PAUSE_S)
    site.start(wrong_s=_WRONG_S if chance < 0.5 else -_WRONG_S)
    ready_s = time.monotonic()
    site.set_clock(0.0)  # somebody sets the clock right while the server runs
    return _Over(at_s, (site.name,), {site.name: ready_s})


def _pause(site: Site, chance: float) -> _Over:
    with site.paused():
        time.sleep(PAUSE_S if chance < 0.8 else LONG_S)
    return _Over(time.monotonic(), (site.name,))


def _cut(*ways: str) -> Callable[[Site, float], _Over]:
    def cut(site: Site, chance: float) -> _Over:
        site.network.cut(*ways)
        time.sleep(PAUSE_S if chance < 0.8 else LONG_S)
        site.network.mend()
        return _Over(time.monotonic(), (site.name,))

    return cut


_OF_MACHINES: dict[str, Callable[[Site, float], _Over]] = {
    "killed": _kill,
    "killed, starts with a wrong clock": _kill_with_wrong_clock,
    "paused": _pause,
    "cut off": _cut(*BOTH),
    "sends nothing": _cut(*SENT),
    "receives nothing": _cut(*RECEIVED),
}
