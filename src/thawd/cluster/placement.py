"""Placement: which machine of the cluster runs a request.

The first of these that exists runs it:

1. this machine, if it has an idle environment of the version;
2. another machine with an idle environment;
3. this machine, if it has the version's snapshot and room for another environment;
4. another machine with the snapshot and room;
5. a machine with room, whose zone has the snapshot: this machine if possible;
6. this machine, if it has room and the option is `Strategy.PACK`; else the machine with the most room;
7. this machine, where the request waits.

Among several machines, `Strategy.SPREAD` takes the one with the most room and `Strategy.PACK` the fullest one that
fits, so that others become empty and can be switched off. If there are many candidates, a few are drawn at random: a
decision takes the same time with ten machines and with a thousand, and the machines where requests enter do not all
choose the same one.

Pure: `now_s` and the random numbers are parameters.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from thawd.cluster.machine_index import Labels, Machine, MachineIndex, NameSet, RoomIndex, steps_of

_DRAWN = 8

NO_LABELS: Labels = frozenset()


class Strategy(enum.StrEnum):
    """Which of several suitable machines is chosen."""

    SPREAD = "spread"
    PACK = "pack"


class Reason(enum.StrEnum):
    """Why a machine was chosen."""

    IDLE = "idle"
    """It has an idle environment."""
    IMAGE = "image"
    """It has the snapshot, and room."""
    NEARBY = "nearby"
    """It has room, and a machine in its zone has the snapshot."""
    ROOM = "room"
    """It has room."""
    WAIT = "wait"
    """No machine has room, so that the request waits where it is."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What a request needs.

    Attributes:
        version: identifies the code, its settings and its platform: machines with the same identifier run the same.
        memory_mb: memory limit of an environment, MiB.
        labels: labels that the machine must have.
        excluded: machines that must not be chosen, for example because they refused.
    """

    version: str
    memory_mb: int
    labels: Labels = NO_LABELS
    excluded: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Place:
    """The decision: the machine's name, and why it was chosen."""

    machine: str
    reason: Reason


class Placement:
    """Decides for the requests that enter at one machine.

    Args:
        own: name of this machine.
        machines: the machines that are alive; this machine is among them.
        strategy: which of several suitable machines is chosen.
        draw: returns random numbers, at least 0 and less than 1.
    """

    def __init__(self, own: str, machines: MachineIndex, *, strategy: Strategy, draw: Callable[[], float]) -> None:
        self.own = own
        self.machines = machines
        self._packs = strategy is Strategy.PACK
        self._draw = draw

    def place(self, demand: Demand, now_s: float) -> Place:
        """Return the machine that runs the request, and count what the request uses there."""
        own = self._suitable(self.own, demand, now_s)
        return (
            self._with_idle(own, demand, now_s)
            or self._with_image(own, demand, now_s)
            or self._near_image(own, demand, now_s)
            or self._with_room(own, demand, now_s)
            or Place(self.own, Reason.WAIT)
        )

    def _with_idle(self, own: Machine | None, demand: Demand, now_s: float) -> Place | None:
        found = own if own is not None and demand.version in own.idle else None
        if found is None:
            found = self._best(self.machines.with_idle(demand.version), demand, now_s)
        if found is None:
            return None
        self.machines.used_idle(found, demand.version)
        return Place(found.name, Reason.IDLE)

    def _with_image(self, own: Machine | None, demand: Demand, now_s: float) -> Place | None:
        if own is not None and demand.version in own.summary.images and own.fits(demand.memory_mb):
            return self._started(own, demand, Reason.IMAGE)
        found = self._best(self.machines.with_image(demand.version), demand, now_s, starts=True)
        return None if found is None else self._started(found, demand, Reason.IMAGE)

    def _near_image(self, own: Machine | None, demand: Demand, now_s: float) -> Place | None:
        holders = self.machines.with_image(demand.version)
        if holders is None:
            return None
        fits_here = own is not None and own.fits(demand.memory_mb)
        if own is not None and fits_here and self.machines.zone_holds(demand.version, own.summary.zone):
            return self._started(own, demand, Reason.NEARBY)
        found = self._in_zone_of(holders, demand, now_s)
        return None if found is None else self._started(found, demand, Reason.NEARBY)

    def _with_room(self, own: Machine | None, demand: Demand, now_s: float) -> Place | None:
        found = own if self._packs and own is not None and own.fits(demand.memory_mb) else None
        if found is None:
            found = self._roomiest(self.machines.room(demand.labels), demand, now_s)
        return None if found is None else self._started(found, demand, Reason.ROOM)

    def _suitable(self, name: str, demand: Demand, now_s: float) -> Machine | None:
        """The machine `name` if it is alive and the request may run on it."""
        machine = self.machines.alive(name, now_s)
        if machine is None or machine.name in demand.excluded or machine.summary.draining:
            return None
        return machine if not demand.labels or machine.has(demand.labels) else None

    def _best(self, names: NameSet | None, demand: Demand, now_s: float, *, starts: bool = False) -> Machine | None:
        """The best of these machines; None: none is suitable.

        Args:
            names: machines; if there are many, some are drawn.
            demand: what the request needs.
            now_s: the time.
            starts: whether the machine must have room for another environment.
        """
        if names is None:
            return None
        best = self._best_of(names.drawn(_DRAWN, self._draw), demand, now_s, starts=starts)
        if best is None and len(names) > _DRAWN:
            best = self._best_of(names, demand, now_s, starts=starts)
        return best

    def _best_of(self, names: Iterable[str], demand: Demand, now_s: float, *, starts: bool) -> Machine | None:
        best: Machine | None = None
        for name in names:
            machine = self._suitable(name, demand, now_s)
            if machine is None or (starts and not machine.fits(demand.memory_mb)):
                continue
            if best is None or (machine.free_mb < best.free_mb) is self._packs:
                best = machine
        return best

    def _in_zone_of(self, holders: NameSet, demand: Demand, now_s: float) -> Machine | None:
        zones: dict[str, None] = {}
        for name in holders.drawn(_DRAWN, self._draw):
            holder = self.machines.alive(name, now_s)
            if holder is not None:
                zones[holder.summary.zone] = None
        for zone in zones:
            room = self.machines.room_in(zone)
            if room is not None and (found := self._roomiest(room, demand, now_s)) is not None:
                return found
        return None

    def _roomiest(self, index: RoomIndex, demand: Demand, now_s: float) -> Machine | None:
        """The machine of the index with the most room, or the least that is enough; None: none is suitable."""
        needed = steps_of(demand.memory_mb)
        for names in index.fullest_first(needed) if self._packs else index.fullest_last(needed):
            if (found := self._best(names, demand, now_s, starts=True)) is not None:
                return found
        return None

    def _started(self, machine: Machine, demand: Demand, reason: Reason) -> Place:
        self.machines.used_room(machine, demand.memory_mb)
        return Place(machine.name, reason)
