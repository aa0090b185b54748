"""Claims about `thawd.scheduling.spares`: who has a spare, who uses it, and that it is in nobody's way."""

from __future__ import annotations

import pytest

from tests.unit.execution_fakes import FakeEnvironment, House, ask, environment_of, turns, within
from thawd.scheduling.pool import Pool


def house(spares: int = 8, **options: int) -> House:
    made = House(spares=spares, immediate=True, **options)  # type: ignore[arg-type]
    made.spawner.parks = []
    return made


def parked(machine: House) -> list[FakeEnvironment]:
    assert machine.spawner.parks is not None
    return machine.spawner.parks


async def rested(machine: House, pool: Pool) -> FakeEnvironment:
    """Run one invocation and let its environment end; return the spare that is left."""
    lease = await within(ask(pool))
    pool.release(lease)
    await turns()
    pool._end(lease.environment)
    await turns()
    return parked(machine)[-1]


async def test_a_version_that_was_invoked_has_a_spare_which_becomes_the_next_environment() -> None:
    machine = house()
    pool = machine.pool()
    spare = await rested(machine, pool)
    assert pool.counts() == {"idle": 0, "busy": 0, "starting": 0}
    assert machine.room._count[pool] == 1
    lease = await within(ask(pool))
    assert environment_of(lease) is spare
    assert lease.init_ms is not None
    assert machine.spawner.resumed == [spare]
    pool.release(lease)
    await turns()
    assert len(parked(machine)) == 2
    pool.retire()
    await turns()
    machine.assert_nothing_leaked(pool)
    assert [each.was_killed.is_set() for each in parked(machine)] == [True, True]
    assert pool.empty.is_set()


async def test_a_version_that_was_never_invoked_has_none() -> None:
    machine = house()
    machine.pool()
    await turns()
    assert parked(machine) == []


async def test_without_spares_none_is_started() -> None:
    machine = house(spares=0)
    pool = machine.pool()
    pool.release(await within(ask(pool)))
    await turns()
    assert parked(machine) == []


async def test_a_version_that_cannot_have_one_is_not_asked_again_with_every_request() -> None:
    machine = house()
    machine.spawner.parks = None
    asked = 0
    park = machine.spawner.park

    async def counted(version: object) -> FakeEnvironment | None:
        nonlocal asked
        asked += 1
        return await park(version)  # type: ignore[arg-type]

    machine.room.spares._park = counted  # type: ignore[assignment]
    pool = machine.pool()
    for _ in range(5):
        pool.release(await within(ask(pool)))
        await turns()
    assert asked == 1
    assert machine.room._count[pool] == 1


async def test_spares_are_the_first_to_end_when_another_version_needs_room() -> None:
    machine = house(max_environments=3)
    first, second = machine.pool("first"), machine.pool("second")
    pool_lease = await within(ask(first))
    first.release(pool_lease)
    await turns()
    (spare,) = parked(machine)
    leases = [await within(ask(second)) for _ in range(2)]
    await turns()
    assert spare.was_killed.is_set()
    assert not environment_of(pool_lease).was_killed.is_set()  # although it has been idle for longer
    for lease in leases:
        second.release(lease)


async def test_no_spare_is_started_where_that_would_take_the_last_room() -> None:
    machine = house(max_environments=1)
    pool = machine.pool()
    pool.release(await within(ask(pool)))
    await turns()
    assert parked(machine) == []


async def test_at_the_limit_the_version_that_was_invoked_longest_ago_loses_its_spare() -> None:
    machine = house(spares=2, max_environments=64)
    pools = [machine.pool(name) for name in "abc"]
    spares = []
    for pool in pools[:2]:
        pool.release(await within(ask(pool)))
        await turns()
        spares.append(parked(machine)[-1])
    pools[0].release(await within(ask(pools[0])))  # now b was invoked longest ago
    await turns()
    pools[2].release(await within(ask(pools[2])))
    await turns()
    assert [each.was_killed.is_set() for each in spares] == [False, True]
    assert len(parked(machine)) == 3


async def test_a_version_for_whose_spare_there_is_no_room_takes_none_from_another_version() -> None:
    machine = house(spares=1, max_environments=3)
    first, second = machine.pool("first"), machine.pool("second")
    first.release(await within(ask(first)))
    await turns()
    (spare,) = parked(machine)
    second.release(await within(ask(second)))  # with it, the machine is full: two environments and a spare
    await turns()
    assert not spare.was_killed.is_set()
    assert parked(machine) == [spare]


@pytest.mark.parametrize("error", [OSError("no process"), RuntimeError("a mistake")])
async def test_a_spare_that_cannot_be_started_harms_nobody(error: Exception) -> None:
    machine = house()

    async def fail(version: object) -> FakeEnvironment:
        raise error

    machine.room.spares._park = fail  # type: ignore[assignment]
    pool = machine.pool()
    pool.release(await within(ask(pool)))
    await turns()
    pool.release(await within(ask(pool)))
    pool.retire()
    await turns()
    machine.assert_nothing_leaked(pool)
    assert machine.room.spares._not_before_s == {}


@pytest.mark.parametrize("when", ["parked", "taken"])
async def test_a_spare_that_dies_costs_no_request(when: str) -> None:
    machine = house()
    pool = machine.pool()
    spare = await rested(machine, pool)
    if when == "parked":
        spare.die()
    else:
        spare.dying = True  # its process has ended, and nobody has noticed yet
    lease = await within(ask(pool))
    assert environment_of(lease) is not spare
    spare.die()
    pool.release(lease)
    pool.retire()
    await turns()
    machine.assert_nothing_leaked(pool)


async def test_a_version_retired_while_its_spare_starts_leaves_none() -> None:
    machine = house()
    pool = machine.pool()
    pool.release(await within(ask(pool)))
    pool.retire()
    await turns()
    machine.assert_nothing_leaked(pool)
    assert all(each.was_killed.is_set() for each in parked(machine))
    assert pool.empty.is_set()
