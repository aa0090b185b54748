"""`thawd.scheduling.pool`: which request is served, by which environment, and how long the others wait."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.execution_fakes import House, ask, invocation, turns, warm, within
from thawd.errors import TooManyRequestsException


async def test_a_burst_of_n_on_one_environment_starts_n_minus_1_at_once() -> None:
    # Given one idle environment
    house = House()
    pool = house.pool()
    await warm(house, pool)
    # When five requests come together
    tasks = [ask(pool) for _ in range(5)]
    await turns()
    # Then one is served and four starts are in progress
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


async def test_a_waiter_that_is_cancelled_just_as_it_is_served_gives_the_environment_back() -> None:
    house = House(max_environments=1)
    pool = house.pool()
    await warm(house, pool)
    held = await pool.acquire(invocation())
    task = ask(pool)
    await turns()
    pool.release(held)  # the request has the lease, but its task has not run yet
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
    # An extra environment is reaped, the provisioned ones are not.
    leases = [await within(task) for task in [ask(pool) for _ in range(3)]]
    for lease in leases:
        pool.release(lease)
    extra = next(e for e in house.spawner.environments if not e.provisioned)
    await within(extra.ended.wait())
    assert pool.counts()["idle"] == 2
    assert all(e.provisioned for e in pool.all())
