"""Lines for a terminal wait while another process has it for a prompt."""

from __future__ import annotations

import fcntl
import os
import pty
import select
from collections.abc import Iterator
from typing import TextIO

import pytest

from thawd.telemetry import held_lines
from thawd.telemetry.held_lines import HeldLines


class Terminal:
    """A terminal: `stream` writes on it, `locked` locks it as a debugged function does."""

    def __init__(self) -> None:
        self._ours, theirs = pty.openpty()
        self.path = os.ttyname(theirs)
        self.stream = os.fdopen(theirs, "w")
        self._fd = os.open(self.path, os.O_RDWR | os.O_NOCTTY)

    def lock(self) -> None:
        fcntl.flock(self._fd, fcntl.LOCK_EX)

    def unlock(self) -> None:
        fcntl.flock(self._fd, fcntl.LOCK_UN)

    def shows(self, end: str) -> str:
        """Wait until it shows a text that ends so, and return it."""
        text = ""
        while not text.endswith(end):
            assert select.select([self._ours], [], [], 60)[0], f"the terminal shows {text!r}"
            text += os.read(self._ours, 4096).decode()
        return text

    def is_silent(self) -> bool:
        return not select.select([self._ours], [], [], 0)[0]

    def close(self) -> None:
        for fd in (self._ours, self._fd):
            os.close(fd)
        self.stream.close()


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    made = Terminal()
    yield made
    made.close()


def write(stream: TextIO, text: str) -> None:
    stream.write(f"{text}\n")
    stream.flush()


def test_lines_wait_for_the_end_of_a_prompt_and_keep_their_order(terminal: Terminal) -> None:
    lines = HeldLines(terminal.path, write)
    assert lines.take(terminal.stream, "before")
    assert terminal.shows("before\r\n") == "before\r\n"
    terminal.lock()
    for number in range(3):
        assert lines.take(terminal.stream, str(number))
    assert terminal.is_silent()
    terminal.unlock()
    assert terminal.shows("2\r\n") == "0\r\n1\r\n2\r\n"
    lines.take(terminal.stream, "after")
    assert terminal.shows("after\r\n") == "after\r\n"


def test_a_server_that_stops_prints_what_waits_although_the_prompt_is_open(terminal: Terminal) -> None:
    lines = HeldLines(terminal.path, write)
    terminal.lock()
    assert lines.take(terminal.stream, "held")
    lines.end()
    assert terminal.shows("held\r\n") == "held\r\n"
    assert not lines.take(terminal.stream, "now")  # the console prints it itself
    terminal.unlock()


def test_of_too_many_lines_the_oldest_are_left_out_and_a_line_counts_them(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_lines, "MOST_LINES", 2)
    lines = HeldLines(terminal.path, write)
    terminal.lock()
    for number in range(5):
        assert lines.take(terminal.stream, str(number))
    terminal.unlock()
    assert terminal.shows("4\r\n").startswith("thawd: 3 lines are left out: ")


def test_lines_for_a_pipe_do_not_wait(terminal: Terminal) -> None:
    lines = HeldLines(terminal.path, write)
    terminal.lock()
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as stream:
        assert not lines.take(stream, "a line")
    os.close(reading)
    terminal.unlock()
