"""Prints lines for the operator of the server. Never raises: a closed terminal must not end the server."""

from __future__ import annotations

import sys
from typing import TextIO


def say(text: str) -> None:
    """Print a line on standard output."""
    _write(sys.stdout, text)


def complain(text: str) -> None:
    """Print a line about a problem on standard error."""
    _write(sys.stderr, text)


def _write(stream: TextIO | None, text: str) -> None:
    if stream is None:  # the process was started without standard streams
        return
    try:
        stream.write(f"{text}\n")  # in one call, so that lines of several threads do not mix
        stream.flush()
    except (OSError, ValueError):
        return
