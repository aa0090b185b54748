"""uvicorn as it serves us: inside our loop, with our signals, quiet but for what is our failure."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator

import uvicorn

from thawd.gateway.http_server.connections import protocol_of
from thawd.gateway.http_server.limits import ConnectionLimits, Connections, most_connections
from thawd.telemetry.console import complain

# What uvicorn says when an answer ends before it is complete.
_CUT_OFF = "ASGI callable returned without completing response."


class _ToOperator(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        if record.msg == _CUT_OFF:
            return  # on purpose: a streamed answer whose function failed halfway
        complain(f"thawd: {self.format(record)}")


def quieten_uvicorn() -> None:
    """Pass on what uvicorn has to say of our failures, and not of every broken request."""
    logger = logging.getLogger("uvicorn.error")
    logger.setLevel(logging.ERROR)
    logger.propagate = False
    logger.handlers = [_ToOperator()]


class Uvicorn(uvicorn.Server):
    """uvicorn inside our loop: signals are ours."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signal handlers alone."""
        yield


def configured(
    application: Callable[..., Awaitable[None]],
    limits: ConnectionLimits | None = None,
    *,
    complain: Callable[[str], None] = complain,
) -> Uvicorn:
    """A server for `application`, for sockets that are there already.

    Args:
        application: what it serves.
        limits: of its connections; None: the usual ones, as many as there are descriptors for.
        complain: tells the operator.
    """
    limits = ConnectionLimits(connections=most_connections()) if limits is None else limits
    return Uvicorn(
        uvicorn.Config(
            application,
            http=protocol_of(Connections(limits, complain=complain)),  # type: ignore[arg-type]
            loop="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            ws="none",
            server_header=False,
            backlog=1024,
        )
    )
