"""Leases of environments, which a pool gives to the dispatcher, and the errors of requests that get no lease."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from thawd.environments.environment import Environment
from thawd.errors import TooManyRequestsException
from thawd.scheduling.batch_runs import BatchRun


class PoolRetiredError(Exception):
    """The pool is retired: a newer version serves, or the version was deleted."""


@dataclass(slots=True)
class Lease:
    """The use of an environment by a request, or by a batch, until `Pool.release` is called.

    Attributes:
        environment: the environment.
        init_ms: how long the environment's start took, milliseconds; None: the request did not wait for the start.
        batch: runs the request as an item of a batch; None: the request is run by itself.
        places: how many of the requests that the environment may have at the same time this lease counts as.
    """

    environment: Environment
    init_ms: float | None
    batch: BatchRun | None = None
    places: int = 1


def kill_after(environment: Environment, turns: int) -> None:
    """Kill the environment after `turns` turns of the event loop, so that other work is done first; 0: now."""
    if turns:
        asyncio.get_running_loop().call_soon(kill_after, environment, turns - 1)
    else:
        environment.kill()


def throttled(why: str) -> TooManyRequestsException:
    return TooManyRequestsException(f"Rate Exceeded. ({why})", reason="ConcurrentInvocationLimitExceeded")
