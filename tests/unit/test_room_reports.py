"""What a `Room` may hold, what it reports about a version, and how it watches memory."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.execution_fakes import FakeEnvironment, House, turns, until, version_of
from tests.unit.test_room_turns import NOW_S, Occupant, a_room
from thawd.environments.starts.origin import Obstacle, Origin, Reason
from thawd.invocation import StartKind
from thawd.scheduling import room as module
from thawd.scheduling.function_entries import FunctionEntry
from thawd.scheduling.room import default_max_environments, default_memory_mb
from thawd.scheduling.status import document
from thawd.telemetry.metrics import Metrics

# What the machine may hold


def test_a_reserved_function_can_have_its_share_and_an_unreserved_one_what_is_left() -> None:
    reserved, shared = Occupant("r", reserved_concurrency=3), Occupant("s")
    room = a_room(reserved, shared, max_environments=8)
    assert room.most_at_once(reserved.version.function) == 3
    assert room.most_at_once(shared.version.function) == 5


def test_a_tenant_that_left_is_asked_for_nothing_and_may_leave_twice() -> None:
    occupant = Occupant("a")
    room = a_room(occupant)
    room.leave(occupant)
    room.leave(occupant)
    assert room._occupants == []


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


# What it reports, and what it watches


@pytest.mark.parametrize(
    ("why_no_image", "why_no_fork", "why"),
    [
        ("no freezing here", None, "no freezing here"),
        ("no freezing here", "no freezing here", "no freezing here"),
        ("a thread", "off", "not thawed: a thread; not forked: off"),
    ],
)
def test_why_a_start_is_slow_is_one_reason_where_all_agree_else_each_with_what_it_hindered(
    why_no_image: str, why_no_fork: str | None, why: str
) -> None:
    origin = Origin(version_of())
    assert origin.why is None
    origin.why_no_image = Reason(why_no_image)
    origin.why_no_fork = None if why_no_fork is None else Reason(why_no_fork)
    assert origin.why == why


@pytest.mark.parametrize(("init_ms", "reported"), [(None, None), (12.345678, 12.346)])
def test_how_a_version_starts_is_what_its_origin_says(init_ms: float | None, reported: float | None) -> None:
    asked: list[object] = []
    obstacle = Obstacle(StartKind.THAW, "r")
    origin = SimpleNamespace(
        spare_refused=None,
        start="fork",
        obstacles=(obstacle,),
        why="r",
        init_ms=init_ms,
        describe=lambda: {"OptimizationStatus": "Off"},
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
        await until(lambda: looked.count("modest") >= 3)  # it continues although one has finished
        for environment in (unlimited, modest, greedy):
            room.finished(environment)
        await turns()
        assert not room._any_busy.is_set()
        watching.cancel()

    asyncio.run(main())


def test_looking_at_memory_takes_a_twentieth_of_the_time_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    clock = SimpleNamespace(now_s=NOW_S)

    class Slow:
        def check(self) -> bool:
            clock.now_s += 0.25
            return True

    async def sleep(wait_s: float) -> None:
        slept.append(wait_s)
        if len(slept) == 4:
            raise asyncio.CancelledError

    async def main() -> None:
        room = a_room()
        environment = FakeEnvironment(version_of())
        environment.memory_limit = Slow()
        room.began(environment)
        with pytest.raises(asyncio.CancelledError):
            await room.watch_memory()

    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now_s))
    monkeypatch.setattr(module, "asyncio", SimpleNamespace(sleep=sleep, Event=asyncio.Event))
    asyncio.run(main())
    assert slept == [0.1, 5.0, 0.1, 5.0]
