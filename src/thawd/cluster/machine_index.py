"""What one machine knows about all machines of the cluster, arranged so that a placement needs no search.

Each machine sends a short summary of itself several times a second. Summaries are therefore a little old, and a
machine that gets a request may find that it has no room for it after all. It then refuses, and nothing is lost.

Everything here is pure: no input or output, no clock (`now_s` is a parameter), and random numbers come from the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

_STEP_BITS = 6  # free memory is counted in steps of 64 MiB
_TOP = 1 << 14  # the highest step, 1 TiB; machines with more free memory count as that


@dataclass(slots=True)
class Summary:
    """A machine as it describes itself.

    Attributes:
        idle: how many idle environments each version has, without the versions that have none.
        images: the versions whose snapshot is on the machine.
        free_environments: how many more environments it may start, counting idle ones that it would end for them.
        free_mb: memory for them, MiB.
        labels: for example ``{"gpu": "h100"}``; functions may require labels.
        zone: machines in one zone copy snapshots from each other quickly.
        draining: whether it takes no request from other machines any more.
    """

    idle: Mapping[str, int] = field(default_factory=dict)
    images: frozenset[str] = frozenset()
    free_environments: int = 0
    free_mb: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    zone: str = ""
    draining: bool = False


Labels = frozenset[tuple[str, str]]
"""Required labels with their values."""


class NameSet:
    """Names, of which one is drawn at random in constant time."""

    __slots__ = ("_names", "_places")

    def __init__(self) -> None:
        self._names: list[str] = []
        self._places: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def add(self, name: str) -> None:
        """Add a name. A name that is there already stays there once."""
        if name not in self._places:
            self._places[name] = len(self._names)
            self._names.append(name)

    def discard(self, name: str) -> None:
        """Remove a name, if it is there."""
        place = self._places.pop(name, None)
        if place is None:
            return
        last = self._names.pop()
        if last != name:
            self._names[place] = last
            self._places[last] = place

    def drawn(self, most: int, draw: Callable[[], float]) -> list[str]:
        """Return all names if there are at most `most`, else `most` names in a row from a random place.

        Args:
            most: highest number of names.
            draw: returns random numbers, at least 0 and less than 1.
        """
        count = len(self._names)
        if count <= most:
            return self._names
        start = int(draw() * count)
        part = self._names[start : start + most]
        return part if len(part) == most else part + self._names[: most - len(part)]


class RoomIndex:
    """Machines, sorted by their free memory in steps of 64 MiB."""

    __slots__ = ("_filled", "_steps")

    def __init__(self) -> None:
        self._steps: dict[int, NameSet] = {}
        self._filled = 0  # bit n is set if the step n has a machine

    def put(self, name: str, step: int) -> None:
        """Add a machine at a step."""
        self._steps.setdefault(step, NameSet()).add(name)
        self._filled |= 1 << step

    def take_out(self, name: str, step: int) -> None:
        """Remove a machine from its step."""
        names = self._steps[step]
        names.discard(name)
        if not names:
            del self._steps[step]
            self._filled &= ~(1 << step)

    def fullest_last(self, needed: int) -> Iterator[NameSet]:
        """Yield the machines of each step from the highest down to `needed`."""
        rest = self._filled >> needed
        while rest:
            step = rest.bit_length() - 1
            yield self._steps[needed + step]
            rest &= ~(1 << step)

    def fullest_first(self, needed: int) -> Iterator[NameSet]:
        """Yield the machines of each step from `needed` up to the highest."""
        rest = self._filled >> needed
        while rest:
            lowest = rest & -rest
            yield self._steps[needed + lowest.bit_length() - 1]
            rest &= ~lowest


@dataclass(slots=True)
class Machine:
    """A machine that is alive, as last described.

    Attributes:
        name: its name in the cluster.
        summary: its last summary.
        seen_s: when that summary arrived.
        idle: idle environments by version, less those that placements have used since then.
        free_environments: as in the summary, less what placements have used since then.
        free_mb: likewise, MiB.
    """

    name: str
    summary: Summary
    seen_s: float
    idle: dict[str, int]
    free_environments: int
    free_mb: int

    def fits(self, memory_mb: int) -> bool:
        """Return whether an environment with this memory limit can be started on it."""
        return self.free_environments > 0 and self.free_mb >= memory_mb and not self.summary.draining

    def has(self, labels: Labels) -> bool:
        """Return whether it has all these labels."""
        own = self.summary.labels
        return all(own.get(name) == value for name, value in labels)


def steps_of(memory_mb: int) -> int:
    """Return the lowest step of `RoomIndex` at which a machine can have this much free memory."""
    return max(1, min(memory_mb >> _STEP_BITS, _TOP))


class MachineIndex:
    """The machines that are alive.

    Args:
        silence_s: a machine that has not sent a summary for so long counts as dead, seconds.
    """

    def __init__(self, *, silence_s: float) -> None:
        self._silence_s = silence_s
        self._machines: dict[str, Machine] = {}
        self._idle: dict[str, NameSet] = {}
        self._holders: dict[str, NameSet] = {}
        self._zones: dict[tuple[str, str], int] = {}  # (version, zone): how many machines there hold the image
        self._zone_rooms: dict[str, RoomIndex] = {}
        self._rooms: dict[Labels, RoomIndex] = {frozenset(): RoomIndex()}

    def __len__(self) -> int:
        return len(self._machines)

    def update(self, name: str, summary: Summary, now_s: float) -> None:
        """Use the summary that the machine `name` has sent; it may be a machine that was not known before."""
        old = self._machines.get(name)
        if old is not None:
            self._take_out(old)
        machine = Machine(name, summary, now_s, dict(summary.idle), summary.free_environments, max(0, summary.free_mb))
        self._machines[name] = machine
        self._put(machine)

    def remove(self, name: str) -> None:
        """Forget a machine, because it has left or does not answer."""
        machine = self._machines.pop(name, None)
        if machine is not None:
            self._take_out(machine)

    def expire(self, now_s: float) -> list[str]:
        """Forget the machines that have been silent for too long; returns their names."""
        gone = [name for name, machine in self._machines.items() if now_s - machine.seen_s > self._silence_s]
        for name in gone:
            self.remove(name)
        return gone

    def alive(self, name: str, now_s: float) -> Machine | None:
        """Return the machine `name`; None if it is unknown or has been silent for too long."""
        machine = self._machines.get(name)
        if machine is None or now_s - machine.seen_s > self._silence_s:
            return None
        return machine

    def others(self, excluded: Collection[str], now_s: float) -> list[str]:
        """Return the machines that are alive, do not drain and are not among `excluded`."""
        names = [name for name in self._machines if name not in excluded]
        found = [self.alive(name, now_s) for name in names]
        return [machine.name for machine in found if machine is not None and not machine.summary.draining]

    def with_idle(self, version: str) -> NameSet | None:
        """Return the machines with an idle environment of `version`; None if there is none."""
        return self._idle.get(version)

    def with_image(self, version: str) -> NameSet | None:
        """Return the machines that have the snapshot of `version`; None if there is none."""
        return self._holders.get(version)

    def zone_holds(self, version: str, zone: str) -> bool:
        """Return whether a machine in `zone` has the snapshot of `version`."""
        return (version, zone) in self._zones

    def room_in(self, zone: str) -> RoomIndex | None:
        """Return the machines of a zone by their room; None: no machine of this zone is alive."""
        return self._zone_rooms.get(zone)

    def room(self, labels: Labels) -> RoomIndex:
        """Return the machines with these labels by their room."""
        found = self._rooms.get(labels)
        if found is None:
            found = self._rooms[labels] = RoomIndex()
            for machine in self._machines.values():
                if machine.has(labels):
                    found.put(machine.name, _step(machine))
        return found

    def used_idle(self, machine: Machine, version: str) -> None:
        """Count one idle environment of `version` less, until the machine's next summary."""
        left = machine.idle.get(version, 0) - 1
        if left > 0:
            machine.idle[version] = left
            return
        machine.idle.pop(version, None)
        self._drop(self._idle, version, machine.name)

    def has_no_idle(self, name: str, version: str) -> None:
        """Correct what is known about the machine `name`: it has no idle environment of `version` at this moment."""
        machine = self._machines.get(name)
        if machine is not None and machine.idle.pop(version, 0):
            self._drop(self._idle, version, name)

    def ended(self, name: str, version: str) -> None:
        """Count one idle environment more on the machine `name`, because a request of `version` has just ended there.

        If the machine's last summary has counted it already, a request too many is sent there, which is refused.
        """
        machine = self._machines.get(name)
        if machine is not None and not machine.summary.draining:
            machine.idle[version] = machine.idle.get(version, 0) + 1
            self._idle.setdefault(version, NameSet()).add(name)

    def used_room(self, machine: Machine, memory_mb: int) -> None:
        """Count the room of one environment less, until the machine's next summary."""
        self._put_room(machine, out=True)
        machine.free_environments -= 1
        machine.free_mb = max(0, machine.free_mb - memory_mb)
        self._put_room(machine)

    def _put(self, machine: Machine) -> None:
        summary = machine.summary
        if not summary.draining:
            for version in machine.idle:
                self._idle.setdefault(version, NameSet()).add(machine.name)
        for version in summary.images:
            self._holders.setdefault(version, NameSet()).add(machine.name)
            place = (version, summary.zone)
            self._zones[place] = self._zones.get(place, 0) + 1
        self._put_room(machine)

    def _take_out(self, machine: Machine) -> None:
        for version in machine.idle:
            self._drop(self._idle, version, machine.name)
        for version in machine.summary.images:
            self._drop(self._holders, version, machine.name)
            place = (version, machine.summary.zone)
            self._zones[place] -= 1
            if not self._zones[place]:
                del self._zones[place]
        self._put_room(machine, out=True)

    def _put_room(self, machine: Machine, *, out: bool = False) -> None:
        """Add the machine to the indexes of room that it belongs to, or remove it from them."""
        step = _step(machine)
        zone = self._zone_rooms.setdefault(machine.summary.zone, RoomIndex())
        for index in (zone, *(index for labels, index in self._rooms.items() if machine.has(labels))):
            if out:
                index.take_out(machine.name, step)
            else:
                index.put(machine.name, step)

    @staticmethod
    def _drop(index: dict[str, NameSet], version: str, name: str) -> None:
        names = index.get(version)
        if names is not None:
            names.discard(name)
            if not names:
                del index[version]


def _step(machine: Machine) -> int:
    """The machine's step in `RoomIndex`; 0: nothing can be started on it."""
    if machine.free_environments <= 0 or machine.summary.draining:
        return 0
    return steps_of(machine.free_mb)
