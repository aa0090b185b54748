"""Lines for the operator who started the server. Never raises: a terminal that has gone away ends nothing."""

from __future__ import annotations

import sys
from typing import TextIO


def say(text: str) -> None:
    """Tell the operator something, on standard output."""
    _write(sys.stdout, text)


def complain(text: str) -> None:
    """Tell the operator of something wrong, on standard error."""
    _write(sys.stderr, text)


def _write(stream: TextIO | None, text: str) -> None:
    if stream is None:  # a process without standard streams
        return
    try:
        stream.write(f"{text}\n")  # in one piece: others tell the operator something, too
        stream.flush()
    except (OSError, ValueError):
        return
