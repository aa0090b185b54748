"""Prints lines for the operator of the server. Never raises: a closed terminal must not end the server."""

from __future__ import annotations

import os
import select
import shutil
import sys
from collections import deque
from typing import TextIO

NARROW = 80
"""The width of a line of `fit`, in columns, unless the terminal is wider."""
PIPE_BYTES = 4096
"""Bytes that a pipe takes without waiting if it takes any."""
_CODES = {"red": 31, "green": 32, "yellow": 33, "cyan": 36, "dim": 2, "bold": 1}
# Those that can control a terminal; a tab cannot.
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if code != 0x09}
_is_quiet = False
# The texts that were printed last, each with whether it was for standard error.
_printed: deque[tuple[bool, str]] = deque(maxlen=100)


def be_quiet(is_quiet: bool = True) -> None:
    """From now on, print only lines about problems."""
    global _is_quiet  # noqa: PLW0603 - a process has one console
    _is_quiet = is_quiet


def is_quiet() -> bool:
    """Whether only lines about problems are printed."""
    return _is_quiet


def say(text: str) -> None:
    """Print a line on standard output, unless the console is quiet."""
    if not _is_quiet:
        _write(sys.stdout, text)


def complain(text: str) -> None:
    """Print a line about a problem on standard error."""
    _write(sys.stderr, text)


def has_printed(lines: str) -> bool:
    """Whether these lines, each with its line break, were printed lately, one after the other.

    Between them may be lines on standard error, as if only standard output were read.
    """
    printed = _printed.copy()
    return any(
        lines in "".join(f"{text}\n" for is_problem, text in printed if with_problems or not is_problem)
        for with_problems in (True, False)
    )


def coloured(text: str, colour: str) -> str:
    """Return `text` in a colour if standard output is a terminal that has colours; else unchanged.

    Source: no-color.org for ``NO_COLOR``; ``FORCE_COLOR`` asks for colours where there is no terminal.
    """
    return f"\x1b[{_CODES[colour]}m{text}\x1b[0m" if has_colours(sys.stdout) else text


def has_colours(stream: TextIO | None) -> bool:
    """Whether text on `stream` may be coloured."""
    if stream is None or os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    try:
        return stream.isatty() and os.environ.get("TERM") != "dumb"
    except ValueError:
        return False  # the stream is closed


def is_terminal() -> bool:
    """Whether standard output is a terminal, on which somebody waits for what is slow."""
    try:
        return sys.stdout is not None and sys.stdout.isatty()
    except ValueError:
        return False  # the stream is closed


def fit(text: str) -> str:
    """Return `text` cut to the width of the terminal; to 80 columns if it is narrower, or if there is none."""
    width = max(NARROW, shutil.get_terminal_size((NARROW, 24)).columns)
    return text if len(text) <= width else text[: width - 1] + "…"


def harmless(text: str) -> str:
    """Return `text` with its control characters escaped: a client's text must not control the operator's terminal."""
    return text.translate(_CONTROLS)


def takes_lines() -> bool:
    """Whether `say` can print up to `PIPE_BYTES` now without waiting.

    It would wait while a terminal is stopped with Ctrl-S, or while the reader of a pipe does not read, as ``less``.

    Source: pipe(7), "PIPE_BUF"; poll(2), "POLLOUT".
    """
    try:
        looked = select.poll()
        looked.register(sys.stdout.fileno(), select.POLLOUT)
        return bool(looked.poll(0))
    except (AttributeError, OSError, ValueError):
        return True  # there is no descriptor, or it is closed: `say` does not wait


def _write(stream: TextIO | None, text: str) -> None:
    if stream is None:  # the process was started without standard streams
        return
    _printed.append((stream is sys.stderr, text))
    try:
        stream.write(f"{text}\n")  # in one call, so that lines of several threads do not mix
        stream.flush()
    except (OSError, ValueError):
        return
