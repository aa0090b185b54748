"""What the command line prints, and how it gets along with pipes: log lines, items of tables, the status.

Owns the looks, and the process's answer to SIGPIPE; asks nobody for anything.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

import click

from thawd.cli.table_export import cell
from thawd.errors import StoreError


@contextlib.contextmanager
def sigpipe(disposition: signal.Handlers) -> Iterator[None]:
    """Another answer to SIGPIPE for a while."""
    before = signal.signal(signal.SIGPIPE, disposition)
    try:
        yield
    finally:
        signal.signal(signal.SIGPIPE, before)


def let_go_of_output() -> None:
    """Give up what a full disk or a closed pipe does not take, or Python complains of it at its end."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


def print_log_lines(lines: list[bytes], *, raw: bool) -> None:
    """Print lines of a log as they are: a function's colours are its own matter."""
    texts = (line.decode(errors="replace") for line in lines)
    shown = (text.split("\t", 2)[-1] if raw else text.replace("\t", " ", 2) for text in texts)
    sys.stdout.write("".join(f"{text}\n" for text in shown))
    sys.stdout.flush()


def item_row(key: str, item: bytes, *, key_name: str) -> dict[str, Any]:
    """What is shown of an item: its key, then its fields; those that would pass for the key get an underscore more.

    Raises:
        StoreError: the item is not a JSON object: something other than thawd wrote it.
    """
    try:
        fields = json.loads(item)
    except ValueError as error:
        raise StoreError(f"the item under the key {key!r} is not JSON ({error}); put it anew") from None
    if not isinstance(fields, dict):
        raise StoreError(f"the item under the key {key!r} is not a JSON object; put it anew")
    return {key_name: key, **{f"{n}_" if n.rstrip("_") == key_name else n: value for n, value in fields.items()}}


def print_text(rows: list[dict[str, Any]], *, key_name: str) -> None:
    """Rows in columns, a line each."""
    cells = [[_on_one_line(cell) for cell in row] for row in _cells(rows, key_name=key_name)]
    widths = [min(60, max(len(row[i]) for row in cells)) for i in range(len(cells[0]))]
    for row in cells:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _cells(rows: list[dict[str, Any]], *, key_name: str) -> list[list[str]]:
    """The header and the rows, each with a cell for every column that any row has."""
    columns = list(dict.fromkeys([key_name, *(name for row in rows for name in row)]))
    return [columns, *([cell(row.get(name)) for name in columns] for row in rows)]


def _on_one_line(text: str) -> str:
    """`text`, with what a terminal would not show as a character escaped as `repr` does."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() and c != "\\" else repr(c)[1:-1] for c in text)


def print_status(document: dict[str, Any]) -> None:
    """The status document, for people."""
    click.echo(
        f"{document['url']}  process {document['pid']}; at most {document['max_environments']} environments and "
        f"{document['memory_mb']} MB; memory limits by {document['memory_limit']}"
    )
    for name, entry in document["functions"].items():
        environments = ", ".join(f"{count} {state}" for state, count in entry["environments"].items())
        click.echo(f"\n{name}: {entry['state']}; {environments}; {entry['waiting']} waiting, {entry['queued']} queued")
        if entry["reason"]:
            click.echo(textwrap.indent(entry["reason"], "  "))
        if entry["start_reason"]:
            click.echo(f"  starts by {entry['start']}: {_obstacles(entry)}")
        rows = [
            (f"{kind} {title}", d)
            for title, kinds in (("start", entry["starts"]), ("invoke", entry["invocations"]))
            for kind, d in kinds.items()
        ]
        if rows:
            click.echo(f"  {'':<12} {'count':>9} {'p50':>11} {'p99':>11} {'max':>11}")
        for title, d in rows:
            times = " ".join(f"{_duration(d[column]):>11}" for column in ("p50_ms", "p99_ms", "max_ms"))
            click.echo(f"  {title:<12} {d['count']:>9,} {times}")
        if (snapshot := entry["snapshot"]) and "id" in snapshot:
            click.echo(f"  snapshot {snapshot['id']}, {snapshot['stored_bytes'] / (1 << 20):,.1f} MiB")
            for dropped in snapshot.get("dropped", ()):
                click.echo(f"  each environment finds ended: {dropped}")
        told = [_counted(entry[counter], *words) for counter, words in _COUNTED.items() if entry[counter]]
        if told:
            click.echo(f"  {', '.join(told)}")


def _obstacles(entry: dict[str, Any]) -> str:
    """Why environments do not start in a faster way: for each way its reason, or the one that all have."""
    ways: dict[str, list[str]] = {}
    for obstacle in entry.get("start_reasons", ()):  # a server of an older release has none
        ways.setdefault(obstacle["reason"], []).append(f"not {_DONE[obstacle['start']]}")
    return "; ".join(f"{', '.join(way)}: {reason}" for reason, way in ways.items()) or str(entry["start_reason"])


_DONE = {"thaw": "thawed", "fork": "forked"}
_COUNTED = {
    "errors": ("error", "errors"),
    "timeouts": ("timeout", "timeouts"),
    "exits": ("exit", "exits"),
    "throttles": ("throttle", "throttles"),
    "init_failures": ("failed init", "failed inits"),
    "fallbacks": ("fallback to a slower start", "fallbacks to a slower start"),
    "destination_failures": ("failed try of a destination", "failed tries of a destination"),
    "dead_letter_errors": ("failed try of a dead-letter queue", "failed tries of a dead-letter queue"),
    "recursive_invocations_dropped": ("invocation dropped as a loop", "invocations dropped as loops"),
    "dead": ("dead event", "dead events"),
}


def _counted(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"


def _duration(value_ms: float) -> str:
    return f"{value_ms:.2f} ms" if value_ms < 1000 else f"{value_ms / 1000:.2f} s"
