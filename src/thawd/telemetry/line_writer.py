"""Writes whole lines to file descriptors in a thread of its own, so that a slow reader delays nobody.

Each line is written before the next one begins, whatever descriptors they go to: lines of any length stay whole.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque

_MOST_BYTES = 1 << 20


class LineWriter:
    """Writes lines. Before `start` and after `stop`, it writes in the caller's thread.

    Args:
        most_bytes: most bytes that wait to be written; further lines are refused.
    """

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._changed = threading.Condition()
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._waiting_bytes = 0
        self._thread: threading.Thread | None = None
        self._is_stopping = False
        self._is_stuck = False

    @property
    def has_room(self) -> bool:
        """Whether at most a quarter of the room is used, so that lines without which readers can do may be added."""
        return not self._is_stuck and self._waiting_bytes <= self._most_bytes // 4

    def write(self, descriptor: int, line: bytes) -> bool:
        """Write a line. Return False if it was refused, because lines before it are not read."""
        with self._changed:
            if self._thread is None:
                return not self._is_stuck and _write_all(descriptor, line)
            if self._waiting_bytes + len(line) > self._most_bytes and self._waiting:
                return False
            self._waiting.append((descriptor, line))
            self._waiting_bytes += len(line)
            self._changed.notify_all()
        return True

    def start(self) -> None:
        """From now on, write in the thread. If the system allows no thread, continue in the callers' threads."""
        thread = threading.Thread(target=self._run, name="thawd-lines", daemon=True)
        with self._changed:
            self._thread, self._is_stopping = thread, False
        try:
            thread.start()
        except RuntimeError:
            self._thread = None

    def stop(self, within_s: float) -> None:
        """Write what waits, and end the thread. If nobody reads for `within_s` seconds, drop all from now on."""
        thread = self._thread
        if thread is None:
            return
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
        until_s = time.monotonic() + within_s
        thread.join(max(0.0, until_s - time.monotonic()))
        with self._changed:
            self._is_stuck = thread.is_alive()
            self._thread = None

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    if self._is_stopping:
                        return
                    self._changed.wait()
                descriptor, line = self._waiting[0]
            _write_all(descriptor, line)
            with self._changed:
                self._waiting.popleft()
                self._waiting_bytes -= len(line)


def _write_all(descriptor: int, line: bytes) -> bool:
    """Write all of a line, as soon as its reader takes it. Return False if it has no reader."""
    rest = memoryview(line)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:  # another program has made the pipe or terminal non-blocking
            poll = select.poll()
            poll.register(descriptor, select.POLLOUT)
            poll.poll()
        except OSError:
            return False
    return True
