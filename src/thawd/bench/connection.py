"""A connection of the load generator: bytes out, one parsed answer in, two clock readings. No HTTP library around it.

The request is bytes made beforehand. One request is under way at a time.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Protocol, cast

import httptools

# Of an answer's body so much is kept, to look into: what is expected in it, and what an error says.
KEPT_BYTES = 65_536
_SHOWN_BYTES = 40

clock_ns = time.perf_counter_ns


class Answer:
    """What came back, or what came in between.

    Attributes:
        done_ns: when it was complete, or given up, by `clock_ns`.
        status: of HTTP; 0: none came.
        trouble: why none came: ``time-out`` or ``connection``; empty: it came.
        function_error: ``X-Amz-Function-Error``, empty: none.
        error_type: ``X-Amzn-ErrorType``, empty: none.
        location: ``Location``, empty: none.
        timing: ``Server-Timing``, empty: none.
        body: the beginning of the body; where none came, what happened instead.
    """

    __slots__ = ("body", "done_ns", "error_type", "function_error", "location", "status", "timing", "trouble")

    def __init__(self) -> None:
        self.done_ns = 0
        self.status = 0
        self.trouble = ""
        self.function_error = b""
        self.error_type = b""
        self.location = b""
        self.timing = b""
        self.body = b""


class Owner(Protocol):
    """Who uses connections."""

    def answered(self, connection: Connection, answer: Answer) -> None:
        """The request sent last on `connection` has come to its end; the connection may be lost."""

    def lost(self, connection: Connection) -> None:
        """`connection` ended while nothing was under way."""


class Connection(asyncio.Protocol):
    """See the module.

    Attributes:
        alive: whether a request may be sent.
        tag: the owner's own, such as the request under way.
        idle_since_ns: since when it has had nothing to do, by `clock_ns`.
    """

    def __init__(self, owner: Owner, *, timeout_s: float, whole: bool = False) -> None:
        self._kept_bytes = 1 << 30 if whole else KEPT_BYTES
        self._owner = owner
        self._timeout_s = timeout_s
        self._transport: asyncio.Transport | None = None
        self._parser: Any = None
        self._answer: Answer | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._has_head = False
        self._until_end = True
        self._loop = asyncio.get_running_loop()
        self.alive = False
        self.tag: Any = None
        self.idle_since_ns = clock_ns()

    def send(self, request: bytes) -> None:
        """Send one request; `Owner.answered` tells its end."""
        assert self._answer is None
        assert self._transport is not None
        self._answer = Answer()
        self._has_head, self._until_end = False, True
        self._parser = httptools.HttpResponseParser(self)
        self._timer = self._loop.call_later(self._timeout_s, self._timed_out)
        self._transport.write(request)

    def close(self) -> None:
        """End it; nothing more is told of it."""
        self.alive = False
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are of no common class
        self.alive = True

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        if self._answer is None:
            self.close()  # an answer to no request
            self._owner.lost(self)
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._give_up("connection", f"not HTTP: {error}; it began with {data[:_SHOWN_BYTES]!r}")

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop."""
        was_alive, self.alive = self.alive, False
        if self._answer is not None:
            if exc is None and self._has_head and self._until_end:
                self.on_message_complete()  # HTTP/1.0: the end of the connection is the end of the body
            else:
                self._give_up("connection", self._how_it_ended(exc))
        elif was_alive:
            self._owner.lost(self)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by the parser."""
        assert self._answer is not None
        name = name.lower()
        if name == b"server-timing":
            self._answer.timing = value
        elif name == b"x-amz-function-error":
            self._answer.function_error = value
        elif name == b"x-amzn-errortype":
            self._answer.error_type = value
        elif name == b"location":
            self._answer.location = value
        elif name in (b"content-length", b"transfer-encoding"):
            self._until_end = False

    def on_headers_complete(self) -> None:
        """Called by the parser."""
        self._has_head = True

    def on_body(self, body: bytes) -> None:
        """Called by the parser."""
        assert self._answer is not None
        if len(self._answer.body) < self._kept_bytes:
            self._answer.body += body[: self._kept_bytes]

    def on_message_complete(self) -> None:
        """Called by the parser, once the answer is whole."""
        answer = self._answer
        assert answer is not None
        status: int = self._parser.get_status_code()
        if status < 200:
            return  # 100 Continue and its like: the answer is still to come
        answer.done_ns = clock_ns()
        answer.status = status
        if not self._parser.should_keep_alive():
            self.close()
        self._end(answer)

    def _timed_out(self) -> None:
        self._give_up("time-out", f"not complete after {self._timeout_s:g} s")

    def _how_it_ended(self, error: Exception | None) -> str:
        answer = self._answer
        assert answer is not None
        how = "the connection ended" if error is None else str(error)
        return f"{how} after {len(answer.body):,} bytes of the body" if self._has_head else f"{how} before an answer"

    def _give_up(self, trouble: str, what: str) -> None:
        answer = self._answer
        assert answer is not None
        answer.done_ns = clock_ns()
        answer.trouble, answer.body = trouble, what.encode()
        self.close()
        self._end(answer)

    def _end(self, answer: Answer) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._answer = None
        self._owner.answered(self, answer)
