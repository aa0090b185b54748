"""One connection of the HTTP port: uvicorn's protocol with bounds on what a stranger may send, before any key is seen.

uvicorn hands all that comes to the parser. This protocol stands between the two: it cuts what comes at the ends of
heads and bodies and feeds the parser one request at a time, so that

- no more than 64 KiB of a head are ever parsed or kept,
- a pipelined request is kept as the bytes it is until the one before it is answered,
- the pieces of a chunked body are gathered before uvicorn sees them,
- an answer that is sent before the body was read reaches the client, which is still sending.

Deadlines and what all connections may hold together are in `connection_limits`.

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
from thawd.gateway.http_server.limits import Connections

_END_OF_HEAD = b"\r\n\r\n"
# So much of a chunked body is parsed between two looks at what it is made of.
_SLICE_BYTES = 4096
_NOT_LOOKED_AT = -1
_REASONS = {
    400: "Bad Request",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}


class _TooManyHeadersError(Exception):
    """Raised through the parser."""


class _NextRequestError(Exception):
    """Raised through the parser: a request begins in the middle of what it was fed."""


class _Outlet:
    """What an answer is written to: the transport, but that closing it waits until a client that sends has read it."""

    __slots__ = ("close", "is_closing", "write")

    def __init__(self, connection: Connection, transport: asyncio.Transport) -> None:
        self.write = transport.write
        self.is_closing = transport.is_closing
        self.close = connection.close_after_answer


class Connection(HttpToolsProtocol):
    """See the module.

    Args:
        connections: all of the server.
        given: what uvicorn gives its protocols.
    """

    def __init__(self, connections: Connections, **given: Any) -> None:
        # The parser calls this for each piece of a body, of which there may be 100,000 in what one call brings.
        self._pieces: list[bytes] = []
        self.on_body = self._pieces.append  # type: ignore[method-assign, assignment]
        super().__init__(**given)
        self.all = connections
        self.limits = connections.limits
        self._most_head_bytes = connections.limits.head_bytes
        self.deadline_s = math.inf
        self.head_bytes = 0
        self.held_bytes = 0
        # Per-connection state
        self._outlet: _Outlet
        self._held = b""
        self._held_from = 0
        self._is_discarding = False
        self._discarded_bytes = 0
        self._unsent_bytes = 0  # when it was last looked at
        self._read_at_s = 0.0
        # Per-request state
        self._is_in_head = True
        self._may_begin = False
        self._end_of_piece = b""  # of a head: its end may be cut anywhere
        self._left_bytes: int | None = 0  # of a body; None: it is chunked
        self._is_past_parser = False  # the body is
        self._framing_bytes = 0  # of a chunked body, since the last of its content

    # What asyncio calls.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Called by asyncio."""
        super().connection_made(transport)
        self._outlet = _Outlet(self, transport)
        self.deadline_s = self.loop.time() + self.limits.head_s
        if not self.all.admit(self):
            self._refuse(503, "All connections are at work; try again later")
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio."""
        self._held = b""
        self.all.leave(self)
        super().connection_lost(exc)
        self._outlet.close = self.transport.close  # or the two would keep each other

    def pause_writing(self) -> None:
        """Called by asyncio: the client does not read, and the application has to wait."""
        super().pause_writing()
        self.all.stall(self)

    def resume_writing(self) -> None:
        """Called by asyncio."""
        super().resume_writing()
        self.all.go_on(self)

    def data_received(self, data: bytes) -> None:
        """Called by asyncio."""
        if self._is_discarding:
            self._discard(len(data))
        elif self._held:
            self._hold(self._held[self._held_from :] + data, 0)
        else:
            self._feed(data, 0)

    # What the limits call.

    def expire(self, now_s: float) -> None:
        """It is over its time."""
        if self._is_at_work() and self._is_in_head:
            self.deadline_s = math.inf  # the request is whole: the client has nothing to send, and waits for us
        elif self._is_read(now_s):
            self.deadline_s = now_s + self.limits.stall_s
        elif not self._is_in_head and not self._has_answered() and self.flow.read_paused:
            self.deadline_s = now_s + self.limits.stall_s  # it is we who do not read
        elif self._is_discarding or not (self.head_bytes if self._is_in_head else not self._has_answered()):
            self.end()
        else:
            what = "head" if self._is_in_head else "body"
            self._refuse(408, f"The {what} of the request did not come in time")
            self._close_when_sent()

    def _is_read(self, now_s: float) -> bool:
        """Whether an answer is on its way to a client that may still read it: it has a while if no request is begun."""
        before, self._unsent_bytes = self._unsent_bytes, self.transport.get_write_buffer_size()
        if before == 0 or self._unsent_bytes < before:
            self._read_at_s = now_s
        is_begun = self.head_bytes > 0 if self._is_in_head else not self._has_answered()
        patience_s = self.limits.stall_s if is_begun else self.limits.unread_s
        return self._unsent_bytes > 0 and now_s - self._read_at_s < patience_s

    def has_unread(self) -> bool:
        """Whether a part of an answer waits for the client to read."""
        return self.transport.get_write_buffer_size() > 0

    def end(self) -> None:
        """Close the connection now."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()  # or it would wait for somebody to read
        else:
            self.transport.close()

    # From the bytes that come to requests.

    def _feed(self, data: bytes, at: int) -> None:
        """Have `data` from `at` on parsed, one request at a time."""
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
        """Feed a head up to its end; the place after what was fed."""
        found = data.find(_END_OF_HEAD, at)
        if self.head_bytes and (begun := (self._end_of_piece + data[at : at + 3]).find(_END_OF_HEAD)) >= 0:
            end = at + begun + len(_END_OF_HEAD) - len(self._end_of_piece)  # it began in what came before
            is_whole = True
        else:
            end = len(data) if found < 0 else found + len(_END_OF_HEAD)
            is_whole = found >= 0
        if self.head_bytes + end - at > self._most_head_bytes:
            self._refuse_rest(431, f"The head of a request may have {self.limits.head_bytes} bytes")
            return len(data)
        if not is_whole:
            if not self.head_bytes:
                self.deadline_s = self.loop.time() + self.limits.head_s
            self.all.head_goes_on(self, len(data) - at)
            self._end_of_piece = (self._end_of_piece + data[max(at, len(data) - 3) :])[-3:]
        elif self.head_bytes:
            self._end_of_piece = b""
            self.all.head_is_over(self)
        self._may_begin = True
        if self._parse(data, at, end) and not is_whole:
            self._check_headers()
        self._may_begin = False
        return end

    def _check_headers(self) -> None:
        if self.headers is not None and len(self.headers) > self.limits.headers:
            self._refuse_rest(431, f"A request may have {self.limits.headers} headers")

    def _feed_body(self, data: bytes, at: int) -> int:
        """Feed what there is of a body, and no more; the place after what was fed."""
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
            self._refuse_rest(400, "A chunked body and Upgrade do not go together; leave one of them out")
            return len(data)
        end = min(len(data), at + _SLICE_BYTES)
        self._framing_bytes += end - at
        if not self.cycle.response_complete:
            self.deadline_s = self.loop.time() + self.limits.stall_s
        if self._parse(data, at, end):
            self._check_headers()  # trailers are added to them
            if self._framing_bytes > self.limits.head_bytes and not self._is_discarding:
                self._refuse_rest(
                    400, f"A chunk's size, or what ends the body, has over {self.limits.head_bytes} bytes"
                )
        return end

    def _parse(self, data: bytes, at: int, end: int) -> bool:
        """Have the parser read a part of `data`; False: it is no HTTP, and refused."""
        try:
            while at < end:
                try:
                    part = data[at:end] if end - at < _SLICE_BYTES else memoryview(data)[at:end]
                    self.parser.feed_data(part)
                    break
                except httptools.HttpParserUpgrade as upgrade:
                    at += upgrade.args[0]  # the request stands, we stay with HTTP/1.1. Source: RFC 9110, 7.8
        except httptools.HttpParserError as error:
            if isinstance(error.__context__, _NextRequestError):
                self._drop_next()
            elif isinstance(error.__context__, _TooManyHeadersError):
                self._refuse_rest(431, f"A request may have {self.limits.headers} headers")
            else:
                self._refuse_rest(400, "Invalid HTTP request received.")
            return False
        if self._pieces:
            self._take_pieces()
        return True

    def _drop_next(self) -> None:
        """Close the connection after this request: where the next one begins cannot be known any more.

        Only a chunked body ends where nobody has said; whoever pipelines another request behind one has to send it
        again, as after any connection that was closed. Source: RFC 9112, 9.3.2.
        """
        if self._pieces:
            self._take_pieces()
        if self.cycle.response_complete:
            self._begin_discarding()
        else:
            self.cycle.keep_alive = False
            self._is_discarding = True

    def _hold(self, data: bytes, at: int) -> None:
        """Keep requests for later: the one before them is being dealt with."""
        self._held, self._held_from = data, at
        self.flow.pause_reading()
        if not self.all.hold(self, len(data)):
            self.transport.abort()

    def _feed_held(self) -> None:
        data, at = self._held, self._held_from
        self._held = b""
        self.all.hold(self, 0)
        if self.parser is None or self.transport.is_closing():
            return  # it was closed after this was put off
        self.flow.resume_reading()  # what came after the answer and before this has paused it again
        self._feed(data, at)

    def _discard(self, size: int) -> None:
        self._discarded_bytes += size
        if not self._is_at_work():
            self.deadline_s = self.loop.time() + self.limits.discard_s
        if self._discarded_bytes > self.limits.discard_bytes:
            self.transport.abort()

    # What the parser calls.

    def on_message_begin(self) -> None:
        """Called by the parser."""
        if not self._may_begin:
            raise _NextRequestError
        self._may_begin = False
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Called by the parser."""
        if len(self.headers) > self.limits.headers:
            raise _TooManyHeadersError
        self._framing_bytes = self._discarded_bytes = 0
        self._left_bytes = _NOT_LOOKED_AT
        self._is_past_parser = False
        if self.parser.should_upgrade():
            # The parser takes the body of such a request for the protocol that was asked for.
            self._left_bytes = self._announced_bytes()
            self._is_past_parser = self._left_bytes != 0
        super().on_headers_complete()  # which refuses some URLs
        self._is_in_head = False
        self.cycle.transport = self._outlet  # type: ignore[assignment]

    def _announced_bytes(self) -> int | None:
        """The size of the body; None: it is chunked. The parser has refused what is no number, or both."""
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
        """Called by the parser."""
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

    # Requests that are dealt with.

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self.all.work(self)
        self._unsent_bytes = 0  # of the answer before
        self.deadline_s = self.loop.time() + self.limits.stall_s
        super()._start_asgi_task(cycle, partial(_expecting, cycle, app) if cycle.waiting_for_100_continue else app)

    def on_response_complete(self) -> None:
        """Called when an answer has been sent."""
        self.server_state.total_requests += 1
        if self.transport.is_closing() or self._is_discarding:
            return
        self.flow.resume_reading()
        self._rest()
        if self._held:
            self.loop.call_soon(self._feed_held)

    def _rest(self) -> None:
        self.all.rest(self)
        self._unsent_bytes = 0
        self.deadline_s = self.loop.time() + (self.limits.idle_s if self._is_in_head else self.limits.discard_s)

    def _has_answered(self) -> bool:
        return self.cycle is not None and self.cycle.response_complete

    def _is_at_work(self) -> bool:
        """Whether the application is to answer, and was not told that the client has gone."""
        return self.cycle is not None and not self.cycle.response_complete and not self.cycle.disconnected

    def close_after_answer(self) -> None:
        """Close the connection once the client can have read the answer: while it sends, it may not look."""
        self.cycle.disconnected = True  # nothing more is sent, be the answer whole or its application have failed
        if self._is_in_head and not self._held:
            self._close_when_sent()
        else:
            self._begin_discarding()

    def _close_when_sent(self) -> None:
        """Take no more; until the client has read what is left the connection may be closed for room."""
        self.transport.close()
        self.all.rest(self)
        self._unsent_bytes = 0
        self.deadline_s = self.loop.time() + self.limits.stall_s

    def _begin_discarding(self) -> None:
        if self._is_discarding or self.transport.is_closing():
            return
        self._is_discarding = True
        self._held = b""
        self.all.hold(self, 0)
        self.all.head_is_over(self)
        self.all.rest(self)
        self.deadline_s = self.loop.time() + self.limits.discard_s
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def _refuse_rest(self, status: int, message: str) -> None:
        """Answer what cannot be parsed any further, and read the rest for nothing."""
        self._refuse(status, message)
        self._begin_discarding()

    def _refuse(self, status: int, message: str) -> None:
        """Answer instead of the application, unless that has begun to; it is told that the client has gone."""
        cycle = self.cycle
        is_at_work = cycle is not None and not cycle.response_complete
        if self.transport.is_closing() or (not self._is_in_head and self._has_answered()):
            return  # the request that this is a part of has its answer already
        if is_at_work:
            cycle.disconnected = True
            cycle.message_event.set()
        if not is_at_work or not cycle.response_started:
            self.transport.write(_refusal(status, message))


async def _expecting(cycle: RequestResponseCycle, app: Any, scope: Scope, receive: Receive, send: Send) -> None:
    """A request whose client waits for leave to send the body: answered without it, the connection cannot go on.

    The client may send the body all the same, or its next request; there is no telling which.
    """
    keep_alive, cycle.keep_alive = cycle.keep_alive, False

    async def received() -> Message:
        cycle.keep_alive = keep_alive
        return await receive()

    await app(scope, received, send)


def _refusal(status: int, message: str) -> bytes:
    body = msgspec.json.encode({"message": message})
    retry = b"Retry-After: 1\r\n" if status == 503 else b""
    head = b"HTTP/1.1 %d %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%bConnection: close\r\n\r\n"
    return head % (status, _REASONS[status].encode(), len(body), retry) + body


def protocol_of(connections: Connections) -> Callable[..., asyncio.Protocol]:
    """What makes the protocol of each new connection."""
    return partial(Connection, connections)
