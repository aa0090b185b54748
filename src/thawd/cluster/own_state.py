"""Sends the files of a folder over a connection between machines, and receives them: a machine's own state.

The stream begins with eight bytes, the length of a list in MessagePack, which has name and size of each file. Then
come the contents of the files, one after the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import IO

import msgspec

from thawd.cluster import channel
from thawd.cluster.links import TICK_S, Links, MayHaveRunError, NotRunError
from thawd.cluster.listening import error_of
from thawd.errors import MachineAwayError
from thawd.wire.response_stream import ResponseStream

QUESTION = "own_state"
"""Name of the question whose answer is such a stream."""
_PART_BYTES = 256 << 10
_LENGTH_BYTES = 8
_MOST_LISTED_BYTES = 64 << 20
_NO_LIMIT = 1 << 62
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,254}(/[A-Za-z0-9_-][A-Za-z0-9._-]{0,254}){0,3}")

_List = list[tuple[str, int]]


class StreamError(Exception):
    """The stream is not that of a machine's own state, or ends too early."""


async def parts(folder: Path) -> AsyncGenerator[bytes]:
    """The stream of all files in a folder, in parts.

    Raises:
        OSError: a file cannot be read.
    """
    files = await asyncio.to_thread(lambda: sorted(path for path in folder.rglob("*") if path.is_file()))
    listed: _List = [(str(path.relative_to(folder)), path.stat().st_size) for path in files]
    head = msgspec.msgpack.encode(listed)
    yield len(head).to_bytes(_LENGTH_BYTES, "big") + head
    for path in files:
        with path.open("rb") as file:
            while part := await asyncio.to_thread(file.read, _PART_BYTES):
                yield part


class Receiving:
    """Writes the files of a stream into a folder, which only its owner can read.

    Args:
        folder: an existing, empty folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._head = bytearray()
        self._waiting: _List | None = None
        self._file: IO[bytes] | None = None
        self._left = 0

    def feed(self, data: bytes) -> None:
        """Take the next part of the stream.

        Raises:
            StreamError: this is no such stream.
            OSError: a file cannot be written.
        """
        if self._waiting is None:
            self._head += data
            length = int.from_bytes(self._head[:_LENGTH_BYTES], "big")
            if length > _MOST_LISTED_BYTES:
                raise StreamError("it does not begin with a list of files")
            if len(self._head) < _LENGTH_BYTES + length:
                return
            self._begin(bytes(self._head[_LENGTH_BYTES : _LENGTH_BYTES + length]))
            data = bytes(self._head[_LENGTH_BYTES + length :])
        view = memoryview(data)
        while view:
            if not self._left and not self._next():
                raise StreamError("more was sent than the list of files says")
            assert self._file is not None
            part = view[: self._left]
            self._file.write(part)
            self._left -= len(part)
            view = view[len(part) :]

    def end(self) -> None:
        """The stream has ended.

        Raises:
            StreamError: something is missing.
            OSError: a file cannot be written.
        """
        if self._waiting is None or self._left or self._next():
            self.close()
            raise StreamError("it has ended too early")
        self.close()

    def close(self) -> None:
        """Close the file that is open."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _begin(self, head: bytes) -> None:
        try:
            listed = msgspec.msgpack.decode(head, type=_List)
        except msgspec.DecodeError:
            raise StreamError("it does not begin with a list of files") from None
        for name, size in listed:
            if not _NAME.fullmatch(name) or size < 0:
                raise StreamError(f"it has a file with the name {name[:80]!r}")
        self._waiting = listed[::-1]

    def _next(self) -> bool:
        """Open the next file that is not empty; returns whether there is one."""
        self.close()
        assert self._waiting is not None
        while self._waiting:
            name, self._left = self._waiting.pop()
            path = self._folder / name
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = path.open("xb")
            path.chmod(0o600)
            if self._left:
                return True
            self.close()
        return False


async def receive(links: Links, folder: Path) -> None:
    """Ask a machine for its own state, and write it into a folder.

    Args:
        links: connections to the machine.
        folder: an existing, empty folder.

    Raises:
        MachineAwayError: the machine cannot be asked, or was lost.
        ThawdError: its answer is an error.
        OSError: a file cannot be written.
    """
    stream, receiving = ResponseStream(limit_bytes=_NO_LIMIT), Receiving(folder)
    loop = asyncio.get_running_loop()
    head = {"question": QUESTION, "arguments": {}}
    asking = loop.create_task(links.call(head, b"", stream, kind=channel.ASK))
    asking.add_done_callback(lambda _: stream.end())
    ticking = loop.create_task(_tick(links))
    try:
        while (data := await stream.take()) is not None:
            receiving.feed(data)
        reply = await asking
        if reply.kind == channel.ERROR:
            raise error_of(reply.head)
        receiving.end()
    except (NotRunError, MayHaveRunError, StreamError) as error:
        raise MachineAwayError(f"the machine {links.peer} did not send its state: {error}") from None
    finally:
        receiving.close()
        for task in (asking, ticking):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task


async def _tick(links: Links) -> None:
    while True:
        await asyncio.sleep(TICK_S)
        links.tick()
