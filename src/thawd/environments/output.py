"""The pipe through which a process's standard output and error reach the function's log."""

from __future__ import annotations

import asyncio
import fcntl
import os
import sys
import termios

from thawd.telemetry.logs.writer import LogStream

# What a pipe usually holds. A process can make its pipe hold 1 MiB (F_SETPIPE_SZ), and so do pages of 64 KiB; pipe(7).
_READ_BYTES = 1 << 16
_NO_BYTES = bytes(4)  # the number 0, as ioctl(2) returns it


class OutputPipe:
    """The platform's end of the pipe for the output of one process.

    While the log's buffer is full, the pipe is not read, so a process that writes too much has to wait. A function that
    floods its log thus slows down only itself.
    """

    def __init__(self, fd: int, stream: LogStream) -> None:
        self._fd = fd
        self._stream = stream
        self._is_read = False

    def open(self) -> None:
        """Start reading the pipe."""
        self._is_read = True
        asyncio.get_running_loop().add_reader(self._fd, self._readable)

    def drain(self) -> None:
        """Read what the pipe contains now. That is everything that was written before this call."""
        if self._fd < 0:
            return
        waiting = fcntl.ioctl(self._fd, termios.FIONREAD, _NO_BYTES)
        if waiting != _NO_BYTES:  # a read of an empty pipe raises an exception, which takes three times as long
            self._read(int.from_bytes(waiting, sys.byteorder))

    def _read(self, size: int = _READ_BYTES) -> None:
        try:
            data = os.read(self._fd, size)
        except BlockingIOError:
            return
        if data:
            self._stream.output(data)
        else:
            self._pause()  # the end of the file: all writers have closed the pipe

    def close(self) -> None:
        """Read the rest and close the pipe. May be called twice."""
        if self._fd >= 0:
            self.drain()
            self._stream.end()
            self._pause()
            os.close(self._fd)
            self._fd = -1

    def _readable(self) -> None:
        self._read()
        if self._stream.log.is_full():
            self._pause()
            self._stream.log.when_flushed(self._resume)

    def _pause(self) -> None:
        if self._is_read:
            self._is_read = False
            asyncio.get_running_loop().remove_reader(self._fd)

    def _resume(self) -> None:
        if self._fd >= 0 and not self._is_read:
            self.open()
