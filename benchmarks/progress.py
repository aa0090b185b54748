"""Prints to standard error which benchmark, step and round is running.

Each step has a line. For a step that takes longer than `_REPEAT_S` seconds, another line is printed after each such
period. The figures go to standard output, so that they can be redirected without these lines.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator

_REPEAT_S = 15.0
_BEGUN_S = time.monotonic()


class _Step:
    """The step that is running. The program has one such object, `_now`."""

    def __init__(self) -> None:
        self.part = ""
        self.text = ""
        self.begun_s = _BEGUN_S
        self.changed = threading.Event()
        self.repeats = False


_now = _Step()


def part(text: str) -> None:
    """Begin a benchmark or a workload. The lines of its steps begin with `text`."""
    _now.part = text
    step("begins")


def step(text: str) -> None:
    """Begin a step and print its name."""
    _now.text, _now.begun_s = text, time.monotonic()
    _say(text)
    _now.changed.set()
    if not _now.repeats:
        _now.repeats = True
        threading.Thread(target=_repeat, name="progress", daemon=True).start()


def rounds(count: int, what: str = "round") -> Iterator[int]:
    """Yield the numbers from 0 to `count` - 1, and begin a step for each."""
    for number in range(count):
        step(f"{what} {number + 1} of {count}")
        yield number


def _repeat() -> None:
    while True:
        if _now.changed.wait(_REPEAT_S):
            _now.changed.clear()
        else:
            _say(f"{_now.text}, for {time.monotonic() - _now.begun_s:.0f} s now")


def _say(text: str) -> None:
    where = f"{_now.part}: " if _now.part else ""
    print(f"[{time.monotonic() - _BEGUN_S:5.0f} s] {where}{text}", file=sys.stderr, flush=True)
