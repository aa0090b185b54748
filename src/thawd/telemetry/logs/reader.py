"""Reads a function's log while it is written and rotated: first its last lines, then every new line.

`LogReader` keeps files open until it has read them, so that no lines are lost when `thawd.telemetry.logs.writer`
rotates the files. It recognises newer files by their inodes. It works whether or not the server runs.
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
"""Highest number of files that a slow reader keeps open. An open file occupies the disk even after rotation has removed
its name, so a reader that would keep more files skips some and reports that."""

_BLOCK_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class LogFile:
    """An open file of a log. While it is open, no other file can have the same identity.

    Attributes:
        fd: file descriptor.
        identity: device and inode.
        number: place among the log's files when it was opened: 0 for the newest file, 1 for the one before it.
    """

    fd: int
    identity: tuple[int, int]
    number: int


class LogReader:
    """Reads a log from a position, at first its end. As a context manager, it closes the files at the end.

    Methods never wait for new lines. All methods raise `OSError` when a file cannot be read.

    Args:
        path: the newest file of the log; it need not exist yet.
        report: called with a message when lines may be missing.
    """

    def __init__(self, path: Path, *, report: Callable[[str], None]) -> None:
        self._path = path
        self._report = report
        # Oldest first: the file being read, then newer ones. The last one is the newest known file.
        self._held: deque[LogFile] = deque()
        self._position = 0  # offset in the file being read, bytes
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
        """Return the last `count` lines written so far, without newlines. `read` continues after them.

        Files are read backwards, only as far as needed.

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
        """Return some of the next lines, in order, without newlines. The list is empty if there is no new line."""
        self._look()
        while self._held:
            # `_look` has opened newer files before this read. If there is one, this file is complete: its end is final.
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
                if self._unfinished:  # cut off because the disk was full: the next file starts with a new line
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
            # The newest known file is gone: rotated away, or removed by hand. Later files are recognised by the time of
            # their last write, which rotation does not change. The file with number 0 is a later one in any case.
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
    """Open a consistent set of the files of the log at `path`, oldest first. The caller closes them.

    Rotation only moves a file from a lower number to a higher one, so opening them from the lowest number up misses
    none. Their order is certain only if each name still refers to the same file afterwards. If not, the log was rotated
    in the meantime, and the files are opened again.

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
    """Return the last `count` complete lines in a file's first `size` bytes, and the bytes after the last newline."""
    blocks: deque[bytes] = deque()
    newlines = 0
    at = size
    # Find one newline more than `count`: the first of the lines to return begins after it.
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
