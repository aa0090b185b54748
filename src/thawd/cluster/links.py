"""Connections that this machine opens to another one: requests that it forwards, summaries that it sends, questions.

Guarantees:
- a request is sent at most once. If the connection is lost before the request was sent, or the other machine refuses
  it, nothing has run (`NotRunError`), and it can run elsewhere. If the connection is lost later, the request may have
  run (`MayHaveRunError`), and must not run again;
- a machine that has sent nothing for `SILENT_TICKS` ticks counts as dead. It sends a sign of life every tick while it
  runs a request. Ticks are those of this machine, so a pause of this machine is not taken for the death of another;
- a caller that goes away closes the connection of its request, and the other machine ends the request.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from thawd.cluster import channel, handshake
from thawd.cluster.channel import Channel
from thawd.system.flag import Flag
from thawd.wire.response_stream import ResponseStream

CONNECT_S = 1.0
TICK_S = 0.5
SILENT_TICKS = 10
_MOST_IDLE = 64


class NotRunError(Exception):
    """The other machine has not run the request; it can run elsewhere."""


class MayHaveRunError(Exception):
    """The other machine was lost after the request had been sent to it; the request may have run."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """What this machine needs for connections of the cluster.

    Attributes:
        own: this machine's name.
        key: the cluster's key.
        accepting: TLS context for connections that this machine accepts; None: they are not encrypted.
        opening: TLS context for connections that it opens.
        protocols: the versions of the protocol that it speaks.
    """

    own: str
    key: str
    accepting: ssl.SSLContext | None = None
    opening: ssl.SSLContext | None = None
    protocols: handshake.Protocols = handshake.PROTOCOLS


@dataclass(frozen=True, slots=True)
class Reply:
    """The last frame of an answer: its kind (`channel.RESULT`, `TOLD` or `ERROR`), head and body."""

    kind: int
    head: Mapping[str, Any]
    body: bytes


class Link(Channel):
    """A connection that this machine has opened.

    Args:
        credentials: proves that this machine belongs to the cluster.
        peer: name of the other machine.

    Attributes:
        welcomed: done once both sides have proved that they have the key.
        ended: set once the connection has ended.
    """

    def __init__(self, credentials: Credentials, peer: str) -> None:
        super().__init__()
        self.ended = Flag()
        self._credentials = credentials
        self._peer = peer
        self._wanted = ""
        loop = asyncio.get_running_loop()
        self.welcomed: asyncio.Future[None] = loop.create_future()
        self._reply: asyncio.Future[Reply] | None = None
        self._stream: ResponseStream | None = None
        self._silent_ticks = 0
        self._unsent_bytes = 0
        self._is_paused = False

    def data_received(self, data: bytes) -> None:
        """Any data is a sign of life."""
        self._silent_ticks = 0
        super().data_received(data)

    def on_frame(self, kind: int, head: Any, body: bytes) -> None:
        """Handle an answer."""
        if not self.is_trusted:
            self._shake_hands(kind, head)
        elif kind == channel.PART and self._stream is not None:
            self._stream.executed_version = str(head["version"])
            self._stream.put(str(head["type"]), body)
        elif kind in (channel.RESULT, channel.TOLD, channel.ERROR, channel.REFUSED) and self._reply is not None:
            reply, self._reply = self._reply, None
            if not reply.done():
                reply.set_result(Reply(kind, head, body))

    def _shake_hands(self, kind: int, head: Any) -> None:
        own = self._credentials
        if kind == channel.CHALLENGE:
            try:
                protocol = handshake.chosen(own.protocols, handshake.offered(head), self._peer)
            except handshake.HandshakeError as error:
                self._refuse(error)
                return
            nonces, names = (str(head["nonce"]), handshake.new_nonce()), (self._peer, own.own)
            proof = handshake.mac(own.key, "asks", nonces=nonces, names=names, protocol=protocol)
            self._wanted = handshake.mac(own.key, "answers", nonces=nonces, names=names, protocol=protocol)
            about = {"name": own.own, "to": self._peer, "nonce": nonces[1], "mac": proof}
            self.protocol = protocol
            self.send(channel.PROOF, {**about, "protocol": protocol})
        elif kind == channel.WELCOME and self._wanted and handshake.is_mac(head["mac"], self._wanted):
            self.is_trusted = True
            if not self.welcomed.done():
                self.welcomed.set_result(None)
        else:
            self._refuse(handshake.HandshakeError(f"{self._peer}: it does not have this cluster's key"))

    def _refuse(self, why: handshake.HandshakeError) -> None:
        if not self.welcomed.done():
            self.welcomed.set_exception(why)
        self.close()

    def on_lost(self) -> None:
        """Fail what waits for an answer."""
        self.ended.set()
        if not self.welcomed.done():
            why = f"{self._peer} ended the connection; it may have another key or another name"
            self.welcomed.set_exception(handshake.HandshakeError(why))
            self.welcomed.exception()  # it may be that nobody waits any more
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(MayHaveRunError(f"the connection to the machine {self._peer} was lost"))

    async def call(
        self, head: Mapping[str, Any], body: bytes, stream: ResponseStream | None, *, kind: int = channel.INVOKE
    ) -> Reply:
        """Send a request and wait for the answer. Parts of a streamed answer are put into `stream`.

        Args:
            head: the request's head.
            body: its body.
            stream: takes a streamed answer; None: the answer is not streamed.
            kind: `channel.INVOKE` or `channel.ASK`.

        Raises:
            NotRunError: the other machine refused the request, or the connection was lost before it was sent.
            MayHaveRunError: the connection was lost afterwards.
        """
        if self.is_closed:
            raise NotRunError(f"the connection to the machine {self._peer} was lost")
        waiting: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._reply = waiting
        self._stream, self._silent_ticks = stream, 0
        if stream is not None:
            stream.attach(self)
        self.send(kind, head, body)
        try:
            reply = await waiting
        except asyncio.CancelledError:
            self.close()
            raise
        finally:
            self._reply = None
            if self._stream is not None:
                self._stream.detach()
                self._stream = None
        if reply.kind == channel.REFUSED:
            raise NotRunError(f"the machine {self._peer} refused it: {reply.head['why']}")
        return reply

    def pause(self) -> None:
        """The client reads more slowly than the answer comes."""
        self._is_paused = True
        super().pause()

    def resume(self) -> None:
        """The client has read enough."""
        self._is_paused, self._silent_ticks = False, 0
        super().resume()

    @property
    def unsent_bytes(self) -> int:
        """Number of bytes that the system has not accepted yet, because the other machine does not read them."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def tick(self) -> None:
        """Count a tick without a sign of life from the other machine; end the connection after too many."""
        unsent = self.unsent_bytes
        is_sending, self._unsent_bytes = unsent != self._unsent_bytes, unsent
        if self._reply is None or self._is_paused or is_sending:
            return
        self._silent_ticks += 1
        if self._silent_ticks >= SILENT_TICKS:
            self.close()


class Links:
    """The connections to one other machine. Connections are kept and used again.

    Args:
        credentials: see `Link`.
        peer: name of the other machine.
        host: its address.
        port: its port for the cluster.
    """

    def __init__(self, credentials: Credentials, peer: str, host: str, port: int) -> None:
        self._credentials = credentials
        self.peer = peer
        self._host = host
        self._port = port
        self._idle: list[Link] = []
        self._used: set[Link] = set()
        self._calls = 0

    async def open(self) -> Link:
        """Open a connection.

        Raises:
            NotRunError: the machine cannot be reached, or does not belong to this cluster.
        """
        loop = asyncio.get_running_loop()
        link = Link(self._credentials, self.peer)
        try:
            async with asyncio.timeout(CONNECT_S):
                tls = self._credentials.opening
                name = None if tls is None else self.peer
                await loop.create_connection(lambda: link, self._host, self._port, ssl=tls, server_hostname=name)
                await link.welcomed
        except TimeoutError:
            link.close()
            raise NotRunError(f"the machine {self.peer} did not answer within {CONNECT_S:g} s") from None
        except (OSError, handshake.HandshakeError) as error:
            link.close()
            raise NotRunError(f"the machine {self.peer} cannot be reached: {error}") from None
        except BaseException:
            link.close()
            raise
        return link

    async def call(
        self,
        head: Mapping[str, Any],
        body: bytes,
        stream: ResponseStream | None = None,
        *,
        kind: int = channel.INVOKE,
    ) -> Reply:
        """Send a request over an idle connection or a new one, and wait for the answer; see `Link.call`."""
        link = None
        while self._idle and link is None:
            link = self._idle.pop()
            link = None if link.is_closed else link
        self._calls += 1
        try:
            if link is None:
                link = await self.open()
            self._used.add(link)
            return await link.call(head, body, stream, kind=kind)
        finally:
            self._calls -= 1
            if link is not None:
                self._used.discard(link)
                if not link.is_closed and len(self._idle) < _MOST_IDLE:
                    self._idle.append(link)
                else:
                    link.close()

    def end_idle(self) -> None:
        """End the connections that no request uses: they would fail if the other machine has started again."""
        while self._idle:
            self._idle.pop().close()

    @property
    def are_used(self) -> bool:
        """Whether requests wait for a connection to the other machine or for its answers."""
        return self._calls > 0

    def tick(self) -> None:
        """Look for connections on which the other machine has been silent for too long; call it every TICK_S."""
        for link in list(self._used):
            link.tick()

    def close(self) -> None:
        """End all connections."""
        for link in (*self._idle, *self._used):
            with contextlib.suppress(RuntimeError):
                link.close()
        self._idle.clear()
