"""Writes functions' logs: a file for each log group. A line is a time, a log stream and a message, separated by tabs.

`FunctionLog` writes the handler's output and Lambda's START, END and REPORT lines. It collects lines and writes them
every `FLUSH_S`, so that not every line needs a system call. Files are rotated when they reach a limit, so that logs do
not grow without limit.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from thawd.telemetry.console import complain

FLUSH_S = 0.05
# If more than this is unwritten, the platform reads no further output of the log's environments until the next flush.
# This limits a log to about 20 MB a second.
MAX_PENDING_BYTES = 1 << 20
KEPT_FILES = 3  # rotated files of a log, besides the newest file
MAX_LINE_BYTES = 256 * 1024  # CloudWatch's limit for one event


class FunctionLog:
    """The log of one log group: the log of one function, or of the functions that share the group.

    Lines that cannot be written, for example because the disk is full, are dropped with one message on standard error:
    an invocation must not fail because its log cannot be stored.

    Args:
        path: the newest file of the log.
        max_bytes: size at which the file is rotated.
        on_stored: called with the lines that have just been written, as they are in the file.
    """

    def __init__(self, path: Path, *, max_bytes: int, on_stored: Callable[[bytes], None] = lambda lines: None) -> None:
        self.path = path
        self._on_stored = on_stored
        self._max_bytes = max_bytes
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._when_flushed: list[Callable[[], None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._dropping = False
        self._second = -1
        self._second_text = b""
        self._now_ms = -1
        self._now_text = b""

    def write(self, stream: bytes, message: bytes) -> None:
        """Add one line. `message` must not contain a newline."""
        now_ms = int(time.time() * 1000)
        if now_ms != self._now_ms:
            self._set_now(now_ms)
        self._add(b"%b%b\t%b\n" % (self._now_text, stream, message))

    def write_lines(self, stream: bytes, lines: bytes) -> None:
        """Add several lines. They are separated by newlines in `lines`, which must not end with one."""
        now_ms = int(time.time() * 1000)
        if now_ms != self._now_ms:
            self._set_now(now_ms)
        prefix = b"%b%b\t" % (self._now_text, stream)
        self._add(b"%b%b\n" % (prefix, lines.replace(b"\n", b"\n" + prefix)))

    def is_full(self) -> bool:
        """Return whether callers should add no lines until the next flush; see `when_flushed`."""
        return self._pending_bytes > MAX_PENDING_BYTES

    def when_flushed(self, proceed: Callable[[], None]) -> None:
        """Call `proceed` once, after the next flush."""
        self._when_flushed.append(proceed)

    def _set_now(self, now_ms: int) -> None:
        """Set the time of the lines that are added now, milliseconds since the epoch."""
        second, ms = divmod(now_ms, 1000)
        if second != self._second:
            self._second = second
            self._second_text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second)).encode()
        self._now_ms = now_ms
        self._now_text = b"%b.%03dZ\t" % (self._second_text, ms)

    def _add(self, data: bytes) -> None:
        self._pending.append(data)
        self._pending_bytes += len(data)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_S, self.flush)

    def flush(self) -> None:
        """Write the collected lines."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        data = b"".join(self._pending)
        self._pending.clear()
        self._pending_bytes = 0
        proceed, self._when_flushed = self._when_flushed, []
        try:
            if data:
                self._store(data)
        finally:
            for callback in proceed:
                callback()

    def _store(self, data: bytes) -> None:
        try:
            self._append(data)
            self._dropping = False
            self._on_stored(data)
        except OSError as error:
            if not self._dropping:
                complain(f"thawd: log lines of {self.path.stem} are lost: {error}")
            self._dropping = True

    def _append(self, data: bytes) -> None:
        fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            size = os.fstat(fd).st_size
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
        finally:
            os.close(fd)
        if size + len(data) > self._max_bytes:
            self._rotate()

    def _rotate(self) -> None:
        for number in range(KEPT_FILES - 1, 0, -1):
            older = rotated(self.path, number)
            if older.exists():
                older.replace(rotated(self.path, number + 1))
        self.path.replace(rotated(self.path, 1))


class LogStream:
    """Cuts the output of one execution environment into lines. Can also keep the last bytes of the output (`LogTail`).

    Attributes:
        log: the log that the stream belongs to.
        name: Lambda's log stream name, for example ``2026/11/20/[$LATEST]5a1c…``.
    """

    def __init__(self, log: FunctionLog, *, version: str, identifier: str, owner: str = "") -> None:
        self.name = f"{datetime.now(UTC):%Y/%m/%d}/{owner}[{version}]{identifier}"
        self.log = log
        self._stream = self.name.encode()
        self._partial = b""
        self._tails: list[LogTail] = []

    def begin_tail(self, limit_bytes: int) -> LogTail:
        """From now on, keep the last `limit_bytes` of the output in the returned tail, until the tail's `end`."""
        self.end()
        tail = LogTail(limit_bytes, on_end=self._tails.remove)
        self._tails.append(tail)
        return tail

    def output(self, data: bytes) -> None:
        """Add bytes that the function wrote. They may begin and end inside a line."""
        self._keep(data)
        lines, newline, self._partial = (self._partial + data).rpartition(b"\n")
        if newline:
            if len(lines) <= MAX_LINE_BYTES:
                self.log.write_lines(self._stream, lines)
            else:
                for line in lines.split(b"\n"):
                    self._write(line)
        while len(self._partial) > MAX_LINE_BYTES:
            self._write(self._partial[:MAX_LINE_BYTES])
            self._partial = self._partial[MAX_LINE_BYTES:]

    def end(self) -> None:
        """End an unfinished line."""
        if self._partial:
            self._keep(b"\n")
            self._write(self._partial)
            self._partial = b""

    def _write(self, line: bytes) -> None:
        """Write a line. If it is longer than one event may be, write it in pieces."""
        for at in range(0, max(len(line), 1), MAX_LINE_BYTES):
            self.log.write(self._stream, line[at : at + MAX_LINE_BYTES])

    def line(self, *texts: str) -> None:
        """Add lines from the platform. An unfinished line of the function is ended first."""
        if self._partial:
            self.end()
        data = "\n".join(texts).encode()
        if self._tails:
            self._keep(data + b"\n")
        if len(texts) == 1:
            self.log.write(self._stream, data)
        else:
            self.log.write_lines(self._stream, data)

    def _keep(self, data: bytes) -> None:
        for tail in self._tails:
            tail.add(data)


class LogTail:
    """The last bytes of what was written to a log stream since the tail was made.

    Args:
        limit_bytes: most bytes to keep.
        on_end: called once when the tail ends.
    """

    def __init__(self, limit_bytes: int, *, on_end: Callable[[LogTail], None]) -> None:
        self._limit_bytes = limit_bytes
        self._on_end: Callable[[LogTail], None] | None = on_end
        self._kept = bytearray()

    def add(self, data: bytes) -> None:
        """Add bytes, and drop the first ones if there are too many."""
        self._kept += data
        if len(self._kept) > 4 * self._limit_bytes:
            del self._kept[: -self._limit_bytes]

    def end(self) -> bytes:
        """Return the bytes, and keep no more."""
        if self._on_end is not None:
            self._on_end(self)
            self._on_end = None
        return bytes(self._kept[-self._limit_bytes :])


def rotated(path: Path, number: int) -> Path:
    """Return the path of the file that was the newest one `number` rotations ago."""
    return path.with_name(f"{path.name}.{number}")


def read_lines(path: Path) -> Iterator[bytes]:
    """Yield all lines that are kept, oldest first, including those in rotated files."""
    for file in [*(rotated(path, number) for number in range(KEPT_FILES, 0, -1)), path]:
        try:
            with file.open("rb") as lines:
                yield from lines
        except FileNotFoundError:
            continue
