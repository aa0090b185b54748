"""Shares of a limit on machines that come, go and are cut off, while answers of the database are late or lost.

The machines, their clocks and the database are simulated; the code that decides about shares is the real one.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thawd.cluster.limits import Member
from thawd.cluster.shares import fair_share
from thawd.errors import NotMemberError, TooManyRequestsException
from thawd.resources import Function
from thawd.scheduling.function_entries import FunctionEntry, VersionEntry
from thawd.scheduling.load import Load
from thawd.stores.cluster.concurrency import Claim, Share, raised
from thawd.stores.cluster.leases import Lease, now_s
from thawd.telemetry.metrics import FunctionMetrics

LEASE_S = 3.0
GIVES_UP_S = 2.0
TIMEOUT_S = 4


class Database:
    """Leases and rows, as `thawd.stores.cluster` keeps them."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.leases: dict[str, tuple[int, float]] = {}  # token and end
        self.rows: dict[str, Share] = {}
        self.lingers_s: dict[str, float] = {}
        self.numbers: dict[str, tuple[int, int]] = {}  # token and number of the last request of each machine

    def exchange(self, machine: str, claims: Mapping[str, Claim], token: int, number: int) -> dict[str, list[Share]]:
        held, until_s = self.leases[machine]
        if held != token or until_s <= self.now_s or self.numbers.get(machine, (0, 0)) >= (token, number):
            return {}
        self.numbers[machine] = (token, number)
        claim = claims["f"]
        others = [
            Share(name, row.count, row.wanted, self.leases[name][1] > self.now_s)
            for name, row in self.rows.items()
            if name != machine and self.leases[name][1] > self.now_s - self.lingers_s[name]
        ]
        count = raised(claim, others, machine=machine, fair=fair_share)
        self.rows[machine] = Share(machine, count, claim.wanted, True)
        self.lingers_s[machine] = claim.lingers_s
        return {"f": [*others, self.rows[machine]]}


@dataclass
class Machine:
    """A machine with one function.

    Attributes:
        running: when each of its invocations ends.
        lease: its lease; it has `ends_s` in the time of the simulation.
    """

    name: str
    limit: int
    running: list[float] = field(default_factory=list)
    lease: Lease | None = None
    now_s: float = 0.0

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Start again: nothing runs, and nothing is known."""
        self.running, self.lease = [], None
        self.member = Member(self.name, self.membership)
        function = Function(name="f", handler="f.f", code=Path("f"), timeout_s=TIMEOUT_S)
        limited = msgspec.structs.replace(function, reserved_concurrency=self.limit)
        self.family = FunctionEntry(limited, cast(FunctionMetrics, None))

    def membership(self) -> Lease | None:
        return self.lease if self.lease is not None and self.now_s < self.lease.ends_s else None

    def turn(self, now_s: float) -> None:
        self.now_s = now_s
        self.running = [end_s for end_s in self.running if end_s > now_s]
        run(self.family, len(self.running))

    def try_to_begin(self, duration_s: float) -> bool:
        function = self.family.latest.function
        if self.family.running >= self.member.share(function):
            self.member.denied("f")
            return False
        self.running.append(self.now_s + duration_s)
        self.turn(self.now_s)
        return True


@dataclass
class Message:
    """A request to the database, or its answer."""

    arrives_s: float
    machine: Machine
    member: Member
    lease: Lease
    number: int
    claims: Mapping[str, Claim]
    rows: dict[str, list[Share]] | None = None


class Network:
    """Carries messages late, out of order, or not at all."""

    def __init__(self, source: random.Random, database: Database) -> None:
        self._source = source
        self._database = database
        self._messages: list[Message] = []
        self._waiting: dict[int, tuple[int, float]] = {}  # number and time of the request that a member waits for
        self._numbers = itertools.count(1)

    def ask(self, machine: Machine, lease: Lease) -> None:
        """Exchange shares, unless the machine waits for an answer already."""
        now_s = self._database.now_s
        _, asked_s = self._waiting.get(id(machine.member), (0, -GIVES_UP_S))
        if now_s - asked_s < GIVES_UP_S:
            return
        number, claims = next(self._numbers), machine.member.claims([machine.family], lease)
        self._waiting[id(machine.member)] = number, now_s
        self._send(Message(0, machine, machine.member, lease, number, claims))

    def _send(self, message: Message) -> None:
        if self._source.random() < 0.95:
            late_s = self._source.choice([0.01] * 8 + [1.0, 3.0, 7.0])
            self._messages.append(replace(message, arrives_s=self._database.now_s + late_s))

    def deliver(self) -> None:
        """Hand over all messages that have arrived."""
        now_s = self._database.now_s
        for message in sorted((each for each in self._messages if each.arrives_s <= now_s), key=arrival):
            self._messages.remove(message)
            machine = message.machine
            if message.rows is None:
                rows = self._database.exchange(machine.name, message.claims, message.lease.token, message.number)
                self._send(replace(message, rows=rows))
            elif self._waiting.get(id(machine.member), (0, 0.0))[0] == message.number:
                del self._waiting[id(machine.member)]
                machine.turn(now_s)
                machine.member.got(message.rows, message.lease)


def arrival(message: Message) -> float:
    return message.arrives_s


@settings(max_examples=40, deadline=None)
@given(st.integers(0), st.integers(1, 9))
def test_all_machines_together_never_run_more_than_the_limit(seed: int, limit: int) -> None:
    source, database = random.Random(seed), Database()
    network, machines, tokens = Network(source, database), [Machine(name, limit) for name in "abcd"], itertools.count(1)
    cut_off: set[str] = set()
    began = 0
    while database.now_s < 120:
        database.now_s += source.expovariate(12)
        network.deliver()
        machine = source.choice(machines)
        machine.turn(database.now_s)
        action = source.random()
        if action < 0.4:
            began += machine.try_to_begin(source.choice([0.1, TIMEOUT_S]))
        elif action < 0.9 and machine.name not in cut_off:
            renew(machine, database, tokens)
            if (lease := machine.membership()) is not None:
                network.ask(machine, lease)
        elif action < 0.95:
            cut_off ^= {machine.name}
        elif action < 0.96:
            machine.restart()
        for each in machines:
            each.turn(database.now_s)
        assert sum(len(each.running) for each in machines) <= limit
    assert began


def renew(machine: Machine, database: Database, tokens: Any) -> None:
    """Renew the machine's lease, or take it if it has ended."""
    now_s = database.now_s
    token, _ = database.leases.get(machine.name, (0, 0.0))
    if machine.lease is not None and machine.lease.token == token and machine.membership() is not None:
        machine.lease.ends_s = now_s + LEASE_S * 0.95
    else:
        token = next(tokens)
        machine.lease = Lease("machine", token, now_s + LEASE_S * 0.95)
    database.leases[machine.name] = (token, now_s + LEASE_S)


def run(family: FunctionEntry, count: int) -> None:
    """Have `count` invocations of the newest version run, and none wait."""
    family.load, family.in_flight = Load(), count
    for _ in range(count):
        family.load.add(family.latest.function)


def test_a_machine_without_a_lease_says_why_it_does_nothing() -> None:
    member = Member("a", lambda: None)
    with pytest.raises(NotMemberError, match="cut off from its cluster"):
        member.require_member()
    member.drained = "this machine was drained"
    with pytest.raises(NotMemberError, match="was drained"):
        member.require_member()


def test_an_invocation_that_waited_does_not_begin_without_a_lease_or_a_share() -> None:
    leases: list[Lease | None] = [Lease("machine", 7, now_s() + 1000)]
    member = Member("a", lambda: leases[-1])
    function = Function(name="f", handler="f.f", code=Path("f"), reserved_concurrency=2)
    family = FunctionEntry(function, cast(FunctionMetrics, None))
    family.cluster = member
    member.got({"f": [Share("a", 1, 1, True)]}, cast(Lease, leases[-1]))
    family.begin(function)
    with pytest.raises(TooManyRequestsException):
        family.begin(function)
    # Its lease ends, and it gets another one, for which no shares are agreed yet.
    run(family, 0)
    leases.append(None)
    with pytest.raises(NotMemberError):
        family.begin(function)
    leases.append(Lease("machine", 8, now_s() + 1000))
    with pytest.raises(TooManyRequestsException):
        family.begin(function)
    assert family.running == 0


def test_a_share_lingers_as_long_as_anything_that_runs_or_could_begin_although_timeouts_became_shorter() -> None:
    lease = Lease("machine", 7, now_s() + 1000)
    member = Member("a", lambda: lease)
    slow = Function(name="f", handler="f.f", code=Path("f"), reserved_concurrency=4, timeout_s=600)
    quick = msgspec.structs.replace(slow, timeout_s=10)
    family = FunctionEntry(slow, cast(FunctionMetrics, None))
    member.got({"f": [Share("a", 2, 0, True)]}, lease)
    assert member.claims([family], lease)["f"].lingers_s > 600
    # Given an invocation of a version that was replaced by one with a shorter timeout
    family.load.add(slow)
    family.in_flight = 1
    family.latest.function = quick
    for _ in range(3):
        assert member.claims([family], lease)["f"].lingers_s > 600
    # When it has ended
    family.load.remove(slow)
    family.in_flight = 0
    member.claims([family], lease)
    assert member.claims([family], lease)["f"].lingers_s < 20
    # Then only a published version can begin that may run long
    family.published["1"] = VersionEntry(slow, "1")
    assert member.claims([family], lease)["f"].lingers_s > 600


def test_invocations_keep_their_part_of_a_limit_although_a_new_version_runs_more_in_one_environment() -> None:
    lease = Lease("machine", 7, now_s() + 1000)
    member = Member("a", lambda: lease)
    alone = Function(name="f", handler="f.f", code=Path("f"), reserved_concurrency=4)
    many = msgspec.structs.replace(alone, concurrency=10)
    family = FunctionEntry(alone, cast(FunctionMetrics, None))
    family.cluster = member
    run(family, 2)
    family.latest.function = many
    assert member.claims([family], lease)["f"].held == 2
    member.got({"f": [Share("a", 3, 0, True)]}, lease)
    # One environment is left for the new version, and it has ten places
    for _ in range(10):
        family.begin(many)
    with pytest.raises(TooManyRequestsException):
        family.begin(many)


def test_events_that_wait_for_a_share_make_it_grow() -> None:
    lease = Lease("machine", 7, now_s() + 1000)
    member = Member("a", lambda: lease)
    family = FunctionEntry(
        Function(name="f", handler="f.f", code=Path("f"), reserved_concurrency=6), cast(FunctionMetrics, None)
    )
    family.cluster = member
    member.got({"f": [Share("a", 2, 0, True), Share("b", 4, 0, True)]}, lease)
    # Given four events, of which two run
    assert family.at_once_here(4, running=2) == 2
    run(family, 2)
    # When the machine says what it needs, it asks for four, and later no longer
    assert member.claims([family], lease)["f"].wanted == 4
    assert member.claims([family], lease)["f"].wanted == 2
