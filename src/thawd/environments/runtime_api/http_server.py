"""An HTTP/1.1 server for the programs inside one environment. It parses requests and sends each answer in one write.

This module does not know Lambda's paths; `endpoint` and `extensions_api` handle them. User code writes to these
connections, so every size is limited, and input that is not HTTP only ends the connection.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from http import HTTPStatus
from typing import Protocol

import httptools

from thawd.telemetry.console import complain

MAX_HEAD_BYTES = 2 << 20
"""Limit on a request line with all headers, and on the trailers of a body.

awslambdaric, AWS's client for Python, sends up to 1 MiB in one header.
"""
MAX_CONNECTIONS = 64
"""Most open connections of one environment; a runtime with ten extensions needs about a dozen."""

_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_JSON = b"Content-Type: application/json\r\n"


class Request:
    """One request. Call `answer` to answer it.

    Attributes:
        connection: the connection that it arrived on.
        method: for example ``GET``.
        path: the path of the URL, without the query.
        headers: values by lower-case name, with the trailers of a chunked body; if a name is repeated, its last value.
        body: the body, up to `limit_bytes`; empty with a `sink`.
        size_bytes: size of the whole body.
        limit_bytes: the largest body that is kept.
        sink: gets each piece of the body when it arrives; None: the pieces are joined in `body`.
        on_lost: called when the connection is lost before the answer.
    """

    __slots__ = ("body", "connection", "headers", "limit_bytes", "method", "on_lost", "path", "sink", "size_bytes")

    def __init__(self, connection: HttpConnection, *, limit_bytes: int) -> None:
        self.connection = connection
        self.method = ""
        self.path = ""
        self.headers: dict[bytes, bytes] = {}
        self.body = bytearray()
        self.size_bytes = 0
        self.limit_bytes = limit_bytes
        self.sink: Callable[[bytes], None] | None = None
        self.on_lost: Callable[[], None] = lambda: None

    @property
    def is_too_large(self) -> bool:
        """Whether the body is larger than `limit_bytes`."""
        return self.size_bytes > self.limit_bytes

    def header(self, name: bytes) -> str:
        """Return the value of a header; empty when it was not sent. `name` is in lower case."""
        return self.headers.get(name, b"").decode("latin-1")

    def answer(self, status: int, body: bytes = b"", *, headers: bytes = _JSON) -> None:
        """Answer the request. Further calls do nothing.

        Args:
            status: HTTP status.
            body: body of the answer.
            headers: header lines, each ending in CR LF, without ``Content-Length``.
        """
        self.connection.answer(self, status, headers, body)

    def pause(self) -> None:
        """Stop reading the body for now, because the caller cannot take its pieces as fast as they arrive."""
        self.connection.pause()

    def resume(self) -> None:
        """Continue to read the body."""
        self.connection.resume()


class Handler(Protocol):
    """Answers the requests of all connections to one server."""

    connections: set[HttpConnection]

    def begin(self, request: Request) -> None:
        """The headers of `request` have arrived, but not its body: the handler can set `request.sink` now."""

    def handle(self, request: Request) -> None:
        """`request` is complete; answer it now or later."""

    def closed(self, connection: HttpConnection) -> None:
        """`connection` has ended, whichever side closed it."""


class HttpConnection(asyncio.Protocol):
    """The platform's end of one connection. Requests are answered in order, one at a time."""

    def __init__(self, handler: Handler, *, limit_bytes: int) -> None:
        self._handler = handler
        self._limit_bytes = limit_bytes
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._request: Request | None = None  # the request that is being received
        self._head_bytes = 0  # received since the last part of a body
        self._has_advanced = False
        self._current: Request | None = None  # the request that is being answered
        self._waiting: deque[tuple[Request, bool]] = deque()
        self._keep_alive = True
        self._is_paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        self._transport = transport  # type: ignore[assignment]
        if len(self._handler.connections) >= MAX_CONNECTIONS:
            self._transport.abort()  # type: ignore[union-attr]
        self._handler.connections.add(self)

    def data_received(self, data: bytes) -> None:
        """Called by asyncio."""
        try:
            self._feed(data)
        except httptools.HttpParserCallbackError as error:
            complain(f"thawd: a request to the Runtime API failed: {error.__context__!r}")
            self._refuse(500)
        except httptools.HttpParserError:
            self._refuse(400)

    def _feed(self, data: bytes) -> None:
        self._has_advanced = False
        rest = memoryview(data)
        while rest:
            try:
                self._parser.feed_data(rest)
            except httptools.HttpParserUpgrade as upgrade:
                # Handle the request as usual and ignore the upgrade, as RFC 9110, section 7.8 permits.
                rest = rest[upgrade.args[0] :]
            else:
                break
        # So the heads of requests are limited, and the trailers and the headers of chunks, too.
        self._head_bytes = 0 if self._has_advanced else self._head_bytes + len(data)
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(431)

    def _refuse(self, status: int) -> None:
        """Answer input that is not a valid request, or that could not be handled, and close the connection."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(_STATUS_LINES[status] + b"Content-Length: 0\r\nConnection: close\r\n\r\n")
            self._transport.close()

    def eof_received(self) -> None:
        """Called by asyncio, which then closes the connection: a client that closed its end waits for no answer."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio."""
        self._transport = None
        self._handler.connections.discard(self)
        lost, self._current = self._current, None
        for request in (lost, self._request):
            if request is not None:
                request.on_lost()
        self._request = None
        self._waiting.clear()
        self._handler.closed(self)

    # Methods that httptools calls.

    def on_message_begin(self) -> None:
        self._request = Request(self, limit_bytes=self._limit_bytes)

    def on_url(self, url: bytes) -> None:
        assert self._request is not None
        self._request.path += url.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        assert self._request is not None
        self._request.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        request = self._request
        assert request is not None
        self._has_advanced = True
        request.method = self._parser.get_method().decode("latin-1")
        request.path = request.path.partition("?")[0]
        if request.headers.get(b"expect", b"").lower() == b"100-continue" and self._transport is not None:
            self._transport.write(_CONTINUE)
        self._handler.begin(request)

    def on_chunk_header(self) -> None:
        self._has_advanced = True

    def on_body(self, data: bytes) -> None:
        self._has_advanced = True
        request = self._request
        assert request is not None
        request.size_bytes += len(data)
        if request.sink is not None:
            request.sink(data)
        elif not request.is_too_large:
            request.body += data

    def on_message_complete(self) -> None:
        request, self._request = self._request, None
        assert request is not None
        self._has_advanced = True
        keep_alive = self._parser.should_keep_alive()
        if self._current is not None:
            # The client sent this request without waiting for earlier answers: read no more until those are sent.
            self._waiting.append((request, keep_alive))
            self.pause()
            return
        self._take(request, keep_alive=keep_alive)

    def _take(self, request: Request, *, keep_alive: bool) -> None:
        self._current = request
        self._keep_alive = keep_alive
        self._handler.handle(request)

    # Methods that requests call.

    def answer(self, request: Request, status: int, headers: bytes, body: bytes) -> None:
        """See `Request.answer`."""
        if self._transport is None or request is not self._current:
            return  # the connection is lost, or the request has been answered already
        self._current = None
        last = b"\r\n" if self._keep_alive else b"Connection: close\r\n\r\n"
        self._transport.write(
            b"%b%bContent-Length: %d\r\n%b%b" % (_STATUS_LINES[status], headers, len(body), last, body)
        )
        if not self._keep_alive:
            self._transport.close()
        elif self._waiting:
            # Take the next waiting request in the next turn of the event loop. Direct calls would nest once for each
            # request that waits, and could exceed Python's recursion limit.
            asyncio.get_running_loop().call_soon(self._take_next)

    def _take_next(self) -> None:
        if not self._waiting:
            return  # the connection was lost
        request, keep_alive = self._waiting.popleft()
        if not self._waiting:
            self.resume()
        self._take(request, keep_alive=keep_alive)

    def pause(self) -> None:
        """See `Request.pause`."""
        if self._transport is not None and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        """See `Request.resume`."""
        if self._transport is not None and self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()

    def abort(self) -> None:
        """End the connection now."""
        if self._transport is not None:
            self._transport.abort()
