"""Prints the output of the command line: columns of text, ages. Also handles closed pipes (SIGPIPE).

Commands that print something else, such as `thawd status`, format their output themselves.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

import click

from thawd.cli.table_export import cell


@contextlib.contextmanager
def sigpipe(disposition: signal.Handlers) -> Iterator[None]:
    """Inside the ``with`` block, ignore SIGPIPE or let it end the process, as `disposition` says.

    The kernel sends SIGPIPE to a process that writes to a pipe or connection which its reader has closed.
    """
    before = signal.signal(signal.SIGPIPE, disposition)
    try:
        yield
    finally:
        signal.signal(signal.SIGPIPE, before)


def discard_unwritable_output() -> None:
    """Discard buffered output that cannot be written because the disk is full or the pipe is closed.

    Otherwise Python would try to write it again at exit, fail, and print a message about that.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)


def print_text(rows: list[dict[str, Any]], *, key_name: str) -> None:
    """Print rows as columns, one line each, below a header line."""
    cells = [[_on_one_line(cell) for cell in row] for row in _cells(rows, key_name=key_name)]
    widths = [min(60, max(len(row[i]) for row in cells)) for i in range(len(cells[0]))]
    for row in cells:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _cells(rows: list[dict[str, Any]], *, key_name: str) -> list[list[str]]:
    """Return the names of the columns, then a list of cells for each row. A cell without a value is empty."""
    columns = list(dict.fromkeys([key_name, *(name for row in rows for name in row)]))
    return [columns, *([cell(row.get(name)) for name in columns] for row in rows)]


def _on_one_line(text: str) -> str:
    """Return `text` with line breaks and other unprintable characters escaped as in a literal of Python."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() and c != "\\" else repr(c)[1:-1] for c in text)


def age(seconds: float) -> str:
    """Format an age in days, hours, minutes or seconds: the largest unit that fits at least twice, such as ``3 h``."""
    for unit_s, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:.0f} {unit}"
    return f"{seconds:.0f} s"
