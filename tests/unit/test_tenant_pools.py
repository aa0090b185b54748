"""`thawd.scheduling.tenant_pools`: an environment serves one tenant, in whatever order things happen."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from tests.unit.execution_fakes import (
    FakeEnvironment,
    House,
    Machine,
    ask,
    environment_of,
    invocation,
    turns,
    until,
    version_of,
    within,
)
from thawd.environments.init_phase import InitError
from thawd.environments.tenant_check import check_tenant
from thawd.errors import InvalidParameterValueException, ServiceException, TooManyRequestsException
from thawd.invocation import Invocation, Result
from thawd.resources import Batch
from thawd.scheduling.leases import Lease, PoolRetiredError
from thawd.scheduling.pool import Pool
from thawd.scheduling.tenant_pools import TenantPools


class AnyOrder(RuleBasedStateMachine):
    """Requests of several tenants, answers, deaths, failed starts, spares and publications, in any order."""

    leases = Bundle("leases")
    names = st.sampled_from(["plain", "provisioned", "beside", "reserved", "batch"])
    tenants = st.sampled_from(["blue", "green", "red", "white"])

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.complaints: list[Any] = []
        self.loop.set_exception_handler(lambda _, context: self.complaints.append(context))
        self.generation = 0
        self.tasks: list[tuple[Pool, str, asyncio.Task[Lease]]] = []
        self.retired: list[Pool] = []
        self.served: dict[int, set[str]] = {}
        self.kept: list[FakeEnvironment] = []  # so that no id() is used twice
        self.run(self.set_up())

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    async def set_up(self) -> None:
        self.house = House(max_environments=5, memory_mb=2048, spares=2)
        self.house.spawner.slow_to_die = True
        self.house.spawner.parks = []
        self.options: dict[str, dict[str, Any]] = {
            "plain": {},
            "provisioned": {"provisioned_concurrency": 1},
            "beside": {"concurrency": 2},
            "reserved": {"reserved_concurrency": 1},
            "batch": {"batch": Batch(size=3)},
        }
        self.pools = {name: self.make(name) for name in self.options}

    def make(self, name: str) -> Pool:
        self.generation += 1
        options = {"memory_mb": 128, "idle_timeout_s": 1e6, "tenants": True, **self.options[name]}
        return self.house.pool(name, generation=self.generation, max_waiting=6, **options)

    @rule(name=names, tenant=tenants, asynchronous=st.booleans())
    def request(self, name: str, tenant: str, asynchronous: bool) -> None:
        async def work() -> None:
            pool = self.pools[name]
            task = ask(pool, asynchronous=asynchronous, wait_s=1000, tenant_id=tenant)
            self.tasks.append((pool, tenant, task))
            await turns()

        self.run(work())

    @rule(target=leases)
    def leased(self) -> Any:
        done = [item for item in self.tasks if item[2].done()]
        self.tasks = [item for item in self.tasks if not item[2].done()]
        got = []
        for pool, tenant, task in done:
            if task.cancelled():
                continue
            error = task.exception()
            if error is not None:
                assert isinstance(error, (InitError, PoolRetiredError, TooManyRequestsException)), error
                continue
            lease = task.result()
            environment = environment_of(lease)
            self.kept.append(environment)
            self.served.setdefault(id(environment), set()).add(tenant)
            if lease.batch is not None:
                self.served[id(environment)] |= {each.tenant_id or "" for each, _ in lease.batch._items}
            assert environment.tenant_id == tenant
            environment.served += 1
            if lease.batch is None:
                got.append((pool, lease))
        return multiple(*got)

    @rule(number=st.integers(0, 5))
    def batch_ends(self, number: int) -> None:
        async def work() -> None:
            running = [e for e in self.house.spawner.environments if e.answers is not None and not e.answers.done()]
            if number < len(running):
                environment = running[number]
                assert environment.answers is not None
                environment.answers.set_result([Result(b"1") for _ in environment.batch])
            await turns()

        self.run(work())

    @rule(number=st.integers(0, 5))
    def cancel_a_request(self, number: int) -> None:
        waiting = [task for _, _, task in self.tasks if not task.done()]
        if number < len(waiting):
            waiting[number].cancel()
            self.run(turns())

    @rule(number=st.integers(0, 5))
    def start_succeeds(self, number: int) -> None:
        async def work() -> None:
            starts = self.house.spawner.under_way
            if number < len(starts):
                self.house.spawner.succeed(starts[number])
            await turns()

        self.run(work())

    @rule(number=st.integers(0, 5))
    def start_fails(self, number: int) -> None:
        starts = self.house.spawner.under_way
        if number < len(starts):
            starts[number].set_exception(InitError("broken", b"{}"))
            self.run(turns())
            for pool in self.pools.values():
                if pool.failures.error is not None:
                    pool.failures.until_s = 0.0  # the back-off is over

    @rule(number=st.integers(0, 8))
    def process_dies(self, number: int) -> None:
        async def work() -> None:
            everyone = [*self.house.spawner.environments, *(self.house.spawner.parks or ())]
            alive = [e for e in everyone if not e.ended.is_set()]
            if number < len(alive):
                alive[number].die()
            await turns()

        self.run(work())

    @rule(lease=consumes(leases), dies=st.booleans())
    def give_back(self, lease: tuple[Pool, Lease], dies: bool) -> None:
        pool, held = lease

        async def work() -> None:
            if dies:
                environment_of(held).die()
            pool.release(held)
            await turns()

        self.run(work())

    @rule(name=names)
    def publish_again(self, name: str) -> None:
        async def work() -> None:
            old = self.pools[name]
            self.pools[name] = self.make(name)
            old.retire()
            self.retired.append(old)
            self.house.spawn_task(self.bury(old))
            await turns()

        self.run(work())

    async def bury(self, pool: Pool) -> None:
        await pool.empty.wait()
        self.house.room.leave(pool)

    @invariant()
    def no_environment_serves_two_tenants(self) -> None:
        assert all(len(tenants) == 1 for tenants in self.served.values())

    @invariant()
    def nothing_escaped_and_the_books_are_right(self) -> None:
        assert self.complaints == []
        assert self.house.failures == []
        room = self.house.room
        assert all(count >= 0 for count in room._count.values())
        assert room._used_mb == 128 * sum(room._count.values())
        shared = sum(n for one, n in room._count.items() if one.version.function.reserved_concurrency is None)
        assert shared <= room.max_environments - 1
        by_account: dict[object, int] = {}
        for one, count in room._count.items():
            if one.version.function.name == "reserved":
                by_account[one.account] = by_account.get(one.account, 0) + count
        assert all(count <= 1 for count in by_account.values())

    def teardown(self) -> None:
        async def end() -> None:
            for _, _, task in self.tasks:
                task.cancel()
            await turns()
            for pool in self.pools.values():
                pool.retire()
            for _ in range(8):
                for start in self.house.spawner.under_way:
                    start.set_exception(InitError("broken", b"{}"))
                await turns()
                for environment in [*self.house.spawner.environments, *(self.house.spawner.parks or ())]:
                    environment.die()
                    if environment.answers is not None and not environment.answers.done():
                        environment.answers.set_result([Result(b"1") for _ in environment.batch])
                await turns()
            for pool in [*self.pools.values(), *self.retired]:
                assert pool.empty.is_set()
                assert isinstance(pool, TenantPools)
                assert (pool.tenants, pool.open_requests) == (0, 0)
            self.house.assert_nothing_leaked(*self.pools.values(), *self.retired)
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            await turns(2)

        try:
            self.run(end())
        finally:
            self.loop.close()


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(
    max_examples=int(os.environ.get("THAWD_ORDERS", "50")),
    stateful_step_count=60,
    deadline=None,
    derandomize=True,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


async def test_a_tenant_gets_its_own_environment_again_and_another_tenant_gets_a_new_one() -> None:
    house = House(immediate=True)
    pool = house.pool(tenants=True)
    blue = await within(ask(pool, tenant_id="blue"))
    pool.release(blue)
    again, green = await within(ask(pool, tenant_id="blue")), await within(ask(pool, tenant_id="green"))
    assert again.environment is blue.environment
    assert green.environment is not blue.environment
    assert pool.counts() == {"idle": 0, "busy": 2, "starting": 0}


async def test_an_environment_that_nobody_has_used_goes_to_the_first_tenant_and_is_replaced() -> None:
    house = House(immediate=True)
    pool = house.pool(tenants=True, provisioned_concurrency=1)
    await pool.provision()
    (prepared,) = pool.all()
    blue = await within(ask(pool, tenant_id="blue"))
    assert (blue.environment, blue.init_ms) == (prepared, None)
    await until(lambda: pool.provisioned_ready() == 1)
    green = await within(ask(pool, tenant_id="green"))
    assert green.environment is not prepared


async def test_a_failed_start_keeps_no_tenant_from_an_environment_that_nobody_has_used() -> None:
    house = House(immediate=True)
    pool = house.pool(tenants=True, provisioned_concurrency=1)
    await pool.provision()
    (prepared,) = pool.all()
    pool.failures.failed(InitError("the start of another tenant's environment failed", b"{}"))
    assert (await within(ask(pool, tenant_id="blue"))).environment is prepared


async def test_a_tenant_that_waits_gets_an_environment_of_nobody_as_soon_as_it_is_ready() -> None:
    house = House(max_environments=1)
    pool = house.pool(tenants=True, provisioned_concurrency=1)
    provision = asyncio.ensure_future(pool.provision())
    await turns()
    blue = ask(pool, tenant_id="blue")
    await turns()
    assert len(house.spawner.begun) == 1  # there is no room for another one
    prepared = house.spawner.succeed()
    assert (await within(blue)).environment is prepared
    await within(provision)


async def test_a_spare_of_the_version_serves_the_next_tenant() -> None:
    house = House(immediate=True, spares=1)
    house.spawner.parks = []
    pool = house.pool(tenants=True)
    pool.release(await within(ask(pool, tenant_id="blue")))
    await until(lambda: pool.has_spare)
    green = await within(ask(pool, tenant_id="green"))
    assert house.spawner.resumed == [green.environment]


async def test_tenants_that_came_and_went_leave_nothing_behind() -> None:
    house = House(max_environments=4, immediate=True)
    pool = house.pool(tenants=True)
    for number in range(300):
        pool.release(await within(ask(pool, tenant_id=str(number))))
        assert isinstance(pool, TenantPools)
        await turns(3)
        assert pool.tenants <= 5
    assert len(house.room._occupants) <= 6
    assert len(house.room._count) <= 6
    pool.retire()
    await turns()
    house.assert_nothing_leaked(pool)


async def test_requests_of_all_tenants_together_are_limited() -> None:
    house = House(max_environments=1)
    pool = house.pool(tenants=True, max_waiting=3)
    waiting = [ask(pool, tenant_id=str(number)) for number in range(3)]
    await turns()
    with pytest.raises(TooManyRequestsException, match="waiting requests is full"):
        await within(ask(pool, tenant_id="one more"))
    assert pool.waiting == 3
    for task in waiting:
        task.cancel()


async def test_reserved_concurrency_counts_the_environments_of_all_tenants() -> None:
    house = House(immediate=True)
    pool = house.pool(tenants=True, reserved_concurrency=1)
    blue = await within(ask(pool, tenant_id="blue"))
    green = ask(pool, tenant_id="green")
    await turns()
    assert not green.done()
    pool.release(blue)
    lease = await within(green)
    assert lease.environment is not blue.environment
    assert environment_of(blue).was_killed.is_set()


async def test_invocations_name_a_tenant_exactly_if_the_function_separates_tenants() -> None:
    machine = Machine(immediate=True)
    await machine.serve("f", tenants=True)
    with pytest.raises(InvalidParameterValueException, match="Add a valid tenant ID"):
        await machine.dispatcher.invoke(invocation())
    plain = Machine(immediate=True)
    await plain.serve("f")
    with pytest.raises(InvalidParameterValueException, match="Remove the tenant ID"):
        await plain.dispatcher.invoke(invocation(tenant_id="blue"))


def test_an_environment_refuses_an_invocation_of_another_tenant() -> None:
    blue = Invocation("f", b"{}", time.monotonic(), tenant_id="blue")
    check_tenant("blue", blue)
    for other in ("green", None):
        with pytest.raises(ServiceException, match="another tenant"):
            check_tenant(other, blue)
    with pytest.raises(ServiceException, match="another tenant"):
        check_tenant("blue", blue, Invocation("f", b"{}", time.monotonic()))


def test_the_version_of_a_function_without_tenants_has_one_pool() -> None:
    assert not version_of().function.tenants
