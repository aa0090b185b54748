"""Claims about `Room`, asked directly: who overtakes whom, who must give way, what it may hold."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.execution_fakes import FakeEnvironment, FakeSpawner, House, turns, version_of
from thawd.environments.starts.origin import Obstacle, Origin, Reason
from thawd.invocation import StartKind
from thawd.scheduling import room as module
from thawd.scheduling.dispatcher import Dispatcher
from thawd.scheduling.entries import FunctionEntry
from thawd.scheduling.room import Room, default_max_environments, default_memory_mb
from thawd.scheduling.status import document
from thawd.telemetry.metrics import Metrics

NOW_S = 1000.0


class Tenant:
    """A function that wants room, urgently or not, and has none that is idle."""

    def __init__(self, name: str, *, urgent: bool = False, **function: Any) -> None:
        self.version = version_of(name, **function)
        self.urgent = urgent
        self.wants = True
        self.grown = 0

    def wants_room(self) -> bool:
        return self.wants

    def is_urgent(self) -> bool:
        return self.urgent

    def oldest_idle_s(self) -> float | None:
        return None

    def end_oldest_idle(self) -> None:
        raise AssertionError("nothing is idle here")

    def grow(self) -> None:
        self.grown += 1


def a_room(*tenants: Tenant, max_environments: int = 8, memory_mb: int = 10_000, patience_s: float = 1.0) -> Room:
    room = Room(
        FakeSpawner(),  # type: ignore[arg-type]
        functions={tenant.version.function.name: tenant.version.function for tenant in tenants},
        memory_mb=memory_mb,
        max_environments=max_environments,
        patience_s=patience_s,
    )
    for tenant in tenants:
        room.join(tenant)
    return room


def claim(work: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run an asynchronous claim on a loop of its own."""

    def run() -> None:
        asyncio.run(asyncio.wait_for(work(), 60))

    run.__name__ = work.__name__
    return run


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that the test sets; `now_s` is its time."""
    clock = SimpleNamespace(now_s=NOW_S)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now_s))
    return clock


# Overtaking: `first` waits in line, the room it waits for has just come free, and `second` asks before the offer.


def second_may_have(
    first: Tenant, second: Tenant, *, held: int = 0, max_environments: int = 8, memory_mb: int = 10_000
) -> bool:
    """Whether `second` gets room while `first` waits for its own.

    Args:
        held: environments of another unreserved function, 100 MiB each.
    """

    async def work() -> bool:
        other, whole = Tenant("other", memory_mb=100), Tenant("whole", memory_mb=memory_mb)
        room = a_room(other, first, second, whole, max_environments=max_environments, memory_mb=memory_mb)
        # Given: everything is taken, so that `first` waits.
        assert room.reserve(whole)
        own = first.version.function.reserved_concurrency or 0
        room._count[first] = own  # a reserved function waits where its own share is used up, or the memory is
        assert not room.reserve(first)
        room._count[first] = 0 if first.version.function.name == "served" else own
        # When: what was held by `whole` comes free but for `held` others
        room.release(whole)
        room._count[other] = held
        room._used_mb = held * 100
        return room.reserve(second)

    return asyncio.run(work())


def test_who_comes_later_gets_room_where_there_is_enough_for_both() -> None:
    assert second_may_have(Tenant("a", memory_mb=600), Tenant("b", memory_mb=300), memory_mb=1000)


@pytest.mark.parametrize(("second_mb", "has_room"), [(400, True), (401, False)])
def test_nobody_takes_the_memory_that_one_before_it_waits_for(second_mb: int, has_room: bool) -> None:
    first, second = Tenant("a", memory_mb=600), Tenant("b", memory_mb=second_mb)
    assert second_may_have(first, second, memory_mb=1000) is has_room


@pytest.mark.parametrize(("held", "has_room"), [(1, True), (2, True), (3, False)])
def test_nobody_takes_the_place_that_one_before_it_waits_for(held: int, has_room: bool) -> None:
    assert second_may_have(Tenant("a"), Tenant("b"), held=held, max_environments=4) is has_room


def test_memory_that_others_hold_counts_in_whether_there_is_enough_for_both() -> None:
    first, second = Tenant("a", memory_mb=500), Tenant("b", memory_mb=400)
    assert second_may_have(first, second, held=1, memory_mb=1000)
    first, second = Tenant("a", memory_mb=500), Tenant("b", memory_mb=400)
    assert not second_may_have(first, second, held=2, memory_mb=1000)


def test_a_reserved_function_takes_its_own_place_not_that_of_an_unreserved_one_before_it() -> None:
    assert second_may_have(Tenant("a"), Tenant("r", reserved_concurrency=3), held=0, max_environments=4)


def test_a_function_that_waits_for_its_own_share_holds_back_nobody() -> None:
    first, second = Tenant("r", reserved_concurrency=1, memory_mb=600), Tenant("b", memory_mb=600)
    assert second_may_have(first, second, memory_mb=1000)


def test_a_reserved_function_that_waits_for_memory_does_hold_others_back() -> None:
    first, second = Tenant("served", reserved_concurrency=1, memory_mb=600), Tenant("b", memory_mb=600)
    assert not second_may_have(first, second, memory_mb=1000)


@claim
async def test_synchronous_requests_wait_only_behind_synchronous_ones() -> None:
    whole, patient, urgent = Tenant("whole", memory_mb=1000), Tenant("p", memory_mb=600), Tenant("u", memory_mb=600)
    urgent.urgent = True
    room = a_room(whole, patient, urgent, memory_mb=1000)
    assert room.reserve(whole)
    assert not room.reserve(patient)
    room.release(whole)
    assert room.reserve(urgent)


@claim
async def test_asynchronous_requests_wait_behind_synchronous_ones_that_came_later() -> None:
    whole, patient, urgent = Tenant("whole", memory_mb=1000), Tenant("p", memory_mb=600), Tenant("u", memory_mb=600)
    urgent.urgent = True
    room = a_room(whole, patient, urgent, memory_mb=1000)
    assert room.reserve(whole)
    assert not room.reserve(patient)
    assert not room.reserve(urgent)
    room.release(whole)
    assert not room.reserve(patient)
    assert room.reserve(urgent)


# Giving way between two requests.


def must_yield(
    clock: SimpleNamespace, *, running: bool, waiting: bool, waited_s: float, has_one: bool, patience_s: float = 5.0
) -> bool:
    """Whether a function must give its environment up for another.

    Args:
        running: the one that would go on has synchronous requests.
        waiting: the one that waits has.
        waited_s: so long it has waited.
        has_one: it has an environment already.
    """
    tenant, other = Tenant("a", urgent=running), Tenant("b", urgent=waiting)
    room = a_room(tenant, other, max_environments=2, patience_s=patience_s)

    async def work() -> bool:
        assert room.reserve(tenant)
        assert room.reserve(other if has_one else tenant)
        assert not room.reserve(other)
        clock.now_s += waited_s
        return room.must_yield(tenant)

    return asyncio.run(work())


@pytest.mark.parametrize("urgent", [False, True])
@pytest.mark.parametrize(
    ("waited_s", "has_one", "gives_way"), [(5, False, True), (4.9, False, False), (99, True, False)]
)
def test_of_equals_one_without_any_environment_gets_one_once_its_patience_is_over(
    clock: SimpleNamespace, urgent: bool, waited_s: float, has_one: bool, gives_way: bool
) -> None:
    assert must_yield(clock, running=urgent, waiting=urgent, waited_s=waited_s, has_one=has_one) is gives_way


@pytest.mark.parametrize(("waited_s", "has_one", "gives_way"), [(0, False, True), (5, True, True), (4.9, True, False)])
def test_synchronous_requests_get_an_environment_from_asynchronous_ones_without_patience_or_a_second_one_with_it(
    clock: SimpleNamespace, waited_s: float, has_one: bool, gives_way: bool
) -> None:
    assert must_yield(clock, running=False, waiting=True, waited_s=waited_s, has_one=has_one) is gives_way


def test_synchronous_requests_never_give_way_to_asynchronous_ones(clock: SimpleNamespace) -> None:
    assert not must_yield(clock, running=True, waiting=False, waited_s=1e6, has_one=False)


# What the machine may hold.


def test_a_reserved_function_can_have_its_share_and_an_unreserved_one_what_is_left() -> None:
    reserved, shared = Tenant("r", reserved_concurrency=3), Tenant("s")
    room = a_room(reserved, shared, max_environments=8)
    assert room.most_at_once(reserved.version.function) == 3
    assert room.most_at_once(shared.version.function) == 5


def test_a_tenant_that_left_is_asked_for_nothing_and_may_leave_twice() -> None:
    tenant = Tenant("a")
    room = a_room(tenant)
    room.leave(tenant)
    room.leave(tenant)
    assert room._tenants == []


@pytest.mark.parametrize(
    ("limits", "mb"),
    [
        ({}, 8000),
        ({"/sys/fs/cgroup/memory.max": "max\n"}, 8000),
        ({"/sys/fs/cgroup/memory.max": str(5000 << 20)}, 4000),
        ({"/sys/fs/cgroup/memory/memory.limit_in_bytes": str(2500 << 20)}, 2000),
        ({"/sys/fs/cgroup/memory.max": "max\n", "/sys/fs/cgroup/memory/memory.limit_in_bytes": str(2500 << 20)}, 2000),
        ({"/sys/fs/cgroup/memory.max": str(1 << 62)}, 8000),
    ],
)
def test_environments_may_have_four_fifths_of_the_machines_memory_or_of_the_cgroups(
    monkeypatch: pytest.MonkeyPatch, limits: dict[str, str], mb: int
) -> None:
    sizes = {"SC_PHYS_PAGES": 10_000 * 256, "SC_PAGE_SIZE": 4096}

    def read_text(path: Path) -> str:
        if str(path) not in limits:
            raise FileNotFoundError(path)
        return limits[str(path)]

    monkeypatch.setattr(module.os, "sysconf", sizes.__getitem__)
    monkeypatch.setattr(module.Path, "read_text", read_text)
    assert default_memory_mb() == mb


def test_sixteen_environments_may_be_for_each_core_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 3, 7} if pid == 0 else set(), raising=False)
    assert default_max_environments() == 48
    monkeypatch.delattr(os, "sched_getaffinity")
    assert default_max_environments() == 32


# What it reports, and what it watches.


@pytest.mark.parametrize(
    ("unfrozen", "unforked", "why"),
    [
        ("no freezing here", None, "no freezing here"),
        ("no freezing here", "no freezing here", "no freezing here"),
        ("a thread", "off", "not thawed: a thread; not forked: off"),
    ],
)
def test_why_a_start_is_slow_is_one_reason_where_all_agree_else_each_with_what_it_hindered(
    unfrozen: str, unforked: str | None, why: str
) -> None:
    origin = Origin(version_of())
    assert origin.why is None
    origin.unfrozen = Reason(unfrozen)
    origin.unforked = None if unforked is None else Reason(unforked)
    assert origin.why == why


@pytest.mark.parametrize(("init_ms", "reported"), [(None, None), (12.345678, 12.346)])
def test_how_a_version_starts_is_what_its_origin_says(init_ms: float | None, reported: float | None) -> None:
    asked: list[object] = []
    obstacle = Obstacle(StartKind.THAW, "r")
    origin = SimpleNamespace(
        start="fork", obstacles=(obstacle,), why="r", init_ms=init_ms, describe=lambda: {"OptimizationStatus": "Off"}
    )
    spawner: Any = SimpleNamespace(origin=lambda version: asked.append(version) or origin)
    family = FunctionEntry(version_of().function, Metrics().function("f"))
    assert document(family, spawner)["start"] is None
    family.latest.pool = pool = House().pool()
    shown = document(family, spawner)
    assert asked == [pool.version]
    assert (shown["start"], shown["start_reason"], shown["template_init_ms"]) == ("fork", "r", reported)
    assert shown["start_reasons"] == [{"start": StartKind.THAW, "reason": "r"}]
    assert shown["snapshot"] == {"OptimizationStatus": "Off", "restore_p50_ms": None}


@pytest.mark.parametrize("stopping", [False, True])
def test_a_version_is_retired_for_good_unless_the_server_stops(stopping: bool) -> None:
    async def main() -> None:
        house, said = House(), []
        house.spawner.retire = lambda version, *, for_good: said.append(for_good)  # type: ignore[method-assign]
        dispatcher = Dispatcher(house.room, house.spawner, Metrics(), max_waiting=1, spawn_task=house.spawn_task)  # type: ignore[arg-type]
        version = version_of()
        dispatcher.declare({"f": version.function})
        await dispatcher.publish(version)
        dispatcher.stopping = stopping
        dispatcher.declare({})
        assert said == [not stopping]
        await turns()

    asyncio.run(main())


def test_the_memory_of_environments_is_looked_at_while_they_are_busy_and_those_over_their_limit_are_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked: list[str] = []

    class Limit:
        def __init__(self, name: str, within: bool) -> None:
            self.name, self.within = name, within

        def check(self) -> bool:
            looked.append(self.name)
            return self.within

    async def main() -> None:
        monkeypatch.setattr(module, "_WATCH_S", 0)
        room = a_room()
        unlimited, modest, greedy, idle = (FakeEnvironment(version_of()) for _ in range(4))
        modest.memory_limit, greedy.memory_limit = Limit("modest", True), Limit("greedy", False)
        idle.memory_limit = Limit("idle", False)
        watching = asyncio.get_running_loop().create_task(room.watch_memory())
        await turns()
        assert looked == []
        for environment in (unlimited, modest, greedy, idle):
            room.began(environment)
        room.finished(idle)
        await asyncio.wait_for(greedy.was_killed.wait(), 60)
        assert not any(environment.was_killed.is_set() for environment in (unlimited, modest, idle))
        assert set(looked) == {"modest", "greedy"}
        for environment in (unlimited, modest, greedy):
            room.finished(environment)
        await turns()
        assert not room._any_busy.is_set()
        watching.cancel()

    asyncio.run(main())
