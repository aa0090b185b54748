"""Runs uvicorn inside thawd's event loop. It installs no signal handlers, and logs only failures of thawd itself."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator

import uvicorn

from thawd.gateway.http_server.connections import protocol_of
from thawd.gateway.http_server.limits import ConnectionLimits, Connections, most_connections
from thawd.telemetry.console import complain

# uvicorn's message about an answer that ends before it is complete.
_CUT_OFF = "ASGI callable returned without completing response."


class _ToOperator(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        if record.msg == _CUT_OFF:
            return  # thawd cuts an answer off on purpose when a function fails while it streams the answer
        complain(f"thawd: {self.format(record)}")


def quieten_uvicorn() -> None:
    """Print uvicorn's errors about failures of thawd, but not its lines about malformed requests."""
    logger = logging.getLogger("uvicorn.error")
    logger.setLevel(logging.ERROR)
    logger.propagate = False
    logger.handlers = [_ToOperator()]


class Uvicorn(uvicorn.Server):
    """uvicorn without signal handlers: `thawd.server.serving` handles signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers."""
        yield


def configured(
    application: Callable[..., Awaitable[None]],
    limits: ConnectionLimits | None = None,
    *,
    complain: Callable[[str], None] = complain,
) -> Uvicorn:
    """Configure a uvicorn server that serves `application` on sockets that are already open.

    Args:
        application: the ASGI application.
        limits: limits of connections; None: the default limits, with as many connections as file descriptors allow.
        complain: prints a line for the operator.
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
