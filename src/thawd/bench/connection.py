"""A connection of the load generator: it sends encoded requests and parses the answers.

Requests are encoded before they are due, and a connection has at most one request in flight. The module uses no HTTP
client library, only a parser: the time spent in a library would count as latency.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Protocol, cast

import httptools

# This many bytes at the beginning of an answer's body are kept. The text of --expect-text is searched for in
# them, and error messages quote them.
KEPT_BYTES = 65_536
_SHOWN_BYTES = 40

clock_ns = time.perf_counter_ns


class Answer:
    """The answer to a request, or the reason why there is none.

    Attributes:
        done_ns: time when the answer was complete or the request failed, by `clock_ns`.
        status: HTTP status; 0 if there is no answer.
        trouble: ``time-out`` or ``connection`` if there is no answer; else empty.
        function_error: value of the header ``X-Amz-Function-Error``; empty if there is none.
        error_type: value of the header ``X-Amzn-ErrorType``; empty if there is none.
        location: value of the header ``Location``; empty if there is none.
        timing: value of the header ``Server-Timing``; empty if there is none.
        body: first part of the body; if there is no answer, a text about what happened.
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
    """Receives the events of its connections, which call these methods."""

    def answered(self, connection: Connection, answer: Answer) -> None:
        """Called when the request on `connection` has ended. `Connection.alive` says whether the connection is open."""

    def lost(self, connection: Connection) -> None:
        """Called when `connection` was closed while no request was in flight."""


class Connection(asyncio.Protocol):
    """One connection to the measured server.

    Args:
        owner: receives the connection's events.
        timeout_s: time after which a request without a complete answer has failed, seconds.
        whole: whether whole bodies are kept; if not, only their first `KEPT_BYTES` bytes.

    Attributes:
        alive: whether the connection is open.
        tag: data that the owner attaches, such as the times of the request in flight.
        idle_since_ns: when the connection became idle, by `clock_ns`.
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
        self._body_bytes = 0
        self._until_end = True
        self._loop = asyncio.get_running_loop()
        self.alive = False
        self.tag: Any = None
        self.idle_since_ns = clock_ns()

    def send(self, request: bytes) -> None:
        """Send one request. `Owner.answered` is called when the request has ended."""
        assert self._answer is None
        assert self._transport is not None
        self._answer = Answer()
        self._has_head, self._until_end = False, True
        self._body_bytes = 0
        self._parser = httptools.HttpResponseParser(self)
        self._timer = self._loop.call_later(self._timeout_s, self._timed_out)
        self._transport.write(request)

    def close(self) -> None:
        """Close the connection without calling the owner."""
        self.alive = False
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports have another base class
        self.alive = True

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        if self._answer is None:
            self.close()  # the server sent data without a request
            self._owner.lost(self)
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail("connection", f"not HTTP: {error}; it began with {data[:_SHOWN_BYTES]!r}")

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop."""
        was_alive, self.alive = self.alive, False
        if self._answer is not None:
            if exc is None and self._has_head and self._until_end:
                self.on_message_complete()  # as in HTTP/1.0, the body ends where the connection ends
            else:
                self._fail("connection", self._how_it_ended(exc))
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
        self._body_bytes += len(body)
        free = self._kept_bytes - len(self._answer.body)
        if free > 0:
            self._answer.body += body[:free]

    def on_message_complete(self) -> None:
        """Called by the parser when the answer is complete."""
        answer = self._answer
        assert answer is not None
        status: int = self._parser.get_status_code()
        if status < 200:
            return  # this is an interim answer such as 100 Continue, and the answer itself follows
        answer.done_ns = clock_ns()
        answer.status = status
        if not self._parser.should_keep_alive():
            self.close()
        self._end(answer)

    def _timed_out(self) -> None:
        self._fail("time-out", f"not complete after {self._timeout_s:g} s")

    def _how_it_ended(self, error: Exception | None) -> str:
        how = "the connection ended" if error is None else str(error)
        return f"{how} after {self._body_bytes:,} bytes of the body" if self._has_head else f"{how} before an answer"

    def _fail(self, trouble: str, what: str) -> None:
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
