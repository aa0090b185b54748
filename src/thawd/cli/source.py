"""The commands ``thawd source …``: what invokes functions by itself, and how to have it rest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from thawd.cli.client import message_of, request
from thawd.cli.terminal import print_text
from thawd.cli.verbs import config_option, fail, load

_PATH = "/_thawd/sources"


@click.group(name="source")
def group() -> None:
    """Look after what invokes functions by itself: SQS queues, schedules and buckets elsewhere.

    A queue is named FUNCTION/QUEUE, or by its UUID; a schedule by its name, a bucket as bucket:NAME.
    """


@group.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@config_option
def list_(as_json: bool, config_path: Path) -> None:
    """List all sources: state, what came of the last batch or run, how far behind they are."""
    document = _answer(config_path, _PATH, None)
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
        click.echo("no sources: declare some in thawd.toml, or make them through the Lambda API")


@group.command()
@click.argument("name")
@config_option
def pause(name: str, config_path: Path) -> None:
    """Have the source NAME rest until it is resumed, also across restarts; what is under way goes on."""
    _say(_answer(config_path, f"{_PATH}/{quote(name, safe='')}/pause", b""))


@group.command()
@click.argument("name")
@config_option
def resume(name: str, config_path: Path) -> None:
    """Have the source NAME work again."""
    _say(_answer(config_path, f"{_PATH}/{quote(name, safe='')}/resume", b""))


def _answer(config_path: Path, path: str, body: bytes | None) -> Any:
    status, _, answer = request(load(config_path), path, body, {})
    if status != 200:
        fail(f"HTTP {status}: {message_of(answer)}")
    try:
        return json.loads(answer)
    except ValueError:
        fail("what answers is not thawd; look which server has the port, or start thawd with `thawd up`")


def _say(source: dict[str, Any]) -> None:
    click.echo(f"{source['name']}: {source['state']}")


def _lag(source: dict[str, Any]) -> str:
    if source["kind"] == "schedule":
        late = f"; last run {source['last_late_s']:.1f} s late" if source["last_run"] is not None else ""
        return f"next run {source['next_run'] or 'never'}{late}"
    if source["kind"] == "bucket" and source["queue"] is None:
        seen = source["oldest_s"]
        return "not listed yet" if seen is None else f"listed {seen:.0f} s ago; objects: {source['objects']:,}"
    if source["waiting"] is None:
        return "not known"
    oldest = f"; oldest {source['oldest_s']:.1f} s" if source["oldest_s"] else ""
    return f"{source['waiting']} waiting, {source['in_flight']} in flight{oldest}"
