"""The channels between the platform and one process, and the frames that travel over them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from thawd.wire import frames

_ANY_HEADS: Mapping[int, Callable[[bytes], Any]] = {}


@dataclass(slots=True)
class Channels:
    """The descriptors of both ends of the channels between the platform and one process.

    Attributes:
        control: platform's end of the invocation channel, non-blocking.
        services: platform's end of the channel for `thawd.table` and `thawd.bucket`, non-blocking.
        lifeline: platform's (write) end of a pipe; the kernel kills the process when this end closes.
        output: platform's (read) end of the log pipe, non-blocking.
        process_ends: the descriptors of the process's ends, in this order: control, services, lifeline, output.
    """

    control: socket.socket
    services: socket.socket
    lifeline: int
    output: int
    process_ends: tuple[int, int, int, int]

    @classmethod
    def open(cls) -> Channels:
        """Create both ends of all four channels.

        Raises:
            OSError: no descriptors left.
        """
        with contextlib.ExitStack() as undo:
            control, their_control = (undo.enter_context(end) for end in socket.socketpair())
            services, their_services = (undo.enter_context(end) for end in socket.socketpair())
            their_lifeline, lifeline = os.pipe()
            undo.callback(os.close, their_lifeline)
            undo.callback(os.close, lifeline)
            output, their_output = os.pipe()
            undo.pop_all()
        control.setblocking(False)
        services.setblocking(False)
        os.set_blocking(output, False)
        process_ends = (their_control.detach(), their_services.detach(), their_lifeline, their_output)
        return cls(control, services, lifeline, output, process_ends)

    def close_process_ends(self) -> None:
        """Close the platform's descriptors of the process's ends. Call it when the process has its own descriptors."""
        process_ends, self.process_ends = self.process_ends, (-1, -1, -1, -1)
        for fd in process_ends:
            if fd >= 0:
                os.close(fd)

    def close(self) -> None:
        """Close all descriptors that are still open here, because no process was started. May be called twice."""
        self.control.close()
        self.services.close()
        for fd in (self.lifeline, self.output):
            if fd >= 0:
                os.close(fd)
        self.lifeline = self.output = -1
        self.close_process_ends()


async def attach(protocol: asyncio.Protocol, sock: socket.socket) -> None:
    """Let a protocol read and write a connected socket. If that fails, or the caller is cancelled, close the socket."""
    try:
        await asyncio.get_running_loop().create_unix_connection(lambda: protocol, sock=sock)
    except BaseException:
        sock.close()
        raise


class FrameProtocol(asyncio.Protocol):
    """Splits the bytes from a socket into frames and passes each to `on_frame`; calls `on_lost` once, at the end.

    Args:
        on_frame: gets kind, decoded head and body of each frame.
        on_lost: called at the end.
        decoders: by kind of frame, the function that decodes and checks the head; other heads can be any JSON value.
    """

    def __init__(
        self,
        on_frame: Callable[[int, Any, bytes], None],
        on_lost: Callable[[], None],
        *,
        decoders: Mapping[int, Callable[[bytes], Any]] = _ANY_HEADS,
    ) -> None:
        self.transport: asyncio.Transport | None = None
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._decoders = decoders
        self._decoder = frames.Decoder()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        """Called by asyncio."""
        self._decoder.feed(data)
        try:
            while (frame := self._decoder.take_raw()) is not None:
                kind, head, body = frame
                self._on_frame(kind, self._decoders.get(kind, frames.decode_head)(head), body)
        except (frames.WireError, msgspec.MsgspecError, KeyError, TypeError, ValueError, RecursionError):
            # The runtime sends only valid frames, so user code has written to the runtime's descriptor. Close the
            # connection, because user code could forge later frames, too.
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio."""
        self._on_lost()

    def send(self, kind: int, head: bytes, body: bytes = b"") -> None:
        """Send one frame; `head` is JSON text. Do nothing if the channel is closed: nobody would read the frame."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(frames.HEADER.pack(len(head), len(body), kind) + head + body)

    def is_drained(self) -> bool:
        """Return whether everything that has arrived has been passed on."""
        return self._decoder.is_empty()

    def pause(self) -> None:
        """Stop reading: a process that writes more than the socket's buffer can hold then blocks."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()

    def resume(self) -> None:
        """Continue to read after `pause`."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    def finish(self) -> None:
        """Send no more frames: the process reads the end of its channel, and can still send."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write_eof()

    def close(self) -> None:
        """Drop the connection."""
        if self.transport is not None:
            self.transport.abort()
