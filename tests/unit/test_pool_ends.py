"""`thawd.scheduling.pool` when environments end: killed, retired, reaped, dead during a request."""

from __future__ import annotations

import pytest

from tests.unit.execution_fakes import House, ask, environment_of, invocation, turns, warm, within
from thawd.scheduling.leases import PoolRetiredError


async def test_an_environment_that_was_killed_is_not_given_to_anyone_when_it_is_released() -> None:
    """A killed process is dead in a moment. A request that got it would fail through no fault of its own."""
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
    """The spawner cancels a template's start when its version is retired.

    The requests that wait for it see a CancelledError.
    """
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
    # Given a pool with two busy environments whose processes take long to die
    house = House()
    house.spawner.slow_to_die = True
    pool = house.pool()
    first, second = await warm(house, pool, 2)
    leases = [await pool.acquire(invocation()), await pool.acquire(invocation())]
    # When it is retired, both leases are released, and one process has died
    pool.retire()
    for lease in leases:
        pool.release(lease)
    first.die()
    await turns()
    if pool.empty.is_set():
        house.room.leave(pool)  # the dispatcher does this then
    # Then the other one's room is released as well
    second.die()
    await turns()
    assert pool.empty.is_set()
    house.assert_nothing_leaked(pool)


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
