"""Claims about `thawd.scheduling.pool`: who is served, by what, what is left behind. Fake processes, a real loop."""

from __future__ import annotations

import asyncio
import traceback

import pytest

from tests.unit.execution_fakes import FakeEnvironment, House, ask, invocation, turns, until, within
from thawd.environments.init_phase import InitError
from thawd.errors import NoRoomError, ServiceException, TooManyRequestsException
from thawd.scheduling import pool as pool_module
from thawd.scheduling.pool import Lease, Pool, PoolRetiredError


def environment_of(lease: Lease) -> FakeEnvironment:
    assert isinstance(lease.environment, FakeEnvironment)
    return lease.environment


async def warm(house: House, pool: Pool, number: int = 1) -> list[FakeEnvironment]:
    """Given: the pool has `number` idle environments, in the order of their becoming idle."""
    was, house.spawner.immediate = house.spawner.immediate, True
    leases = [await within(task) for task in [ask(pool) for _ in range(number)]]
    house.spawner.immediate = was
    for lease in leases:
        pool.release(lease)
    return [environment_of(lease) for lease in leases]


async def test_a_burst_of_n_on_one_environment_starts_n_minus_1_at_once() -> None:
    # Given one idle environment
    house = House()
    pool = house.pool()
    await warm(house, pool)
    # When five requests come at once
    tasks = [ask(pool) for _ in range(5)]
    await turns()
    # Then one is served and four starts are under way
    assert [task.done() for task in tasks].count(True) == 1
    assert len(house.spawner.under_way) == 4
    assert pool.counts() == {"idle": 0, "busy": 1, "starting": 4}
    for _ in range(4):
        house.spawner.succeed()
    assert len({id(lease.environment) for lease in await within(asyncio.gather(*tasks))}) == 5


async def test_the_environment_used_last_is_used_first() -> None:
    house = House()
    pool = house.pool()
    first, second, third = await warm(house, pool, 3)
    lease = await pool.acquire(invocation())
    assert lease.environment is third
    also = await pool.acquire(invocation())
    assert also.environment is second
    pool.release(lease)
    pool.release(also)
    assert (await pool.acquire(invocation())).environment is second
    assert first in pool.all()


async def test_a_freed_environment_serves_the_waiter_before_its_own_start_which_then_idles() -> None:
    house = House()
    pool = house.pool()
    (environment,) = await warm(house, pool)
    held = await pool.acquire(invocation())
    task = ask(pool)
    await turns()
    pool.release(held)
    lease = await within(task)
    assert lease.environment is environment
    assert lease.init_ms is None
    house.spawner.succeed()
    await turns()
    assert pool.counts() == {"idle": 1, "busy": 1, "starting": 0}


async def test_init_time_is_told_to_the_one_that_waited_for_the_start_and_to_no_other() -> None:
    house = House()
    pool = house.pool()
    task = ask(pool)
    await turns()
    house.spawner.succeed()
    lease = await within(task)
    assert lease.init_ms == 5.0
    pool.release(lease)
    assert (await pool.acquire(invocation())).init_ms is None


async def test_synchronous_requests_go_before_asynchronous_ones() -> None:
    house = House(max_environments=1)
    pool = house.pool()
    await warm(house, pool)
    held = await pool.acquire(invocation())
    later = ask(pool, asynchronous=True)
    await turns()
    sooner = ask(pool)
    await turns()
    pool.release(held)
    lease = await within(sooner)
    assert not later.done()
    pool.release(lease)
    await within(later)


async def test_requests_are_served_in_the_order_of_their_coming() -> None:
    house = House(max_environments=1)
    pool = house.pool()
    await warm(house, pool)
    lease = await pool.acquire(invocation())
    tasks = [ask(pool) for _ in range(4)]
    await turns()
    for task in tasks:
        pool.release(lease)
        lease = await within(task)


async def test_a_full_queue_throttles() -> None:
    house = House(max_environments=1)
    pool = house.pool(max_waiting=2)
    tasks = [ask(pool) for _ in range(2)]
    await turns()
    with pytest.raises(TooManyRequestsException, match="queue of waiting requests is full") as caught:
        await pool.acquire(invocation())
    assert caught.value.status == 429
    house.spawner.succeed()
    pool.release(await within(tasks[0]))
    await within(tasks[1])


async def test_a_request_past_its_deadline_is_throttled_and_leaves_the_queue() -> None:
    house = House(max_environments=1)
    pool = house.pool()
    await warm(house, pool)
    held = await pool.acquire(invocation())
    with pytest.raises(TooManyRequestsException, match="in time"):
        await within(pool.acquire(invocation(wait_s=0.01)))
    assert pool.waiting == 0
    pool.release(held)
    assert pool.counts()["idle"] == 1


async def test_a_request_past_its_deadline_still_gets_the_start_that_is_under_way() -> None:
    house = House()
    pool = house.pool()
    task = ask(pool, wait_s=-1.0)
    await turns(50)
    assert not task.done()
    house.spawner.succeed()
    await within(task)


async def test_after_a_start_that_took_past_the_deadline_and_failed_the_request_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pool_module, "_EXPIRY_RECHECK_S", 0.01)

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
    pool.seed_failure(InitError("broken at publication", b"{}"))
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
    pool.seed_failure(InitError("broken at publication", b"{}"))
    task = ask(pool)
    await turns()
    house.spawner.succeed()
    lease = await within(task)
    assert lease.init_ms is not None
    pool.release(lease)
    assert pool._failure is None


async def test_after_the_back_off_a_start_is_tried_again_and_success_forgets_the_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pool_module, "_BACKOFF_FIRST_S", 0.02)

    house = House()
    pool = house.pool()
    task = ask(pool)
    await turns()
    house.spawner.fail(InitError("broken", b"{}"))
    with pytest.raises(InitError):
        await within(task)
    await until(lambda: not pool._backs_off())
    task = ask(pool)
    await turns()
    house.spawner.succeed()
    pool.release(await within(task))
    assert pool._failure is None


def test_each_failure_doubles_the_back_off_up_to_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 1000.0
    monkeypatch.setattr(pool_module.time, "monotonic", lambda: now_s)

    async def claim() -> None:
        nonlocal now_s
        pool = House().pool()
        waits = []
        for _ in range(9):
            pool.seed_failure(InitError("broken", b"{}"))
            assert pool._failure is not None
            waits.append(pool._failure.until_s - now_s)
            now_s = pool._failure.until_s + 0.5
        assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]

    # The loop's own clock must not stand still.
    loop = asyncio.new_event_loop()
    monkeypatch.setattr(loop, "time", iter(range(10_000)).__next__)
    try:
        loop.run_until_complete(claim())
    finally:
        loop.close()


async def test_a_request_that_queued_during_the_back_off_is_served_even_if_the_timer_fires_a_little_early(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """uvloop's timers count whole milliseconds and fire up to one early; a request must not be forgotten for that."""
    monkeypatch.setattr(pool_module, "_BACKOFF_FIRST_S", 0.05)

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
    """An exception raised again and again keeps the frames, and with them the payloads, of all who got it."""
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


async def test_a_waiter_that_is_cancelled_just_as_it_is_served_gives_the_environment_back() -> None:
    house = House(max_environments=1)
    pool = house.pool()
    await warm(house, pool)
    held = await pool.acquire(invocation())
    task = ask(pool)
    await turns()
    pool.release(held)  # the lease is in the waiter's hand, but it has not run yet
    task.cancel()
    await turns()
    assert task.cancelled()
    assert pool.counts() == {"idle": 1, "busy": 0, "starting": 0}


async def test_a_waiter_that_is_cancelled_before_leaves_the_queue() -> None:
    house = House()
    pool = house.pool()
    task = ask(pool)
    await turns()
    task.cancel()
    await turns()
    assert pool.waiting == 0
    house.spawner.succeed()
    await turns()
    assert pool.counts() == {"idle": 1, "busy": 0, "starting": 0}


async def test_an_environment_that_was_killed_is_not_given_to_anyone_when_it_is_released() -> None:
    """A killed process is dead in a moment: whoever got it would fail for something it did not do."""
    house = House(max_environments=2)
    house.spawner.slow_to_die = True
    pool = house.pool()
    (environment,) = await warm(house, pool)
    lease = await pool.acquire(invocation())
    environment.kill()  # as the time limit, the memory watch, or the dispatcher on cancellation do
    pool.release(lease)
    task = ask(pool)
    await turns()
    got = environment_of(await within(task)) if task.done() else None
    assert got is not environment
    environment.die()
    await turns()
    house.spawner.succeed()
    assert environment_of(await within(task)) is not environment


async def test_retiring_tells_the_waiters_to_ask_the_next_version() -> None:
    house = House(max_environments=1)
    pool = house.pool()
    await warm(house, pool)
    held = await pool.acquire(invocation())
    tasks = [ask(pool), ask(pool, asynchronous=True)]
    await turns()
    pool.retire()
    for task in tasks:
        with pytest.raises(PoolRetiredError):
            await within(task)
    with pytest.raises(PoolRetiredError):
        await pool.acquire(invocation())
    assert not pool.empty.is_set()
    pool.release(held)
    await within(pool.empty.wait())
    await turns()
    house.assert_nothing_leaked(pool)


async def test_retiring_during_a_start_ends_what_was_started() -> None:
    house = House()
    pool = house.pool()
    task = ask(pool)
    await turns()
    pool.retire()
    with pytest.raises(PoolRetiredError):
        await within(task)
    environment = house.spawner.succeed()
    await within(environment.ended.wait())
    await within(pool.empty.wait())
    house.assert_nothing_leaked(pool)


async def test_a_start_that_is_cancelled_by_a_retirement_leaves_the_pool_empty() -> None:
    """The spawner cancels a template's start when its version is retired; who waited for it sees a CancelledError."""
    house = House()
    pool = house.pool()
    task = ask(pool)
    await turns()
    pool.retire()
    house.spawner.under_way[0].cancel()
    with pytest.raises(PoolRetiredError):
        await within(task)
    await within(pool.empty.wait())
    house.assert_nothing_leaked(pool)


async def test_a_retired_pool_is_empty_only_when_its_last_process_has_ended() -> None:
    # Given a pool with two busy environments whose processes take their time to die
    house = House()
    house.spawner.slow_to_die = True
    pool = house.pool()
    first, second = await warm(house, pool, 2)
    leases = [await pool.acquire(invocation()), await pool.acquire(invocation())]
    # When it is retired, both are given back, and one of them has died
    pool.retire()
    for lease in leases:
        pool.release(lease)
    first.die()
    await turns()
    if pool.empty.is_set():
        house.room.leave(pool)  # what the dispatcher does then
    # Then the other one's room is given back as well
    second.die()
    await turns()
    assert pool.empty.is_set()
    house.assert_nothing_leaked(pool)


async def test_provisioned_environments_are_started_kept_and_replaced() -> None:
    house = House(immediate=True)
    pool = house.pool(provisioned_concurrency=2, idle_timeout_s=0.01)
    await within(pool.provision())
    assert pool.counts() == {"idle": 2, "busy": 0, "starting": 0}
    lease = await pool.acquire(invocation())
    assert lease.init_ms is None
    pool.release(lease)
    house.spawner.environments[0].die()
    await turns()
    assert pool.counts()["idle"] == 2
    assert len(house.spawner.environments) == 3
    # An extra one is reaped, they are not.
    leases = [await within(task) for task in [ask(pool) for _ in range(3)]]
    for lease in leases:
        pool.release(lease)
    extra = next(e for e in house.spawner.environments if not e.provisioned)
    await within(extra.ended.wait())
    assert pool.counts()["idle"] == 2
    assert all(e.provisioned for e in pool.all())


async def test_a_provisioned_environment_that_cannot_be_started_is_tried_again_after_the_back_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pool_module, "_BACKOFF_FIRST_S", 0.02)

    house = House()
    pool = house.pool(provisioned_concurrency=1)
    house.spawner.failure = InitError("broken", b"{}")
    await within(pool.provision())
    assert len(house.spawner.begun) == 1
    house.spawner.failure = None
    house.spawner.immediate = True
    await until(lambda: pool.counts()["idle"] == 1)


async def test_a_provisioned_environment_that_dies_at_once_again_and_again_is_no_crash_loop() -> None:
    house = House(immediate=True)
    pool = house.pool(provisioned_concurrency=1)
    await within(pool.provision())
    for _ in range(50):
        if pool.all():
            environment_of(Lease(pool.all()[0], None)).die()  # idle: it never served
        await turns(3)
    assert len(house.spawner.begun) < 10


async def test_idle_environments_are_reaped_down_to_zero() -> None:
    house = House()
    pool = house.pool(idle_timeout_s=0.02)
    environments = await warm(house, pool, 3)
    for environment in environments:
        await within(environment.ended.wait())
    await turns()
    assert pool.empty.is_set()
    house.assert_nothing_leaked(pool)


async def test_an_environment_that_is_used_is_not_reaped_with_those_that_are_not() -> None:
    house = House()
    pool = house.pool(idle_timeout_s=0.05)
    old, used = await warm(house, pool, 2)
    lease = await pool.acquire(invocation())
    assert lease.environment is used
    await within(old.ended.wait())
    assert not used.was_killed.is_set()
    pool.release(lease)
    await within(used.ended.wait())


async def test_an_environment_that_dies_under_its_request_gives_its_room_back_once() -> None:
    house = House(max_environments=1)
    pool = house.pool()
    (environment,) = await warm(house, pool)
    lease = await pool.acquire(invocation())
    task = ask(pool)
    await turns()
    environment.die()
    pool.release(lease)
    await turns()
    assert len(house.spawner.under_way) == 1
    house.spawner.succeed()
    pool.release(await within(task))
    pool.retire()
    await within(pool.empty.wait())
    await turns()
    house.assert_nothing_leaked(pool)


async def test_an_environment_that_died_between_its_first_word_and_its_lease_is_not_leased() -> None:
    house = House()
    pool = house.pool()
    task = ask(pool)
    await turns()
    dead = house.spawner.succeed()
    dead.die()
    await turns()
    assert not task.done()
    alive = house.spawner.succeed()
    assert (await within(task)).environment is alive


async def test_where_no_process_is_left_an_idle_environment_gives_its_own() -> None:
    house = House()
    first, second = house.pool("first"), house.pool("second")
    (idle,) = await warm(house, first)
    task = ask(second)
    await until(lambda: bool(house.spawner.under_way))
    house.spawner.fail(NoRoomError("Resource temporarily unavailable"))
    await until(idle.ended.is_set)
    await until(lambda: bool(house.spawner.under_way))
    house.spawner.succeed()
    lease = await within(task)
    assert environment_of(lease).version is second.version
    second.release(lease)


async def test_where_no_process_is_left_and_nothing_is_idle_the_start_fails() -> None:
    house = House()
    pool = house.pool()
    task = ask(pool)
    await until(lambda: bool(house.spawner.under_way))
    house.spawner.fail(NoRoomError("Resource temporarily unavailable"))
    with pytest.raises(ServiceException, match="Resource temporarily unavailable"):
        await within(task)
