"""Claims about `thawd.scheduling.room` and `dispatcher`: room is shared fairly, never lost, never given twice."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from tests.unit.execution_fakes import (
    FakeEnvironment,
    House,
    ask,
    environment_of,
    invocation,
    turns,
    until,
    version_of,
    warm,
    within,
)
from thawd.environments.init_phase import InitError
from thawd.errors import ResourceNotFoundException, ThawdError, TooManyRequestsException
from thawd.invocation import Result
from thawd.resources import Function
from thawd.scheduling.dispatcher import Dispatcher
from thawd.scheduling.pool import Lease, Pool, PoolRetiredError
from thawd.telemetry.metrics import Metrics


async def test_no_more_environments_than_the_machine_carries_by_count_and_by_memory() -> None:
    house = House(max_environments=3, memory_mb=1024, immediate=True)
    small, large = house.pool("small"), house.pool("large", memory_mb=512)
    tasks = [ask(small) for _ in range(2)] + [ask(large) for _ in range(2)]
    await turns()
    assert [task.done() for task in tasks] == [True, True, True, False]
    assert house.room._used_mb == 128 + 128 + 512
    small.release(tasks[0].result())
    await turns()
    assert tasks[3].done() is False  # the count would do, the memory does not
    small.release(tasks[1].result())
    await within(tasks[3])


async def test_a_function_larger_than_the_machine_still_runs_alone() -> None:
    house = House(memory_mb=256, immediate=True)
    pool = house.pool(memory_mb=1024)
    await within(ask(pool))
    second = ask(pool)
    await turns()
    assert not second.done()
    assert house.room.most_at_once(pool.version.function) == 1
    second.cancel()
    await turns()


async def test_on_a_full_machine_the_longest_idle_environment_of_another_function_makes_room() -> None:
    house = House(max_environments=2)
    first, second, third = house.pool("a"), house.pool("b"), house.pool("c")
    (oldest,) = await warm(house, first)
    (newer,) = await warm(house, second)
    task = ask(third)
    await turns()
    assert oldest.was_killed.is_set()
    assert not newer.was_killed.is_set()
    house.spawner.succeed()
    await within(task)


async def test_the_start_that_room_is_made_for_is_begun_before_the_other_is_killed() -> None:
    """While the kernel takes a process down, one that starts at the same time waits for a processor."""
    house = House(max_environments=1)
    first, second = house.pool("a"), house.pool("b")
    (ending,) = await warm(house, first)
    task = ask(second)
    while not house.spawner.under_way:
        assert not ending.was_killed.is_set()
        await turns(1)
    assert not ending.was_killed.is_set()
    await within(ending.was_killed.wait())
    house.spawner.succeed()
    await within(task)


async def test_provisioned_environments_are_not_ended_for_others() -> None:
    house = House(max_environments=1, immediate=True)
    kept, other = house.pool("a", provisioned_concurrency=1), house.pool("b")
    await within(kept.provision())
    task = ask(other)
    await turns()
    assert not task.done()
    assert kept.counts()["idle"] == 1
    task.cancel()
    await turns()


async def test_a_function_without_room_gets_it_when_an_environment_of_another_becomes_idle() -> None:
    house = House(max_environments=1)
    first, second = house.pool("a"), house.pool("b")
    await warm(house, first)
    lease = await first.acquire(invocation("a"))
    task = ask(second)
    await turns()
    assert not house.spawner.under_way
    first.release(lease)
    await turns()
    assert environment_of(lease).was_killed.is_set()
    house.spawner.succeed()
    await within(task)


async def test_a_function_without_any_environment_is_not_starved_by_another_that_always_has_waiters() -> None:
    house = House(max_environments=2, immediate=True, patience_s=0.0)
    greedy, starving = house.pool("greedy"), house.pool("starving")
    leases = [await within(ask(greedy)) for _ in range(2)]
    queue = [ask(greedy) for _ in range(40)]
    await turns()
    task = ask(starving)
    await turns()
    for waiting in queue:
        greedy.release(leases.pop(0))
        await turns()
        if task.done():
            break
        leases.append(await within(waiting))
    assert task.done(), "40 requests of another function, all asked before or after, went before it"
    for waiting in queue:
        waiting.cancel()
    await turns()


async def test_an_idle_environment_is_kept_when_nobody_waits_for_room_any_more() -> None:
    # Given a function that asked for room in vain and whose request has gone since
    house = House(max_environments=1)
    first, second = house.pool("a"), house.pool("b")
    (environment,) = await warm(house, first)
    lease = await first.acquire(invocation("a"))
    task = ask(second)
    await turns()
    task.cancel()
    await turns()
    # When the environment becomes idle
    first.release(lease)
    await turns()
    # Then it stays warm
    assert not environment.was_killed.is_set()


async def test_an_idle_environment_of_a_reserved_function_is_kept_when_ending_it_would_help_nobody() -> None:
    """Its place is set aside: an unreserved function that waits for a place could not have it anyway."""
    house = House(max_environments=2)
    reserved, a, b = house.pool("r", reserved_concurrency=1), house.pool("a"), house.pool("b")
    (environment,) = await warm(house, reserved)
    await warm(house, a)
    busy = await a.acquire(invocation("a"))
    waiting = ask(b)
    lease = await reserved.acquire(invocation("r"))
    await turns()
    reserved.release(lease)
    await turns()
    assert not environment.was_killed.is_set()
    a.release(busy)
    await turns()
    house.spawner.succeed()
    await within(waiting)


async def test_reserved_concurrency_is_set_aside_and_is_a_limit() -> None:
    house = House(max_environments=3, immediate=True)
    shared, reserved = house.pool("s"), house.pool("r", reserved_concurrency=2)
    tasks = [ask(shared) for _ in range(3)]
    await turns()
    assert [task.done() for task in tasks] == [True, False, False]
    others = [ask(reserved) for _ in range(3)]
    await turns()
    assert [task.done() for task in others] == [True, True, False]
    for task in [*tasks, *others]:
        task.cancel()
    await turns()


async def test_two_functions_that_wait_are_both_offered_room_that_comes_free() -> None:
    """An offer to the first can itself free room and offer it to the second; nobody may trip over that."""
    # Given: a place for one unreserved function, held by x; r idle in a place of its own; large and small wait
    house = House(max_environments=2, memory_mb=1000, immediate=True)
    x = house.pool("x")
    reserved = house.pool("r", reserved_concurrency=1, memory_mb=512)
    large, small = house.pool("large", memory_mb=600), house.pool("small", memory_mb=128)
    held = await within(ask(x))
    reserved.release(await within(ask(reserved)))
    tasks = [ask(large), ask(small)]
    await turns()
    assert not any(task.done() for task in tasks)
    # When x's environment dies
    environment_of(held).die()
    x.release(held)
    await turns()
    # Then one of the two has the place, not both, and no exception has escaped
    assert house.failures == []
    assert [task.done() for task in tasks].count(True) == 1
    first, second = (0, 1) if tasks[0].done() else (1, 0)
    pools = (large, small)
    pools[first].release(tasks[first].result())
    await within(tasks[second])


async def test_room_is_not_given_twice_when_ending_an_idle_environment_offers_it_to_another() -> None:
    house = House(max_environments=2, immediate=True)
    a, b, c = house.pool("a"), house.pool("b"), house.pool("c")
    one, two = await within(ask(a)), await within(ask(b))
    waiting = [ask(c), ask(c), ask(c)]
    await turns()
    a.release(one)
    b.release(two)
    await turns(50)
    alive = [e for e in house.spawner.environments if not e.was_killed.is_set()]
    assert len(alive) <= 2
    for task in waiting:
        task.cancel()
    await turns()
    assert house.failures == []


# --- the dispatcher over the same fakes ---


class Machine(House):
    """A house with a dispatcher."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.metrics = Metrics()
        self.dispatcher = Dispatcher(self.room, self.spawner, self.metrics, max_waiting=100, spawn_task=self.spawn_task)

    async def serve(self, *names: str, **function: Any) -> None:
        versions = [version_of(name, **function) for name in names]
        self.dispatcher.declare({version.function.name: version.function for version in versions})
        for version in versions:
            await self.dispatcher.publish(version)

    def ask(self, name: str = "f") -> asyncio.Task[Result]:
        return asyncio.get_running_loop().create_task(self.dispatcher.invoke(invocation(name)))

    def busy(self) -> list[FakeEnvironment]:
        return [e for e in self.spawner.environments if e.answer is not None and not e.answer.done()]


class FrozenLoopError(BaseException):
    """The event loop did nothing else for a minute."""


def raise_frozen(*_: object) -> None:
    raise FrozenLoopError


def test_removing_a_function_whose_requests_wait_answers_them_and_does_not_freeze_the_loop() -> None:
    """As at a reload that no longer has the function, and at the end of the grace period of a stop."""

    async def claim() -> None:
        machine = Machine(max_environments=1, immediate=True)
        await machine.serve("f")
        first = machine.ask()
        await until(machine.busy)
        waiting = machine.ask()
        await turns()
        machine.dispatcher.declare({})
        with pytest.raises(ThawdError):
            await within(waiting)
        machine.busy()[0].answer.set_result(Result(b"1"))  # type: ignore[union-attr]
        assert (await within(first)).payload == b"1"

    before = signal.signal(signal.SIGALRM, raise_frozen)
    signal.setitimer(signal.ITIMER_REAL, 60.0)
    try:
        asyncio.run(claim())
    except FrozenLoopError:
        pytest.fail("the event loop spins: a request asks a retired pool for ever")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


async def test_a_function_that_is_declared_anew_serves_those_who_waited_for_the_one_before() -> None:
    """As when a reload takes it from the configuration and gives it back to the Lambda API, which made it."""
    machine = Machine(max_environments=3)
    await machine.serve("f")
    waiting_for_a_start = machine.ask()
    await turns()
    declared = {"f": version_of("f").function}
    machine.dispatcher.declare({})
    machine.dispatcher.declare(declared)
    await turns()
    # And once more before it has been published
    waiting_for_publication = machine.ask()
    await turns()
    machine.dispatcher.declare({})
    machine.dispatcher.declare(declared)
    await turns()
    assert not waiting_for_a_start.done()
    assert not waiting_for_publication.done()
    machine.spawner.immediate = True
    await machine.dispatcher.publish(version_of("f", generation=2))
    await until(lambda: len(machine.busy()) == 2)
    for environment in machine.busy():
        assert environment.version.generation == 2
        environment.answer.set_result(Result(b"anew"))  # type: ignore[union-attr]
    for waiting in (waiting_for_a_start, waiting_for_publication):
        assert (await within(waiting)).payload == b"anew"


async def test_a_new_version_serves_those_who_waited_for_the_old_one() -> None:
    machine = Machine(max_environments=3, immediate=True)
    await machine.serve("f")
    first = machine.ask()
    await until(machine.busy)
    (old,) = machine.busy()
    machine.spawner.immediate = False
    waiting = machine.ask()
    await turns()
    machine.spawner.immediate = True
    await machine.dispatcher.publish(version_of("f", generation=2))
    await until(lambda: len(machine.busy()) == 2)
    new = next(e for e in machine.busy() if e is not old)
    assert new.version.generation == 2
    new.answer.set_result(Result(b"new"))  # type: ignore[union-attr]
    assert (await within(waiting)).payload == b"new"
    old.answer.set_result(Result(b"old"))  # type: ignore[union-attr]
    assert (await within(first)).payload == b"old"
    await within(old.ended.wait())


async def test_reserved_concurrency_throttles_what_comes_beyond_with_its_own_reason() -> None:
    machine = Machine(immediate=True)
    await machine.serve("f", reserved_concurrency=1)
    first = machine.ask()
    await until(machine.busy)
    with pytest.raises(TooManyRequestsException) as caught:
        await machine.ask()
    assert caught.value.reason == "ReservedFunctionConcurrentInvocationLimitExceeded"
    assert machine.metrics.function("f").throttles == 1
    machine.busy()[0].answer.set_result(Result(b"1"))  # type: ignore[union-attr]
    await within(first)


async def test_zero_reserved_concurrency_throttles_everything() -> None:
    machine = Machine(immediate=True)
    await machine.serve("f", reserved_concurrency=0)
    with pytest.raises(TooManyRequestsException):
        await machine.ask()
    assert machine.spawner.begun == []


async def test_an_unknown_function_is_not_found() -> None:
    machine = Machine()
    with pytest.raises(ResourceNotFoundException, match=r"Function not found: arn:aws:lambda:.*:function:g:\$LATEST"):
        await machine.ask("g")


async def test_a_failed_init_is_an_answer_with_its_error_document() -> None:
    machine = Machine()
    await machine.serve("f")
    task = machine.ask()
    await turns()
    machine.spawner.fail(InitError("broken", b'{"errorType":"Broken"}'))
    result = await within(task)
    assert (result.payload, result.function_error) == (b'{"errorType":"Broken"}', "Unhandled")


async def test_an_invocation_that_is_cancelled_harms_no_other() -> None:
    machine = Machine(max_environments=1, immediate=True)
    machine.spawner.slow_to_die = True
    await machine.serve("f")
    first = machine.ask()
    await until(machine.busy)
    (environment,) = machine.busy()
    waiting = machine.ask()
    await turns()
    first.cancel()
    await turns()
    assert environment.was_killed.is_set()
    assert environment.served == 1, "the next request was sent into a process that is being killed"
    environment.die()
    await until(lambda: len(machine.spawner.environments) == 2)
    await until(lambda: machine.spawner.environments[1].answer)
    machine.spawner.environments[1].answer.set_result(Result(b"1"))  # type: ignore[union-attr]
    assert (await within(waiting)).payload == b"1"
    assert await machine.dispatcher.drain(0.1) == 0


async def test_everything_declared_away_ends_and_is_buried() -> None:
    machine = Machine(immediate=True)
    await machine.serve("a", "b")
    tasks = [machine.ask("a"), machine.ask("b")]
    await until(lambda: len(machine.busy()) == 2)
    machine.dispatcher.declare({})
    for environment in machine.busy():
        environment.answer.set_result(Result(b"1"))  # type: ignore[union-attr]
    await within(asyncio.gather(*tasks))
    await until(lambda: not machine.tasks)
    assert machine.dispatcher._retiring == set()
    machine.assert_nothing_leaked()


# --- any order of events ---


class AnyOrder(RuleBasedStateMachine):
    """Requests, answers, deaths, failures and publications in any order: room is never lost, nobody is forgotten."""

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
                if pool._failure is not None:
                    pool._failure.until_s = 0.0  # the back-off is over

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
    max_examples=300,
    stateful_step_count=60,
    deadline=None,
    derandomize=True,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


async def test_a_synchronous_request_does_not_wait_for_a_flood_of_asynchronous_ones() -> None:
    """Not for a moment of patience either, which is an hour here."""
    house = House(max_environments=1, immediate=True, patience_s=3600.0)
    flooded, asked = house.pool("flooded"), house.pool("asked")
    lease = await within(ask(flooded, asynchronous=True))
    flood = [ask(flooded, asynchronous=True) for _ in range(10)]
    await turns()
    task = ask(asked)
    await turns()
    flooded.release(lease)
    await within(task)
    assert not any(waiting.done() for waiting in flood)
    asked.release(task.result())
    await within(flood[0])
    for waiting in flood[1:]:
        waiting.cancel()
    await turns()


async def test_a_synchronous_request_goes_before_asynchronous_ones_that_have_waited_longer_for_room() -> None:
    house = House(max_environments=1, immediate=True, patience_s=3600.0)
    busy, first, second = house.pool("busy"), house.pool("first"), house.pool("second")
    lease = await within(ask(busy))
    patient = ask(first, asynchronous=True)
    await turns()
    urgent = ask(second)
    await turns()
    busy.release(lease)
    await within(urgent)
    assert not patient.done()
    second.release(urgent.result())
    await within(patient)


async def test_synchronous_requests_keep_their_environment_while_asynchronous_ones_of_another_function_wait() -> None:
    house = House(max_environments=1, immediate=True, patience_s=0.0)
    flooded, other = house.pool("flooded"), house.pool("other")
    lease = await within(ask(flooded))
    patient = ask(other, asynchronous=True)
    await turns()
    for _ in range(3):
        following = ask(flooded)
        await turns()
        flooded.release(lease)
        assert (await within(following)).environment is lease.environment
        lease = following.result()
    assert not patient.done()
    flooded.release(lease)
    await within(patient)
