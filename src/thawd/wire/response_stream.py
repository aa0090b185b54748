"""The parts of an answer on their way from an execution environment to a client: few at a time, in order.

The environment puts, the client takes. What was put and not yet taken is bounded: beyond `HIGH_BYTES` the environment's
channel is not read until the client has caught up, and so the handler's next write waits. One event loop, no locks.
"""

from __future__ import annotations

import asyncio
import re
from typing import Protocol

# Source: Lambda developer guide, "Response streaming for Lambda functions": 200 MB at most.
MAX_STREAMED_BYTES = 200 << 20
HIGH_BYTES = 256 << 10
CONTENT_TYPE = r"^[ -~]{1,256}$"
"""What a content type must match: it becomes a header."""


class PausableSource(Protocol):
    """Where parts come from."""

    def pause(self) -> None:
        """Bring no more for now."""

    def resume(self) -> None:
        """Go on."""


class ResponseStream:
    """Parts of one answer.

    Attributes:
        limit_bytes: most bytes of all parts together.
        content_type: of the answer, known with its first part.
        executed_version: the version that answers, known when it has begun to.
        waiting_bytes: put and not yet taken.
        total_bytes: put so far.
    """

    def __init__(self, *, limit_bytes: int = MAX_STREAMED_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self.content_type = ""
        self.executed_version = ""
        self.waiting_bytes = 0
        self.total_bytes = 0
        self._parts: list[bytes] = []
        self._begun = False
        self._ended = False
        self._changed: asyncio.Future[None] | None = None
        self._source: PausableSource | None = None
        self._paused = False

    def attach(self, source: PausableSource) -> None:
        """Parts come from `source` from now on."""
        self._source = source

    def put(self, content_type: str, data: bytes) -> bool:
        """Add a part; False: the answer is larger than it may be, and the part is not taken.

        Raises:
            ValueError: the content type is none.
        """
        self.total_bytes += len(data)
        if self.total_bytes > self.limit_bytes:
            return False
        if not self._begun:
            if not re.match(CONTENT_TYPE, content_type):
                raise ValueError("a content type of other characters than printable ASCII")
            self._begun = True
            self.content_type = content_type
        if data:
            self._parts.append(data)
            self.waiting_bytes += len(data)
        if self.waiting_bytes > HIGH_BYTES and not self._paused and self._source is not None:
            self._paused = True
            self._source.pause()
        self._wake()
        return True

    def detach(self) -> None:
        """The source has no more for this answer, and is free for others."""
        self._resume()
        self._source = None

    def end(self) -> None:
        """No part follows."""
        self._ended = True
        self._wake()

    async def begun(self) -> bool:
        """Wait until the answer has begun; False: it ended without."""
        while not self._begun and not self._ended:
            await self._change()
        return self._begun

    async def take(self) -> bytes | None:
        """What has come, once there is something; None at the end."""
        while not self._parts:
            if self._ended:
                return None
            await self._change()
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        self.waiting_bytes = 0
        self._resume()
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
