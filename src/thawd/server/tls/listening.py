"""Accepts connections for TLS, and hands each to the HTTP server once its handshake is complete.

The HTTP server counts and limits only connections that it knows, and it knows them after the handshake. So the limits
before that are here: on the time for the first byte and the handshake, and on how many connections are in this state.

A client that sends plain HTTP to this port gets an answer that says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import Callable

from thawd.system.retry import SayOnce
from thawd.telemetry.console import complain

_HANDSHAKE_S = 20.0
_GOODBYE_S = 2.0
_TLS_HANDSHAKE = b"\x16"  # the first byte of a TLS connection. Source: RFC 8446, 5.1
_AT_A_TIME = 64
_PAUSE_S = 0.5
_SCARCE = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

_PLAIN = b"This port accepts only HTTPS: use a URL that begins with https://\n"
_PLAIN_ANSWER = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b"
    % (len(_PLAIN), _PLAIN)
)


class TlsListener:
    """Accepts connections on a listening socket.

    Args:
        listening: the socket.
        context: returns the TLS context for a connection that begins now.
        new_protocol: makes the protocol that serves a connection after the handshake.
        most: most connections that may be in their handshake. When another one comes, the oldest is closed.
    """

    def __init__(
        self,
        listening: socket.socket,
        *,
        context: Callable[[], ssl.SSLContext],
        new_protocol: Callable[[], asyncio.Protocol],
        most: int,
    ) -> None:
        self._listening = listening
        self._context = context
        self._new_protocol = new_protocol
        self._most = most
        self._reports = SayOnce(complain)
        self._loop = asyncio.get_running_loop()
        self._greeting: dict[asyncio.Task[None], None] = {}  # in the order in which the connections came
        listening.setblocking(False)
        self._loop.add_reader(listening, self._accept)

    def close(self) -> None:
        """Accept no more connections, and end those that are in their handshake."""
        self._loop.remove_reader(self._listening)
        self._listening.close()
        for task in self._greeting:
            task.cancel()

    def _accept(self) -> None:
        for _ in range(_AT_A_TIME):
            try:
                connection, _address = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno in _SCARCE:
                    # The connection stays in the queue, so the socket would be reported as readable all the time.
                    self._reports.say(f"thawd: connections cannot be accepted ({error.strerror}); thawd tries again")
                    self._loop.remove_reader(self._listening)
                    self._loop.call_later(_PAUSE_S, self._continue)
                return
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while len(self._greeting) >= self._most:
                oldest = next(iter(self._greeting))
                del self._greeting[oldest]
                oldest.cancel()
            task = self._loop.create_task(self._greet(connection))
            self._greeting[task] = None
            task.add_done_callback(lambda done: self._greeting.pop(done, None))

    def _continue(self) -> None:
        if self._listening.fileno() >= 0:
            self._loop.add_reader(self._listening, self._accept)

    async def _greet(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, TimeoutError, ssl.SSLError), contextlib.ExitStack() as stack:
            stack.enter_context(connection)
            async with asyncio.timeout(_HANDSHAKE_S):
                await self._readable(connection)
                if connection.recv(1, socket.MSG_PEEK) != _TLS_HANDSHAKE:
                    await self._say_goodbye(connection)
                    return
                await self._loop.connect_accepted_socket(
                    self._new_protocol, connection, ssl=self._context(), ssl_handshake_timeout=_HANDSHAKE_S
                )
            stack.pop_all()  # the transport closes the socket

    async def _readable(self, connection: socket.socket) -> None:
        readable = asyncio.Event()
        self._loop.add_reader(connection, readable.set)
        try:
            await readable.wait()
        finally:
            self._loop.remove_reader(connection)

    async def _say_goodbye(self, connection: socket.socket) -> None:
        """Tell a client without TLS what to do, and let it read that before the connection is reset."""
        connection.send(_PLAIN_ANSWER)
        connection.shutdown(socket.SHUT_WR)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GOODBYE_S):
                while await self._loop.sock_recv(connection, 4096):
                    pass
