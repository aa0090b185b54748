"""The environments of a version that separates tenants: each tenant has environments of its own.

Guarantees:
- an environment that was leased to an invocation of one tenant is never leased to an invocation of another one;
- requests of different tenants are never joined into a batch, nor do they run beside each other in one environment;
- environments that no tenant has used yet (provisioned ones, and the version's spare) wait in a pool of the version.
  The first tenant that needs one gets it;
- a tenant has a pool only while it has requests or environments, so the number of tenants over time is not limited;
- `max_waiting`, reserved concurrency and the machine's room are counted over all tenants of the version.

`thawd.environments.environment` also refuses an invocation of another tenant than the one that an environment belongs
to. That check does not depend on this module.

Source: AWS Lambda developer guide, "Isolating tenants in multi-tenant applications".
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine

from thawd.environments.environment import Environment
from thawd.environments.version import Version
from thawd.errors import InvalidParameterValueException
from thawd.invocation import Invocation
from thawd.resources import Function
from thawd.scheduling.keep_alive import Policy
from thawd.scheduling.leases import Lease, PoolRetiredError, throttled
from thawd.scheduling.pool import Pool
from thawd.scheduling.room import Room
from thawd.scheduling.start_failures import StartFailures


def check_tenant(function: Function, tenant_id: str | None) -> None:
    """Check that an invocation names a tenant if the function separates tenants, and otherwise names none.

    Raises:
        InvalidParameterValueException: it does not (400).
    """
    if function.tenants and tenant_id is None:
        raise InvalidParameterValueException(
            "The invoked function is enabled with tenancy configuration. Add a valid tenant ID in your request and try "
            "again."
        )
    if tenant_id is not None and not function.tenants:
        raise InvalidParameterValueException(
            "The invoked function is not enabled with tenancy configuration. Remove the tenant ID from your request "
            "and try again."
        )


def pool_for(
    version: Version,
    room: Room,
    *,
    max_waiting: int,
    spawn_task: Callable[[Coroutine[None, None, None]], object],
    policy: Policy,
) -> Pool:
    """Make the pool of a version, which then shares the machine's room. See `Pool` for the arguments."""
    kind = TenantPools if version.function.tenants else Pool
    pool = kind(version, room, max_waiting=max_waiting, spawn_task=spawn_task, policy=policy)
    room.join(pool)
    return pool


class TenantPools(Pool):
    """All environments of a version that separates tenants.

    As a pool, it contains the environments that no tenant has used. It runs no invocations itself.

    Attributes:
        open_requests: number of requests of all tenants that wait for an environment.
    """

    def __init__(
        self,
        version: Version,
        room: Room,
        *,
        max_waiting: int,
        spawn_task: Callable[[Coroutine[None, None, None]], object],
        policy: Policy | None = None,
    ) -> None:
        """Make the pools of a version; see `Pool`. Environments of tenants are kept for the fixed time."""
        super().__init__(version, room, max_waiting=max_waiting, spawn_task=spawn_task, policy=policy)
        self.failures = StartFailures(self._grow_all)
        self.open_requests = 0
        self._tenants: dict[str, _TenantPool] = {}

    @property
    def waiting(self) -> int:
        """Number of requests of all tenants that wait for an environment."""
        return sum(pool.waiting for pool in self._tenants.values())

    @property
    def tenants(self) -> int:
        """Number of tenants that have requests or environments."""
        return len(self._tenants)

    def counts(self) -> dict[str, int]:
        """Return the number of environments by state, those that no tenant has used included."""
        counts = super().counts()
        for pool in self._tenants.values():
            for state, number in pool.counts().items():
                counts[state] += number
        return counts

    def of_all_tenants(self) -> list[Environment]:
        """Return all environments that are ready: those of the tenants, and those that no tenant has used."""
        return [*self.all(), *(each for pool in self._tenants.values() for each in pool.all())]

    async def acquire(self, invocation: Invocation) -> Lease:
        """Lease an environment of the invocation's tenant; see `Pool.acquire`."""
        if self.retired:
            raise PoolRetiredError
        check_tenant(self.version.function, invocation.tenant_id)
        assert invocation.tenant_id is not None
        pool = self._tenants.get(invocation.tenant_id)
        if pool is None:
            pool = self._tenants[invocation.tenant_id] = _TenantPool(self, invocation.tenant_id)
            self._room.join(pool)
            self.empty.clear()
        if self.open_requests >= self._max_waiting and not pool.counts()["idle"]:
            self.close_unused(pool)
            raise throttled("the queue of waiting requests is full")
        self.open_requests += 1
        try:
            return await pool.acquire(invocation)
        finally:
            self.open_requests -= 1
            self.close_unused(pool)

    def release(self, lease: Lease) -> None:
        """End a lease; see `Pool.release`. If the tenant has no pool any more, the environment has ended before."""
        pool = self._tenants.get(lease.environment.tenant_id or "")
        if pool is not None:
            pool.release(lease)

    def retire(self) -> None:
        """Retire all pools of the version; see `Pool.retire`."""
        super().retire()
        for pool in list(self._tenants.values()):
            pool.retire()
            self.close_unused(pool)

    def take_unused(self, taker: _TenantPool) -> Environment | None:
        """Remove an idle environment that no tenant has used, and return it; None: there is none.

        Its room moves to `taker`. A provisioned environment is replaced by a new one.
        """
        environment = self._take_idle()
        if environment is None:
            return None
        self._room.move(self, taker)
        environment.provisioned = False
        self.grow()
        return environment

    def take_spare(self, taker: _TenantPool) -> Environment | None:
        """Remove the version's spare and return it; None: there is none. Its room moves to `taker`."""
        spare = self._take_spare()
        if spare is not None:
            self._room.move(self, taker)
        return spare

    def want_spare(self) -> None:
        """Ask for a spare, because a tenant has no more invocations that run or wait."""
        if not self.retired:
            self._want_spare()

    def close_unused(self, pool: _TenantPool) -> None:
        """Forget a tenant that has neither requests nor environments."""
        if pool.is_unused() and self._tenants.get(pool.tenant_id) is pool:
            del self._tenants[pool.tenant_id]
            pool.close()
            self._set_if_empty()

    def has_unused(self) -> bool:
        """Return whether `take_unused` may find an environment."""
        return self._has_idle()

    def _available(self, environment: Environment, *, init_ms: float | None) -> None:
        super()._available(environment, init_ms=init_ms)
        if environment in self._idle:
            for pool in list(self._tenants.values()):
                pool.look_for_unused()

    def _set_if_empty(self) -> None:
        if not self._tenants:
            super()._set_if_empty()

    def _grow_all(self) -> None:
        self.grow()
        for pool in list(self._tenants.values()):
            pool.grow()


class _TenantPool(Pool):
    """The environments of one tenant.

    Args:
        pools: the version's pools.
        tenant_id: the tenant.
    """

    def __init__(self, pools: TenantPools, tenant_id: str) -> None:
        super().__init__(pools.version, pools._room, max_waiting=pools._max_waiting, spawn_task=pools._spawn_task)
        self.tenant_id = tenant_id
        self.account = pools
        self.provisioned = 0
        self.failures, self.share = pools.failures, pools.share
        self.on_started = pools.on_started
        self._pools = pools

    def is_unused(self) -> bool:
        """Return whether there is neither an environment nor a request."""
        return self.empty.is_set() and not self._line

    def close(self) -> None:
        """Leave the room and the line for cores. The pool must be unused."""
        self._timer.cancel()
        self._cores.leave(self)
        self._room.leave(self)

    def _started(self, environment: Environment, *, provisioned: bool) -> None:
        environment.tenant_id = self.tenant_id
        super()._started(environment, provisioned=provisioned)

    def look_for_unused(self) -> None:
        """If a request waits, let it have an environment that no tenant has used."""
        if self._line:
            self._cores.queue(self, self.share)

    def _has_idle(self) -> bool:
        return super()._has_idle() or self._pools.has_unused()

    def _take_idle(self) -> Environment | None:
        """Remove and return an idle environment: the tenant's own or, if there is none, one that no tenant has used."""
        environment = super()._take_idle()
        if environment is None and (environment := self._pools.take_unused(self)) is not None:
            environment.tenant_id = self.tenant_id
            environment.on_end = self._on_end
            self.empty.clear()
        return environment

    def _keep_idle(self, environment: Environment) -> None:
        super()._keep_idle(environment)
        if not self._timer.is_set:
            self._timer.set()

    def _take_spare(self) -> Environment | None:
        return self._pools.take_spare(self)

    def _want_spare(self) -> None:
        self._pools.want_spare()

    def _set_if_empty(self) -> None:
        super()._set_if_empty()
        self._pools.close_unused(self)
