"""The commands ``thawd source …``: list, pause and resume queues, streams, schedules and remote buckets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from thawd.cli.client import fetch
from thawd.cli.options import config_option, examples, load
from thawd.cli.output import print_text

_PATH = "/_thawd/sources"


@click.group(
    name="source",
    epilog=examples("thawd source list", "thawd source pause classify/orders", "thawd source resume nightly"),
)
def group() -> None:
    """List, pause and resume event sources.

    Event sources are SQS queues, streams, schedules and remote buckets. The commands name a queue FUNCTION/QUEUE, a
    stream FUNCTION/STREAM, a schedule by its name, and a bucket bucket:NAME. The UUID of an event source mapping, which
    `thawd source list --json` prints, names its queue or stream too.
    """


@group.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@config_option
def list_(as_json: bool, config_path: Path) -> None:
    """List all sources with state and last result.

    The column "lag" shows how many messages wait in a queue, how old the records are that were read last from a stream,
    when a schedule runs next, or when a bucket was listed.
    """
    document = fetch(load(config_path), _PATH)
    if as_json:
        click.echo(json.dumps(document["sources"], indent=2))
        return
    rows = [
        {
            "name": source["name"],
            "kind": source["kind"],
            "function": source["function"],
            "state": source["state"],
            "last result": source["last_result"],
            "lag": _lag(source),
        }
        for source in document["sources"]
    ]
    if rows:
        print_text(rows, key_name="name")
    else:
        click.echo("no sources: declare some in thawd.toml, or create them with the Lambda API")


@group.command()
@click.argument("name")
@config_option
def pause(name: str, config_path: Path) -> None:
    """Pause the source NAME until it is resumed.

    Invocations in flight finish. The source stays paused when the server restarts.
    """
    _print_state(fetch(load(config_path), f"{_PATH}/{quote(name, safe='')}/pause", b""))


@group.command()
@click.argument("name")
@config_option
def resume(name: str, config_path: Path) -> None:
    """Resume the source NAME."""
    _print_state(fetch(load(config_path), f"{_PATH}/{quote(name, safe='')}/resume", b""))


def _print_state(source: dict[str, Any]) -> None:
    click.echo(f"{source['name']}: {source['state']}")


def _lag(source: dict[str, Any]) -> str:
    if source["kind"] == "schedule":
        late = f"; last run {source['last_late_s']:.1f} s late" if source["last_run"] is not None else ""
        return f"next run {source['next_run'] or 'never'}{late}"
    if source["kind"] == "bucket" and source["queue"] is None:
        seen = source["oldest_s"]
        return "not listed yet" if seen is None else f"listed {seen:.0f} s ago; objects: {source['objects']:,}"
    if source["kind"] in ("kinesis", "dynamodb"):
        return f"records {source['oldest_s']:.1f} s old" if source["oldest_s"] else "nothing waiting"
    if source["waiting"] is None:
        return "not known"
    oldest = f"; oldest {source['oldest_s']:.1f} s" if source["oldest_s"] else ""
    return f"{source['waiting']} waiting, {source['in_flight']} in flight{oldest}"
