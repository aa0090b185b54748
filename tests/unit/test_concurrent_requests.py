"""Claims about functions with the option `concurrency`: who shares an environment, and when another one starts."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from tests.unit.execution_fakes import FakeEnvironment, House, ask, environment_of, invocation, turns, warm, within
from thawd.environments.processor_time import Usage
from thawd.scheduling.core_admission import CORE, Cores
from thawd.scheduling.leases import Lease, PoolRetiredError
from thawd.scheduling.pool import Pool

THREE: dict[str, Any] = {"concurrency": 3}


async def leased(pool: Pool, number: int) -> list[Lease]:
    return [await within(ask(pool)) for _ in range(number)]


def environments(leases: list[Lease]) -> list[FakeEnvironment]:
    return [environment_of(lease) for lease in leases]


async def test_requests_share_an_environment_until_it_is_full() -> None:
    house = House(immediate=True)
    pool = house.pool(**THREE)
    first = await leased(pool, 3)
    assert len(set(environments(first))) == 1
    more = await leased(pool, 2)
    assert set(environments(more)).isdisjoint(environments(first))
    assert pool.counts() == {"idle": 0, "busy": 2, "starting": 0}
    pool.release(first[0])
    pool.release(more[0])
    (least,) = await leased(pool, 1)
    assert environment_of(least) is environment_of(more[0]), "the one with the fewest requests"


async def test_one_environment_starts_for_as_many_waiting_requests_as_it_can_have() -> None:
    house = House()
    pool = house.pool(**THREE)
    tasks = [ask(pool) for _ in range(7)]
    await turns()
    assert len(house.spawner.under_way) == 3
    environment = house.spawner.succeed()
    leases = [await within(task) for task in tasks[:3]]
    assert environments(leases) == [environment] * 3
    assert [lease.init_ms for lease in leases] == [environment.init_ms] * 3, "all of them waited for its start"
    assert not any(task.done() for task in tasks[3:])
    for task in tasks:
        task.cancel()


async def test_an_environment_is_busy_until_its_last_request_has_ended() -> None:
    house = House(immediate=True)
    pool = house.pool(**THREE)
    leases = await leased(pool, 3)
    for index, lease in enumerate(leases):
        assert pool.counts()["busy"] == 1, index
        pool.release(lease)
    assert pool.counts() == {"idle": 1, "busy": 0, "starting": 0}
    pool.retire()
    await turns()
    house.assert_nothing_leaked(pool)


async def test_a_place_that_becomes_free_goes_to_the_first_request_in_line() -> None:
    house = House(max_environments=1, immediate=True)
    pool = house.pool(**THREE)
    leases = await leased(pool, 3)
    waiting = [ask(pool) for _ in range(2)]
    await turns()
    pool.release(leases[0])
    got = await within(waiting[0])
    assert (got.environment, got.init_ms) == (leases[0].environment, None)
    assert not waiting[1].done()
    pool.release(got)
    await within(waiting[1])


async def test_a_request_that_must_run_alone_has_its_environment_to_itself() -> None:
    house = House(max_environments=1, immediate=True)
    pool = house.pool(**THREE)
    (first,) = await leased(pool, 1)
    alone = invocation()
    alone.alone = True
    waiting = asyncio.get_running_loop().create_task(pool.acquire(alone))
    await turns()
    behind = ask(pool)
    await turns()
    assert not waiting.done()
    assert not behind.done(), "a request does not overtake the one that must run alone"
    pool.release(first)
    lease = await within(waiting)
    await turns()
    assert not behind.done()
    pool.release(lease)
    await within(behind)


@pytest.mark.parametrize("why", ["dying", "retired"])
async def test_no_request_joins_an_environment_that_is_to_end_and_it_ends_after_the_last(why: str) -> None:
    house = House(immediate=True)
    pool = house.pool(**THREE)
    leases = await leased(pool, 2)
    environment = environment_of(leases[0])
    if why == "dying":
        environment.dying = True
        (other,) = await leased(pool, 1)
        assert environment_of(other) is not environment
    else:
        pool.retire()
        with pytest.raises(PoolRetiredError):
            await pool.acquire(invocation())
    pool.release(leases[0])
    await turns()
    assert not environment.was_killed.is_set()
    pool.release(leases[1])
    await turns()
    assert environment.was_killed.is_set()


async def test_a_function_that_waits_for_room_gets_that_of_a_shared_environment_once_its_requests_have_ended() -> None:
    house = House(max_environments=1, immediate=True, patience_s=0.0)
    flooding, rare = house.pool("flooding", **THREE), house.pool("rare")
    leases = await leased(flooding, 3)
    wanted = ask(rare)
    await turns()
    waiting = [ask(flooding) for _ in range(3)]
    await turns()
    for lease in leases:
        pool_had = environment_of(lease)
        flooding.release(lease)
    got = await within(wanted)
    assert pool_had.was_killed.is_set()
    rare.release(got)
    for task in waiting:
        flooding.release(await within(task))


async def test_an_environment_that_dies_gives_its_waiting_requests_another() -> None:
    house = House(max_environments=1, immediate=True)
    pool = house.pool(**THREE)
    leases = await leased(pool, 3)
    waiting = ask(pool)
    await turns()
    environment_of(leases[0]).served = 3
    environment_of(leases[0]).kill()
    for lease in leases:
        pool.release(lease)
    assert environment_of(await within(waiting)) is not environment_of(leases[0])


class Clocks:
    """Processor time of environments, as a test sets it: a share of a core for each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns = 1_000_000_000
        self.load: dict[Any, float] = {}
        self.ran_ns: dict[Any, float] = {}
        monkeypatch.setattr("thawd.scheduling.core_admission.time.monotonic_ns", lambda: self.now_ns)
        self.cores = Cores(lambda: 2 * CORE, read_usage=self.usage, is_runnable=lambda environment: False)

    def usage(self, environment: Any) -> Usage:
        return Usage(self.now_ns, int(self.ran_ns.get(environment, 0)), 0)

    def pass_ms(self, milliseconds: int) -> None:
        self.now_ns += milliseconds * 1_000_000
        for environment, load in self.load.items():
            self.ran_ns[environment] = self.ran_ns.get(environment, 0) + load * milliseconds * 1_000_000


@pytest.mark.parametrize(("load", "started"), [(0.2, 1), (0.95, 2)])
async def test_another_environment_starts_if_a_shared_one_computes_without_a_pause(
    monkeypatch: pytest.MonkeyPatch, load: float, started: int
) -> None:
    clocks = Clocks(monkeypatch)
    house = House(immediate=True, cores=clocks.cores)
    pool = house.pool(concurrency=100)
    (environment,) = await warm(house, pool)
    clocks.load[environment] = load
    leases = await leased(pool, 2)
    for _ in range(4):
        clocks.pass_ms(25)
        leases += await leased(pool, 1)
        await turns()
    assert len(house.spawner.environments) == started
    used = set(environments(leases))
    assert len(used) == started, "requests go to the environment that does not compute"
    for lease in leases:
        pool.release(lease)
    pool.retire()
    await turns()
    house.assert_nothing_leaked(pool)


async def test_while_another_function_waits_for_a_core_no_request_joins(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = Clocks(monkeypatch)
    house = House(immediate=True, cores=clocks.cores)
    flooding, other = house.pool("flooding", **THREE), house.pool("other")
    one = await warm(house, flooding)
    two = await warm(house, other, 2)
    clocks.load |= dict.fromkeys([*one, *two], 1.0)
    flooding.share.load = other.share.load = CORE
    leases = [*await leased(flooding, 1), *await leased(other, 1)]
    waiting = ask(other)
    await turns()
    joining = ask(flooding)
    await turns()
    assert not waiting.done()
    assert not joining.done()
    flooding.release(leases[0])
    done, _ = await asyncio.wait([waiting, joining], return_when=asyncio.FIRST_COMPLETED)
    assert waiting in done, "the function that waited longer"
    other.release(await within(waiting))
    flooding.release(await within(joining))


@pytest.mark.parametrize("seed", range(30))
async def test_in_any_order_no_environment_has_too_many_requests_and_each_request_gets_one_place(seed: int) -> None:
    chance = random.Random(seed)
    house = House(max_environments=chance.choice([1, 2, 5]), immediate=True)
    pool = house.pool(concurrency=chance.choice([2, 3, 7]))
    waiting: set[asyncio.Task[Lease]] = set()
    held: list[Lease] = []
    most = pool.version.function.concurrency
    for _ in range(300):
        step = chance.random()
        if step < 0.5 and len(waiting) < 50:
            one = invocation(asynchronous=chance.random() < 0.3)
            one.alone = chance.random() < 0.1
            waiting.add(asyncio.get_running_loop().create_task(pool.acquire(one)))
        elif step < 0.55 and waiting:
            chance.choice(sorted(waiting, key=id)).cancel()
        elif step < 0.6 and house.spawner.environments:
            environment = chance.choice(house.spawner.environments)
            environment.served = 1
            environment.kill()
        elif held:
            pool.release(held.pop(chance.randrange(len(held))))
        await turns(chance.choice([0, 1, 3, 20]))
        for task in [task for task in waiting if task.done()]:
            waiting.discard(task)
            if not task.cancelled():
                held.append(task.result())
        alive = [lease for lease in held if not environment_of(lease).ended.is_set()]
        for environment in {environment_of(lease) for lease in alive}:
            assert sum(lease.places for lease in alive if lease.environment is environment) <= most
    for task in waiting:
        task.cancel()
    await turns()
    held += [task.result() for task in waiting if not task.cancelled()]
    for lease in held:
        pool.release(lease)
    pool.retire()
    await turns()
    house.assert_nothing_leaked(pool)
