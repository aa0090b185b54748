"""`thawd.scheduling.core_admission`: which requests may run while the processor cores are occupied."""

from __future__ import annotations

import asyncio
import os
import random
import time
from pathlib import Path
from typing import Any

import pytest

from tests.unit.execution_fakes import FakeEnvironment, House, ask, environment_of, turns, within
from thawd.environments.processor_time import Usage
from thawd.errors import TooManyRequestsException
from thawd.scheduling import core_admission as module
from thawd.scheduling.core_admission import CORE, Cores, processor_cores
from thawd.scheduling.leases import Lease
from thawd.scheduling.pool import Pool

MS = 1_000_000


class Machine(House):
    """A `House` on a machine with a given number of cores. The test says how much processor time each process uses."""

    def __init__(self, cores: float = 2, **options: Any) -> None:
        self.cores = cores
        self.used: dict[Any, Usage] = {}
        self.runnable: set[Any] = set()
        cores = Cores(
            lambda: round(self.cores * CORE), read_usage=self.used.get, is_runnable=lambda each: each in self.runnable
        )
        super().__init__(cores=cores, **options)
        self.spawner.immediate = True

    def look(self, passed_ms: float = 10, **shares: float) -> None:
        """Let `passed_ms` pass.

        Meanwhile each running environment uses its share of a core: 1, or as given by function name.
        """
        for charge in self.room.cores._charges.values():
            environment = charge.environment
            before = charge.seen or Usage(0, 0, 0)
            share = shares.get(environment.version.function.name, 1.0)
            now = Usage(before.at_ns + round(passed_ms * MS), before.ran_ns + round(share * passed_ms * MS), 0)
            self.used[environment] = now
        self.room.cores._look()

    async def run(self, pool: Pool, *, ran_ms: float, took_ms: float | None = None, waited_ms: float = 0) -> None:
        """Run one invocation that uses this much processor time."""
        lease = await within(ask(pool))
        self.ended(pool, lease, ran_ms=ran_ms, took_ms=took_ms, waited_ms=waited_ms)
        await turns()

    def ended(
        self, pool: Pool, lease: Lease, *, ran_ms: float, took_ms: float | None = None, waited_ms: float = 0
    ) -> None:
        environment = environment_of(lease)
        charge = self.room.cores._charges[environment]  # type: ignore[index]
        took_ms = ran_ms if took_ms is None else took_ms
        environment.duration_ms = took_ms
        if charge.before is not None:
            at, ran, waited = charge.before
            self.used[environment] = Usage(
                at + round(took_ms * MS), ran + round(ran_ms * MS), waited + round(waited_ms * MS)
            )
        pool.release(lease)


@pytest.fixture(autouse=True)
def _no_timers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop the timer of the looks, so that only the test triggers them."""
    monkeypatch.setattr(module, "_LOOK_S", 3600.0)


def begun(tasks: list[asyncio.Task[Lease]]) -> list[int]:
    return [number for number, task in enumerate(tasks) if task.done()]


async def warmed(machine: Machine, name: str, **used: float) -> Pool:
    """Make a function of which eight invocations were measured."""
    pool = machine.pool(name)
    for _ in range(8):
        machine.used |= {environment: Usage(0, 0, 0) for environment in machine.spawner.environments}
        await machine.run(pool, **used)  # type: ignore[arg-type]
    return pool


async def test_as_many_requests_run_as_there_are_cores_and_nothing_is_started_for_the_others() -> None:
    machine = Machine(cores=2)
    pool = machine.pool()
    tasks = [ask(pool) for _ in range(50)]
    await turns()
    assert begun(tasks) == [0, 1]
    assert len(machine.spawner.begun) == 2
    assert pool.waiting == 48
    for number in range(48):  # each one that ends lets the next one run, in order, in an existing environment
        pool.release(tasks[number].result())
        await turns()
        assert begun(tasks) == list(range(number + 3))
    assert len(machine.spawner.begun) == 2
    for task in tasks[48:]:
        pool.release(task.result())
    pool.retire()
    await turns()
    machine.assert_nothing_leaked(pool)


async def test_handlers_that_sleep_do_not_occupy_cores() -> None:
    machine = Machine(cores=2, max_environments=64)
    pool = await warmed(machine, "f", ran_ms=0.2, took_ms=20)
    tasks = [ask(pool) for _ in range(50)]
    await turns(200)  # the environments are started two at a time
    assert len(begun(tasks)) == 50


async def test_a_handler_that_waits_longer_than_expected_makes_room_while_it_waits() -> None:
    machine = Machine(cores=1)
    pool = await warmed(machine, "f", ran_ms=50)
    tasks = [ask(pool) for _ in range(3)]
    await turns()
    assert begun(tasks) == [0]
    machine.look()
    machine.look(f=1.0)
    await turns()
    assert begun(tasks) == [0]
    machine.look(f=0.0)
    await turns()
    assert begun(tasks) == [0, 1]
    machine.look(f=0.9)
    await turns()
    assert begun(tasks) == [0, 1]


async def test_time_in_which_a_process_waits_for_a_core_is_not_taken_for_sleep() -> None:
    machine = Machine(cores=2)
    # 16 run concurrently on two cores: each ran for an eighth of the time and waited for the rest.
    pool = await warmed(machine, "f", ran_ms=10, took_ms=80, waited_ms=70)
    assert pool.share.load is not None
    assert pool.share.load > 0.9 * CORE


async def test_a_process_that_waits_for_a_core_all_the_time_is_not_taken_for_one_that_sleeps() -> None:
    # The kernel includes a wait in its figures only after the wait has ended.
    machine = Machine(cores=1)
    pool = await warmed(machine, "f", ran_ms=50)
    tasks = [ask(pool) for _ in range(3)]
    await turns()
    machine.look()
    machine.runnable = {charge.environment for charge in machine.room.cores._charges.values()}
    machine.look(f=0.0)
    await turns()
    assert begun(tasks) == [0]
    machine.runnable.clear()
    machine.look(f=0.0)
    await turns()
    assert begun(tasks) == [0, 1]


async def test_a_handler_of_many_threads_occupies_as_many_cores() -> None:
    machine = Machine(cores=8)
    pool = await warmed(machine, "f", ran_ms=400, took_ms=100)
    tasks = [ask(pool) for _ in range(5)]
    await turns()
    assert begun(tasks) == [0, 1]


async def test_one_that_uses_more_cores_than_there_are_still_runs() -> None:
    machine = Machine(cores=2)
    pool = await warmed(machine, "f", ran_ms=4000, took_ms=100)
    tasks = [ask(pool) for _ in range(3)]
    await turns()
    assert begun(tasks) == [0]
    pool.release(tasks[0].result())
    await turns()
    assert begun(tasks) == [0, 1]


async def test_a_rare_function_does_not_wait_behind_the_flood_of_another() -> None:
    machine = Machine(cores=2)
    flood, rare = await warmed(machine, "flood", ran_ms=10), await warmed(machine, "rare", ran_ms=10)
    flooding = [ask(flood) for _ in range(50)]
    await turns()
    one = ask(rare)
    await turns()
    assert not one.done()
    flood.release(flooding[0].result())
    await turns()
    assert one.done()
    assert begun(flooding) == [0, 1]


async def test_functions_share_the_cores_by_the_time_they_use() -> None:
    machine = Machine(cores=1)
    short, long = await warmed(machine, "short", ran_ms=10), await warmed(machine, "long", ran_ms=40)
    waiting = {pool: [ask(pool) for _ in range(100)] for pool in (short, long)}
    await turns()
    ran = {short: 0, long: 0}
    for _ in range(50):
        pool = next(pool for pool, tasks in waiting.items() if any(task.done() for task in tasks))
        task = next(task for task in waiting[pool] if task.done())
        waiting[pool].remove(task)
        ran[pool] += 1
        machine.ended(pool, task.result(), ran_ms=10 if pool is short else 40)
        await turns(5)
    assert ran[short] == pytest.approx(4 * ran[long], abs=4)


async def test_synchronous_requests_go_first() -> None:
    machine = Machine(cores=1)
    pool, other = await warmed(machine, "f", ran_ms=10), await warmed(machine, "g", ran_ms=10)
    running = await within(ask(pool))
    events = [ask(pool, asynchronous=True), ask(other, asynchronous=True)]
    await turns()
    request = ask(other)
    await turns()
    pool.release(running)
    await turns()
    assert (request.done(), begun(events)) == (True, [])


async def test_a_long_computation_does_not_hold_up_a_function_of_which_nothing_runs() -> None:
    machine = Machine(cores=1)
    long, short = await warmed(machine, "long", ran_ms=60_000), await warmed(machine, "short", ran_ms=1)
    computing = await within(ask(long))
    requests = [ask(short), ask(short), ask(long)]
    await turns()
    machine.look()
    assert begun(requests) == []
    for place in machine.room.cores._places.values():
        place.since_s -= module.PATIENCE_S
    machine.look()
    await turns()
    # one request of the function that had none running; its other request, and the long one, wait
    assert begun(requests) == [0]
    short.release(requests[0].result())
    long.release(computing)


async def test_looks_that_take_long_are_made_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(cores=1)
    pool = await warmed(machine, "f", ran_ms=10)
    tasks = [ask(pool) for _ in range(2)]
    await turns()
    assert begun(tasks) == [0]
    cores = machine.room.cores
    monkeypatch.setattr(module, "_LOOK_S", 0.005)
    monkeypatch.setattr(cores, "_usage", lambda environment: time.sleep(0.02) or machine.used.get(environment))
    machine.look()
    assert cores._timer is not None
    assert cores._timer.when() - asyncio.get_running_loop().time() > 0.3  # twenty times as long as the look took
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_requests_of_an_unknown_function_are_let_in_once_the_first_is_seen_to_sleep() -> None:
    machine = Machine(cores=2, max_environments=64)
    pool = machine.pool()
    tasks = [ask(pool) for _ in range(20)]
    await turns()
    assert begun(tasks) == [0, 1]
    machine.look()
    machine.look(f=0.01)
    await turns()
    assert len(begun(tasks)) == 20


async def test_environments_that_start_count_until_they_are_seen_to_sleep() -> None:
    machine = Machine(cores=1)
    machine.spawner.immediate = False
    pool = machine.pool()
    tasks = [ask(pool) for _ in range(3)]
    await turns()
    assert pool.counts()["starting"] == 1
    starting = FakeEnvironment(pool.version)
    machine.room.cores.spawned(starting)  # type: ignore[arg-type]
    for at_ms in (10, 20):
        machine.used[starting] = Usage(at_ms * MS, 0, 0)
        machine.room.cores._look()
    await turns()
    assert pool.counts()["starting"] == 2  # the init of the first one waits for something
    machine.spawner.succeed()
    machine.spawner.succeed()
    await turns()
    assert len(begun(tasks)) == 2


async def test_a_start_that_fails_gives_its_core_to_another_function() -> None:
    machine = Machine(cores=1)
    machine.spawner.immediate = False
    failing, other = machine.pool("failing"), machine.pool("other")
    lost = ask(failing)
    await turns()
    waiting = ask(other)
    await turns()
    assert other.counts()["starting"] == 0
    machine.spawner.fail(module_error())
    await turns()
    assert other.counts()["starting"] == 1
    with pytest.raises(type(module_error())):
        await lost
    machine.spawner.succeed()
    other.release(await within(waiting))
    for pool in (failing, other):
        pool.retire()
    await turns()
    machine.assert_nothing_leaked(failing, other)


def module_error() -> Exception:
    from thawd.errors import ServiceException

    return ServiceException("no")


async def test_an_environment_that_dies_gives_its_core_to_the_next_request() -> None:
    machine = Machine(cores=1)
    pool = machine.pool()
    first, second = ask(pool), ask(pool)
    await turns()
    assert (first.done(), second.done()) == (True, False)
    environment_of(first.result()).die()
    pool.release(first.result())
    await turns()
    assert second.done()
    assert machine.room.cores.load == CORE


async def test_provisioned_environments_start_although_the_cores_are_occupied() -> None:
    machine = Machine(cores=1)
    busy = machine.pool("busy")
    await within(ask(busy))
    provisioned = machine.pool("provisioned", provisioned_concurrency=3)
    await provisioned.provision()
    assert provisioned.provisioned_ready() == 3


async def test_who_waits_for_a_core_may_wait_as_long_as_its_function_may_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("thawd.scheduling.pool_requests._OVERDUE_AGAIN_S", 0.001)
    machine = Machine(cores=1)
    pool = machine.pool(timeout_s=3600)
    running = await within(ask(pool))
    late = ask(pool, wait_s=0.001)
    await asyncio.sleep(0.02)
    assert not late.done()
    pool.release(running)
    pool.release(await within(late))
    hasty = machine.pool("hasty", timeout_s=0)
    held = await within(ask(pool))
    with pytest.raises(TooManyRequestsException):
        await within(ask(hasty, wait_s=0.001))
    pool.release(held)


async def test_fewer_cores_than_one_run_one_request_at_a_time_and_more_are_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine(cores=0.5)
    pool = machine.pool()
    tasks = [ask(pool) for _ in range(4)]
    await turns()
    assert begun(tasks) == [0]
    machine.cores = 3
    monkeypatch.setattr(module, "_CAPACITY_S", 0.0)
    machine.look()
    await turns()
    assert begun(tasks) == [0, 1, 2]


async def test_no_clock_that_is_set_disturbs_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(cores=1)
    pool = machine.pool()
    first, second = ask(pool), ask(pool)
    await turns()
    monkeypatch.setattr(time, "time", lambda: 0.0)
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    machine.look()
    pool.release(first.result())
    await turns()
    assert second.done()


async def test_whatever_happens_in_any_order_every_request_runs_and_no_load_is_left() -> None:  # noqa: PLR0912
    for seed in range(30):
        choice = random.Random(seed)
        machine = Machine(cores=choice.choice([0.5, 1, 2, 4]), max_environments=choice.choice([1, 3, 8]))
        pools = [machine.pool(name) for name in "abc"]
        tasks: list[tuple[Pool, asyncio.Task[Lease]]] = []
        ended = 0
        for _ in range(300):
            move = choice.random()
            running = [(pool, task) for pool, task in tasks if task.done() and not task.cancelled()]
            if move < 0.45 and len(tasks) < 60:
                pool = choice.choice(pools)
                tasks.append((pool, ask(pool, asynchronous=choice.random() < 0.3)))
            elif move < 0.8 and running:
                pool, task = choice.choice(running)
                tasks.remove((pool, task))
                if choice.random() < 0.1:
                    environment_of(task.result()).served = 1
                    environment_of(task.result()).die()
                    pool.release(task.result())
                else:
                    machine.ended(pool, task.result(), ran_ms=choice.choice([0, 1, 50]), took_ms=50)
                ended += 1
            elif move < 0.85 and tasks:
                pool, task = choice.choice(tasks)
                if not task.done():
                    task.cancel()
                    tasks.remove((pool, task))
            else:
                machine.look(a=choice.random(), b=0.0)
            await turns(choice.choice([0, 1, 5]))
        for _ in range(1000):
            await turns(5)
            running = [(pool, task) for pool, task in tasks if task.done()]
            if not tasks:
                break
            for pool, task in running:
                tasks.remove((pool, task))
                pool.release(task.result())
            for place in machine.room.cores._places.values():
                place.since_s -= 1
            machine.look()
        assert tasks == []
        for pool in pools:
            pool.retire()
        await turns()
        machine.assert_nothing_leaked(*pools)
        assert [pool.share.running for pool in pools] == [0, 0, 0]


@pytest.mark.parametrize(
    ("limits", "millicores"),
    [
        ({}, 4000),
        ({"a/b": "max 100000"}, 4000),
        ({"a/b": "150000 100000"}, 1500),
        ({"a/b": "max 100000", "a": "50000 100000"}, 500),
        ({"a/b": "100 100000"}, 100),
        ({"a/b": "900000 100000"}, 4000),
        ({"a/b": "nonsense"}, 4000),
    ],
)
def test_the_limit_of_a_control_group_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: dict[str, str], millicores: int
) -> None:
    (tmp_path / "cgroup" / "a" / "b").mkdir(parents=True)
    for folder, text in limits.items():
        (tmp_path / "cgroup" / folder / "cpu.max").write_text(text + "\n")
    (tmp_path / "self").write_text("1:cpu:/x\n0::/a/b\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    assert processor_cores(own=tmp_path / "self", groups=tmp_path / "cgroup") == millicores
    assert processor_cores(own=tmp_path / "none", groups=tmp_path / "cgroup") == 4000
