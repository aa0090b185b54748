"""What a pool counts and reports: its queue, whether it needs room, provisioned environments, early deaths."""

from __future__ import annotations

from typing import Any

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
from thawd.errors import TooManyRequestsException
from thawd.scheduling.leases import PoolRetiredError
from thawd.scheduling.pool import Pool


async def held_by_another(house: House) -> Pool:
    """Make a pool without any environment, on a machine where another function holds all the room."""
    other, pool = house.pool("other"), house.pool("f", max_waiting=2)
    await warm(house, other, house.room.max_environments)
    for _ in range(house.room.max_environments):
        await other.acquire(invocation("other"))
    return pool


# The queue of requests


async def test_synchronous_and_asynchronous_requests_both_count_as_waiting() -> None:
    pool = await held_by_another(House(max_environments=1))
    tasks = [ask(pool), ask(pool, asynchronous=True)]
    await turns()
    assert pool.waiting == 2
    for task in tasks:
        task.cancel()
    await turns()
    assert pool.waiting == 0


async def test_the_queues_limit_is_of_both_kinds_together_and_the_refusal_has_lambdas_reason() -> None:
    pool = await held_by_another(House(max_environments=1))
    tasks = [ask(pool), ask(pool, asynchronous=True)]
    await turns()
    for asynchronous in (False, True):
        with pytest.raises(TooManyRequestsException) as caught:
            await pool.acquire(invocation(asynchronous=asynchronous))
        assert caught.value.reason == "ConcurrentInvocationLimitExceeded"
    for task in tasks:
        task.cancel()
    await turns()


async def test_a_pool_wants_room_while_more_requests_wait_than_starts_are_under_way() -> None:
    house = House(max_environments=1)
    pool = house.pool()
    assert not pool.wants_room()
    first = ask(pool)
    await turns()
    assert not pool.wants_room()  # its start is in progress
    second = ask(pool)
    await turns()
    assert pool.wants_room()
    second.cancel()
    await turns()
    assert not pool.wants_room()
    house.spawner.succeed()
    await within(first)


async def test_a_pool_wants_room_for_one_provisioned_environment_that_is_missing() -> None:
    pool = await held_by_another(House(max_environments=1))
    pool.set_provisioned(1)
    assert pool.wants_room()
    pool.set_provisioned(0)
    assert not pool.wants_room()


async def test_a_pool_wants_no_room_while_it_backs_off_nor_once_it_is_retired() -> None:
    pool = await held_by_another(House(max_environments=1))
    task = ask(pool, asynchronous=True)
    await turns()
    assert pool.wants_room()
    pool.set_provisioned(1)
    pool.failures.seed(InitError("broken", b"{}"))
    assert pool.wants_room(), "for the provisioned environment"
    pool.provisioned_failures.seed(InitError("broken", b"{}"))
    assert not pool.wants_room()
    assert pool.failures.error is not None
    pool.failures.until_s = 0.0
    assert pool.wants_room()
    pool.retire()
    assert not pool.wants_room()
    with pytest.raises(PoolRetiredError):
        await within(task)


async def test_only_a_synchronous_request_that_waits_makes_a_pool_urgent() -> None:
    pool = await held_by_another(House(max_environments=1))
    assert not pool.is_urgent()
    asynchronous = ask(pool, asynchronous=True)
    await turns()
    assert not pool.is_urgent()
    synchronous = ask(pool)
    await turns()
    assert pool.is_urgent()
    synchronous.cancel()
    await turns()
    assert not pool.is_urgent()
    asynchronous.cancel()
    await turns()


async def test_ending_the_oldest_idle_environment_where_none_is_idle_does_nothing() -> None:
    house = House(immediate=True)
    pool = house.pool(provisioned_concurrency=1)
    pool.end_oldest_idle()
    await within(pool.provision())
    assert pool.idle_longest_since_s() is None
    pool.end_oldest_idle()
    assert pool.counts()["idle"] == 1


# Environments that are being killed


async def test_a_killed_environment_gives_its_room_back_when_it_is_released_not_when_somebody_asks() -> None:
    house = House(max_environments=1)
    house.spawner.slow_to_die = True
    pool = house.pool()
    (environment,) = await warm(house, pool)
    lease = await pool.acquire(invocation())
    environment.kill()
    pool.release(lease)
    assert pool.counts() == {"idle": 0, "busy": 0, "starting": 0}
    assert house.room._used_mb == 0
    environment.die()


async def test_an_idle_environment_that_is_being_killed_is_not_counted_as_busy_once_somebody_asked() -> None:
    house = House(max_environments=2)
    house.spawner.slow_to_die = True
    pool = house.pool()
    (environment,) = await warm(house, pool)
    environment.kill()
    task = ask(pool)
    await turns()
    assert pool.counts() == {"idle": 0, "busy": 0, "starting": 1}
    house.spawner.succeed()
    await within(task)
    environment.die()


async def test_a_retired_pool_is_not_empty_before_its_last_process_has_ended() -> None:
    house = House()
    house.spawner.slow_to_die = True
    pool = house.pool()
    first, second = await warm(house, pool, 2)
    pool.retire()
    first.die()
    assert not pool.empty.is_set()
    second.die()
    assert pool.empty.is_set()


# Provisioned environments


async def test_lowering_the_provisioned_number_frees_as_many_as_are_too_many_and_no_more() -> None:
    house = House(immediate=True)
    pool = house.pool(provisioned_concurrency=3, idle_timeout_s=0.01)
    await within(pool.provision())
    assert pool.provisioned_ready() == 3
    pool.set_provisioned(1)
    assert pool.provisioned_ready() == 1
    pool.set_provisioned(1)
    assert pool.provisioned_ready() == 1
    await until(lambda: pool.counts()["idle"] == 1)
    pool.set_provisioned(None)
    await turns()
    assert pool.provisioned_ready() == 3


async def test_a_provisioned_environment_keeps_serving_its_function_though_another_waits_for_room() -> None:
    house = House(max_environments=1, immediate=True, patience_s=0.0)
    provisioned, other = house.pool("p", provisioned_concurrency=1), house.pool("other")
    await within(provisioned.provision())
    lease = await provisioned.acquire(invocation("p"))
    starving, following = ask(other), ask(provisioned)
    await turns()
    provisioned.release(lease)
    assert (await within(following)).environment is lease.environment
    assert not environment_of(lease).was_killed.is_set()
    starving.cancel()
    await turns()


async def test_a_request_that_takes_a_provisioned_start_is_told_no_init_time() -> None:
    """Lambda does not bill the init of a provisioned environment to the first request that uses it."""
    house = House(max_environments=1)
    pool = house.pool(provisioned_concurrency=1)
    pool.grow()
    task = ask(pool)
    await turns()
    house.spawner.succeed()
    assert (await within(task)).init_ms is None


async def test_the_node_learns_whether_a_start_is_of_a_provisioned_environment() -> None:
    house = House(immediate=True)
    asked: list[bool] = []
    start = house.spawner.start

    async def recorded(version: Any, *, provisioned: bool = False, spare: Any = None) -> FakeEnvironment:
        asked.append(provisioned)
        return await start(version, provisioned=provisioned)

    house.spawner.start = recorded  # type: ignore[method-assign]
    pool = house.pool(provisioned_concurrency=1)
    await within(pool.provision())
    await within(ask(pool))
    await within(ask(pool))
    assert asked == [True, False]


# Starts and environments that end early


async def test_an_init_that_was_killed_from_outside_holds_the_next_request_back_no_moment() -> None:
    house = House()
    pool = house.pool()
    task = ask(pool)
    await turns()
    house.spawner.fail(InitError("killed", b"{}", from_outside=True))
    with pytest.raises(InitError) as caught:
        await within(task)
    assert caught.value.from_outside
    assert pool.failures.reason is None
    task = ask(pool)
    await turns()
    house.spawner.succeed()
    await within(task)


async def die_unused(pool: Pool, times: int) -> None:
    """Kill the pool's one idle environment from outside `times` times, each time before it has served."""
    for _ in range(times):
        (environment,) = pool.all()
        assert isinstance(environment, FakeEnvironment)
        environment.die()
        await turns()


async def test_two_environments_in_a_row_that_die_unused_are_replaced_and_the_third_is_not() -> None:
    house = House(immediate=True)
    pool = house.pool(provisioned_concurrency=1)
    await within(pool.provision())
    await die_unused(pool, 2)
    assert pool.provisioned_failures.reason is None
    await die_unused(pool, 1)
    assert pool.provisioned_failures.reason == str(InitError.of_exit(house.spawner.environments[0].child))
    assert len(house.spawner.begun) == 3


async def test_a_request_that_was_served_makes_earlier_deaths_forgotten() -> None:
    house = House(immediate=True)
    pool = house.pool(provisioned_concurrency=1)
    await within(pool.provision())
    await die_unused(pool, 2)
    pool.release(await within(ask(pool)))
    await die_unused(pool, 2)
    assert pool.provisioned_failures.reason is None
    await die_unused(pool, 1)
    assert pool.provisioned_failures.reason is not None


async def test_environments_that_have_served_may_die_idle_as_often_as_they_like() -> None:
    house = House(immediate=True)
    pool = house.pool(provisioned_concurrency=1)
    await within(pool.provision())
    for _ in range(5):
        environment = environment_of(await within(ask(pool)))
        environment.served += 1
        environment.die()
        await turns()
    assert pool.provisioned_failures.reason is None
    assert pool.counts()["idle"] == 1
