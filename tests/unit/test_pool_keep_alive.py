"""What the pool keeps and prewarms, on a loop with a simulated clock that advances when there is nothing else to do."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.execution_fakes import FakeEnvironment, House, ask, turns, version_of
from thawd.cost.keep_warm import Arrival, simulate
from thawd.environments.init_phase import InitError
from thawd.scheduling import idle_timer
from thawd.scheduling import pool as pool_module
from thawd.scheduling.keep_alive import FixedPolicy, HistogramParameters, HistogramPolicy, Policy, Windows
from thawd.scheduling.pool import Pool


class _Selector(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
    """Waits for no event. The time that it would wait is added to the clock."""

    now_s = 1000.0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready and timeout is not None and timeout > 0:
            self.now_s += timeout
        return ready


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.clock = _Selector()
        super().__init__(self.clock)

    def time(self) -> float:
        return self.clock.now_s


def scenario(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[pytest.MonkeyPatch], None]:
    """Run an asynchronous test on such a loop. The pool uses the loop's clock."""

    def run(monkeypatch: pytest.MonkeyPatch) -> None:
        loop = _Loop()
        for module in (pool_module, idle_timer):
            monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=loop.time))
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(test())

    run.__name__ = test.__name__
    return run


def pool_with(house: House, policy: Policy, *, idle_timeout_s: float = 300.0) -> Pool:
    version = version_of(idle_timeout_s=idle_timeout_s)
    house.room.declare({"f": version.function})
    pool = Pool(version, house.room, max_waiting=100, spawn_task=house.spawn_task, policy=policy)
    house.room.join(pool)
    return pool


async def serve(pool: Pool, duration_s: float = 0.0) -> tuple[FakeEnvironment, bool]:
    """Run one invocation. Return its environment, and whether it waited for a start."""
    lease = await ask(pool, wait_s=1e9)
    await asyncio.sleep(duration_s)
    pool.release(lease)
    environment = lease.environment
    assert isinstance(environment, FakeEnvironment)
    return environment, lease.init_ms is not None


class Told(FixedPolicy):
    """Gives the windows that the test sets, and records idle times."""

    def __init__(self, prewarm_s: float, keep_alive_s: float) -> None:
        super().__init__(keep_alive_s)
        self.said = Windows(prewarm_s, keep_alive_s)
        self.observed: list[float] = []

    def observe(self, idle_s: float) -> None:
        self.observed.append(idle_s)

    def windows(self) -> Windows:
        return self.said


@scenario
async def test_the_environment_used_last_is_kept_for_the_policys_time_and_others_for_the_fixed_one() -> None:
    house = House(immediate=True)
    pool = pool_with(house, Told(0, 1000), idle_timeout_s=300)
    await asyncio.gather(serve(pool, 1), serve(pool, 2))
    await asyncio.sleep(299)
    assert pool.counts()["idle"] == 1  # the first of the two was idle a second longer
    await asyncio.sleep(700)
    assert pool.counts()["idle"] == 1
    await asyncio.sleep(2)
    assert pool.counts()["idle"] == 0
    house.assert_nothing_leaked(pool)


@scenario
async def test_with_a_prewarm_window_it_ends_at_once_is_back_in_time_and_ends_after_the_window() -> None:
    house = House(immediate=True)
    policy = Told(600, 60)
    pool = pool_with(house, policy)
    first, waited = await serve(pool)
    assert waited
    await asyncio.sleep(0.1)
    assert first.was_killed.is_set()
    await asyncio.sleep(599)
    assert pool.counts() == {"idle": 0, "busy": 0, "starting": 0}
    await asyncio.sleep(1)
    assert pool.counts()["idle"] == 1
    second, waited = await serve(pool)
    assert not waited
    assert second is not first
    assert policy.observed == [pytest.approx(600.1)]
    await asyncio.sleep(650)  # 600 s later an environment is prewarmed again, for 60 s
    assert pool.counts()["idle"] == 1
    await asyncio.sleep(11)
    assert pool.counts()["idle"] == 0
    await asyncio.sleep(10_000)
    assert len(house.spawner.environments) == 3  # once in each idle time, and not again after that
    house.assert_nothing_leaked(pool)


@scenario
async def test_nothing_is_started_ahead_while_the_function_runs() -> None:
    house = House(immediate=True)
    pool = pool_with(house, Told(600, 60))
    await serve(pool)
    await asyncio.sleep(500)
    await serve(pool, duration_s=300)
    assert len(house.spawner.environments) == 2
    house.spawner.immediate = False
    await asyncio.sleep(600)
    await turns()
    assert pool.counts()["starting"] == 1
    house.spawner.succeed()
    await asyncio.sleep(61)
    house.assert_nothing_leaked(pool)


@scenario
async def test_a_provisioned_environment_is_not_doubled_by_one_that_is_started_ahead() -> None:
    house = House(immediate=True)
    pool = pool_with(house, Told(600, 60))
    pool.set_provisioned(1)
    await turns()
    await serve(pool)
    await asyncio.sleep(5000)
    assert len(house.spawner.environments) == 1
    assert pool.counts()["idle"] == 1


@scenario
async def test_a_start_ahead_that_fails_is_told_to_nobody_and_the_next_request_starts_one() -> None:
    house = House(immediate=True)
    pool = pool_with(house, Told(600, 60))
    await serve(pool)
    house.spawner.failure = pool_module.ServiceException("no process")
    await asyncio.sleep(601)
    assert pool.counts() == {"idle": 0, "busy": 0, "starting": 0}
    house.spawner.failure = None
    await asyncio.sleep(100)
    assert (await serve(pool))[1]
    assert house.failures == []


@scenario
async def test_a_retired_pool_starts_nothing_ahead() -> None:
    house = House(immediate=True)
    pool = pool_with(house, Told(600, 60))
    await serve(pool)
    pool.retire()
    await asyncio.sleep(1000)
    assert len(house.spawner.environments) == 1
    house.assert_nothing_leaked(pool)


@pytest.mark.parametrize("kind", ["fixed", "histogram"])
def test_the_pool_does_what_the_simulation_says(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parameters = HistogramParameters(bin_s=60, bins=60, least_observations=5)

    def policy() -> Policy:
        return FixedPolicy(300) if kind == "fixed" else HistogramPolicy(300, parameters)

    gaps_s = [1230.0, 200.0, 1230.0, 1231.0, 1235.0, 1230.0, 1239.0, 1230.0, 500.0, 1230.0, 1232.0, 1500.0, 1230.0]
    times_s = [sum(gaps_s[:index]) for index in range(len(gaps_s) + 1)]
    simulated = simulate([Arrival(at_s, 1.0) for at_s in times_s], policy(), surplus_s=300, start_s=0.0)
    loop = _Loop()
    for module in (pool_module, idle_timer):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=loop.time))

    async def main() -> int:
        house = House(immediate=True)
        pool = pool_with(house, policy())
        begin_s, waited = loop.time(), 0
        for at_s in times_s:
            await asyncio.sleep(begin_s + at_s - loop.time())
            waited += (await serve(pool, 1.0))[1]
        assert len(house.spawner.environments) == simulated.starts + simulated.started_ahead
        pool.retire()
        return waited

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        assert runner.run(main()) == simulated.starts
    assert (simulated.started_ahead > 0) is (kind == "histogram")


@scenario
async def test_an_environment_that_becomes_idle_while_another_works_is_reaped_in_its_time() -> None:
    house = House(immediate=True)
    pool = pool_with(house, FixedPolicy(300), idle_timeout_s=300)
    long, _ = await asyncio.gather(ask(pool, wait_s=1e9), serve(pool, 1))
    await asyncio.sleep(301)
    assert pool.counts() == {"idle": 0, "busy": 1, "starting": 0}
    pool.release(long)


@scenario
async def test_of_three_that_a_burst_left_each_is_reaped_in_its_own_time() -> None:
    house = House(immediate=True)
    pool = pool_with(house, Told(0, 1000), idle_timeout_s=300)
    await asyncio.gather(serve(pool, 1), serve(pool, 11), serve(pool, 21))
    for left in (2, 1):
        await asyncio.sleep(281 if left == 2 else 10)
        assert pool.counts()["idle"] == left


@scenario
async def test_a_function_is_not_idle_while_a_request_waits_for_the_next_environment() -> None:
    """Otherwise the policy would learn the time that the request took as idle time."""
    house = House(immediate=True)
    policy = Told(0, 1000)
    pool = pool_with(house, policy)
    house.room.max_environments = 1
    first = await ask(pool, wait_s=1e9)
    waiting = ask(pool, wait_s=1e9)
    await turns()
    assert isinstance(first.environment, FakeEnvironment)
    first.environment.die()
    lease = await waiting
    await asyncio.sleep(100)
    pool.release(lease)
    await asyncio.sleep(50)
    await serve(pool)
    assert policy.observed == [pytest.approx(50)]


@scenario
async def test_nothing_is_started_ahead_while_the_pool_backs_off() -> None:
    house = House()
    pool = pool_with(house, Told(0.5, 60))
    house.spawner.failure = InitError("broken", b"{}")
    with pytest.raises(InitError):
        await ask(pool)
    await asyncio.sleep(0.9)
    assert len(house.spawner.begun) == 1


@scenario
async def test_nothing_is_started_ahead_beside_a_start_that_is_under_way() -> None:
    house = House(immediate=True)
    pool = pool_with(house, Told(600, 60))
    await serve(pool)
    house.spawner.immediate = False
    await asyncio.sleep(599)
    pool.set_provisioned(1)
    await asyncio.sleep(2)
    assert pool.counts()["starting"] == 1


@scenario
async def test_the_windows_are_reported_in_seconds_to_the_millisecond() -> None:
    pool = pool_with(House(), Told(600.12345, 60.5004))
    assert pool.keeping() == {"prewarm_s": 600.123, "keep_alive_s": 60.5}
