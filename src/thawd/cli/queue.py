"""The command ``thawd queue``: show the state of the event queue, by function."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from thawd.cli.exits import fail
from thawd.cli.machines import Cluster, cluster_of, machine_option
from thawd.cli.options import config_option, examples, load
from thawd.cli.output import age, print_text
from thawd.cli.queue_answers import ask
from thawd.errors import ThawdError

if TYPE_CHECKING:
    from thawd.config import Settings

_WATCH_S = 1.0
_CLEAR = "\x1b[H\x1b[2J"


@click.command(
    epilog=examples("thawd queue --watch", "thawd queue --machine b              # one machine of a cluster")
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--watch", is_flag=True, help="Print the state again every second, until Ctrl-C.")
@machine_option
@config_option
def queue(as_json: bool, watch: bool, machine: str | None, config_path: Path) -> None:
    """Show the queue of asynchronous events, by function.

    The columns count events. "queued" events wait to run, perhaps for an environment, and "oldest" is the age of the
    oldest of them. "running" events have an environment. "delivering" events have run, and their outcome has not been
    delivered to its destination yet. "dead" events are dead letters; see `thawd dead`. "in/s" (accepted events) and
    "done/s" are averages of the last minute, and 0 if no server runs. "accepted", "done", "retried" and "buried" (dead-
    lettered) count all events since the data folder was created.

    In a cluster, each machine has a queue, and the output has a row for each function on each machine.
    """
    settings = load(config_path)
    cluster = cluster_of(settings, machine)
    try:
        with contextlib.suppress(KeyboardInterrupt) if watch else contextlib.nullcontext():
            _show_queue(settings, cluster, as_json=as_json, is_watched=watch)
            while watch:
                time.sleep(_WATCH_S)
                _show_queue(settings, cluster, as_json=as_json, is_watched=True)
    except ThawdError as error:
        fail(str(error))


def _show_queue(settings: Settings, cluster: Cluster | None, *, as_json: bool, is_watched: bool) -> None:
    answers = None if cluster is None else cluster.ask("queue")
    if answers is None:
        document = ask(settings, "/_thawd/queue", None, lambda view: view.overview())
    else:
        document = {"machines": answers.documents, "away": answers.away}
    if is_watched and sys.stdout.isatty():
        click.echo(_CLEAR, nl=False)
    _print_queue(document, as_json=as_json, on_one_line=is_watched)
    if answers is not None and not as_json:
        answers.warn_away()
    sys.stdout.flush()


def _print_queue(document: dict[str, Any], *, as_json: bool, on_one_line: bool) -> None:
    if as_json:
        click.echo(json.dumps(document, indent=None if on_one_line else 2))
        return
    rows = [
        {"function": row.pop("function"), **({} if machine is None else {"machine": machine}), **row}
        for machine, each in sorted(document.get("machines", {None: document}).items())
        for row in (_queue_row(name, entry) for name, entry in each["functions"].items())
    ]
    if not rows:
        click.echo("no asynchronous events so far")
        return
    print_text(sorted(rows, key=lambda row: str(row["function"])), key_name="function")


def _queue_row(name: str, entry: dict[str, Any]) -> dict[str, Any]:
    shown = ("queued", "running", "delivering", "dead")
    rates = {"in/s": entry["accepted_per_s"], "done/s": entry["done_per_s"]}
    return {
        "function": name,
        **{column: f"{entry[column]:,}" for column in shown},
        "oldest": "" if entry["oldest_age_s"] is None else age(entry["oldest_age_s"]),
        **{column: f"{value:,.1f}" for column, value in rates.items()},
        **{column: f"{entry[column]:,}" for column in ("accepted", "done", "retried", "buried")},
    }
