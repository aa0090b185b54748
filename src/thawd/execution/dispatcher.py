"""The one door to functions: every invocation, synchronous or not, enters here.

Finds the function's current version, applies its concurrency limit, leases an environment, runs the invocation, counts
it. Knows nothing of HTTP, of queues, of processes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from thawd.errors import (
    ResourceConflictException,
    ResourceNotFoundException,
    ResourceNotReadyException,
    ServiceException,
    ThawdError,
    TooManyRequestsException,
)
from thawd.execution.environment import InitError
from thawd.execution.node import Node
from thawd.execution.pool import Lease, Pool, PoolRetiredError
from thawd.execution.version import Version
from thawd.invocation import Invocation, Result, StartKind
from thawd.resources import ACCOUNT_ID, LATEST, REGION, Function
from thawd.telemetry.metrics import FunctionMetrics, Metrics


class Entry:
    """A function as the dispatcher sees it.

    Attributes:
        function: as declared.
        state: Lambda's: ``Pending``, ``Active`` or ``Failed``.
        reason: why it is not active, or why its last publication failed; None when all is well.
        pool: environments of the version that serves, None before the first publication succeeded.
        decided: set once the first publication has succeeded or failed.
        in_flight: invocations that wait or run.
    """

    def __init__(self, function: Function, metrics: FunctionMetrics) -> None:
        self.function = function
        self.state = "Pending"
        self.reason: str | None = "The function is being published."
        self.pool: Pool | None = None
        self.decided = asyncio.Event()
        self.in_flight = 0
        self.metrics = metrics


class Dispatcher:
    """All functions and what runs them."""

    def __init__(
        self,
        node: Node,
        metrics: Metrics,
        *,
        max_waiting: int,
        spawn_task: Callable[[Coroutine[None, None, None]], object],
    ) -> None:
        self._node = node
        self._metrics = metrics
        self._max_waiting = max_waiting
        self._spawn_task = spawn_task
        self._entries: dict[str, Entry] = {}
        self._retiring: set[Pool] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._in_flight = 0
        self.stopping = False

    def declare(self, functions: Mapping[str, Function]) -> None:
        """These functions exist from now on; those no longer named are retired."""
        for name in set(self._entries) - set(functions):
            entry = self._entries.pop(name)
            if entry.pool is not None:
                self._retire(entry.pool)
        for name, function in functions.items():
            if name in self._entries:
                self._entries[name].function = function
            else:
                self._entries[name] = Entry(function, self._metrics.function(name))
        self._node.declare(functions)

    def names(self) -> list[str]:
        """Names of the functions declared."""
        return list(self._entries)

    def entry(self, name: str) -> Entry:
        """The function `name`.

        Raises:
            ResourceNotFoundException: there is none (404).
        """
        entry = self._entries.get(name)
        if entry is None:
            arn = f"arn:aws:lambda:{REGION}:{ACCOUNT_ID}:function:{name}"
            raise ResourceNotFoundException(f"Function not found: {arn}:{LATEST}")
        return entry

    def versions(self) -> list[Version]:
        """Versions that serve, or retire and still have environments."""
        serving = [entry.pool for entry in self._entries.values() if entry.pool is not None]
        return [pool.version for pool in (*serving, *self._retiring)]

    def most_at_once(self, name: str) -> int:
        """The most environments the function `name` can have."""
        return self._node.most_at_once(self.entry(name).function)

    async def publish(self, version: Version) -> None:
        """Make `version` the one that serves, once it is ready; the old one serves until then.

        Raises:
            InitError: its init failed; an older version goes on serving if there is one, else callers get the error.
            ResourceNotFoundException: the function is no longer declared.
        """
        entry = self.entry(version.function.name)
        pool = Pool(version, self._node, max_waiting=self._max_waiting, spawn_task=self._spawn_task)
        self._node.join(pool)
        try:
            await self._node.prepare(version)
            await pool.provision()
        except InitError as error:
            if entry.pool is not None:
                entry.reason = f"The last publication failed and the version before it serves: {error}"
                self._retire(pool)
                raise
            pool.seed_failure(error)
            self._serve(entry, pool, state="Failed", reason=str(error))
            raise
        except BaseException:
            self._retire(pool)
            raise
        if self._entries.get(version.function.name) is not entry:
            self._retire(pool)
            raise self._gone(entry)
        self._serve(entry, pool, state="Active", reason=None)

    def _serve(self, entry: Entry, pool: Pool, *, state: str, reason: str | None) -> None:
        old, entry.pool = entry.pool, pool
        entry.state, entry.reason = state, reason
        entry.decided.set()
        if old is not None:
            self._retire(old)

    def fail(self, name: str, reason: str) -> None:
        """The function could not be published for `reason`; an older version goes on serving."""
        entry = self.entry(name)
        entry.reason = reason
        if entry.pool is None:
            entry.state = "Failed"
        entry.decided.set()

    async def invoke(self, invocation: Invocation) -> Result:
        """Run `invocation`; the function's own failures are results, with `Result.function_error`.

        Raises:
            ResourceNotFoundException: no such function (404).
            ResourceConflictException: it is still being published (409).
            ResourceNotReadyException: it could not be published (502).
            TooManyRequestsException: a concurrency limit or the queue's bound was reached (429).
            ServiceException: the machine could not start a process (500).
        """
        entry = self.entry(invocation.function)
        asked_s = time.monotonic()
        if entry.pool is None:
            await self._wait_published(entry, invocation)
        reserved = entry.function.reserved_concurrency
        if reserved is not None and entry.in_flight >= reserved:
            entry.metrics.throttles += 1
            raise TooManyRequestsException("Rate Exceeded.", reason="ReservedFunctionConcurrentInvocationLimitExceeded")
        entry.in_flight += 1
        self._in_flight += 1
        self._idle.clear()
        try:
            result = await self._run(entry, invocation)
        finally:
            entry.in_flight -= 1
            self._in_flight -= 1
            if not self._in_flight:
                self._idle.set()
        _count(entry.metrics, result, (time.monotonic() - asked_s) * 1000)
        return result

    async def _wait_published(self, entry: Entry, invocation: Invocation) -> None:
        try:
            async with asyncio.timeout(max(0.0, invocation.queue_deadline - time.monotonic())):
                await entry.decided.wait()
        except TimeoutError:
            raise ResourceConflictException(
                "The operation cannot be performed at this time. The function is currently in the following state: "
                f"{entry.state}"
            ) from None
        if entry.pool is None:
            raise ResourceNotReadyException(f"The function could not be published: {entry.reason}")

    async def _run(self, entry: Entry, invocation: Invocation) -> Result:
        while True:
            pool = entry.pool
            assert pool is not None
            try:
                lease = await pool.acquire(invocation)
                break
            except PoolRetiredError:
                if entry.pool is pool:
                    raise self._gone(entry) from None
            except InitError as error:
                return Result(error.document, function_error="Unhandled", start_kind=StartKind.COLD)
            except TooManyRequestsException:
                entry.metrics.throttles += 1
                raise
        if entry.state != "Active":
            entry.state, entry.reason = "Active", None
        return await self._run_in(pool, lease, invocation)

    async def _run_in(self, pool: Pool, lease: Lease, invocation: Invocation) -> Result:
        self._node.began(lease.environment)
        try:
            return await lease.environment.invoke(invocation, init_ms=lease.init_ms)
        except asyncio.CancelledError:
            # Whoever asked is gone and nobody will read the answer: the environment is in the middle of something.
            lease.environment.kill()
            raise
        finally:
            self._node.finished(lease.environment)
            pool.release(lease)

    def _gone(self, entry: Entry) -> ThawdError:
        """Why a function has no version that serves any more."""
        if self.stopping:
            return ServiceException("thawd is stopping")
        arn = f"{entry.function.arn}:{LATEST}"
        return ResourceNotFoundException(f"Function not found: {arn}")

    def _retire(self, pool: Pool) -> None:
        self._node.retire(pool.version)
        pool.retire()
        self._retiring.add(pool)
        self._spawn_task(self._bury(pool))

    async def _bury(self, pool: Pool) -> None:
        await pool.empty.wait()
        self._node.leave(pool)
        self._retiring.discard(pool)

    async def drain(self, grace_s: float) -> int:
        """Wait until nothing is in flight, at most `grace_s` seconds; how many invocations are left."""
        try:
            async with asyncio.timeout(grace_s):
                await self._idle.wait()
        except TimeoutError:
            pass
        return self._in_flight

    def status(self) -> dict[str, Any]:
        """The functions' part of ``/_thawd/status``."""
        return {name: self._status(entry) for name, entry in self._entries.items()}

    def _status(self, entry: Entry) -> dict[str, Any]:
        pool = entry.pool
        origin = self._node.origin(pool.version) if pool is not None else None
        return {
            "state": entry.state,
            "reason": entry.reason,
            "start": None if origin is None else "cold" if origin.cold_because else "fork",
            "start_reason": origin.cold_because if origin is not None else None,
            "template_init_ms": origin.template_init_ms if origin is not None else None,
            "environments": pool.counts() if pool is not None else {"idle": 0, "busy": 0, "starting": 0},
            "waiting": pool.waiting if pool is not None else 0,
            **entry.metrics.summary(),
        }


def _count(metrics: FunctionMetrics, result: Result, elapsed_ms: float) -> None:
    metrics.invocations[result.start_kind].record(elapsed_ms)
    if result.function_error is not None:
        metrics.errors += 1
        if b'"Sandbox.Timedout"' in result.payload[:100]:
            metrics.timeouts += 1
        elif b'"Runtime.ExitError"' in result.payload[:100]:
            metrics.exits += 1
