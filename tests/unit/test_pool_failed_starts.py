"""`thawd.scheduling.pool` when starts fail: which requests get the error, the back-off, and what is tried again."""

from __future__ import annotations

import asyncio
import traceback

import pytest

from tests.unit.execution_fakes import (
    FakeEnvironment,
    House,
    ask,
    environment_of,
    invocation,
    turns,
    until,
    warm,
    within,
)
from thawd.environments.init_phase import InitError
from thawd.errors import NoRoomError, ServiceException
from thawd.scheduling import room as room_module
from thawd.scheduling import start_failures as failures_module
from thawd.scheduling.leases import Lease, PoolRetiredError


async def test_after_a_start_that_took_past_the_deadline_and_failed_the_request_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("thawd.scheduling.pool_requests._OVERDUE_AGAIN_S", 0.01)

    house = House()
    pool = house.pool()
    task = ask(pool, wait_s=-1.0)
    await turns(50)
    house.spawner.fail(InitError("no", b"{}"))
    with pytest.raises(InitError):
        await within(task)


async def test_an_init_failure_is_told_to_all_who_wait_and_not_repeated_at_once() -> None:
    house = House()
    pool = house.pool()
    tasks = [ask(pool) for _ in range(3)]
    await turns()
    for _ in range(3):
        house.spawner.fail(InitError("broken", b'{"errorType":"X"}'))
    told = await within(asyncio.gather(*tasks, return_exceptions=True))
    assert [str(error) for error in told] == ["broken"] * 3
    for _ in range(10):
        with pytest.raises(InitError, match="broken"):
            await pool.acquire(invocation())
    assert len(house.spawner.begun) == 3
    assert pool.empty.is_set()
    house.assert_nothing_leaked(pool)


async def test_the_first_request_after_a_failed_publication_has_init_run_again_and_no_other() -> None:
    house = House()
    pool = house.pool()
    pool.failures.seed(InitError("broken at publication", b"{}"))
    task = ask(pool)
    await turns()
    house.spawner.fail(InitError("broken again", b"{}"))
    with pytest.raises(InitError, match="broken again"):
        await within(task)
    for _ in range(3):
        with pytest.raises(InitError, match="broken again"):
            await pool.acquire(invocation())
    assert len(house.spawner.begun) == 1
    house.assert_nothing_leaked(pool)


async def test_a_function_whose_publication_failed_serves_when_the_first_requests_init_goes_well() -> None:
    house = House()
    pool = house.pool()
    pool.failures.seed(InitError("broken at publication", b"{}"))
    task = ask(pool)
    await turns()
    house.spawner.succeed()
    lease = await within(task)
    assert lease.init_ms is not None
    pool.release(lease)
    assert pool.failures.error is None


async def test_after_the_back_off_a_start_is_tried_again_and_success_forgets_the_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(failures_module, "_FIRST_S", 0.02)

    house = House()
    pool = house.pool()
    task = ask(pool)
    await turns()
    house.spawner.fail(InitError("broken", b"{}"))
    with pytest.raises(InitError):
        await within(task)
    await until(lambda: not pool.failures.backs_off())
    task = ask(pool)
    await turns()
    house.spawner.succeed()
    pool.release(await within(task))
    assert pool.failures.error is None


def test_each_failure_doubles_the_back_off_up_to_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 1000.0
    monkeypatch.setattr(failures_module.time, "monotonic", lambda: now_s)

    async def claim() -> None:
        nonlocal now_s
        pool = House().pool()
        waits = []
        for _ in range(9):
            pool.failures.seed(InitError("broken", b"{}"))
            assert pool.failures.error is not None
            waits.append(pool.failures.until_s - now_s)
            now_s = pool.failures.until_s + 0.5
        assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]

    # The loop's own clock must advance.
    loop = asyncio.new_event_loop()
    monkeypatch.setattr(loop, "time", iter(range(10_000)).__next__)
    try:
        loop.run_until_complete(claim())
    finally:
        loop.close()


async def test_a_request_that_queued_during_the_back_off_is_served_even_if_the_timer_fires_a_little_early(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """uvloop's timers count whole milliseconds and may fire one early. No request may be forgotten because of that."""
    monkeypatch.setattr(failures_module, "_FIRST_S", 0.05)

    house = House(max_environments=2)
    pool = house.pool()
    (environment,) = await warm(house, pool)
    await pool.acquire(invocation())
    loop = asyncio.get_running_loop()
    real = loop.call_later
    with pytest.MonkeyPatch.context() as early:
        early.setattr(loop, "call_later", lambda delay, *rest: real(max(0.0, delay - 0.001), *rest))
        waiting = ask(pool)
        await turns()
        house.spawner.fail(InitError("broken", b"{}"))
        await turns()
    environment.die()
    house.spawner.immediate = True
    await within(waiting)


async def test_an_error_of_the_platform_while_starting_is_told_as_a_service_exception() -> None:
    house = House()
    pool = house.pool()
    task = ask(pool)
    await turns()
    house.spawner.fail(RuntimeError("a bug"))
    with pytest.raises(ServiceException, match="a bug"):
        await within(task)
    house.assert_nothing_leaked(pool)


async def test_a_remembered_failure_does_not_grow_with_each_request_it_is_told_to() -> None:
    """An exception that is raised repeatedly keeps the frames, and so the payloads, of all requests that got it."""
    house = House()
    pool = house.pool()
    task = ask(pool)
    await turns()
    house.spawner.fail(InitError("broken", b"{}"))
    with pytest.raises(InitError):
        await within(task)
    depths = []
    for _ in range(50):
        with pytest.raises(InitError) as caught:
            await pool.acquire(invocation())
        depths.append(len(list(traceback.walk_tb(caught.value.__traceback__))))
        del caught
    assert depths[-1] == depths[0]


async def test_while_one_environment_works_a_failed_start_is_not_told_and_the_environment_serves() -> None:
    house = House()
    pool = house.pool()
    await warm(house, pool)
    held = await pool.acquire(invocation())
    task = ask(pool)
    await turns()
    house.spawner.fail(InitError("flaky", b"{}"))
    await turns()
    assert not task.done()
    pool.release(held)
    await within(task)


async def test_a_provisioned_environment_that_cannot_be_started_is_tried_again_after_the_back_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(failures_module, "_FIRST_S", 0.02)

    house = House()
    pool = house.pool(provisioned_concurrency=1)
    house.spawner.failure = InitError("broken", b"{}")
    await within(pool.provision())
    assert len(house.spawner.begun) == 1
    house.spawner.failure = None
    house.spawner.immediate = True
    await until(lambda: pool.counts()["idle"] == 1)


async def test_a_provisioned_environment_that_cannot_be_started_keeps_no_request_from_one_of_its_own() -> None:
    house = House(immediate=True)
    pool = house.pool(provisioned_concurrency=1)
    house.spawner.failure = InitError("broken", b"{}")
    await within(pool.provision())
    assert pool.provisioned_failures.reason == "broken"
    house.spawner.failure = None
    pool.release(await within(ask(pool)))
    assert pool.counts()["idle"] == 1
    assert pool.provisioned_ready() == 0


async def test_a_request_that_waits_for_a_provisioned_start_gets_another_one_if_that_fails() -> None:
    house = House()
    pool = house.pool(provisioned_concurrency=1)
    starting = asyncio.ensure_future(pool.provision())
    await turns()
    task = ask(pool)
    await turns()
    house.spawner.fail(InitError("broken", b"{}"))
    await within(starting)
    await turns()
    house.spawner.succeed()
    pool.release(await within(task))
    assert pool.failures.error is None


async def test_a_provisioned_environment_that_dies_at_once_again_and_again_is_no_crash_loop() -> None:
    house = House(immediate=True)
    pool = house.pool(provisioned_concurrency=1)
    await within(pool.provision())
    for _ in range(50):
        if pool.all():
            environment_of(Lease(pool.all()[0], None)).die()  # idle: it has never served
        await turns(3)
    assert len(house.spawner.begun) < 10


async def test_a_provisioned_environment_that_something_else_kills_during_init_is_restarted_after_a_back_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(failures_module, "_FIRST_S", 0.02)
    house = House()
    pool = house.pool(provisioned_concurrency=1)
    house.spawner.failure = InitError("signal: killed", b"{}", from_outside=True)
    await within(pool.provision())
    await turns(200)
    assert len(house.spawner.begun) == 1
    assert pool.provisioned_failures.reason == "signal: killed"
    house.spawner.failure = None
    house.spawner.immediate = True
    await until(lambda: pool.counts()["idle"] == 1)


async def test_a_request_whose_start_something_else_killed_gets_another_one_while_one_environment_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(failures_module, "_FIRST_S", 0.02)
    house = House()
    pool = house.pool()
    await warm(house, pool)
    held = await pool.acquire(invocation())
    task = ask(pool)
    await turns()
    house.spawner.fail(InitError("killed", b"{}", from_outside=True))
    house.spawner.immediate = True
    lease = await within(task)
    assert lease.environment is not held.environment


async def test_a_start_that_something_else_killed_holds_nothing_back_if_no_request_waits() -> None:
    house = House()
    pool = house.pool()
    await warm(house, pool)
    held = await pool.acquire(invocation())
    task = ask(pool)
    await turns()
    pool.release(held)
    await within(task)
    house.spawner.fail(InitError("killed", b"{}", from_outside=True))
    await turns()
    assert not pool.failures.backs_off()


async def dying(house: House) -> FakeEnvironment:
    """Let the oldest start succeed with an environment that has just lost its channel."""
    environment = house.spawner.succeed()
    environment.dying = True
    await turns()
    return environment


async def test_environments_that_are_ready_but_dying_are_unused_deaths_and_the_third_fails_the_request() -> None:
    house = House()
    pool = house.pool()
    started = []
    pool.on_started = lambda: started.append(True)
    task = ask(pool)
    for number in range(3):
        await until(lambda: house.spawner.under_way)
        environment = await dying(house)
        assert len(house.spawner.begun) == number + 1  # none is started before its death is counted
        assert not task.done()
        environment.die()
    with pytest.raises(InitError, match="killed"):
        await within(task)
    assert pool.failures.backs_off()
    assert started == []
    house.assert_nothing_leaked(pool)


async def test_provisioned_environments_that_are_ready_but_dying_are_no_crash_loop() -> None:
    house = House()
    pool = house.pool(provisioned_concurrency=1)
    provision = asyncio.ensure_future(pool.provision())
    for _ in range(3):
        await until(lambda: house.spawner.under_way)
        (await dying(house)).die()
    await within(provision)
    await turns(200)
    assert len(house.spawner.begun) == 3
    assert pool.provisioned_failures.backs_off()
    house.assert_nothing_leaked(pool)


async def test_an_environment_that_is_dying_when_its_pool_has_retired_is_killed() -> None:
    house = House()
    pool = house.pool()
    task = ask(pool)
    await turns()
    pool.retire()
    environment = await dying(house)
    await until(environment.ended.is_set)
    with pytest.raises(PoolRetiredError):
        await within(task)
    assert pool.empty.is_set()
    house.assert_nothing_leaked(pool)


async def test_where_no_process_is_left_an_idle_environment_gives_its_own() -> None:
    house = House()
    first, second = house.pool("first"), house.pool("second")
    (idle,) = await warm(house, first)
    task = ask(second)
    for _ in range(2):
        assert not idle.ended.is_set()
        await until(lambda: bool(house.spawner.under_way))
        house.spawner.fail(NoRoomError("Resource temporarily unavailable"))
    await until(idle.ended.is_set)
    await until(lambda: bool(house.spawner.under_way))
    house.spawner.succeed()
    lease = await within(task)
    assert environment_of(lease).version is second.version
    second.release(lease)


async def test_where_no_process_is_left_and_nothing_is_idle_the_start_fails_after_its_tries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(room_module, "_RETRY_S", 0)
    house = House()
    pool = house.pool()
    task = ask(pool)
    for _ in range(room_module._START_TRIES):
        await until(lambda: bool(house.spawner.under_way))
        house.spawner.fail(NoRoomError("Resource temporarily unavailable"))
    with pytest.raises(ServiceException, match="Resource temporarily unavailable"):
        await within(task)
