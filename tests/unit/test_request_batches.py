"""Claims about requests that are joined: which ones run together, what delays them, and whose failure is whose."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import pytest

from tests.unit.execution_fakes import FakeEnvironment, House, Machine, ask, invocation, turns, until, warm, within
from thawd.errors import NotMemberError, ServiceException, TooManyRequestsException
from thawd.invocation import MAX_PAYLOAD_BYTES, Invocation, Result
from thawd.resources import Batch, Function
from thawd.scheduling.core_admission import CORE, Cores

FOUR = Batch(size=4)


async def machine(batch: Batch = FOUR, **options: Any) -> Machine:
    """A function with one environment."""
    made = Machine(max_environments=1, immediate=True, **options)
    await made.serve("f", batch=batch)
    return made


def run(made: Machine, number: int = 1, **options: Any) -> list[asyncio.Task[Result]]:
    """Requests under way."""
    loop = asyncio.get_running_loop()
    return [loop.create_task(made.dispatcher.invoke(invocation(**options))) for _ in range(number)]


async def occupied(made: Machine) -> tuple[FakeEnvironment, asyncio.Task[Result]]:
    """Given: a request that runs alone in the only environment."""
    (task,) = run(made)
    await until(made.busy)
    return made.busy()[0], task


def answer(environment: FakeEnvironment, payload: bytes = b"1") -> None:
    """Let the single request that runs in the environment end."""
    assert environment.answer is not None
    environment.answer.set_result(Result(payload))


async def batch_of(environment: FakeEnvironment) -> list[Invocation]:
    """The items of the batch that runs in the environment now."""
    await until(lambda: environment.answers is not None and not environment.answers.done())
    return environment.batch


def answer_batch(environment: FakeEnvironment) -> None:
    assert environment.answers is not None
    results = [Result(each.request_id.encode(), batch_size=len(environment.batch)) for each in environment.batch]
    environment.answers.set_result(results)


async def test_requests_that_wait_are_joined_up_to_the_size_and_in_order() -> None:
    made = await machine()
    environment, first = await occupied(made)
    waiting = run(made, 6)
    await turns()
    answer(environment)
    assert (await within(first)).payload == b"1"
    items = await batch_of(environment)
    assert len(items) == 4
    answer_batch(environment)
    results = [await within(task) for task in waiting[:4]]
    assert [result.payload.decode() for result in results] == [item.request_id for item in items]
    assert len(await batch_of(environment)) == 2
    answer_batch(environment)
    await within(asyncio.gather(*waiting))
    assert made.metrics.function("f").batched == 6
    assert sum(d.count for d in made.metrics.function("f").invocations.values()) == 7


class Membership:
    """Says whether this machine is a member of its cluster."""

    is_member = True

    def require_member(self) -> None:
        if not self.is_member:
            raise NotMemberError("cut off")

    def share(self, function: Function) -> int:
        return 100

    def wait(self, function: str, count: int) -> None:
        pass


async def test_the_items_of_a_batch_are_counted_and_do_not_begin_on_a_machine_that_was_cut_off() -> None:
    made = await machine()
    family = made.dispatcher.family("f")
    membership = family.cluster = Membership()
    environment, first = await occupied(made)
    waiting = run(made, 3)
    await turns()
    answer(environment)
    await within(first)
    assert len(await batch_of(environment)) == family.running == 3
    more = run(made, 3)
    await turns()
    membership.is_member = False
    answer_batch(environment)
    await within(asyncio.gather(*waiting))
    found = await within(asyncio.gather(*more, return_exceptions=True))
    assert [type(each) for each in found] == [NotMemberError] * 3
    await until(lambda: not made.busy())
    assert family.running == 0


async def test_a_request_that_finds_an_idle_environment_gets_it_alone_and_at_once() -> None:
    house = House()
    pool = house.pool(batch=Batch(size=4, window_ms=1000))
    (environment,) = await warm(house, pool)
    lease = await pool.acquire(invocation())
    assert (lease.environment, lease.batch) == (environment, None)


async def test_as_many_environments_start_as_there_are_batches() -> None:
    house = House()
    pool = house.pool(batch=FOUR)
    tasks = [ask(pool) for _ in range(9)]
    await turns()
    assert len(house.spawner.under_way) == 3
    house.spawner.succeed()
    leases = [await within(task) for task in tasks[:4]]
    assert len({id(lease.batch) for lease in leases}) == 1
    assert not tasks[4].done()
    for task in tasks:
        task.cancel()


async def test_the_first_environment_starts_without_waiting_for_the_window() -> None:
    house = House()
    pool = house.pool(batch=Batch(size=4, window_ms=1000))
    task = ask(pool)
    await turns()
    assert len(house.spawner.under_way) == 1
    task.cancel()


async def test_while_an_environment_is_busy_the_start_of_another_waits_for_the_window() -> None:
    house = House()
    pool = house.pool(batch=Batch(size=4, window_ms=50))
    await warm(house, pool)
    held = await pool.acquire(invocation())
    begun_s = time.monotonic()
    task = ask(pool)
    await turns()
    assert house.spawner.under_way == []
    await until(lambda: house.spawner.under_way)
    assert time.monotonic() - begun_s >= 0.05
    pool.release(held)
    assert (await within(task)).environment is held.environment


async def test_a_full_batch_does_not_wait_for_the_window() -> None:
    house = House()
    pool = house.pool(batch=Batch(size=4, window_ms=1000))
    await warm(house, pool)
    await pool.acquire(invocation())
    tasks = [ask(pool) for _ in range(5)]
    await turns()
    assert len(house.spawner.under_way) == 1
    for task in tasks:
        task.cancel()


async def test_an_environment_that_becomes_idle_takes_the_requests_before_their_window_ends() -> None:
    house = House()
    pool = house.pool(batch=Batch(size=4, window_ms=1000))
    await warm(house, pool)
    held = await pool.acquire(invocation())
    tasks = [ask(pool) for _ in range(2)]
    await turns()
    pool.release(held)
    leases = [await within(task) for task in tasks]
    assert leases[0].environment is held.environment
    assert leases[0].batch is leases[1].batch is not None
    assert len(house.spawner.begun) == 1


async def test_a_request_that_may_not_wait_as_long_as_the_window_is_not_delayed_by_it() -> None:
    house = House()
    pool = house.pool(batch=Batch(size=4, window_ms=1000))
    await warm(house, pool)
    await pool.acquire(invocation())
    task = ask(pool, wait_s=0.02)
    await until(lambda: house.spawner.under_way)
    house.spawner.succeed()
    assert (await within(task)).init_ms == 5.0


async def test_synchronous_requests_fill_a_batch_before_asynchronous_ones() -> None:
    made = await machine()
    environment, _ = await occupied(made)
    run(made, 3, asynchronous=True)
    await turns()
    run(made, 3)
    await turns()
    answer(environment)
    assert [item.asynchronous for item in await batch_of(environment)] == [False, False, False, True]
    answer_batch(environment)
    assert [item.asynchronous for item in await batch_of(environment)] == [True, True]
    answer_batch(environment)


async def test_requests_too_large_to_be_joined_do_not_wait_for_one_environment_in_turn() -> None:
    house = House()
    pool = house.pool(batch=FOUR)
    tasks = []
    for _ in range(3):
        large = invocation()
        large.payload = b" " * MAX_PAYLOAD_BYTES
        tasks.append(asyncio.get_running_loop().create_task(pool.acquire(large)))
    for started in (1, 2, 3):
        await until(lambda: house.spawner.under_way)
        house.spawner.succeed()
        await until(lambda started=started: sum(task.done() for task in tasks) == started)
    assert len({id(task.result().environment) for task in tasks}) == 3


async def test_a_request_that_must_run_alone_is_joined_with_no_other() -> None:
    made = await machine()
    environment, _ = await occupied(made)
    loop = asyncio.get_running_loop()
    tasks = []
    for alone in (False, False, True, False, True):
        one = invocation(asynchronous=True)
        one.alone = alone
        tasks.append(loop.create_task(made.dispatcher.invoke(one)))
        await turns()
    answer(environment)
    assert [item.alone for item in await batch_of(environment)] == [False, False]
    answer_batch(environment)
    for following in (3, 4, 5):
        await until(made.busy)
        answer(environment)
        await until(lambda following=following: sum(task.done() for task in tasks) == following)
    assert made.metrics.function("f").batched == 2


async def test_the_payloads_of_a_batch_are_together_at_most_as_large_as_one_may_be() -> None:
    made = await machine()
    environment, _ = await occupied(made)
    sizes = [MAX_PAYLOAD_BYTES // 2, MAX_PAYLOAD_BYTES // 2, 1, MAX_PAYLOAD_BYTES]
    loop = asyncio.get_running_loop()
    tasks = []
    for size in sizes:
        large = invocation()
        large.payload = b" " * size
        tasks.append(loop.create_task(made.dispatcher.invoke(large)))
        await turns()
    answer(environment)
    assert [len(item.payload) for item in await batch_of(environment)] == sizes[:2]
    answer_batch(environment)
    await until(made.busy)
    answer(environment)
    await until(lambda: tasks[2].done() and made.busy())
    answer(environment)
    await within(asyncio.gather(*tasks))


async def test_a_caller_that_goes_away_leaves_the_others_of_its_batch() -> None:
    made = await machine()
    environment, _ = await occupied(made)
    waiting = run(made, 3)
    await turns()
    waiting[0].cancel()  # while it waits
    await turns()
    answer(environment)
    assert len(await batch_of(environment)) == 2
    waiting[1].cancel()  # while it runs
    await turns()
    assert not environment.was_killed.is_set()
    answer_batch(environment)
    assert (await within(waiting[2])).function_error is None
    await turns()
    pool = made.dispatcher.entry("f").pool
    assert pool is not None
    assert pool.counts() == {"idle": 1, "busy": 0, "starting": 0}


async def test_when_all_callers_have_gone_away_the_environment_is_killed() -> None:
    made = await machine()
    environment, _ = await occupied(made)
    waiting = run(made, 2)
    await turns()
    answer(environment)
    await batch_of(environment)
    for task in waiting:
        task.cancel()
    await within(environment.was_killed.wait())
    assert (await within(asyncio.gather(*waiting, return_exceptions=True))) is not None
    (again,) = run(made)
    await until(made.busy)
    answer(made.busy()[0])
    assert (await within(again)).payload == b"1"


async def test_callers_that_go_away_between_the_grant_and_the_run_leave_the_environment_idle() -> None:
    house = House(max_environments=1)
    pool = house.pool(batch=FOUR)
    (environment,) = await warm(house, pool)
    held = await pool.acquire(invocation())
    tasks = [ask(pool) for _ in range(3)]
    await turns()
    pool.release(held)
    for task in tasks:
        task.cancel()
    await turns()
    assert environment.served == 0
    assert not environment.was_killed.is_set()
    assert pool.counts() == {"idle": 1, "busy": 0, "starting": 0}


async def test_only_the_request_whose_deadline_passes_is_throttled() -> None:
    made = await machine()
    environment, _ = await occupied(made)
    (impatient,) = run(made, wait_s=0.01)
    patient = run(made, 2)
    with pytest.raises(TooManyRequestsException):
        await within(impatient)
    answer(environment)
    assert len(await batch_of(environment)) == 2
    answer_batch(environment)
    await within(asyncio.gather(*patient))


async def test_a_failure_of_the_platform_itself_fails_each_item_and_ends_the_environment() -> None:
    made = await machine()
    environment, _ = await occupied(made)
    waiting = run(made, 2)
    await turns()
    answer(environment)
    await batch_of(environment)
    assert environment.answers is not None
    environment.answers.set_exception(ServiceException("a bug"))
    for task in waiting:
        with pytest.raises(ServiceException, match="a bug"):
            await within(task)
    assert environment.was_killed.is_set()
    assert made.failures == []


async def test_reserved_concurrency_counts_environments_and_not_items() -> None:
    made = Machine(immediate=True)
    await made.serve("f", batch=FOUR, reserved_concurrency=1)
    environment, _ = await occupied(made)
    waiting = run(made, 3)
    await turns()
    (one_too_many,) = run(made)
    with pytest.raises(TooManyRequestsException):
        await within(one_too_many)
    answer(environment)
    assert len(await batch_of(environment)) == 3
    answer_batch(environment)
    await within(asyncio.gather(*waiting))
    assert made.dispatcher.most_at_once("f") == 4


async def test_requests_in_line_run_in_the_version_that_replaces_theirs() -> None:
    made = Machine(immediate=True)
    await made.serve("f", batch=FOUR, reserved_concurrency=1)
    environment, first = await occupied(made)
    waiting = run(made, 2)
    await turns()
    await made.serve("f", batch=FOUR, reserved_concurrency=1)
    await until(lambda: len(made.spawner.environments) == 2)
    following = made.spawner.environments[1]
    assert len(await batch_of(following)) == 2
    answer_batch(following)
    await within(asyncio.gather(*waiting))
    answer(environment)
    await within(first)


@pytest.mark.parametrize("seed", range(20))
async def test_whatever_happens_in_any_order_each_request_ends_once_and_with_its_own_answer(seed: int) -> None:
    choose = random.Random(seed)
    cores = Cores(lambda: 2 * CORE, read_usage=lambda _: None) if choose.random() < 0.5 else None
    made = Machine(max_environments=3, immediate=choose.random() < 0.5, cores=cores)
    await made.serve("f", batch=Batch(size=choose.choice([1, 2, 5]), window_ms=choose.choice([0, 1])))
    asked: list[tuple[Invocation, asyncio.Task[Result]]] = []
    cancelled: set[int] = set()

    def running() -> list[FakeEnvironment]:
        alive = [each for each in made.spawner.environments if not each.was_killed.is_set()]
        return [
            each
            for each in alive
            if any(future is not None and not future.done() for future in (each.answer, each.answers))
        ]

    def end_one() -> None:
        if not running():
            return
        environment = choose.choice(running())
        if environment.answers is not None and not environment.answers.done():
            answer_batch(environment)
        else:
            answer(environment)

    for _ in range(200):
        action = choose.random()
        if action < 0.5:
            one = invocation(asynchronous=choose.random() < 0.3)
            asked.append((one, asyncio.get_running_loop().create_task(made.dispatcher.invoke(one))))
        elif action < 0.6 and asked:
            index = choose.randrange(len(asked))
            if asked[index][1].cancel():
                cancelled.add(index)
        elif action < 0.65 and running():
            victim = choose.choice(running())
            if victim.answers is not None and not victim.answers.done():
                victim.kill()
        elif action < 0.8:
            if made.spawner.under_way:
                made.spawner.succeed()
        else:
            end_one()
        await turns(choose.randrange(4))

    def settle() -> bool:
        end_one()
        if made.spawner.under_way:
            made.spawner.succeed()
        return all(task.done() for _, task in asked)

    await until(settle)
    for index, (one, task) in enumerate(asked):
        if index in cancelled and task.cancelled():
            continue
        result = task.result()
        if result.batch_size > 1:
            assert result.payload.decode() == one.request_id
    await until(lambda: not made.busy())
    await turns()
    pool = made.dispatcher.entry("f").pool
    assert pool is not None
    assert made.failures == []
    assert (pool.waiting, pool.counts()["busy"], made.room.cores.waiting) == (0, 0, 0)
