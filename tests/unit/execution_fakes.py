"""Fakes for processes: environments and a spawner that a test starts, fails and ends by hand, on a real loop."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from thawd.environments.version import Version
from thawd.invocation import Invocation, Result
from thawd.resources import Function
from thawd.scheduling.core_admission import Cores
from thawd.scheduling.dispatcher import Dispatcher
from thawd.scheduling.keep_alive import FixedPolicy
from thawd.scheduling.leases import Lease
from thawd.scheduling.pool import Pool
from thawd.scheduling.room import Room
from thawd.scheduling.tenant_pools import pool_for
from thawd.telemetry.metrics import Metrics


class FakeEnvironment:
    """The part of an environment that a pool uses. After a kill it ends one turn of the loop later, like a process."""

    def __init__(self, version: Version, *, slow_to_die: bool = False) -> None:
        self.version = version
        self.provisioned = False
        self.tenant_id: str | None = None
        self.idle_since = 0.0
        self.init_ms = 5.0
        self.memory_limit = None
        self.was_killed = asyncio.Event()
        self.dying = False
        self.child: Any = SimpleNamespace(
            pid=os.getpid(), ended=asyncio.get_running_loop().create_future(), killed=False
        )
        self.child.ended.set_result(9)  # the wait status of SIGKILL, as if another process had sent it
        self.ended = asyncio.Event()
        self.on_end: Callable[[Any], None] = lambda environment: None
        self.served = 0
        self.busy_since: float | None = None
        self.duration_ms = 0.0
        self.answer: asyncio.Future[Result] | None = None
        self.batch: list[Invocation] = []
        self.answers: asyncio.Future[list[Result]] | None = None
        self._slow_to_die = slow_to_die

    def kill(self) -> None:
        self.dying = True
        if not self.was_killed.is_set():
            self.was_killed.set()
            if not self._slow_to_die:
                asyncio.get_running_loop().call_soon(self.die)

    def die(self) -> None:
        if not self.ended.is_set():
            self.ended.set()
            self.on_end(self)

    async def invoke(self, invocation: Invocation, *, init_ms: float | None) -> Result:
        """For tests with a dispatcher: answer when the test sets the answer."""
        self.served += 1
        self.answer = asyncio.get_running_loop().create_future()
        return await self.answer

    async def invoke_batch(self, invocations: list[Invocation], *, init_ms: float | None) -> list[Result]:
        """The same for a batch. Killed, it answers with errors, as a real one does."""
        self.served += len(invocations)
        self.batch = list(invocations)
        self.answers = asyncio.get_running_loop().create_future()
        killed = asyncio.ensure_future(self.was_killed.wait())
        await asyncio.wait((killed, self.answers), return_when=asyncio.FIRST_COMPLETED)
        killed.cancel()
        if self.answers.done():
            return self.answers.result()
        return [Result(b"{}", function_error="Unhandled") for _ in invocations]


class FakeSpawner:
    """A spawner whose starts end when the test says so, or immediately if `immediate`."""

    def __init__(self, *, immediate: bool = False) -> None:
        self.immediate = immediate
        self.slow_to_die = False
        self.begun: list[asyncio.Future[FakeEnvironment]] = []
        self.versions: list[Version] = []
        self.environments: list[FakeEnvironment] = []
        self.failure: BaseException | None = None
        self.parks: list[FakeEnvironment] | None = None
        self.resumed: list[FakeEnvironment] = []

    @property
    def under_way(self) -> list[asyncio.Future[FakeEnvironment]]:
        return [start for start in self.begun if not start.done()]

    async def start(
        self, version: Version, *, provisioned: bool = False, spare: FakeEnvironment | None = None
    ) -> FakeEnvironment:
        if spare is not None and not spare.dying:
            self.resumed.append(spare)
            self.environments.append(spare)
            return spare
        start: asyncio.Future[FakeEnvironment] = asyncio.get_running_loop().create_future()
        self.begun.append(start)
        self.versions.append(version)
        if self.failure is not None:
            start.set_exception(self.failure)
        elif self.immediate:
            self.succeed(start, version)
        return await start

    def succeed(
        self, start: asyncio.Future[FakeEnvironment] | None = None, version: Version | None = None
    ) -> FakeEnvironment:
        """Let a start succeed, by default the oldest in progress."""
        if start is None:
            start = self.under_way[0]
        version = version or self.versions[self.begun.index(start)]
        environment = FakeEnvironment(version, slow_to_die=self.slow_to_die)
        self.environments.append(environment)
        start.set_result(environment)
        return environment

    def fail(self, error: BaseException) -> None:
        """Let the oldest start in progress fail."""
        self.under_way[0].set_exception(error)

    # The methods that the dispatcher calls.

    async def park(self, version: Version) -> FakeEnvironment | None:
        if self.parks is None:
            return None
        self.parks.append(FakeEnvironment(version))
        return self.parks[-1]

    async def prepare(self, version: Version) -> None:
        return None

    def retire(self, version: Version, *, for_good: bool = False) -> None:
        return None

    def origin(self, version: Version) -> Any:
        return SimpleNamespace(why_no_image=None)


class House:
    """A `Room` with a fake spawner, its pools, and the tasks they spawn. The test sees the tasks' failures."""

    def __init__(
        self,
        *,
        max_environments: int = 8,
        memory_mb: int = 100_000,
        immediate: bool = False,
        patience_s: float = 1.0,
        cores: Cores | None = None,
        spares: int = 0,
    ) -> None:
        self.spawner = FakeSpawner(immediate=immediate)
        self.room = Room(
            self.spawner,  # type: ignore[arg-type]
            functions={},
            memory_mb=memory_mb,
            max_environments=max_environments,
            patience_s=patience_s,
            cores=cores,
            spares=spares,
        )
        self.functions: dict[str, Function] = {}
        self.tasks: set[asyncio.Task[None]] = set()
        self.failures: list[BaseException] = []

    def spawn_task(self, work: Coroutine[None, None, None]) -> object:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.failures.append(task.exception())  # type: ignore[arg-type]

    def pool(self, name: str = "f", *, max_waiting: int = 100, generation: int = 1, **function: Any) -> Pool:
        version = version_of(name, generation=generation, **function)
        self.functions[name] = version.function
        self.room.declare(self.functions)
        policy = FixedPolicy(version.function.idle_timeout_s)
        return pool_for(version, self.room, max_waiting=max_waiting, spawn_task=self.spawn_task, policy=policy)

    def assert_nothing_leaked(self, *pools: Pool) -> None:
        assert self.failures == []
        assert self.room._used_mb == 0
        assert [count for count in self.room._count.values() if count] == []
        assert (self.room.cores.load, self.room.cores.waiting) == (0, 0)
        for pool in pools:
            assert pool.counts() == {"idle": 0, "busy": 0, "starting": 0}
            assert pool.waiting == 0


def version_of(name: str = "f", *, generation: int = 1, **function: Any) -> Version:
    declared = Function(name=name, handler="m.f", code=Path("/nowhere"), **{"memory_mb": 128, **function})
    return Version(declared, generation, Path("/nowhere/python"), "3.11.7", "/nowhere", {})


def invocation(
    name: str = "f", *, wait_s: float = 10.0, asynchronous: bool = False, tenant_id: str | None = None
) -> Invocation:
    return Invocation(name, b"{}", time.monotonic() + wait_s, asynchronous=asynchronous, tenant_id=tenant_id)


def ask(
    pool: Pool, *, wait_s: float = 10.0, asynchronous: bool = False, tenant_id: str | None = None
) -> asyncio.Task[Lease]:
    """Start a request for an environment."""
    name = pool.version.function.name
    return asyncio.get_running_loop().create_task(
        pool.acquire(invocation(name, wait_s=wait_s, asynchronous=asynchronous, tenant_id=tenant_id))
    )


async def turns(number: int = 20) -> None:
    """Let everything that is ready run."""
    for _ in range(number):
        await asyncio.sleep(0)


async def until(condition: Callable[[], object], *, deadline_s: float = 120.0) -> None:
    """Let the loop run until `condition` holds."""
    end_s = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end_s, "the condition did not come true before the deadline"
        await asyncio.sleep(0.001)


async def within(awaitable: Any, *, deadline_s: float = 120.0) -> Any:
    """Return the awaitable's result, which must come before the deadline."""
    async with asyncio.timeout(deadline_s):
        return await awaitable


def environment_of(lease: Lease) -> FakeEnvironment:
    assert isinstance(lease.environment, FakeEnvironment)
    return lease.environment


async def warm(house: House, pool: Pool, number: int = 1) -> list[FakeEnvironment]:
    """Give the pool `number` idle environments and return them in the order in which they became idle."""
    was, house.spawner.immediate = house.spawner.immediate, True
    leases = [await within(task) for task in [ask(pool) for _ in range(number)]]
    house.spawner.immediate = was
    for lease in leases:
        pool.release(lease)
    return [environment_of(lease) for lease in leases]


class Machine(House):
    """A `House` with a dispatcher."""

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


def claim(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a test's work on a separate loop. It must end."""

    async def main() -> None:
        async with asyncio.timeout(300):
            await work()

    asyncio.run(main())
