"""Runs the HTTP server uvicorn in thawd's event loop, without signal handlers. Logs only failures of thawd itself."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable, Iterator

import uvicorn

from thawd.gateway.http_server.connections import Connection, protocol_of
from thawd.gateway.http_server.limits import ConnectionLimits, Connections, most_connections
from thawd.server.tls.certificates import Certificate
from thawd.server.tls.listening import TlsListener
from thawd.system.retry import is_set_within
from thawd.telemetry.console import complain

# uvicorn's message about an answer that ends before it is complete.
_CUT_OFF = "ASGI callable returned without completing response."

# Of these, each needs a file descriptor and some 100 KiB of memory.
_MOST_HANDSHAKES = 256
_DATE_S = 1.0
_LOOK_S = 0.01


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
    """uvicorn without signal handlers, because `thawd.server.serving` handles signals, and with a faster stop.

    Unchanged, uvicorn would check only every 0.1 s whether it is to stop, and would then wait at least another 0.1 s.
    """

    def __init__(self, config: uvicorn.Config, connections: Connections) -> None:
        super().__init__(config)
        self._connections = connections
        self._is_ending = asyncio.Event()
        self._encrypted: TlsListener | None = None
        self._tls: tuple[socket.socket, Certificate] | None = None

    def encrypt(self, listening: socket.socket, certificate: Certificate) -> None:
        """Serve a further socket, with TLS. Call it before `serve`."""
        self._tls = (listening, certificate)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections."""
        await super().startup(sockets)
        if self._tls is not None:
            listening, certificate = self._tls
            self._encrypted = TlsListener(
                listening,
                context=lambda: certificate.context,
                new_protocol=self._new_protocol,
                most=min(_MOST_HANDSHAKES, most_connections() // 2),
            )

    def _new_protocol(self) -> asyncio.Protocol:
        kind: Callable[..., asyncio.Protocol] = self.config.http_protocol_class
        return kind(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

    def end_connections(self) -> None:
        """Close each connection after its next answer, which says so. New connections are accepted, for one request."""
        self._connections.is_ending = True
        for connection in self.server_state.connections:
            if isinstance(connection, Connection) and connection.cycle is not None:
                connection.cycle.keep_alive = False

    def stop(self) -> None:
        """Accept no more connections, and end when the open ones have got their answers."""
        self.should_exit = True
        self._is_ending.set()

    def stop_waiting(self) -> None:
        """End now, without waiting for connections that are still open. Call `stop` first."""
        self.force_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers."""
        yield

    async def main_loop(self) -> None:
        """Have uvicorn update the Date header once a second, until `stop` is called."""
        while not await self.on_tick(0):
            await is_set_within(self._is_ending, _DATE_S)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the listening sockets, and wait until all requests are answered or `stop_waiting` is called."""
        encrypted = () if self._encrypted is None else (self._encrypted,)
        for listening in (*self.servers, *encrypted, *(sockets or ())):
            listening.close()
        state = self.server_state
        for connection in list(state.connections):
            connection.shutdown()
        while (state.connections or state.tasks) and not self.force_exit:  # noqa: ASYNC110 - uvicorn sets no event
            await asyncio.sleep(_LOOK_S)
        for server in self.servers:
            await server.wait_closed()


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
    connections = Connections(limits, complain=complain)
    return Uvicorn(
        uvicorn.Config(
            application,
            http=protocol_of(connections),  # type: ignore[arg-type]
            loop="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            ws="none",
            server_header=False,
            backlog=1024,
        ),
        connections,
    )
