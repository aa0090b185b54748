"""One connection of the HTTP port: uvicorn's protocol, with limits that hold for clients without a key, too.

A protocol, in asyncio, is the object that gets a connection's bytes. A request's head is its request line and headers.
uvicorn's protocol passes all received data to its HTTP parser. This one first cuts the data at the end of each head and
body, and gives the parser one request at a time, so that

- no more than 64 KiB of a head are ever parsed or kept,
- a pipelined request is kept as unparsed bytes until the request before it is answered,
- the pieces of a chunked body that arrive together are joined before uvicorn processes them,
- an answer that is sent before the whole body was read reaches the client, even while the client is still sending.

The values of the limits, and the limits on what all connections hold together, are in the module `limits`.

Source: RFC 9112, "Message Parsing", "Chunked Transfer Coding", "Tear-down"; RFC 9110, 10.1.1, "Expect".
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import httptools
import msgspec
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from thawd.gateway.http import Message, Receive, Scope, Send
from thawd.gateway.http_server.answers import Answer, Outlet
from thawd.gateway.http_server.limits import Connections

_END_OF_HEAD = b"\r\n\r\n"
# A chunked body is parsed in slices of this size; the limits on its framing are checked after each slice.
_SLICE_BYTES = 4096
# The value of `Connection._left_bytes` until the headers have been searched for the body's size.
_NOT_LOOKED_AT = -1
_REASONS = {
    400: "Bad Request",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}


class _TooManyHeadersError(Exception):
    """The request has too many headers. Raised in a method that the parser calls, which ends parsing."""


class _NextRequestError(Exception):
    """The data contains a second request. Raised in a method that the parser calls, which ends parsing."""


class Connection(HttpToolsProtocol):
    """uvicorn's protocol for one connection, with limits; see the module's docstring.

    Args:
        connections: all connections of the server.
        options: the arguments that uvicorn passes to its protocols.
    """

    def __init__(self, connections: Connections, **options: Any) -> None:
        # The parser calls `on_body` for each piece of a body. The data of one call of `data_received` can contain
        # 100,000 pieces, so the pieces are collected, and `_take_pieces` joins them.
        self._pieces: list[bytes] = []
        self.on_body = self._pieces.append  # type: ignore[method-assign, assignment]
        super().__init__(**options)
        self.server_connections = connections
        self.limits = connections.limits
        self._most_head_bytes = connections.limits.head_bytes
        self.deadline_s = math.inf
        self.head_bytes = 0
        self.held_bytes = 0
        # Per-connection state
        self._outlet: Outlet
        self._held = b""
        self._held_from = 0
        self._is_discarding = False
        self._discarded_bytes = 0
        self._unsent_bytes = 0  # bytes of the answer that were unsent at the last check
        self._read_at_s = 0.0
        # Per-request state
        self._is_in_head = True
        self._may_begin = False  # whether a request may begin in the data that the parser gets next
        self._end_of_piece = b""  # last three bytes of an incomplete head: `_END_OF_HEAD` may begin in them
        self._left_bytes: int | None = 0  # bytes of the body still to come; None: the body is chunked
        self._is_past_parser = False  # whether the body bypasses the parser
        self._framing_bytes = 0  # bytes of a chunked body's framing since the last byte of its content

    # Methods that asyncio calls.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Called by asyncio when a client has connected: answer 503 if there is no room for the connection."""
        super().connection_made(transport)
        self._outlet = Outlet(transport, close=self.close_after_answer, loop=self.loop)
        self.deadline_s = self.loop.time() + self.limits.head_s
        if not self.server_connections.admit(self):
            self._refuse(503, "All connections that the server allows are busy; try again later")
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio when the connection has been closed."""
        self._held = b""
        self.server_connections.leave(self)
        super().connection_lost(exc)
        self._outlet.detach()

    def pause_writing(self) -> None:
        """Called by asyncio when much of an answer is unread: the application has to wait before it sends more."""
        super().pause_writing()
        self.server_connections.stall(self)

    def resume_writing(self) -> None:
        """Called by asyncio when the client has read: the application can send more."""
        super().resume_writing()
        self.server_connections.go_on(self)

    def data_received(self, data: bytes) -> None:
        """Called by asyncio with bytes that have arrived."""
        if self._is_discarding:
            self._discard(len(data))
        elif self._held:
            self._hold(self._held[self._held_from :] + data, 0)
        else:
            self._feed(data, 0)

    # Methods that `Connections` calls.

    def expire(self, now_s: float) -> None:
        """Called when the deadline has passed: extend it, end the connection, or answer 408."""
        if self._is_at_work() and self._is_in_head:
            self.deadline_s = math.inf  # the request is complete: the client waits for the application
        elif self._has_time_to_read(now_s):
            self.deadline_s = now_s + self.limits.stall_s
        elif not self._is_in_head and not self._has_answered() and self.flow.read_paused:
            self.deadline_s = now_s + self.limits.stall_s  # the server has paused reading; the client is not slow
        elif self._is_discarding or not (self.head_bytes if self._is_in_head else not self._has_answered()):
            self.end()
        else:
            what = "head" if self._is_in_head else "body"
            self._refuse(408, f"The {what} of the request did not arrive in time")
            self._close_when_sent()

    def _has_time_to_read(self, now_s: float) -> bool:
        """Whether a part of an answer is unsent, and the client's time to read it has not yet passed.

        The client has `unread_s` seconds after it last read, or `stall_s` seconds once it has begun another request.
        """
        before, self._unsent_bytes = self._unsent_bytes, self.transport.get_write_buffer_size()
        if before == 0 or self._unsent_bytes < before:
            self._read_at_s = now_s
        is_begun = self.head_bytes > 0 if self._is_in_head else not self._has_answered()
        patience_s = self.limits.stall_s if is_begun else self.limits.unread_s
        return self._unsent_bytes > 0 and now_s - self._read_at_s < patience_s

    def has_unread(self) -> bool:
        """Whether a part of an answer is unsent because the client has not read enough."""
        return self.transport.get_write_buffer_size() > 0

    def end(self) -> None:
        """Close the connection now."""
        self._outlet.flush()
        if self.transport.get_write_buffer_size():
            self.transport.abort()  # `close` would wait for the client to read
        else:
            self.transport.close()

    # Methods that turn received bytes into requests.

    def _feed(self, data: bytes, at: int) -> None:
        """Parse `data` from the position `at` on, one request at a time."""
        size = len(data)
        while at < size and not self._is_discarding:
            if not self._is_in_head:
                at = self._feed_body(data, at)
            elif self.cycle is None or self.cycle.response_complete:
                at = self._feed_head(data, at)
            else:
                self._hold(data, at)
                return

    def _feed_head(self, data: bytes, at: int) -> int:
        """Pass data to the parser up to the end of the head; returns the position after the data that was passed."""
        found = data.find(_END_OF_HEAD, at)
        if self.head_bytes and (begun := (self._end_of_piece + data[at : at + 3]).find(_END_OF_HEAD)) >= 0:
            end = at + begun + len(_END_OF_HEAD) - len(self._end_of_piece)  # `_END_OF_HEAD` began in the previous data
            is_whole = True
        else:
            end = len(data) if found < 0 else found + len(_END_OF_HEAD)
            is_whole = found >= 0
        if self.head_bytes + end - at > self._most_head_bytes:
            self._refuse_rest(
                431, f"The head of the request is too large; at most {self.limits.head_bytes} bytes are allowed"
            )
            return len(data)
        if not is_whole:
            if not self.head_bytes:
                self.deadline_s = self.loop.time() + self.limits.head_s
            self.server_connections.head_goes_on(self, len(data) - at)
            self._end_of_piece = (self._end_of_piece + data[max(at, len(data) - 3) :])[-3:]
        elif self.head_bytes:
            self._end_of_piece = b""
            self.server_connections.head_is_over(self)
        self._may_begin = True
        if self._parse(data, at, end) and not is_whole:
            self._check_headers()
        self._may_begin = False
        return end

    def _check_headers(self) -> None:
        if self.headers is not None and len(self.headers) > self.limits.headers:
            self._refuse_rest(431, _too_many_headers(self.limits.headers))

    def _feed_body(self, data: bytes, at: int) -> int:
        """Process the part of a body that `data` contains, up to the body's end; returns the position after it."""
        if self.cycle.response_complete:
            self._discarded_bytes += len(data) - at
            if self._discarded_bytes > self.limits.discard_bytes:
                self.transport.abort()
                return len(data)
            self.deadline_s = self.loop.time() + self.limits.discard_s
        if self._left_bytes == _NOT_LOOKED_AT:
            self._left_bytes = self._announced_bytes()
        if not self._left_bytes:
            return self._feed_chunks(data, at)
        end = len(data)
        if end - at > self._left_bytes:
            end = at + self._left_bytes
        self._left_bytes -= end - at
        if self._left_bytes and not self.cycle.response_complete:
            self.deadline_s = self.loop.time() + self.limits.stall_s
        if not self._is_past_parser:
            self._parse(data, at, end)
            return end
        self._pieces.append(data[at:end])
        self._take_pieces()
        if not self._left_bytes:
            self.on_message_complete()
        return end

    def _feed_chunks(self, data: bytes, at: int) -> int:
        if self._is_past_parser:
            self._refuse_rest(400, "A request with Upgrade must not have a chunked body; leave out one of the two")
            return len(data)
        end = min(len(data), at + _SLICE_BYTES)
        self._framing_bytes += end - at
        if not self.cycle.response_complete:
            self.deadline_s = self.loop.time() + self.limits.stall_s
        if self._parse(data, at, end):
            self._check_headers()  # the parser adds trailers to the headers
            if self._framing_bytes > self.limits.head_bytes and not self._is_discarding:
                self._refuse_rest(
                    400, f"A size line or the trailers of the chunked body exceed {self.limits.head_bytes} bytes"
                )
        return end

    def _parse(self, data: bytes, at: int, end: int) -> bool:
        """Pass ``data[at:end]`` to the parser; False: parsing failed, and the failure has been handled."""
        try:
            while at < end:
                try:
                    part = data[at:end] if end - at < _SLICE_BYTES else memoryview(data)[at:end]
                    self.parser.feed_data(part)
                    break
                except httptools.HttpParserUpgrade as upgrade:
                    at += upgrade.args[0]  # ignore the upgrade and serve the request. Source: RFC 9110, 7.8
        except httptools.HttpParserError as error:
            if isinstance(error.__context__, _NextRequestError):
                self._drop_next()
            elif isinstance(error.__context__, _TooManyHeadersError):
                self._refuse_rest(431, _too_many_headers(self.limits.headers))
            else:
                self._refuse_rest(400, "Invalid HTTP request received.")
            return False
        if self._pieces:
            self._take_pieces()
        return True

    def _drop_next(self) -> None:
        """Close the connection after this request, because the parser does not tell where the next request begins.

        This happens only after a chunked body, since its length is not announced. A client that pipelined a request
        after it has to send that request again, as after any closed connection. Source: RFC 9112, 9.3.2.
        """
        if self._pieces:
            self._take_pieces()
        if self.cycle.response_complete:
            self._begin_discarding()
        else:
            self.cycle.keep_alive = False
            self._is_discarding = True

    def _hold(self, data: bytes, at: int) -> None:
        """Keep pipelined requests until the request before them is answered."""
        self._held, self._held_from = data, at
        self.flow.pause_reading()
        if not self.server_connections.hold(self, len(data)):
            self.transport.abort()

    def _feed_held(self) -> None:
        data, at = self._held, self._held_from
        self._held = b""
        self.server_connections.hold(self, 0)
        if self.parser is None or self.transport.is_closing():
            return  # the connection was closed after this call was scheduled
        self.flow.resume_reading()  # needed if data arrived after the answer: `_hold` has then paused reading again
        self._feed(data, at)

    def _discard(self, size: int) -> None:
        self._discarded_bytes += size
        if not self._is_at_work():
            self.deadline_s = self.loop.time() + self.limits.discard_s
        if self._discarded_bytes > self.limits.discard_bytes:
            self.transport.abort()

    # Methods that the parser calls.

    def on_message_begin(self) -> None:
        """Called by the parser when a request begins."""
        if not self._may_begin:
            raise _NextRequestError
        self._may_begin = False
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Called by the parser when it has read all headers of a request."""
        if len(self.headers) > self.limits.headers:
            raise _TooManyHeadersError
        self._framing_bytes = self._discarded_bytes = 0
        self._left_bytes = _NOT_LOOKED_AT
        self._is_past_parser = False
        if self.parser.should_upgrade():
            # The parser would treat the body of such a request as data of the protocol that Upgrade names.
            self._left_bytes = self._announced_bytes()
            self._is_past_parser = self._left_bytes != 0
        super().on_headers_complete()  # uvicorn's method raises an exception for a malformed URL
        self._is_in_head = False
        self.cycle.transport = self._outlet  # type: ignore[assignment]

    def _announced_bytes(self) -> int | None:
        """The size of the body that the headers announce; None: the body is chunked.

        The parser has already refused a Content-Length that is not a number, and a request with both Content-Length
        and Transfer-Encoding.
        """
        for name, value in self.headers:
            if name == b"content-length":
                return int(value)
            if name == b"transfer-encoding":
                return None
        return 0

    def _take_pieces(self) -> None:
        body = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self._framing_bytes = 0
        cycle = self.cycle
        if cycle.response_complete:
            return
        cycle.body += body
        if len(cycle.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        cycle.message_event.set()

    def on_message_complete(self) -> None:
        """Called by the parser when it has read a whole request."""
        if self._is_past_parser and self._left_bytes != 0:
            return
        if self._pieces:
            self._take_pieces()
        self._is_in_head = True
        super().on_message_complete()
        if self.cycle.response_complete:
            self._rest()
        else:
            self.deadline_s = math.inf

    # Methods for serving requests and sending answers.

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self.server_connections.work(self)
        self._unsent_bytes = 0  # discard the count for the previous answer
        self.deadline_s = self.loop.time() + self.limits.stall_s
        self._outlet.begin(cycle)
        cycle.__class__ = Answer  # uvicorn makes each cycle itself, of its own class
        super()._start_asgi_task(cycle, partial(_expecting, cycle, app) if cycle.waiting_for_100_continue else app)

    def on_response_complete(self) -> None:
        """Called by uvicorn when the application has sent a whole answer."""
        self.server_state.total_requests += 1
        if self.transport.is_closing() or self._is_discarding:
            return
        self.flow.resume_reading()
        self._rest()
        if self._held:
            self.loop.call_soon(self._feed_held)

    def _rest(self) -> None:
        self.server_connections.rest(self)
        self._unsent_bytes = 0
        self.deadline_s = self.loop.time() + (self.limits.idle_s if self._is_in_head else self.limits.discard_s)

    def _has_answered(self) -> bool:
        return self.cycle is not None and self.cycle.response_complete

    def _is_at_work(self) -> bool:
        """Whether the application still has to answer and has not been notified that the client has disconnected."""
        return self.cycle is not None and not self.cycle.response_complete and not self.cycle.disconnected

    def close_after_answer(self) -> None:
        """Let the client read the answer, then close the connection. Some clients read only after sending all."""
        self.cycle.disconnected = True  # tells uvicorn to send nothing more: the answer has ended
        if self._is_in_head and not self._held:
            self._close_when_sent()
        else:
            self._begin_discarding()

    def _close_when_sent(self) -> None:
        """Stop reading; close the connection once the answer is sent, or earlier if another connection needs room."""
        self._outlet.flush()
        self.transport.close()
        self.server_connections.rest(self)
        self._unsent_bytes = 0
        self.deadline_s = self.loop.time() + self.limits.stall_s

    def _begin_discarding(self) -> None:
        if self._is_discarding or self.transport.is_closing():
            return
        self._outlet.flush()
        self._is_discarding = True
        self._held = b""
        self.server_connections.hold(self, 0)
        self.server_connections.head_is_over(self)
        self.server_connections.rest(self)
        self.deadline_s = self.loop.time() + self.limits.discard_s
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def _refuse_rest(self, status: int, message: str) -> None:
        """Answer a request that cannot be parsed further, and discard the rest of the data."""
        self._refuse(status, message)
        self._begin_discarding()

    def _refuse(self, status: int, message: str) -> None:
        """Answer with an error unless the application has begun to answer; tell it that the client has disconnected."""
        cycle = self.cycle
        is_at_work = cycle is not None and not cycle.response_complete
        if self.transport.is_closing() or (not self._is_in_head and self._has_answered()):
            return  # the request has its answer already
        if is_at_work:
            cycle.disconnected = True
            cycle.message_event.set()
        if not is_at_work or not cycle.response_started:
            self.transport.write(_refusal(status, message))


async def _expecting(cycle: RequestResponseCycle, app: Any, scope: Scope, receive: Receive, send: Send) -> None:
    """Serve a request with ``Expect: 100-continue``. If it is answered before its body is read, close the connection.

    After such an answer some clients send the body and others their next request, and the server cannot tell which.
    """
    keep_alive, cycle.keep_alive = cycle.keep_alive, False

    async def received() -> Message:
        cycle.keep_alive = keep_alive
        return await receive()

    await app(scope, received, send)


def _too_many_headers(most: int) -> str:
    return f"The request has too many headers; at most {most} are allowed"


def _refusal(status: int, message: str) -> bytes:
    body = msgspec.json.encode({"message": message})
    retry = b"Retry-After: 1\r\n" if status == 503 else b""
    head = b"HTTP/1.1 %d %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%bConnection: close\r\n\r\n"
    return head % (status, _REASONS[status].encode(), len(body), retry) + body


def protocol_of(connections: Connections) -> Callable[..., asyncio.Protocol]:
    """The factory that makes the protocol of each new connection."""
    return partial(Connection, connections)
