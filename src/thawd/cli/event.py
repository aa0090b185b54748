"""The command ``thawd event``: print a sample event as an AWS service sends it."""

from __future__ import annotations

import json
from typing import Any

import click

from thawd.cli.exits import fail
from thawd.cli.options import examples
from thawd.system.suggestions import did_you_mean


@click.command(
    epilog=examples(
        "thawd event                      # lists the kinds, and the names that --set takes",
        "thawd event s3-put --set bucket=uploads --set key=cats/1.png | thawd invoke classify -p -",
        """thawd event sqs --set body='{"n": 1}' > event.json""",
        "thawd event apigw --set method=POST --set path=/d --set body='[1, 2]'",
        "thawd event sqs --set Records.0.attributes.ApproximateReceiveCount=3",
    )
)
@click.argument("kind", required=False)
@click.option(
    "-s",
    "--set",
    "given",
    metavar="NAME=VALUE",
    multiple=True,
    help="Set a value: by one of the kind's names, or by the path of a field in the event. JSON, or else a text. May "
    "be given several times.",
)
def event(kind: str | None, given: tuple[str, ...]) -> None:
    """Print a sample event of KIND as JSON, as the service sends it to a function.

    Without KIND, list the kinds. No server is needed. The output is the input of `thawd invoke FUNCTION -p -`.
    """
    from thawd.cli.sample_events import KINDS

    if kind is None:
        width = max(map(len, KINDS))
        for name, each in KINDS.items():
            click.echo(f"{name:<{width}}  {each.title}; --set {', '.join(each.defaults)}")
        return
    if kind not in KINDS:
        fail(f"there is no kind of event {kind!r}; {did_you_mean(kind, KINDS, what='kinds')}")
    chosen = KINDS[kind]
    values = dict(_pair(text) for text in given)
    own = {name: value for name, value in values.items() if name in chosen.defaults}
    try:
        made = chosen.event(own)
    except (TypeError, ValueError, AttributeError) as error:
        fail(f"no event can be made from --set {', '.join(own)}: {error}")
    for path, value in values.items():
        if path not in own:
            _set(made, path, value, names=list(chosen.defaults))
    click.echo(json.dumps(made, indent=2, ensure_ascii=False))


def _pair(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.UsageError(f"--set {text}: write NAME=VALUE, for example --set key=cat.png")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _set(document: Any, path: str, value: Any, *, names: list[str]) -> None:
    """Set the field at a path of names and list indexes with dots between them. If there is none, end the command."""
    *parents, last = path.split(".")
    place = document
    for name in parents:
        inner = _inner(place, name)
        if inner is None:
            fail(f"--set {path}: the event has no field {name}; its fields here are {_fields(place)}")
        place = inner
    if isinstance(place, list) and last.isdigit() and int(last) < len(place):
        place[int(last)] = value
    elif isinstance(place, dict) and (parents or last in place):
        place[last] = value
    else:
        fail(f"--set {path}: {did_you_mean(path, [*names, *(place if isinstance(place, dict) else ())], what='names')}")


def _inner(place: Any, name: str) -> Any:
    if isinstance(place, dict):
        return place.get(name)
    return place[int(name)] if isinstance(place, list) and name.isdigit() and int(name) < len(place) else None


def _fields(place: Any) -> str:
    if isinstance(place, dict):
        return ", ".join(place)
    return f"0 to {len(place) - 1}" if isinstance(place, list) else "none: it is no object"
