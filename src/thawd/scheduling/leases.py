"""What a pool gives the dispatcher: leases of environments, and the errors of requests that get none."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from thawd.environments.environment import Environment
from thawd.environments.init_phase import InitError
from thawd.errors import ServiceException, TooManyRequestsException
from thawd.scheduling.batch_runs import BatchRun


class PoolRetiredError(Exception):
    """The pool is retired: a newer version serves, or the version was deleted."""


@dataclass(slots=True)
class StartFailure:
    """The failure of the last start, and how long to wait before the next one.

    Attributes:
        error: the error with which the start ended.
        until_s: no other start is tried before this time, ``time.monotonic()`` seconds.
        failures: number of failures in a row.
    """

    error: InitError | ServiceException
    until_s: float
    failures: int


@dataclass(slots=True)
class Lease:
    """An environment that is in use until `Pool.release` is called.

    Attributes:
        environment: the environment.
        init_ms: how long the environment's start took, milliseconds; None: the request did not wait for the start.
        batch: runs the request together with others; None: the request has the environment to itself.
    """

    environment: Environment
    init_ms: float | None
    batch: BatchRun | None = None


def kill_after(environment: Environment, turns: int) -> None:
    """Kill the environment after `turns` turns of the event loop, so that other work is done first; 0: now."""
    if turns:
        asyncio.get_running_loop().call_soon(kill_after, environment, turns - 1)
    else:
        environment.kill()


def throttled(why: str) -> TooManyRequestsException:
    return TooManyRequestsException(f"Rate Exceeded. ({why})", reason="ConcurrentInvocationLimitExceeded")


def copy_of(error: InitError | ServiceException) -> InitError | ServiceException:
    """Copy an error. One exception object that is raised for many callers would keep their stack frames in memory."""
    if isinstance(error, InitError):
        return InitError(str(error), error.document, from_outside=error.from_outside)
    return ServiceException(error.message)
