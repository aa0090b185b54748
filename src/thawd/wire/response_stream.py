"""A bounded queue of the parts of one streamed answer, between an execution environment and a client.

The platform reads the parts from the environment's socket and puts them into the queue; the client takes them, in
order. If more than `HIGH_BYTES` are in the queue, the socket is not read until the client has taken them. The
handler's writes then block. Everything runs in one event loop, without locks.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Protocol

from thawd.streaming import HTTP_RESPONSE, SEPARATOR

# Source: Lambda developer guide, "Response streaming for Lambda functions": 200 MB at most.
MAX_STREAMED_BYTES = 200 << 20
HIGH_BYTES = 256 << 10
CONTENT_TYPE = r"^[ -~]{1,256}\Z"
"""Pattern for a content type. It is strict because the content type is sent as a header."""

_LONGEST_PRELUDE = 256 << 10


class PausableSource(Protocol):
    """Where the parts of an answer come from: a connection that can stop reading."""

    def pause(self) -> None:
        """Put no more parts into the queue until `resume`."""

    def resume(self) -> None:
        """Put parts into the queue again."""


class ResponseStream:
    """The parts of one answer.

    Attributes:
        limit_bytes: limit of the answer's size, bytes.
        content_type: content type of the answer; empty until `put` has got its first part.
        executed_version: the version that answers; empty until the invocation has begun.
        waiting_bytes: number of bytes in the queue: those put and not yet taken.
        total_bytes: number of bytes put so far.
        prelude: the JSON with the HTTP status and headers that the answer began with; empty: it has none, or its end
            is not there yet.
        answered_s: when the client had got the whole answer while the handler still ran, ``time.monotonic()`` seconds;
            0: that was not so.
        is_gone: whether the client has gone before it had got the whole answer.
        on_begin: called once, with the first part: from then on, somebody must take the parts. It must not wait.
        on_taken: called with the size of what `take` returns, bytes; None: nobody wants to know.
        on_gone: called once, when nobody wants the answer any more; None: nobody wants to know.
    """

    def __init__(self, *, limit_bytes: int = MAX_STREAMED_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self.content_type = ""
        self.executed_version = ""
        self.waiting_bytes = 0
        self.total_bytes = 0
        self.prelude = b""
        self.answered_s = 0.0
        self.is_gone = False
        self.on_begin: Callable[[], None] | None = None
        self.on_taken: Callable[[int], None] | None = None
        self.on_gone: Callable[[], None] | None = None
        self._parts: list[bytes] = []
        self._begun = False
        self._ended = False
        self._is_full = False
        self._head: bytearray | None = None
        self._changed: asyncio.Future[None] | None = None
        self._source: PausableSource | None = None
        self._paused = False

    def attach(self, source: PausableSource) -> None:
        """From now on, pause `source` while the queue is full."""
        self._source = source

    def put(self, content_type: str, data: bytes) -> bool:
        """Add a part. Return whether it was added: False if the answer would exceed its size limit.

        After one refused part, every further part is refused, even a smaller one: the answer would have a gap.

        Raises:
            ValueError: the content type is not valid.
        """
        self._is_full = self._is_full or self.total_bytes + len(data) > self.limit_bytes
        if self._is_full:
            return False
        if not self._begun:
            if not re.match(CONTENT_TYPE, content_type):
                raise ValueError("the content type must be 1 to 256 printable ASCII characters")
            self._begun = True
            self.content_type = content_type
            self._head = bytearray() if content_type == HTTP_RESPONSE else None
            if self.on_begin is not None:
                self.on_begin()
        self.total_bytes += len(data)
        if data:
            if self._head is not None:
                self._read_prelude(self._head, data)
            self._parts.append(data)
            self.waiting_bytes += len(data)
        if self.waiting_bytes > HIGH_BYTES and not self._paused and self._source is not None:
            self._paused = True
            self._source.pause()
        self._wake()
        return True

    def _read_prelude(self, head: bytearray, data: bytes) -> None:
        searched = max(0, len(head) - len(SEPARATOR))
        head += data
        end = head.find(SEPARATOR, searched)
        if end >= 0:
            self.prelude = bytes(head[:end])
        if end >= 0 or len(head) > _LONGEST_PRELUDE:
            self._head = None

    def detach(self) -> None:
        """Resume the source and stop controlling it, because it has no further part of this answer."""
        self._resume()
        self._source = None

    @property
    def has_begun(self) -> bool:
        """Whether a part was put."""
        return self._begun

    def gone(self) -> None:
        """Tell whoever makes the answer that nobody wants it any more. Its parts must be taken nevertheless."""
        self.is_gone = not self.answered_s
        on_gone, self.on_gone = self.on_gone, None
        if on_gone is not None:
            on_gone()

    def end(self) -> None:
        """Record that no further part follows."""
        self._ended = True
        self._wake()

    async def begun(self) -> bool:
        """Wait until the answer has begun. Return False if the answer ended without a part."""
        while not self._begun and not self._ended:
            await self._change()
        return self._begun

    async def take(self) -> bytes | None:
        """Wait for parts and return all that have arrived, joined; None: the answer has ended."""
        while not self._parts:
            if self._ended:
                return None
            await self._change()
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        self.waiting_bytes = 0
        self._resume()
        if self.on_taken is not None:
            self.on_taken(len(data))
        return data

    def _resume(self) -> None:
        if self._paused:
            self._paused = False
            if self._source is not None:
                self._source.resume()

    async def _change(self) -> None:
        self._changed = asyncio.get_running_loop().create_future()
        try:
            await self._changed
        finally:
            self._changed = None

    def _wake(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)
