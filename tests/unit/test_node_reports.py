"""Claims about what a `LocalNode` may hold, what it reports of a version, and how it watches memory."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.execution_fakes import FakeEnvironment, turns, until, version_of
from tests.unit.test_node_room import NOW_S, Tenant, a_node
from thawd.scheduling import room as module
from thawd.scheduling.room import StartMethod, default_max_environments, default_memory_mb

# What the machine may hold.


def test_a_reserved_function_can_have_its_share_and_an_unreserved_one_what_is_left() -> None:
    reserved, shared = Tenant("r", reserved_concurrency=3), Tenant("s")
    node = a_node(reserved, shared, max_environments=8)
    assert node.most_at_once(reserved.version.function) == 3
    assert node.most_at_once(shared.version.function) == 5


def test_a_tenant_that_left_is_asked_for_nothing_and_may_leave_twice() -> None:
    tenant = Tenant("a")
    node = a_node(tenant)
    node.leave(tenant)
    node.leave(tenant)
    assert node._tenants == []


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


def obstacle(reason: str, text: str) -> Any:
    return SimpleNamespace(reason=reason, text=text)


@pytest.mark.parametrize(
    ("obstacles", "why"),
    [
        ([], None),
        ([("no freezing here", "no thaw: no freezing here")], "no freezing here"),
        ([("no freezing here", "no thaw: x"), ("no freezing here", "no fork: y")], "no freezing here"),
        ([("a thread", "no thaw: a thread"), ("off", "no fork: off")], "no thaw: a thread; no fork: off"),
    ],
)
def test_why_a_start_is_slow_is_one_reason_where_all_agree_else_each_with_what_it_hindered(
    obstacles: list[tuple[str, str]], why: str | None
) -> None:
    method = StartMethod("cold", tuple(obstacle(*one) for one in obstacles), None, {})
    assert method.why == why


@pytest.mark.parametrize(("init_ms", "reported"), [(None, None), (12.345678, 12.346)])
def test_how_a_version_starts_is_what_its_origin_says(init_ms: float | None, reported: float | None) -> None:
    node, asked = a_node(), []
    origin = SimpleNamespace(
        start="fork", obstacles=(obstacle("r", "t"),), init_ms=init_ms, describe=lambda: {"OptimizationStatus": "Off"}
    )
    node.spawner.origin = lambda version: asked.append(version) or origin  # type: ignore[attr-defined,method-assign]
    version = version_of()
    assert node.start_method(version) == StartMethod("fork", origin.obstacles, reported, {"OptimizationStatus": "Off"})
    assert asked == [version]


@pytest.mark.parametrize("for_good", [None, False, True])
def test_a_version_is_retired_for_good_only_where_that_was_asked(for_good: bool | None) -> None:
    node, said = a_node(), []
    node.spawner.retire = lambda version, *, for_good: said.append(for_good)  # type: ignore[method-assign]
    node.retire(version_of(), **({} if for_good is None else {"for_good": for_good}))
    assert said == [bool(for_good)]


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
        node = a_node()
        unlimited, modest, greedy, idle = (FakeEnvironment(version_of()) for _ in range(4))
        modest.memory_limit, greedy.memory_limit = Limit("modest", True), Limit("greedy", False)
        idle.memory_limit = Limit("idle", False)
        watching = asyncio.get_running_loop().create_task(node.watch_memory())
        await turns()
        assert looked == []
        for environment in (unlimited, modest, greedy, idle):
            node.began(environment)
        node.finished(idle)
        await asyncio.wait_for(greedy.was_killed.wait(), 60)
        assert not any(environment.was_killed.is_set() for environment in (unlimited, modest, idle))
        assert set(looked) == {"modest", "greedy"}
        await until(lambda: looked.count("modest") >= 3)  # it goes on looking though one has finished
        for environment in (unlimited, modest, greedy):
            node.finished(environment)
        await turns()
        assert not node._any_busy.is_set()
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
        node = a_node()
        environment = FakeEnvironment(version_of())
        environment.memory_limit = Slow()
        node.began(environment)
        with pytest.raises(asyncio.CancelledError):
            await node.watch_memory()

    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now_s))
    monkeypatch.setattr(module, "asyncio", SimpleNamespace(sleep=sleep, Event=asyncio.Event))
    asyncio.run(main())
    assert slept == [0.1, 5.0, 0.1, 5.0]
