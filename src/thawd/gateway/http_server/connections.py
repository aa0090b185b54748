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
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import httptools
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from thawd.gateway.http import Scope
from thawd.gateway.http_server.answers import Answer, Outlet, expecting
from thawd.gateway.http_server.heads import RequestHead
from thawd.gateway.http_server.limits import Connections
from thawd.gateway.http_server.refusals import NextRequestError, RefusedHeadError, refusal, too_many_headers
from thawd.system.inline import run_inline

_END_OF_HEAD = b"\r\n\r\n"
# A chunked body is parsed in slices of this size; the limits on its framing are checked after each slice.
_SLICE_BYTES = 4096


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
        self.outlet: Outlet
        self._scope: Scope = {}  # what the ASGI scopes of all requests have in common
        self._last_head: RequestHead | None = None
        self._held = b""
        self._held_from = 0
        self._is_discarding = False
        self._discarded_bytes = 0
        self._unsent_bytes = 0  # bytes of the answer that were unsent at the last check
        self._read_at_s = 0.0
        # Per-request state
        self._is_in_head = True
        self._is_to_start = False  # whether the application has not begun to serve the request
        self._may_begin = False  # whether a request may begin in the data that the parser gets next
        self._end_of_piece = b""  # last three bytes of an incomplete head: `_END_OF_HEAD` may begin in them
        self._left_bytes: int | None = 0  # bytes of the body still to come; None: the body is chunked
        self._is_past_parser = False  # whether the body bypasses the parser
        self._framing_bytes = 0  # bytes of a chunked body's framing since the last byte of its content

    # Methods that asyncio calls.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Called by asyncio when a client has connected: answer 503 if there is no room for the connection."""
        super().connection_made(transport)
        self.outlet = Outlet(transport, close=self.close_after_answer, loop=self.loop)
        self._scope = {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,
            "root_path": "",
        }
        self.deadline_s = self.loop.time() + self.limits.head_s
        if not self.server_connections.admit(self):
            self._refuse(503, "All connections that the server allows are busy; try again later")
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio when the connection has been closed."""
        self._held = b""
        self.server_connections.leave(self)
        super().connection_lost(exc)
        self.outlet.detach()

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
        self.outlet.flush()
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
            if self._is_to_start and (self._is_in_head or at == size):
                self._start()
                if at < size and self._is_in_head and self.cycle.response_complete:
                    # Pipelined requests are served in turns of the event loop, even if all are answered at once.
                    self._hold(data, at)
                    self.loop.call_soon(self._feed_held)
                    return

    def _feed_head(self, data: bytes, at: int) -> int:
        """Pass data to the parser up to the end of the head; returns the position after the data that was passed."""
        found = data.find(_END_OF_HEAD, at)
        last = self._last_head
        if last is not None and not self.head_bytes and data[at : found + len(_END_OF_HEAD)] == last.text:
            return self._feed_known_head(last, data, found + len(_END_OF_HEAD))
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
        is_in_one_piece = is_whole and not self.head_bytes
        if is_whole and self.head_bytes:
            self._end_of_piece = b""
            self.server_connections.head_is_over(self)
        self._may_begin = True
        if self._parse(data, at, end):
            if not is_whole:
                self._check_headers()
            elif is_in_one_piece and self._last_head is not None and self._last_head is not last:
                self._last_head.keep(data[at:end])
        self._may_begin = False
        return end

    def _feed_known_head(self, head: RequestHead, data: bytes, end: int) -> int:
        """Begin a request whose head was parsed before, and end it if `data` contains all of it."""
        self._begin(head)
        self._is_past_parser = True
        size = head.body_bytes
        assert size is not None
        if len(data) - end < size:
            return end
        self._left_bytes = 0
        self._is_in_head = True
        self.deadline_s = math.inf
        self.cycle.set_body(data[end : end + size])
        return end + size

    def _check_headers(self) -> None:
        if self.headers is not None and len(self.headers) > self.limits.headers:
            self._refuse_rest(431, too_many_headers(self.limits.headers))

    def _feed_body(self, data: bytes, at: int) -> int:
        """Process the part of a body that `data` contains, up to the body's end; returns the position after it."""
        if self.cycle.response_complete:
            self._discarded_bytes += len(data) - at
            if self._discarded_bytes > self.limits.discard_bytes:
                self.transport.abort()
                return len(data)
            self.deadline_s = self.loop.time() + self.limits.discard_s
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
            self._check_headers()  # now those of the trailers
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
            if isinstance(error.__context__, NextRequestError):
                self._drop_next()
            elif isinstance(error.__context__, RefusedHeadError):
                self._refuse_rest(error.__context__.status, str(error.__context__))
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
            raise NextRequestError
        self._may_begin = False
        self.url = b""
        self.headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by the parser for each header."""
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Called by the parser when it has read all headers of a request."""
        if len(self.headers) > self.limits.headers:
            raise RefusedHeadError(431, too_many_headers(self.limits.headers))
        head = self._last_head = RequestHead(self.parser, self.url, self.headers, self._scope)
        self.headers = []  # trailers must not become headers. Source: RFC 9110, 6.5.1
        self._begin(head)
        # The parser would treat the body of a request for an upgrade as data of the other protocol.
        self._is_past_parser = head.asks_for_upgrade and head.body_bytes != 0

    def _begin(self, head: RequestHead) -> None:
        """Begin a request with this head."""
        self._framing_bytes = self._discarded_bytes = 0
        self._left_bytes = head.body_bytes
        self._is_in_head = False
        self._is_to_start = True
        self.cycle: Answer = Answer(head, self)
        self.server_connections.work(self)
        self._unsent_bytes = 0  # discard the count for the previous answer
        self.deadline_s = self.loop.time() + self.limits.stall_s
        self.outlet.begin(self.cycle)

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
        if self.cycle.response_complete:
            self._rest()
        else:
            self.cycle.more_body = False
            self.cycle.message_event.set()
            self.deadline_s = math.inf

    # Methods for serving requests and sending answers.

    def _start(self) -> None:
        """Serve the request, without a task at first if it is complete and the application ``begins_inline``."""
        self._is_to_start = False
        cycle, head = self.cycle, self._last_head
        assert head is not None
        app: Any = self.app
        own = app.app if isinstance(app, ProxyHeadersMiddleware) else app
        if not head.is_forwarded:
            app = own  # the middleware changes nothing if there are no headers of a proxy
        work = cycle.run_asgi(partial(expecting, cycle, app) if head.expects_continue else app)
        if cycle.more_body or not getattr(own, "begins_inline", False):
            self._spawn(work)
            return
        if cycle.body and not head.expects_continue:
            cycle.set_body(bytes(cycle.body))
        run_inline(work, self._spawn)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(work)
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)

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
        self.outlet.flush()
        self.transport.close()
        self.server_connections.rest(self)
        self._unsent_bytes = 0
        self.deadline_s = self.loop.time() + self.limits.stall_s

    def _begin_discarding(self) -> None:
        if self._is_discarding or self.transport.is_closing():
            return
        self.outlet.flush()
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
        self._is_to_start = False
        is_at_work = cycle is not None and not cycle.response_complete
        if self.transport.is_closing() or (not self._is_in_head and self._has_answered()):
            return  # the request has its answer already
        if is_at_work:
            cycle.disconnected = True
            cycle.message_event.set()
        if not is_at_work or not cycle.response_started:
            self.transport.write(refusal(status, message))


def protocol_of(connections: Connections) -> Callable[..., asyncio.Protocol]:
    """The factory that makes the protocol of each new connection."""
    return partial(Connection, connections)
