"""The parts of one of several answers that a process sends at the same time, over the one channel to the platform.

The channel is shared, so a client that reads slowly must not stop it. Each answer may be `WINDOW_BYTES` ahead of its
client. The platform says with TAKEN how much the client has taken, and with GONE that nobody reads any more.
"""

import asyncio
import os
from typing import Callable, List, Optional

from thawd.runtime import invoking
from thawd.runtime.channel import Channel
from thawd.runtime.faults import TOO_LARGE, Fault
from thawd.streaming import Stream
from thawd.wire import frames

WINDOW_BYTES = 256 << 10
SLICE_BYTES = 64 << 10


class Parts:
    """Sends the parts of one answer.

    Args:
        channel: the channel to the platform.
        number: the invocation's number.
        limit_bytes: the largest size of the answer; None: the caller takes no parts, so they are kept.

    Attributes:
        stream: what the application's answer is written to.
        kept: the parts of an answer that is returned whole.
        fault: the error with which a part was refused; None before.
        is_gone: whether nobody reads the answer any more. Further parts are dropped.
        on_gone: called once when that is so.
        slice_bytes: the most bytes that are sent as one part.
    """

    slice_bytes = SLICE_BYTES

    def __init__(self, channel: Optional[Channel], number: int, limit_bytes: Optional[int]) -> None:
        self.stream = Stream(self._send)
        self.kept: List[bytes] = []
        self.fault: Optional[Fault] = None
        self.is_gone = False
        self.on_gone: Callable[[], None] = lambda: None
        self._channel = channel if limit_bytes is not None else None
        self._number = number
        self._limit = invoking.MAX_RESPONSE_BYTES if limit_bytes is None else limit_bytes
        self._left = self._limit
        self._ahead = 0
        self._room: Optional[asyncio.Event] = None

    def taken(self, size_bytes: int) -> None:
        """The client has taken a part of the answer."""
        self._ahead -= size_bytes
        self._wake()

    def gone(self) -> None:
        """Nobody reads the answer any more."""
        if not self.is_gone:
            self.is_gone = True
            self._wake()
            self.on_gone()

    async def room(self) -> None:
        """Wait until the next part may be sent. Several tasks of the application may wait."""
        while self._ahead >= WINDOW_BYTES and not self.is_gone:
            if self._room is None:
                self._room = asyncio.Event()
            await self._room.wait()

    async def finish(self, rest: Optional[bytes]) -> bytes:
        """Complete the answer.

        Args:
            rest: the body of an answer of which nothing was sent; None: it was sent.

        Returns:
            The answer if it is returned whole; empty if it was sent in parts.

        Raises:
            Fault: the answer is too large.
        """
        if rest is not None:
            if len(rest) <= invoking.MAX_RESPONSE_BYTES:
                self._channel = None
            for at in range(0, len(rest), SLICE_BYTES):
                await self.room()
                self.stream.write(rest[at : at + SLICE_BYTES])
        self.stream.close()
        if self.fault is not None:
            raise self.fault
        return b"".join(self.kept)

    def _wake(self) -> None:
        if self._room is not None:
            self._room.set()
            self._room = None

    def _send(self, data: bytes) -> None:
        if self.is_gone:
            return
        self._left -= len(data)
        if self._left < 0:
            self.fault = Fault(
                TOO_LARGE, "Response payload size exceeded maximum allowed payload size (%d bytes)." % self._limit
            )
        if self.fault is not None:
            raise self.fault
        if self._channel is None:
            self.kept.append(data)
            return
        self._ahead += len(data)
        try:
            self._channel.send(frames.PART, {"type": self.stream.content_type, "number": self._number}, data)
        except (BrokenPipeError, ConnectionResetError):
            os._exit(0)
