"""How many machines the load needs. Pure: the time is a parameter.

More machines: requests or events wait although no machine has room for another environment, for `PRESSED_S` seconds.
Then as many are added as the waiting work keeps as busy as the present machines are, at most as many as there are. What
waits for another reason, such as reserved concurrency, adds none: the machines have room then.

Fewer machines: for the whole idle time, fewer machines could have carried the load and been at most `FULL` full. Then
as many remain as the busiest moment of that time needed. Between the two thresholds nothing changes, so the number does
not swing.

Never fewer than the reserved and provisioned concurrency of all functions needs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

PRESSED_S = 2.0
"""How long work must wait for room before machines are added, seconds."""
COMING_S = 300.0
"""How long to wait for machines that were asked for before more are asked for, seconds."""
FULL = 0.7
"""Highest part of the capacity of fewer machines that the load may use, if machines are to be removed."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A machine that serves, as the leader of the cluster sees it.

    Attributes:
        name: its name.
        used: environments that run an invocation or start.
        waiting: requests and events that wait.
        free: environments that could start in addition.
        memory_mb: memory for environments, MiB.
        most: highest number of environments.
        pledged: environments that all functions' reserved and provisioned concurrency needs in the whole cluster.
        pledged_mb: their memory, MiB.
    """

    name: str
    used: int = 0
    waiting: int = 0
    free: int = 0
    memory_mb: int = 0
    most: int = 0
    pledged: int = 0
    pledged_mb: int = 0

    @property
    def capacity(self) -> int:
        """How many environments it can have at present."""
        return max(1, self.used + self.free)


class Scaler:
    """Decides how many machines of Ray there should be.

    Args:
        least: lowest number.
        most: highest number.
        idle_s: how long machines must be too many before some are removed, seconds.
        wanted: the number to begin with.
    """

    def __init__(self, *, least: int, most: int, idle_s: float, wanted: int) -> None:
        self._least, self._most, self._idle_s = least, most, idle_s
        self.wanted = max(least, min(most, wanted))
        self._pressed_since_s: float | None = None
        self._raised_s = -math.inf
        self._slack_since_s: float | None = None
        self._peak = 0

    def observe(self, machines: Iterable[Seen], outside: Iterable[Seen], now_s: float) -> int:
        """Use what the leader sees; returns how many machines of Ray there should be.

        Args:
            machines: the machines of Ray that serve.
            outside: machines of the cluster that are no nodes of Ray.
            now_s: the time, ``time.monotonic()`` seconds.
        """
        here, there = list(machines), list(outside)
        if not here:
            return self.wanted  # nothing is known, or the first machine comes
        floor = min(self._most, max(self._least, pledged_machines([*here, *there]) - len(there)))
        if not self._grow(here, there, now_s):
            self._shrink(here, there, floor, now_s)
        self.wanted = max(floor, self.wanted)
        return self.wanted

    def _grow(self, here: list[Seen], there: list[Seen], now_s: float) -> bool:
        """Ask for more machines if work waits and there is no room; returns whether that is so."""
        everybody = [*here, *there]
        waiting = sum(each.waiting for each in everybody)
        if not waiting or any(each.free > 0 for each in everybody):
            self._pressed_since_s = None
            return False
        self._slack_since_s = None
        if self._pressed_since_s is None:
            self._pressed_since_s = now_s
        are_coming = len(here) < self.wanted and now_s - self._raised_s < COMING_S
        if now_s - self._pressed_since_s >= PRESSED_S and not are_coming:
            each_carries = max(1.0, sum(each.used for each in everybody) / len(everybody))
            more = min(len(here), math.ceil(waiting / each_carries))
            self.wanted = min(self._most, max(self.wanted, len(here) + more))
            self._raised_s, self._pressed_since_s = now_s, now_s
        return True

    def _shrink(self, here: list[Seen], there: list[Seen], floor: int, now_s: float) -> None:
        """Ask for fewer machines if fewer have sufficed for the whole idle time."""
        needed = max(floor, _needed(here, there))
        if needed >= self.wanted:
            self._slack_since_s = None
            return
        if self._slack_since_s is None:
            self._slack_since_s, self._peak = now_s, needed
        self._peak = max(self._peak, needed)
        if now_s - self._slack_since_s >= self._idle_s:
            self.wanted, self._slack_since_s = self._peak, None


def pledged_machines(machines: list[Seen]) -> int:
    """Return how many machines the reserved and provisioned concurrency of all functions needs."""
    needed = 0
    for each in machines:
        by_memory = math.ceil(each.pledged_mb / each.memory_mb) if each.memory_mb else 0
        by_number = math.ceil(each.pledged / each.most) if each.most else 0
        needed = max(needed, by_memory, by_number)
    return needed


def _needed(here: list[Seen], there: list[Seen]) -> int:
    """How many of these machines can carry the load, and be at most `FULL` full; one more if all cannot."""
    load = sum(each.used + each.waiting for each in (*here, *there)) / FULL
    carried = sum(each.capacity for each in there)
    for count, capacity in enumerate(sorted((each.capacity for each in here), reverse=True)):
        if carried >= load:
            return count
        carried += capacity
    return len(here) if carried >= load else len(here) + 1


def seen_machines(document: Mapping[str, Any]) -> tuple[str, list[Seen]]:
    """Return the name of the leader, and the machines that serve.

    Args:
        document: the document of ``/_thawd/machines``.

    Returns:
        The name is empty if there is no leader.
    """
    leader, found = "", []
    for each in document["machines"]:
        report = each["report"]
        if report is None or report.get("state") != "serving":
            continue
        leader = each["name"] if report.get("leads") else leader
        found.append(
            Seen(
                each["name"],
                used=report.get("busy", 0) + report.get("starting", 0),
                waiting=report.get("waiting", 0) + report.get("queued", 0),
                free=report.get("free_environments", 0),
                memory_mb=report.get("memory_mb", 0),
                most=report.get("max_environments", 0),
                pledged=report.get("pledged", 0),
                pledged_mb=report.get("pledged_mb", 0),
            )
        )
    return leader, found
