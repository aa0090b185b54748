"""Reads a log as a sequence of events. Their positions stay valid when the log is rotated, so the Logs API can page.

Files are read in blocks, forwards or backwards, so memory does not grow with the log. A position consists of a file,
identified by the beginning of its first line, and an offset in that file. So events keep their positions and
identifiers when their file is rotated.
"""

from __future__ import annotations

import calendar
import hashlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

from thawd.telemetry.logs.reader import LogFile, open_files

_BLOCK_BYTES = 256 * 1024
_KEY_BYTES = 256  # at most this many bytes of a file's first line identify the file
# Lines are ordered by time unless the clock was set back. A search by time allows for this much disorder.
_DISORDER_MS = 60_000
_TIME_DIGITS = len("2026-11-20T00:00:00.000Z")


class LogPosition(NamedTuple):
    """Position of the beginning or end of a line.

    Attributes:
        file: identifier of the file, 64 bits.
        offset: offset in the file, bytes.
    """

    file: int
    offset: int


@dataclass(frozen=True, slots=True)
class LogEvent:
    """One line of a log.

    Attributes:
        time_ms: when the line was written, milliseconds since 1970.
        stream: name of the log stream.
        message: the message, without the newline.
        begin: position of the line's first byte.
        end: position after the line's newline.
    """

    time_ms: int
    stream: bytes
    message: bytes
    begin: LogPosition
    end: LogPosition

    @property
    def id(self) -> str:
        """A permanent identifier: 56 decimal digits that sort by time, as in CloudWatch."""
        return f"{self.time_ms:014d}{self.begin.file:020d}{self.begin.offset:022d}"


class _Opened(NamedTuple):
    file: LogFile
    key: int
    size: int
    written_ms: int
    is_newest: bool


class LogEvents:
    """The events that a log contains when it is opened. As a context manager, it closes the files at the end.

    Attributes:
        read_bytes: number of bytes read so far.

    Raises:
        OSError: the log cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.read_bytes = 0
        self._second = b""
        self._second_ms = 0
        files = open_files(path)
        self._files = [_look(file, is_newest=file is files[-1]) for file in files]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for opened in self._files:
            os.close(opened.file.fd)

    @property
    def stored_bytes(self) -> int:
        """Size of the log, bytes."""
        return sum(opened.size for opened in self._files)

    def begin_ms(self) -> int:
        """Return the time of the first event, milliseconds since 1970; 0: there is none."""
        return next((event.time_ms for event in self.forward()), 0)

    def has_stream(self, stream: bytes) -> bool:
        """Return whether the log contains an event of `stream`."""
        return any(event.stream == stream for event in self.forward())

    def forward(self, place: LogPosition | None = None, *, start_ms: int = 0) -> Iterator[LogEvent]:
        """Yield events from `place` on, or all events, oldest first.

        Events from before `start_ms` are skipped where that saves reading them, but some may still be yielded. If
        rotation has removed the file of `place`, the events of all files are yielded.
        """
        index, offset = self._find(place) or (0, 0)
        for number, opened in enumerate(self._files[index:]):
            if opened.written_ms + _DISORDER_MS < start_ms:
                continue
            begin = offset if number == 0 else 0
            if start_ms and begin == 0:
                begin = self._seek(opened, start_ms - _DISORDER_MS)
            for at, line, end in self._lines_from(opened, begin):
                event = self._event(opened, line, at, end)
                if event is not None:
                    yield event

    def backward(self, place: LogPosition | None = None) -> Iterator[LogEvent]:
        """Yield events before `place`, or all events, newest first.

        If rotation has removed the file of `place`, no event is yielded.
        """
        if place is None:
            index = len(self._files) - 1
            offset = self._files[-1].size if self._files else 0
        else:
            index, offset = self._find(place) or (-1, 0)
        while index >= 0:
            opened = self._files[index]
            for at, line, end in self._lines_before(opened, offset):
                event = self._event(opened, line, at, end)
                if event is not None:
                    yield event
            index -= 1
            offset = self._files[index].size

    def _find(self, place: LogPosition | None) -> tuple[int, int] | None:
        if place is not None:
            for index, opened in enumerate(self._files):
                if opened.key == place.file and place.offset <= opened.size:
                    return index, place.offset
        return None

    def _seek(self, opened: _Opened, time_ms: int) -> int:
        """Find by binary search the offset of a line that was written at or shortly before `time_ms`."""
        low, high = 0, opened.size
        while high - low > _BLOCK_BYTES:
            middle = (low + high) // 2
            line = next(self._lines_from(opened, middle, whole=False), None)
            if line is None or line[0] >= high:
                high = middle
                continue
            event = self._event(opened, line[1], line[0], line[2])
            if event is not None and event.time_ms < time_ms:
                low = line[0]
            else:
                high = middle
        return low

    def _lines_from(self, opened: _Opened, offset: int, *, whole: bool = True) -> Iterator[tuple[int, bytes, int]]:
        """Yield begin, text and end of each line from `offset` on. Unless `whole`, `offset` may be inside a line."""
        carry, at = b"", offset
        while at < opened.size:
            block = os.pread(opened.file.fd, min(_BLOCK_BYTES, opened.size - at), at)
            if not block:
                return  # another program truncated the file
            self.read_bytes += len(block)
            begin = at - len(carry)
            at += len(block)
            *lines, carry = (carry + block).split(b"\n")
            for line in lines:
                end = begin + len(line) + 1
                if whole:
                    yield begin, line, end
                whole = True
                begin = end
        if carry and whole and not opened.is_newest:
            yield at - len(carry), carry, at  # this line was cut off because the disk was full

    def _lines_before(self, opened: _Opened, offset: int) -> Iterator[tuple[int, bytes, int]]:
        carry, at = b"", offset
        is_end = True
        while at > 0:
            begin = max(0, at - _BLOCK_BYTES)
            block = os.pread(opened.file.fd, at - begin, begin) + carry
            self.read_bytes += at - begin
            at = begin
            if at == 0:
                head, body = b"", block
            else:
                head, newline, body = block.partition(b"\n")
                if not newline or not body:
                    carry = block
                    continue
                head += newline
            carry = head
            lines = body.split(b"\n")
            end = begin + len(head) + len(body)
            rest = lines.pop()
            if rest and is_end and not opened.is_newest:
                yield end - len(rest), rest, end
            end -= len(rest)
            is_end = False
            for line in reversed(lines):
                yield end - len(line) - 1, line, end
                end -= len(line) + 1

    def _event(self, opened: _Opened, line: bytes, begin: int, end: int) -> LogEvent | None:
        """Return the event in `line`; None if it holds none, for example because a full disk cut the line off."""
        parts = line.split(b"\t", 2)
        if len(parts) != 3 or len(parts[0]) != _TIME_DIGITS:
            return None
        written, stream, message = parts
        try:
            if written[:19] != self._second:
                self._second_ms = calendar.timegm(time.strptime(written[:19].decode(), "%Y-%m-%dT%H:%M:%S")) * 1000
                self._second = written[:19]
            time_ms = self._second_ms + int(written[20:23])
        except ValueError:
            return None
        return LogEvent(time_ms, stream, message, LogPosition(opened.key, begin), LogPosition(opened.key, end))


def _look(file: LogFile, *, is_newest: bool) -> _Opened:
    there = os.fstat(file.fd)
    beginning = os.pread(file.fd, _KEY_BYTES, 0).partition(b"\n")[0]
    key = int.from_bytes(hashlib.blake2b(beginning, digest_size=8).digest(), "big")
    return _Opened(file, key, there.st_size, there.st_mtime_ns // 1_000_000, is_newest)
