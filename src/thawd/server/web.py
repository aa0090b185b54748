"""uvicorn inside thawd's event loop: without signal handlers of its own, and with only thawd's failures in its log."""

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
            return  # on purpose: a streamed answer whose function failed halfway
        complain(f"thawd: {self.format(record)}")


def quieten_uvicorn() -> None:
    """Pass on uvicorn's errors about thawd's failures, without its lines about broken requests."""
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
    """A server of `application` for sockets that are open already.

    Args:
        application: the ASGI application.
        limits: limits of connections; None: the default ones, with as many connections as descriptors allow.
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
