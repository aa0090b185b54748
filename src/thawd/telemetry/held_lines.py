"""Holds lines for a terminal back while pdb has its prompt there (``thawd up --debug``), and prints them afterwards.

A debugged function locks the terminal while its prompt is open. The kernel releases the lock if that process ends.
Source: flock(2).
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

MOST_LINES = 10_000
"""Lines that are held back at most; the oldest of more are left out."""


class HeldLines:
    """Lines for a terminal that other processes lock.

    Args:
        path: path of the terminal.
        write: prints a text on a stream.

    Raises:
        OSError: the terminal cannot be opened.
    """

    def __init__(self, path: str, write: Callable[[TextIO, str], None]) -> None:
        self._device = Path(path).stat().st_rdev
        self._write = write
        self._path = path
        self._fd = _opened(path)
        self._lock = threading.RLock()
        self._held: list[tuple[TextIO, str]] = []
        self._left_out = 0
        self._has_ended = False

    def take(self, stream: TextIO, text: str) -> bool:
        """Print a text now or later. Return False if it is not for the terminal, or nothing is held back any more."""
        if self._has_ended or not self._is_terminal(stream):
            return False
        with self._lock:
            if not self._held:
                try:
                    fcntl.flock(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return self._hold(stream, text)
                except OSError:
                    return False
                try:
                    self._write(stream, text)
                finally:
                    fcntl.flock(self._fd, fcntl.LOCK_UN)
                return True
            if len(self._held) >= MOST_LINES:
                del self._held[0]
                self._left_out += 1
            self._held.append((stream, text))
            return True

    def end(self) -> None:
        """Print what is held back, and hold nothing back from now on."""
        with self._lock:
            self._has_ended = True
            self._print()

    def _hold(self, stream: TextIO, text: str) -> bool:
        try:
            waiting = _opened(self._path)
        except OSError:
            return False
        try:
            threading.Thread(target=self._print_when_unlocked, args=(waiting,), name="held-lines", daemon=True).start()
        except RuntimeError:  # the system allows no more threads
            os.close(waiting)
            return False
        self._held.append((stream, text))
        return True

    def _print_when_unlocked(self, fd: int) -> None:
        """Wait until the terminal is not locked, and print what is held back. Closes `fd`."""
        try:
            fcntl.flock(fd, fcntl.LOCK_SH)
        except OSError:
            pass  # the lines are printed now, because nothing else would print them
        try:
            with self._lock:
                self._print()
        finally:
            os.close(fd)

    def _print(self) -> None:
        held, self._held = self._held, []
        if self._left_out:
            held.insert(
                0, (held[0][0], f"thawd: {self._left_out} lines are left out: a prompt of pdb was open too long")
            )
            self._left_out = 0
        for stream, text in held:
            self._write(stream, text)

    def _is_terminal(self, stream: TextIO) -> bool:
        try:
            return os.fstat(stream.fileno()).st_rdev == self._device
        except (OSError, ValueError):
            return False


def _opened(path: str) -> int:
    return os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
