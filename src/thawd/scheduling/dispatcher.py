"""The dispatcher runs all invocations of functions, synchronous and asynchronous.

It finds the version that a qualifier names, has it published if none serves yet, applies the concurrency limit, leases
an environment from the version's pool, runs the invocation and counts it. It knows no HTTP, queues or processes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from thawd.environments import debugging
from thawd.environments.init_phase import InitError
from thawd.environments.starts.fastest_start import Spawner
from thawd.environments.version import Version
from thawd.errors import (
    RATE_EXCEEDED,
    RESERVED_CONCURRENCY_REACHED,
    ResourceConflictException,
    ResourceNotReadyException,
    ServiceException,
    ThawdError,
    TooManyRequestsException,
)
from thawd.grammar import lineage
from thawd.invocation import Invocation, Result, StartKind
from thawd.resources import LATEST, Function
from thawd.scheduling import invocation_counts
from thawd.scheduling.ended_invocations import Reporting, Tracer
from thawd.scheduling.function_entries import BEING_PUBLISHED, NO_ALIASES, FunctionEntry, VersionEntry, not_found
from thawd.scheduling.leases import PoolRetiredError
from thawd.scheduling.pool import Pool
from thawd.scheduling.room import Room
from thawd.scheduling.status import NO_ENVIRONMENTS, document
from thawd.scheduling.tenant_pools import check_tenant, pool_for
from thawd.system.inline import in_task
from thawd.system.retry import is_set_within
from thawd.telemetry.metrics import Metrics
from thawd.wire import frames


class Dispatcher:
    """All declared functions with their versions, and the pools that serve them.

    Attributes:
        stopping: true once the server is stopping.
        on_active: called with function and version when an environment starts after init had failed at publication.
        on_awaited: called with a function's name when a request waits for a version that requests do not publish.
        may_loop: returns whether a chain of invocations may invoke the function with this name without limit.
        reporting: reports invocations that have ended, so that they are recorded; None: none is recorded.
        tracer: gives invocations their spans; None: none is traced.
    """

    def __init__(
        self,
        room: Room,
        spawner: Spawner,
        metrics: Metrics,
        *,
        max_waiting: int,
        spawn_task: Callable[[Coroutine[None, None, None]], object],
    ) -> None:
        self._room = room
        self._spawner = spawner
        self._metrics = metrics
        self._max_waiting = max_waiting
        self._spawn_task = spawn_task
        self._families: dict[str, FunctionEntry] = {}
        self._retiring: set[Pool] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._in_flight = 0
        self.stopping = False
        self.on_active: Callable[[str, str], None] = lambda name, number: None
        self.on_awaited: Callable[[str], None] = lambda name: None
        self.may_loop: Callable[[str], bool] = lambda name: False
        self.reporting: Reporting | None = None
        self.tracer: Tracer | None = None

    def declare(self, functions: Mapping[str, Function]) -> None:
        """Make `functions` the declared functions. Other functions are removed, with all their versions."""
        for name in set(self._families) - set(functions):
            for entry in self._families.pop(name).all():
                self._remove(entry)
        for name, function in functions.items():
            if name in self._families:
                self._families[name].latest.function = function
            else:
                self._families[name] = FunctionEntry(function, self._metrics.function(name))
        self._room.declare(functions)

    def declare_version(
        self, function: Function, number: str, *, publish: Callable[[], None] | None = None
    ) -> VersionEntry:
        """Declare the version `number` of a declared function.

        Args:
            function: the function as it was when the version was made.
            number: the version's number.
            publish: callback that publishes the version, when it is first invoked or provisioned. None: requests do
                not publish it.

        Raises:
            ResourceNotFoundException: there is no such function (404).
        """
        family = self.family(function.name)
        if number not in family.published:
            family.published[number] = VersionEntry(function, number, publish=publish)
        return family.published[number]

    def remove_version(self, name: str, number: str) -> None:
        """Remove a version. Its running invocations are completed."""
        entry = self.family(name).published.pop(number, None)
        if entry is not None:
            self._remove(entry)

    def set_aliases(self, name: str, aliases: Mapping[str, Mapping[str, float]]) -> None:
        """Replace the aliases of the function `name`. `aliases` maps each alias to its versions and their shares."""
        self.family(name).aliases = dict(aliases) if aliases else NO_ALIASES

    def provision(self, name: str, number: str, count: int | None) -> None:
        """Keep `count` environments of a version initialised; None: as many as its function declares."""
        entry = self.entry(name, number)
        entry.provisioned = count
        if entry.pool is not None:
            entry.pool.set_provisioned(count)
        elif count and entry.publish is not None:
            entry.publish()

    def _remove(self, entry: VersionEntry) -> None:
        if entry.pool is not None:
            self._retire(entry.pool)
        entry.state, entry.reason = "Failed", "The function was deleted."
        entry.decided.set()

    def names(self) -> list[str]:
        """Return the names of the declared functions."""
        return list(self._families)

    def pending(self) -> int:
        """Return how many functions have a ``$LATEST`` that is not published yet.

        Functions that are published only when a request arrives do not count.
        """
        entries = (family.latest for family in self._families.values())
        return sum(not entry.decided.is_set() and entry.publish is None for entry in entries)

    def family(self, name: str, qualifier: str | None = None) -> FunctionEntry:
        """Return the function `name` with all its versions.

        Args:
            name: the function's name.
            qualifier: qualifier to name in the error message.

        Raises:
            ResourceNotFoundException: there is no such function (404).
        """
        family = self._families.get(name)
        if family is None:
            raise not_found(name, qualifier)
        return family

    def entry(self, name: str, qualifier: str | None = None) -> VersionEntry:
        """Return the version that `qualifier` names. For a weighted alias, choose one of its versions at random.

        Args:
            name: the function's name.
            qualifier: version number or alias; None: ``$LATEST``.

        Raises:
            ResourceNotFoundException: there is no such function or version (404).
        """
        return self.family(name, qualifier).get(qualifier)

    def asynchronous(self, name: str, qualifier: str | None) -> Function:
        """Return the function with the settings for asynchronous invocations of `qualifier`, such as retries.

        Raises:
            ResourceNotFoundException: there is no such function or version (404).
        """
        family = self.family(name, qualifier)
        changes = family.asynchronous.get(qualifier or LATEST, {})
        if not changes and qualifier in (None, LATEST):
            return family.latest.function
        # Source: Lambda developer guide, "Adding a dead-letter queue": versions use the dead-letter queue of $LATEST.
        latest = family.latest.function
        from_latest = {"dead_letter": latest.dead_letter, "reserved_concurrency": latest.reserved_concurrency}
        return msgspec.structs.replace(self.entry(name, qualifier).function, **from_latest, **changes)

    def versions(self) -> list[Version]:
        """Return the versions that serve, and the retired versions that still have environments."""
        entries = [entry for family in self._families.values() for entry in family.all()]
        serving = [entry.pool for entry in entries if entry.pool is not None]
        return [pool.version for pool in (*serving, *self._retiring)]

    def most_at_once(self, name: str) -> int:
        """Return how many invocations of the function `name` can run at the same time."""
        function = self.entry(name).function
        return self._room.most_at_once(function) * function.most_in_environment

    async def publish(self, version: Version, *, keeps_old: bool = True) -> None:
        """Start `version` and let it serve once it is ready. Until then, the old version with the same number serves.

        Args:
            version: the new version.
            keeps_old: whether the old version continues to serve if the init phase of the new one fails. If false,
                invocations get the init error.

        Raises:
            InitError: the init phase failed. If no old version continues to serve, invocations get this error, too.
            ResourceNotFoundException: the version was deleted in the meantime (404).
            ServiceException: no process can be started, or the server is stopping (500).
        """
        entry = self.entry(version.function.name, version.number)
        policy = entry.policy(version.function)
        pool = pool_for(version, self._room, max_waiting=self._max_waiting, spawn_task=self._spawn_task, policy=policy)
        if entry.provisioned is not None:
            pool.provisioned = entry.provisioned
        try:
            if version.debugged and (old := entry.withdraw()) is not None:
                self._retire(old)
                await old.empty.wait()  # only then is the terminal free
                await debugging.port_released(version)
            await self._spawner.prepare(version)
            await pool.provision()
        except InitError as error:
            if not self._exists(entry):
                self._retire(pool)
                raise self._gone(entry) from error
            if entry.pool is not None and keeps_old and entry.state != "Failed":
                entry.reason = f"The last publication failed, so the previous version still serves: {error}"
                self._retire(pool)
                raise
            pool.failures.seed(error)
            pool.on_started = lambda: self._init_succeeded(entry, pool)
            self._serve(entry, pool, state="Failed", reason=str(error))
            raise
        except BaseException:
            self._retire(pool)
            raise
        if not self._exists(entry):
            self._retire(pool)
            raise self._gone(entry)
        self._serve(entry, pool, state="Active", reason=None)

    def _exists(self, entry: VersionEntry) -> bool:
        """Return whether the version still exists."""
        family = self._families.get(entry.function.name)
        return family is not None and family.find(entry.number) is entry

    def _serve(self, entry: VersionEntry, pool: Pool, *, state: str, reason: str | None) -> None:
        old, entry.pool = entry.pool, pool
        pool.set_provisioned(entry.provisioned)
        entry.state, entry.reason = state, reason
        entry.decided.set()
        if old is not None:
            self._retire(old)

    def _init_succeeded(self, entry: VersionEntry, pool: Pool) -> None:
        """Set a version's state to Active because an environment has started, after init had failed at publication."""
        if entry.pool is pool and entry.state != "Active":
            entry.state, entry.reason = "Active", None
            self.on_active(entry.function.name, entry.number)

    def may_fare_better(self, version: Version) -> bool:
        """Return whether to publish `version` again, because its init phase or its priming event failed the last time.

        This time they may succeed: something that the function needs, such as an object in a bucket, may exist now.

        Raises:
            ResourceNotFoundException: there is no such version (404).
        """
        entry = self.entry(version.function.name, version.number)
        if entry.pool is None or entry.pool.version is not version or entry.state == "Failed":
            return True
        refused = self._spawner.origin(version).why_no_image
        return refused is not None and frames.PRIMING_FAILED in refused.text

    def confirm(self, version: Version) -> bool:
        """Clear the recorded failure of a later version, because its changes were undone and `version` is wanted again.

        Returns:
            Whether a failure was recorded.

        Raises:
            ResourceNotFoundException: there is no such version (404).
        """
        entry = self.entry(version.function.name, version.number)
        serves = entry.state == "Active" and entry.pool is not None and entry.pool.version is version
        if not serves or entry.reason is None:
            return False
        entry.reason = None
        return True

    def fail(self, name: str, reason: str, *, number: str = LATEST) -> None:
        """Record why a version could not be published. An old version with the same number continues to serve."""
        entry = self.entry(name, number)
        entry.reason = reason
        if entry.pool is None:
            entry.state = "Failed"
        entry.decided.set()

    async def invoke(self, invocation: Invocation) -> Result:
        """Run `invocation`. A failure of the function itself is not raised but returned, in `Result.function_error`.

        Raises:
            InvalidParameterValueException: see `check_tenant` (400).
            ResourceNotFoundException: there is no such function or version (404).
            ResourceConflictException: the version is still being published (409).
            ResourceNotReadyException: the version could not be published (502).
            RecursiveInvocationException: the chain of invocations has invoked the function too often (400).
            TooManyRequestsException: a concurrency limit or the limit of waiting requests was reached (429).
            ServiceException: no process could be started (500).
            NotMemberError: this machine is cut off from its cluster (503).
        """
        asked_s = time.monotonic()
        family = self.family(invocation.function, invocation.qualifier)
        received = invocation.trace_id
        found = family.find(invocation.qualifier)
        traced = received if self.tracer is None else self.tracer.begin(invocation, found.served if found else None)
        try:
            family.require_member()
            entry = found or family.get(invocation.qualifier)
            if self.refuses_loop(invocation.function, received):
                raise lineage.loop_error()
            if entry.pool is None:
                entry = await self._published(entry, invocation)
            if family.is_full(entry):
                raise TooManyRequestsException(RATE_EXCEEDED, reason=RESERVED_CONCURRENCY_REACHED)
            family.in_flight += 1
            entry.in_flight += 1
            if not self._in_flight:
                self._idle.clear()
            self._in_flight += 1
            invocation_counts.begun(family.metrics, family.in_flight, self._metrics, self._in_flight)
            invocation.trace_id = lineage.advanced(traced, invocation.function)
            try:
                result = await self._run(family, entry, invocation)
            finally:
                family.in_flight -= 1
                entry.in_flight -= 1
                self._in_flight -= 1
                if not self._in_flight:
                    self._idle.set()
        except (ThawdError, asyncio.CancelledError) as error:
            invocation.trace_id = received  # the caller may try again with the same object
            invocation_counts.refused(family.metrics, invocation, error)
            if self.reporting is not None:
                self.reporting.refused(family.metrics, invocation, error, asked_s)
            raise
        ended_s = time.monotonic()
        invocation_counts.ended(family.metrics, invocation, result, (ended_s - asked_s) * 1000)
        if self.reporting is not None:
            self.reporting.ended(family.metrics, invocation, result, (asked_s, ended_s))
        return result

    def refuses_loop(self, function: str, trace_id: str | None) -> bool:
        """Return whether a chain of invocations has invoked a function as often as it may, and count the refusal.

        Args:
            function: name of the function.
            trace_id: trace header of the request, or None.
        """
        if trace_id is None or lineage.invocations(trace_id, function) < lineage.MAX_INVOCATIONS:
            return False
        if self.may_loop(function):
            return False
        self._metrics.function(function).recursive_invocations_dropped += 1
        return True

    async def _run(self, family: FunctionEntry, entry: VersionEntry, invocation: Invocation) -> Result:
        """Run `invocation` in an environment of the version, or of the version that replaces it in the meantime.

        Raises:
            InvalidParameterValueException: the version separates tenants and the invocation names none, or the other
                way round (400).
            TooManyRequestsException: the limit of waiting requests or the deadline was reached (429).
            ResourceNotFoundException: the version was deleted in the meantime (404).
            ServiceException: no process could be started, or the server is stopping (500).
            NotMemberError: this machine has been cut off from its cluster while the invocation waited (503).
        """
        while True:
            pool = entry.pool
            assert pool is not None
            check_tenant(pool.version.function, invocation.tenant_id)
            try:
                lease = await pool.acquire(invocation)
                break
            except PoolRetiredError:
                if entry.pool is None or entry.pool is pool:
                    following = entry if entry.pool is None else self._successor(entry, invocation)
                    if following is None:
                        raise self._gone(entry) from None
                    entry = await self._published(following, invocation)
            except InitError as error:
                document = error.document_for(invocation.request_id)
                return Result(document, function_error="Unhandled", start_kind=StartKind.COLD)
        invocation.lease_begins()
        if lease.batch is not None:
            return await family.run_item(pool.version.function, lease.batch, invocation)
        self._room.began(lease.environment)
        begun = False
        try:
            family.begin(pool.version.function)
            begun = True
            return await lease.environment.invoke(invocation, init_ms=lease.init_ms)
        except asyncio.CancelledError:
            # The caller is gone and nobody would read the answer. The handler may still run, so the environment cannot
            # be used again. If other invocations run in it, it ends after them.
            if pool.version.function.concurrency == 1:
                lease.environment.kill()
            raise
        finally:
            family.end(pool.version.function, begun=begun)
            if lease.environment.busy_since is None:
                self._room.finished(lease.environment)
            pool.release(lease)

    async def _published(self, entry: VersionEntry, invocation: Invocation) -> VersionEntry:
        """Wait until `entry` serves, or a version that replaces it serves. Return the one that serves.

        Raises:
            ResourceConflictException: the version is still being published when the invocation's deadline passes (409).
            ResourceNotReadyException: the version could not be published, or was deleted in the meantime (502).
        """
        await in_task()
        while entry.pool is None:
            if entry.publish is not None:
                if entry.state == "Failed":  # an earlier invocation could not publish the version: try again
                    entry.state, entry.reason = "Pending", BEING_PUBLISHED
                    entry.decided.clear()
                entry.publish()
            else:
                self.on_awaited(entry.function.name)
            if not await is_set_within(entry.decided, max(0.0, invocation.queue_deadline - time.monotonic())):
                raise ResourceConflictException(
                    "The operation cannot be performed at this time. The function is currently in the following "
                    f"state: {entry.state}"
                )
            if entry.pool is None:
                following = self._successor(entry, invocation)
                if following is None:
                    raise ResourceNotReadyException(f"The function could not be published: {entry.reason}")
                entry = following
        return entry

    def _successor(self, entry: VersionEntry, invocation: Invocation) -> VersionEntry | None:
        """Return the version that runs an invocation whose version was deleted; None: there is none.

        For example, thawd.toml declared a function, and the API has a function of the same name, which was hidden. Once
        the declaration is removed, the function of the API runs the invocations.
        """
        family = self._families.get(invocation.function)
        found = None if family is None or self._exists(entry) else family.find(invocation.qualifier)
        return None if found is entry else found

    def _gone(self, entry: VersionEntry) -> ThawdError:
        """Return the error that says why a version no longer serves."""
        if self.stopping:
            return ServiceException("thawd is stopping")
        return not_found(entry.function.name, entry.number)

    def _retire(self, pool: Pool) -> None:
        self._spawner.retire(pool.version, for_good=not self.stopping)
        pool.retire()
        self._retiring.add(pool)
        self._spawn_task(self._leave_when_empty(pool))

    async def _leave_when_empty(self, pool: Pool) -> None:
        await pool.empty.wait()
        self._room.leave(pool)
        self._retiring.discard(pool)

    async def drain(self, grace_s: float) -> int:
        """Wait until no invocation is waiting or running, at most `grace_s` seconds.

        Returns:
            How many invocations are still waiting or running.
        """
        await is_set_within(self._idle, grace_s)
        return self._in_flight

    def load(self) -> Iterator[tuple[str, Mapping[str, int], int]]:
        """Yield for ``$LATEST`` of each function: its name, its environments by state, its waiting requests."""
        for name, family in self._families.items():
            pool = family.latest.pool
            yield (name, NO_ENVIRONMENTS, 0) if pool is None else (name, pool.counts(), pool.waiting)

    def status(self) -> dict[str, Any]:
        """Return the functions' part of ``/_thawd/status``."""
        return self.status_of(self._families)

    def status_of(self, names: Iterable[str]) -> dict[str, Any]:
        """Return the part of ``/_thawd/status`` for these functions; those that are not declared are left out."""
        found = ((name, self._families.get(name)) for name in names)
        return {name: document(family, self._spawner) for name, family in found if family is not None}
