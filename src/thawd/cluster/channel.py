"""A connection between two machines: frames (`thawd.wire.frames`) over TCP or TLS, for one request at a time.

A connection that is lost takes one request with it, and no other. Kinds of frames:

- CHALLENGE, PROOF, WELCOME: see `thawd.cluster.handshake`.
- JOIN, JOINED: a machine without credentials asks for them (`thawd.cluster.joining`). The other answer is REFUSED.
- SUMMARY: a machine describes itself (`thawd.cluster.machine_index.Summary`). No answer.
- INVOKE: run a request. Answers: ALIVE any number of times, PART for each part of a streamed answer, and then RESULT,
  ERROR, or REFUSED. REFUSED says that nothing has run.
- ASK: read something of the other machine (`thawd.cluster.questions`). Answers: ALIVE any number of times, PART for
  each part of an answer that is sent in parts, and then TOLD or ERROR. A machine with an older thawd does not know
  ASK, and ends the connection.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any, cast

from thawd.system.flag import Flag
from thawd.wire import frames

CHALLENGE, PROOF, WELCOME, SUMMARY, INVOKE, ALIVE, PART = range(1, 8)
RESULT, ERROR, REFUSED, JOIN, JOINED, ASK, TOLD = range(8, 15)

_MOST_BEFORE_WELCOME = 4096  # bytes that are accepted from a machine that has not proved that it has the key
# A connection without traffic ends 15 s after the other machine has gone.
_KEEPALIVE = {socket.TCP_KEEPIDLE: 5, socket.TCP_KEEPINTVL: 2, socket.TCP_KEEPCNT: 5, socket.TCP_NODELAY: 1}


class Channel(asyncio.Protocol):
    """One end of a connection. Subclasses handle frames.

    Attributes:
        is_trusted: whether the other side has proved that it has the cluster's key.
        protocol: the version of the protocol that both sides have chosen; 0 before that.
    """

    def __init__(self) -> None:
        self.is_trusted = False
        self.protocol = 0
        self._transport: asyncio.Transport | None = None
        self._decoder = frames.Decoder()
        self._received = 0
        self._writable = Flag()
        self._writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember the transport, and have the system find out when the other machine is gone."""
        self._transport = cast(asyncio.Transport, transport)
        connection = transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE.items():
            connection.setsockopt(socket.IPPROTO_TCP, option, value)

    def data_received(self, data: bytes) -> None:
        """Handle the frames that are complete. A connection with broken frames is closed."""
        if not self.is_trusted:
            self._received += len(data)
            if self._received > _MOST_BEFORE_WELCOME:
                self.close()
                return
        try:
            self._decoder.feed(data)
            while not self.is_closed and (frame := self._decoder.take()) is not None:
                self.on_frame(frame.kind, frame.head, frame.body)
        except (frames.WireError, KeyError, TypeError, ValueError, AttributeError):
            self.close()  # a frame that this version cannot understand

    def on_frame(self, kind: int, head: Any, body: bytes) -> None:
        """Handle one frame. An error in it ends the connection."""
        raise NotImplementedError

    def pause_writing(self) -> None:
        """The other side reads more slowly than this one writes."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """The other side has read enough."""
        self._writable.set()

    def connection_lost(self, error: Exception | None) -> None:
        """The connection has ended."""
        self._transport = None
        self._writable.set()
        self.on_lost()

    def on_lost(self) -> None:
        """Called once when the connection has ended."""

    @property
    def is_closed(self) -> bool:
        """Whether nothing can be sent any more."""
        return self._transport is None or self._transport.is_closing()

    def send(self, kind: int, head: Any, body: bytes = b"") -> None:
        """Send a frame; has no effect once the connection has ended."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frames.encode(kind, head, body))

    def limit_unacknowledged(self, limit_s: float) -> None:
        """End the connection once the other machine's system has not acknowledged data for `limit_s` seconds.

        Without this limit, TCP sends lost data again in longer and longer intervals, for a quarter of an hour, and
        meanwhile does not probe whether the other machine is there. The limit also counts while the other machine does
        not read, so it is not for connections over which answers are streamed.

        Source: tcp(7), TCP_USER_TIMEOUT.
        """
        if self._transport is not None:
            connection = self._transport.get_extra_info("socket")
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(limit_s * 1000))

    async def sent(self) -> None:
        """Wait until the other side has read most of what was sent, or the connection has ended."""
        await self._writable.wait()

    def close(self) -> None:
        """End the connection immediately."""
        if self._transport is not None:
            self._transport.abort()

    def pause(self) -> None:
        """Read no more (`PausableSource`)."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read again (`PausableSource`)."""
        if self._transport is not None:
            self._transport.resume_reading()
