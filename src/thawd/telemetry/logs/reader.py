"""Reads a function's log while it is written and rotated: first its end, then every new line.

`LogReader` keeps unread files open, so that a rotation loses none of their lines, and finds newer files by their
inodes. It works whether the server runs or not. `thawd.telemetry.logs.writer` decides how files rotate.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from thawd.telemetry.logs.writer import KEPT_FILES, rotated

MAX_HELD = 2 * (KEPT_FILES + 1)
"""Limit of files that a slow reader keeps on the disk; beyond it the reader skips files and reports that."""

_BLOCK_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class LogFile:
    """An open file of a log. While it is open, no other file has its identity.

    Attributes:
        fd: descriptor of the open file.
        identity: device and inode.
        number: number of rotations since it was the newest file, at the time of opening.
    """

    fd: int
    identity: tuple[int, int]
    number: int


class LogReader:
    """A position in a log, at first its end. A context manager, which closes the files.

    Reading never waits. All methods raise `OSError` when a file cannot be read.

    Args:
        path: the newest file of the log; it need not exist yet.
        report: called with a text when lines are missing.
    """

    def __init__(self, path: Path, *, report: Callable[[str], None]) -> None:
        self._path = path
        self._report = report
        # Oldest first: the file being read, then the files after it. The last is the newest known file.
        self._held: deque[LogFile] = deque()
        self._position = 0  # in the first of them, bytes
        self._unfinished = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        while self._held:
            os.close(self._held.popleft().fd)

    @property
    def exists(self) -> bool:
        """Whether the log has had a file so far."""
        return bool(self._held)

    def start(self, count: int, *, unfinished: bool = False) -> list[bytes]:
        """The last `count` lines written so far, without newlines; `read` continues behind them.

        Files are read backwards, no further than needed.

        Args:
            count: number of lines.
            unfinished: whether a line without its newline counts as a line.
        """
        lines: deque[bytes] = deque()
        files = open_files(self._path)
        try:
            for file in reversed(files):
                size = os.fstat(file.fd).st_size
                found, rest = _last_lines(file.fd, size, count - len(lines))
                if file is files[-1]:
                    self._position, self._unfinished = size, rest
                if rest and (unfinished or file is not files[-1]):
                    found.append(rest)
                lines.extendleft(reversed(found))
                if len(lines) >= count:
                    break
        finally:
            self._held.extend(files[-1:])
            for file in files[:-1]:
                os.close(file.fd)
        return list(lines)[-count:] if count else []

    def read(self) -> list[bytes]:
        """Some of the next lines, without newlines, in order; empty when no new line was written."""
        self._look()
        while self._held:
            # `_look` comes before the read: a file that is followed by another one is complete, so its end is final.
            data = os.pread(self._held[0].fd, _BLOCK_BYTES, self._position)
            if data:
                self._position += len(data)
                *lines, self._unfinished = (self._unfinished + data).split(b"\n")
                if lines:
                    return lines
                self._look()
            elif len(self._held) > 1:
                os.close(self._held.popleft().fd)
                self._position = 0
                if self._unfinished:  # a full disk cut this line off: the next file begins with a new line
                    line, self._unfinished = self._unfinished, b""
                    return [line]
            elif os.fstat(self._held[0].fd).st_size < self._position:
                self._position, self._unfinished = 0, b""  # another program truncated the file
            else:
                break
        return []

    def _look(self) -> None:
        """Open the files that are newer than the open ones."""
        if not self._held:
            self._held.extend(open_files(self._path))
            return
        newest = self._held[-1]
        if _identity(self._path) == newest.identity:
            return
        files = open_files(self._path)
        places = [file.identity for file in files]
        if newest.identity in places:
            newer = files[places.index(newest.identity) + 1 :]
        else:
            # The newest known file is gone. Older ones may still exist if it was removed by hand. Renaming keeps the
            # time of the last write, and the current newest file is newer in any case.
            written_ns = os.fstat(newest.fd).st_mtime_ns
            newer = [f for f in files if f.number == 0 or os.fstat(f.fd).st_mtime_ns >= written_ns]
            if newer:
                self._report_missing()
        for file in files:
            if file not in newer:
                os.close(file.fd)
        self._held.extend(newer)
        if len(self._held) > MAX_HELD:
            while len(self._held) > MAX_HELD:
                os.close(self._held[1].fd)
                del self._held[1]
            self._report_missing()

    def _report_missing(self) -> None:
        self._report(
            f"lines of {self._path.name} may be missing here: they were rotated away before they could be read"
        )


def open_files(path: Path) -> list[LogFile]:
    """Open the files of the log at `path`, oldest first, as they were at one moment; the caller closes them.

    Files only move from a lower number to a higher one, so opening them from the lowest number up misses none. Their
    order is certain only if each name still stands for the same file afterwards. Otherwise the log was rotated
    meanwhile, and the files are opened again.

    Raises:
        OSError: a file cannot be read.
    """
    while True:
        files: list[LogFile] = []
        try:
            for number, name in _names(path):
                try:
                    fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
                except FileNotFoundError:
                    continue
                there = os.fstat(fd)
                files.append(LogFile(fd, (there.st_dev, there.st_ino), number))
            now = [identity for _, name in _names(path) if (identity := _identity(name)) is not None]
        except OSError:
            _close(files)
            raise
        if [file.identity for file in files] == now:
            return files[::-1]
        _close(files)


def _names(path: Path) -> Iterator[tuple[int, Path]]:
    for number in range(KEPT_FILES + 1):
        yield number, rotated(path, number) if number else path


def _last_lines(fd: int, size: int, count: int) -> tuple[list[bytes], bytes]:
    """The last `count` complete lines of the first `size` bytes of a file, and the bytes behind the last newline."""
    blocks: deque[bytes] = deque()
    newlines = 0
    at = size
    # One newline more than lines, because it ends the line before them.
    while at > 0 and newlines <= count:
        begin = max(0, at - _BLOCK_BYTES)
        block = os.pread(fd, at - begin, begin)
        newlines += block.count(b"\n")
        blocks.appendleft(block)
        at = begin
    *lines, rest = b"".join(blocks).split(b"\n")
    return lines[-count:] if count else [], rest


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        there = path.stat()
    except FileNotFoundError:
        return None
    return there.st_dev, there.st_ino


def _close(files: list[LogFile]) -> None:
    for file in files:
        os.close(file.fd)
