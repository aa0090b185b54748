"""The dispatcher's records of each function: its versions, the pools that serve them, and its aliases."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Protocol

from thawd.errors import (
    RATE_EXCEEDED,
    RESERVED_CONCURRENCY_REACHED,
    ResourceNotFoundException,
    ThawdError,
    TooManyRequestsException,
)
from thawd.invocation import Invocation, Result
from thawd.resources import ACCOUNT_ID, LATEST, REGION, Function
from thawd.scheduling.batch_runs import BatchRun
from thawd.scheduling.keep_alive import FIXED, Policy, policy_of
from thawd.scheduling.load import Load
from thawd.scheduling.pool import Pool
from thawd.system.flag import Flag
from thawd.telemetry.metrics import FunctionMetrics

NO_ALIASES: Mapping[str, Mapping[str, float]] = MappingProxyType({})
_NO_CHANGES: Mapping[str, Mapping[str, Any]] = MappingProxyType({})
BEING_PUBLISHED = "The function is being published."


class ClusterPart(Protocol):
    """What this machine may do as a member of a cluster."""

    def require_member(self) -> None:
        """Raise NotMemberError if this machine may neither accept nor begin invocations at this moment."""

    def share(self, function: Function) -> int:
        """Return how many environments of a function with reserved concurrency may run here at this moment."""

    def wait(self, function: str, count: int) -> None:
        """Note how many invocations would begin here now if this machine's share allowed it, so that the share grows.

        The last call counts.
        """


class VersionEntry:
    """The dispatcher's record of one version.

    The keep-alive policy belongs to the entry and not to the pool, so that what the policy has learnt is kept when the
    version is republished with a new pool.

    Attributes:
        function: the function as declared, or as published.
        number: the version's number; ``$LATEST`` for the one that can change.
        state: the state as in Lambda: ``Pending``, ``Active`` or ``Failed``.
        reason: why the version is not active, or why its last publication failed; None: it is active, and its last
            publication succeeded.
        pool: the environments that serve the version; None until the init phase of a publication has ended, with
            success or failure.
        decided: set once the first publication has succeeded or failed, or the version was removed.
        provisioned: number of environments to keep initialised; None: as many as the function declares.
        in_flight: number of invocations that wait or run.
        publish: callback that publishes the version, when it is first invoked or provisioned. None: requests do not
            publish it.
    """

    def __init__(self, function: Function, number: str = LATEST, *, publish: Callable[[], None] | None = None) -> None:
        self.function = function
        self.number = number
        self.state = "Pending"
        self.reason: str | None = BEING_PUBLISHED
        self.pool: Pool | None = None
        self.decided = Flag()
        self.provisioned: int | None = None
        self.in_flight = 0
        self.publish = publish
        self._policy: tuple[tuple[str, float], Policy] | None = None

    @property
    def served(self) -> Function:
        """The settings with which invocations run now. After an update, the new ones serve once they are published."""
        return self.function if self.pool is None else self.pool.version.function

    def withdraw(self) -> Pool | None:
        """Let requests wait for the next publication, and return the pool that served until now."""
        pool, self.pool = self.pool, None
        if pool is not None:
            self.state, self.reason = "Pending", BEING_PUBLISHED
            self.decided.clear()
        return pool

    def policy(self, function: Function) -> Policy:
        """Return the policy that `function` names: the existing one, unless its name or fixed time has changed."""
        named = (function.keep_alive, function.idle_timeout_s)
        if function.keep_alive == FIXED:
            self._policy = None
            return policy_of(*named)
        if self._policy is None or self._policy[0] != named:
            self._policy = (named, policy_of(*named))
        return self._policy[1]


class FunctionEntry:
    """A function: its versions, its aliases, and the counts over all versions.

    Attributes:
        latest: the version ``$LATEST``.
        published: the other versions, by number.
        aliases: by alias, the versions that its invocations go to, and their shares, which add up to 1.
        asynchronous: by qualifier, the fields of `Function` that have other values in its asynchronous invocations.
        in_flight: number of invocations that wait or run.
        load: the invocations that run, by what they need of a concurrency limit.
        cluster: says what this machine may do as a member of a cluster; None: it runs alone.
        metrics: metrics of all versions together.
    """

    def __init__(self, function: Function, metrics: FunctionMetrics) -> None:
        self.latest = VersionEntry(function)
        self.published: dict[str, VersionEntry] = {}
        self.aliases = NO_ALIASES
        self.asynchronous = _NO_CHANGES
        self.in_flight = 0
        self.load = Load()
        self.cluster: ClusterPart | None = None
        self.metrics = metrics

    @property
    def running(self) -> int:
        """Number of invocations that run."""
        return self.load.running

    @property
    def longest_timeout_s(self) -> int:
        """The longest timeout of an invocation that runs, or that could begin: each version has its own."""
        declared = (entry.function.timeout_s for entry in self.all())
        served = (entry.served.timeout_s for entry in self.all())
        return max(*declared, *served, self.load.longest_timeout_s)

    @property
    def reserved(self) -> int | None:
        """How many environments may run on this machine at the same time; None: there is no limit."""
        reserved = self.latest.function.reserved_concurrency
        return reserved if reserved is None or self.cluster is None else self.cluster.share(self.latest.function)

    def require_member(self) -> None:
        """Check that this machine may accept and begin invocations.

        Raises:
            NotMemberError: it is cut off from its cluster, or drained (503).
        """
        if self.cluster is not None:
            self.cluster.require_member()

    def is_full(self, entry: VersionEntry) -> bool:
        """Return whether reserved concurrency allows no further invocation of a version.

        The provisioned environments of other versions are taken from the function's reserved concurrency.
        Source: AWS Lambda developer guide, "Configuring provisioned concurrency".
        """
        reserved = self.reserved
        if reserved is None:
            return False
        each = entry.function.most_in_environment
        others = sum(other.provisioned or 0 for other in self.all() if other is not entry)
        return self.in_flight >= reserved * each or entry.in_flight >= (reserved - others) * each

    def at_once_here(self, most: int, *, running: int) -> int:
        """Return how many events may run on this machine at the same time; in a cluster, that depends on its share.

        Args:
            most: how many are to run.
            running: how many of them run.
        """
        reserved = self.reserved
        if reserved is None or self.cluster is None:
            return most
        self.cluster.wait(self.latest.function.name, max(0, most - running))
        return min(most, reserved * self.latest.function.most_in_environment)

    def begin(self, function: Function) -> None:
        """Count an invocation that begins to run now. In a cluster, its share may have ended while it waited.

        Args:
            function: the settings of the version that runs it.

        Raises:
            NotMemberError: this machine is cut off from its cluster (503).
            TooManyRequestsException: its share of the function's limit is used (429).
        """
        if self.cluster is not None:
            self.cluster.require_member()
            reserved = self.reserved
            if reserved is not None and self.load.environments_with(function) > reserved:
                raise TooManyRequestsException(RATE_EXCEEDED, reason=RESERVED_CONCURRENCY_REACHED)
        self.load.add(function)

    def end(self, function: Function, *, begun: bool) -> None:
        """Count an invocation no longer, if it has begun."""
        if begun:
            self.load.remove(function)

    async def run_item(self, function: Function, batch: BatchRun, invocation: Invocation) -> Result:
        """Run an item of a batch that is about to begin.

        Raises:
            ThawdError: as `begin`; the item is not in the batch then.
        """
        try:
            self.begin(function)
        except ThawdError:
            batch.leave(invocation)
            raise
        try:
            return await batch.result_of(invocation)
        finally:
            self.load.remove(function)

    def find(self, qualifier: str | None) -> VersionEntry | None:
        """Return the version that an invocation of `qualifier` goes to; None: there is none."""
        if qualifier is None or qualifier == LATEST:
            return self.latest
        shares = self.aliases.get(qualifier)
        if shares is None:
            return self.published.get(qualifier)
        number = next(iter(shares))
        if len(shares) > 1:
            (number,) = random.choices(list(shares), list(shares.values()))
        return self.latest if number == LATEST else self.published.get(number)

    def get(self, qualifier: str | None) -> VersionEntry:
        """Return the version that an invocation of `qualifier` goes to.

        Raises:
            ResourceNotFoundException: there is none (404).
        """
        entry = self.latest if qualifier is None else self.find(qualifier)
        if entry is None:
            raise not_found(self.latest.function.name, qualifier)
        return entry

    def all(self) -> list[VersionEntry]:
        """Return all versions, ``$LATEST`` first."""
        return [self.latest, *self.published.values()]


def not_found(name: str, qualifier: str | None) -> ResourceNotFoundException:
    """Return the error for a function or version that does not exist."""
    arn = f"arn:aws:lambda:{REGION}:{ACCOUNT_ID}:function:{name}:{qualifier or LATEST}"
    return ResourceNotFoundException(f"Function not found: {arn}")
