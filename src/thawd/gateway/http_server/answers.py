"""Sends answers: each head in one write together with the body, or with its first part, unless that is large.

uvicorn writes the head of an answer and its body separately. The second system call, and the second packet that the
client then gets, take longer than everything else in sending a short answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HEADER_RE, HEADER_VALUE_RE, STATUS_LINE, RequestResponseCycle
from uvicorn.server import ServerState

from thawd.gateway.http import Message, Receive, Scope, Send
from thawd.gateway.http_server.heads import RequestHead
from thawd.gateway.http_server.limits import Connections
from thawd.system.flag import Flag

# The head is joined with a body of up to this size. Copying a larger body would take longer than a second write.
_JOINED_BYTES = 1 << 16


# Names of answers' headers that are valid, so that equal ones are not checked again. Most answers have one of a few
# lists of names.
_checked_names: set[tuple[bytes, ...]] = set()
_MOST_CHECKED = 64
_MOST_CHECKED_BYTES = 512


def _lines(headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    return b"".join([b"%b: %b\r\n" % (name, value) for name, value in headers])


class _DefaultLines:
    """The lines of the default headers. uvicorn makes a new list of them every second."""

    def __init__(self) -> None:
        self._headers: Sequence[tuple[bytes, bytes]] = ()
        self._lines = b""

    def of(self, headers: Sequence[tuple[bytes, bytes]]) -> bytes:
        """The lines of these default headers."""
        if headers is not self._headers:
            self._headers, self._lines = headers, _lines(headers)
        return self._lines


_default_lines = _DefaultLines()


class AnsweredConnection(Protocol):
    """The attributes of a connection that its answers use; all but the first two are uvicorn's."""

    outlet: Outlet
    server_connections: Connections
    flow: FlowControl
    logger: logging.Logger
    access_logger: logging.Logger
    access_log: bool
    server_state: ServerState

    def on_response_complete(self) -> None:
        """Called when a whole answer has been sent."""


class Outlet:
    """The transport for the answers of one connection.

    `close` gives the client time to read the answer before the connection ends, even while it sends its request.

    Args:
        transport: the connection's transport.
        close: ends the connection after an answer has been written.
        loop: the event loop.
    """

    __slots__ = ("_answering", "_close", "_head", "_loop", "_transport", "is_closing")

    def __init__(
        self, transport: asyncio.Transport, *, close: Callable[[], None], loop: asyncio.AbstractEventLoop
    ) -> None:
        self._transport = transport
        self._close = close
        self._loop = loop
        self._answering: RequestResponseCycle | None = None  # the request whose answer has no head yet
        self._head = b""
        self.is_closing = transport.is_closing

    def begin(self, cycle: RequestResponseCycle) -> None:
        """Prepare for the answer to the next request, which `cycle` represents."""
        self._answering = cycle

    def write(self, data: bytes) -> None:
        """Write a part of the answer. A head is kept for the next part, but only until the event loop's next turn."""
        if self._head:
            if len(data) > _JOINED_BYTES:
                self.flush()
            else:
                data, self._head = self._head + data, b""
        elif self._answering is not None and self._answering.response_started:  # false for ``100 Continue``
            self._answering = None
            self._head = data
            self._loop.call_soon(self.flush)
            return
        self._transport.write(data)

    def write_whole(self, head: bytes, body: bytes) -> None:
        """Write a whole answer."""
        self._answering = None
        if len(body) > _JOINED_BYTES:
            self._transport.write(head)
            self._transport.write(body)
        else:
            self._transport.write(head + body)

    def flush(self) -> None:
        """Write a head that is still kept."""
        head, self._head = self._head, b""
        if head and not self._transport.is_closing():
            self._transport.write(head)

    def close(self) -> None:
        """Send a kept head and end the connection; the client can read the whole answer first."""
        self.flush()
        self._close()

    def detach(self) -> None:
        """Break the reference cycle of connection and outlet, because the connection is lost."""
        self._head = b""
        self._answering = None
        self._close = self._transport.close


class Answer(RequestResponseCycle):
    """uvicorn's object for one request and its answer, which can also send a whole answer at once.

    Args:
        head: the request's head.
        connection: the request's connection.
    """

    transport: Outlet  # type: ignore[assignment]

    def __init__(self, head: RequestHead, connection: AnsweredConnection) -> None:
        # Instead of uvicorn's method, which would make an asyncio.Event for each request.
        self.scope = head.scope()  # type: ignore[assignment]
        self.transport = connection.outlet
        self.flow = connection.flow
        self.logger = connection.logger
        self.access_logger = connection.access_logger
        self.access_log = connection.access_log
        self.default_headers = connection.server_state.default_headers
        self.message_event = Flag()  # type: ignore[assignment]
        self.on_response = connection.on_response_complete
        self.disconnected = False
        self.keep_alive = head.keep_alive and not connection.server_connections.is_ending
        self.waiting_for_100_continue = head.expects_continue
        self.body = bytearray()
        self.more_body = True
        self._whole_body: bytes | None = None
        self.response_started = False
        self.response_complete = False
        self.chunked_encoding = None
        self.expected_content_length = 0

    def set_body(self, body: bytes) -> None:
        """Set the whole body, if all of it has arrived before the application begins."""
        self.body = bytearray()
        self.more_body = False
        self._whole_body = body
        self.message_event.clear()

    def take_body(self) -> bytes | None:
        """The whole body; None: it has not arrived, or was received already. Instead of `receive`, which is slower."""
        if self.disconnected or self.response_complete:
            return None
        body, self._whole_body = self._whole_body, None
        return body

    async def receive(self) -> Any:
        """Receive a part of the body, or the end of the connection; see ASGI."""
        body = self.take_body()
        if body is not None:
            return {"type": "http.request", "body": body, "more_body": False}
        return await super().receive()

    async def send_whole(self, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> None:
        """Send a whole answer. Does the same as `send` with a ``http.response.start`` and a ``http.response.body``.

        Args:
            status: the HTTP status.
            headers: names and values; one of them is ``content-length`` unless the status is 204, none is
                ``transfer-encoding``.
            body: the body; it is not sent if the method is HEAD.

        Raises:
            RuntimeError: a header is not valid, or the request has been answered.
        """
        if self.send_now(status, headers, body):
            return
        if self.access_log or any(name.lower() == b"connection" for name, _ in headers):
            await self.send({"type": "http.response.start", "status": status, "headers": list(headers)})
            await self.send({"type": "http.response.body", "body": body})
            return
        while self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected or self.send_now(status, headers, body):
            return
        if self.response_started:
            raise RuntimeError("the request has been answered already")
        raise RuntimeError("a header of the answer is not valid")

    def send_now(self, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> bool:
        """Send a whole answer within this call. The arguments are those of `send_whole`.

        Returns:
            False if the answer was not sent: the client does not read, or has gone, or the request is answered already,
            or the answer is one that only `send_whole` can send or refuse.
        """
        if self.flow.write_paused or self.disconnected or self.response_started or self.access_log:
            return False
        names: tuple[bytes, ...]
        values: tuple[bytes, ...]
        names, values = zip(*headers, strict=True) if headers else ((), ())
        if names not in _checked_names:
            all_names = b"".join(names)
            is_lower = all_names.islower()
            if not is_lower:
                headers = [(name.lower(), value) for name, value in headers]
                names = tuple(name for name, _ in headers)
            if b"connection" in names or HEADER_RE.search(all_names):
                return False
            if is_lower and len(all_names) <= _MOST_CHECKED_BYTES and len(_checked_names) < _MOST_CHECKED:
                _checked_names.add(names)
        if HEADER_VALUE_RE.search(b"".join(values)):
            return False
        head = STATUS_LINE[status] + _default_lines.of(self.default_headers) + _lines(headers)
        head += b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n"
        self.response_started = self.response_complete = True
        self.waiting_for_100_continue = False
        self.transport.write_whole(head, b"" if self.scope["method"] == "HEAD" else body)
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()
        return True


async def expecting(cycle: RequestResponseCycle, app: Any, scope: Scope, receive: Receive, send: Send) -> None:
    """Serve a request with ``Expect: 100-continue``. If it is answered before its body is read, close the connection.

    After such an answer some clients send the body and others their next request, and the server cannot tell which.
    """
    keep_alive, cycle.keep_alive = cycle.keep_alive, False

    async def received() -> Message:
        cycle.keep_alive = keep_alive
        return await receive()

    await app(scope, received, send)
