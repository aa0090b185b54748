"""The environments of one version that have requests, and how many requests each of them has.

An environment has one request, or one batch, unless the function's option ``concurrency`` lets several requests share
it. A request that must run alone takes all places of its environment.
"""

from __future__ import annotations

from collections.abc import Iterator

from thawd.environments.environment import Environment
from thawd.scheduling.leases import Lease
from thawd.scheduling.pool_requests import Line


class BusyEnvironments:
    """The busy environments of one version.

    Args:
        at_once: most requests in one environment at the same time; a batch counts as one.
    """

    __slots__ = ("_at_once", "_taken")

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._taken: dict[Environment, int] = {}  # the number of places that are taken in each environment

    def __contains__(self, environment: Environment) -> bool:
        return environment in self._taken

    def __iter__(self) -> Iterator[Environment]:
        return iter(self._taken)

    def __len__(self) -> int:
        return len(self._taken)

    def add(self, environment: Environment) -> None:
        """Add an environment that has no request yet."""
        self._taken[environment] = 0

    def discard(self, environment: Environment) -> None:
        """Remove an environment, if it is there."""
        self._taken.pop(environment, None)

    def lease(self, environment: Environment, init_ms: float | None, *, alone: bool = False) -> Lease:
        """Lease a place of `environment`, which is added if necessary; all places if the request must run alone."""
        places = self._at_once if alone else 1
        self._taken[environment] = self._taken.get(environment, 0) + places
        return Lease(environment, init_ms, places=places)

    def release(self, lease: Lease) -> bool:
        """End a lease. The environment is removed if it has no request left.

        Returns:
            Whether other requests still run in the environment.
        """
        self._taken[lease.environment] -= lease.places
        if self._taken[lease.environment]:
            return True
        del self._taken[lease.environment]
        return False

    def with_free_place(self) -> Environment | None:
        """Return the environment with the fewest requests, if one more request may join them; else None."""
        if self._at_once == 1:
            return None
        usable = [(taken, index, each) for index, (each, taken) in enumerate(self._taken.items()) if not each.dying]
        taken, _, environment = min(usable, default=(self._at_once, 0, None))
        return environment if taken < self._at_once else None

    def fill(self, environment: Environment, line: Line, init_ms: float | None) -> bool:
        """Lease the free places of `environment` to the requests that are next in `line`.

        A request that must run alone gets none, and neither do the requests behind it.

        Returns:
            Whether a request got a place.
        """
        filled = False
        while self._taken[environment] < self._at_once and not line.is_next_alone() and (waiters := line.take()):
            waiters[0].lease.set_result_soon(self.lease(environment, init_ms))
            filled = True
        return filled
