"""`thawd.scheduling.room` with events in any order: room is never lost, no request is forgotten."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from tests.unit.execution_fakes import House, ask, environment_of, turns, version_of
from thawd.environments.init_phase import InitError
from thawd.errors import TooManyRequestsException
from thawd.resources import Function
from thawd.scheduling.leases import Lease, PoolRetiredError
from thawd.scheduling.pool import Pool


class AnyOrder(RuleBasedStateMachine):
    """Requests, answers, deaths, failures and publications in any order: room is never lost, no request is
    forgotten."""

    leases = Bundle("leases")
    FUNCTIONS = (
        Function(name="a", handler="m.f", code=version_of().function.code, memory_mb=128, idle_timeout_s=1e6),
        Function(name="b", handler="m.f", code=version_of().function.code, memory_mb=600, idle_timeout_s=1e6),
        Function(
            name="r",
            handler="m.f",
            code=version_of().function.code,
            memory_mb=256,
            reserved_concurrency=1,
            idle_timeout_s=1e6,
        ),
        Function(
            name="p",
            handler="m.f",
            code=version_of().function.code,
            memory_mb=128,
            provisioned_concurrency=1,
            idle_timeout_s=1e6,
        ),
    )
    names = st.sampled_from([function.name for function in FUNCTIONS])

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.complaints: list[Any] = []
        self.loop.set_exception_handler(lambda _, context: self.complaints.append(context))
        self.generation = 0
        self.tasks: list[tuple[Pool, asyncio.Task[Lease]]] = []
        self.retired: list[Pool] = []
        self.run(self.set_up())

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    async def set_up(self) -> None:
        self.house = House(max_environments=3, memory_mb=1024)
        self.house.spawner.slow_to_die = True
        self.pools = {function.name: self.make(function) for function in self.FUNCTIONS}

    def make(self, function: Function) -> Pool:
        self.generation += 1
        fields = {name: getattr(function, name) for name in function.__struct_fields__}
        name = fields.pop("name")
        del fields["handler"], fields["code"]
        return self.house.pool(name, generation=self.generation, **fields)

    @rule(name=names, asynchronous=st.booleans())
    def request(self, name: str, asynchronous: bool) -> None:
        async def work() -> None:
            self.tasks.append((self.pools[name], ask(self.pools[name], asynchronous=asynchronous, wait_s=1000)))
            await turns()

        self.run(work())

    @rule(target=leases)
    def served(self) -> Any:
        done = [(pool, task) for pool, task in self.tasks if task.done()]
        self.tasks = [(pool, task) for pool, task in self.tasks if not task.done()]
        got = []
        for pool, task in done:
            if task.cancelled():
                continue
            error = task.exception()
            if error is None:
                got.append((pool, task.result()))
            else:
                assert isinstance(error, (InitError, PoolRetiredError, TooManyRequestsException)), error
        return multiple(*got)

    @rule(number=st.integers(0, 5))
    def cancel_a_request(self, number: int) -> None:
        waiting = [task for _, task in self.tasks if not task.done()]
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
            alive = [e for e in self.house.spawner.environments if not e.ended.is_set()]
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
    def publish_anew(self, name: str) -> None:
        async def work() -> None:
            old = self.pools[name]
            self.pools[name] = self.make(old.version.function)
            old.retire()
            self.retired.append(old)
            self.house.spawn_task(self.bury(old))
            await turns()

        self.run(work())

    async def bury(self, pool: Pool) -> None:
        await pool.empty.wait()
        self.house.room.leave(pool)

    @invariant()
    def nothing_escaped(self) -> None:
        assert self.complaints == []
        assert self.house.failures == []

    @invariant()
    def the_books_are_right(self) -> None:
        node = self.house.room
        assert node._used_mb >= 0
        assert all(count >= 0 for count in node._count.values())
        shared = sum(n for t, n in node._count.items() if t.version.function.reserved_concurrency is None)
        assert shared <= node.max_environments - 1
        charged = sum(n * t.version.function.memory_mb for t, n in node._count.items())
        assert node._used_mb == charged
        for pool in self.pools.values():
            held = sum(pool.counts().values())
            assert held <= node._count.get(pool, 0)

    def teardown(self) -> None:
        async def end() -> None:
            for _, task in self.tasks:
                task.cancel()
            await turns()
            for pool in self.pools.values():
                pool.retire()
            for pool in [*self.pools.values(), *self.retired]:
                for environment in list(pool._busy):
                    pool.release(Lease(environment, None))
            for _ in range(5):
                for start in self.house.spawner.under_way:
                    start.set_exception(InitError("broken", b"{}"))
                await turns()
                for environment in self.house.spawner.environments:
                    environment.die()
                await turns()
            for pool in [*self.pools.values(), *self.retired]:
                assert pool.empty.is_set()
            self.house.assert_nothing_leaked(*self.pools.values(), *self.retired)
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            await turns(2)

        try:
            self.run(end())
            self.nothing_escaped()
        finally:
            self.loop.close()


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(
    max_examples=int(os.environ.get("THAWD_ORDERS", "100")),
    stateful_step_count=60,
    deadline=None,
    derandomize=True,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)
