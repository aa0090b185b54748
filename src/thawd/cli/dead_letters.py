"""The commands ``thawd dead …``: list, show, redrive, remove and restore dead letters."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import click

from thawd.cli.cluster_dead_letters import Chosen, Id, changed, pages_of, report, shown, undone
from thawd.cli.exits import VerbGroup, fail
from thawd.cli.machines import cluster_of, machine_option
from thawd.cli.options import config_option, examples, load
from thawd.cli.output import age, print_text
from thawd.cli.queue_answers import ask
from thawd.invocation import in_a_line

if TYPE_CHECKING:
    from thawd.config import Settings

_ERROR_SHOWN = 70
_MOST_DIGITS = 18


class _DeadLetterId(click.ParamType[Id]):
    """Type of an argument: the id of a dead letter or of a removal, in a cluster with the name of its machine."""

    name = "id"

    def __init__(self, what: str) -> None:
        self._what = what

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Id:
        """See `click.ParamType`."""
        if isinstance(value, Id):
            return value
        machine, slash, number = str(value).rpartition("/")
        is_number = number.isascii() and number.isdigit() and len(number) <= _MOST_DIGITS and int(number) > 0
        if not is_number or bool(machine) != bool(slash):
            self.fail(
                f"{value!r} is no id of a {self._what}, which is a number, in a cluster with the machine, as in b/17; "
                "`thawd dead list` shows them",
                param,
                ctx,
            )
        return Id(machine or None, int(number))


_ID = _DeadLetterId("dead letter")
_REMOVAL = _DeadLetterId("removal")


@click.group(
    cls=VerbGroup,
    epilog=examples(
        "thawd dead list classify",
        "thawd dead show 17",
        "thawd dead redrive --function classify",
    ),
)
def dead() -> None:
    """List, redrive, remove and restore dead letters.

    A dead letter is an asynchronous event that failed on every attempt or became too old. To redrive it means to queue
    its event again. A dead letter is kept, with payload and error, until it is redriven or removed, or is older than
    server.dead_letter_retention_s.

    In a cluster, the commands are for the dead letters of all machines. An id has the name of its machine, as in b/17.
    """


@dead.command("list")
@click.argument("function", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one object a line.")
@click.option("-n", "--limit", type=click.IntRange(1), help="List at most this many dead letters.")
@machine_option
@config_option
def list_(function: str | None, as_json: bool, limit: int | None, machine: str | None, config_path: Path) -> None:
    """List dead letters of FUNCTION, or of all functions.

    They are listed in the order in which their events were accepted, without payloads; `thawd dead show` prints one
    payload.
    """
    settings = load(config_path)
    cluster = cluster_of(settings, machine)
    count = 0
    for page in _pages(settings, function, limit) if cluster is None else pages_of(cluster, function, limit):
        if as_json:
            for letter in page:
                click.echo(json.dumps(letter, ensure_ascii=False).encode(errors="backslashreplace"))
        elif page:
            print_text([_dead_row(letter) for letter in page], key_name="id")
        count += len(page)
    if not count and not as_json:
        click.echo(f"no dead letters{'' if function is None else f' of {function}'}")


def _pages(settings: Settings, function: str | None, limit: int | None) -> Iterator[list[dict[str, Any]]]:
    from thawd.queue.operator_view import MAX_PAGE

    after: int | None = 0
    left = limit
    while after is not None and left != 0:
        size = MAX_PAGE if left is None else min(left, MAX_PAGE)
        query = {"after": after, "limit": size} | ({} if function is None else {"function": function})
        document = ask(
            settings,
            f"/_thawd/dead?{urlencode(query)}",
            None,
            lambda view, after=after, size=size: view.page(function, after=after, limit=size),  # type: ignore[misc]
        )
        yield document["dead_letters"]
        after = document["next"]
        left = None if left is None else left - len(document["dead_letters"])


def _dead_row(letter: dict[str, Any]) -> dict[str, Any]:
    error = in_a_line(letter["error"])
    age_s = (datetime.now(UTC) - datetime.fromisoformat(letter["buried_at"])).total_seconds()
    qualifier = letter["qualifier"]
    return {
        "id": str(Id(letter.get("machine"), letter["id"])),
        "function": letter["function"] + (f":{qualifier}" if qualifier else ""),
        "condition": letter["condition"],
        "attempts": str(letter["attempts"]),
        "dead-lettered": f"{age(max(0.0, age_s))} ago",
        "error": error if len(error) <= _ERROR_SHOWN else error[:_ERROR_SHOWN] + "...",
    }


@dead.command()
@click.argument("which", metavar="ID", type=_ID)
@machine_option
@config_option
def show(which: Id, machine: str | None, config_path: Path) -> None:
    """Print a dead letter with its payload, as JSON."""
    settings, number = load(config_path), which.number
    cluster = cluster_of(settings, machine or which.machine)
    if cluster is None:
        document = ask(settings, f"/_thawd/dead/{number}", None, lambda view: view.show(number))
    else:
        document = shown(cluster, which)
    click.echo(json.dumps(document, indent=2, ensure_ascii=False).encode(errors="backslashreplace"))


_numbers = click.argument("numbers", metavar="[ID]...", nargs=-1, type=_ID)
_function = click.option("--function", help="Choose all dead letters of this function.")
_all = click.option("--all", "everything", is_flag=True, help="Choose the dead letters of all functions.")


@dead.command()
@_numbers
@_function
@_all
@machine_option
@config_option
def redrive(
    numbers: tuple[Id, ...], function: str | None, everything: bool, machine: str | None, config_path: Path
) -> None:
    """Queue the events of dead letters again, as if they had just been accepted. This cannot be undone.

    If the function ran, and only sending its outcome to a destination failed, thawd sends the outcome again, and the
    function does not run.
    """
    _change("redrive", numbers, Chosen(function, everything, machine), config_path, what="queued again")


@dead.command("rm")
@_numbers
@_function
@_all
@machine_option
@config_option
def remove(
    numbers: tuple[Id, ...], function: str | None, everything: bool, machine: str | None, config_path: Path
) -> None:
    """Remove dead letters and their payloads.

    For ten minutes, `thawd dead undo` brings them back. Then they are deleted for good. More than 10,000 dead letters,
    or 256 MiB of events, are deleted for good immediately.
    """
    _change("remove", numbers, Chosen(function, everything, machine), config_path, what="removed")


@dead.command()
@click.argument("removal", required=False, type=_REMOVAL)
@machine_option
@config_option
def undo(removal: Id | None, machine: str | None, config_path: Path) -> None:
    """Bring back the dead letters of the last removal, or of REMOVAL, a number that `thawd dead rm` has printed.

    That is possible for ten minutes, also after a restart of the server. To redrive dead letters cannot be undone.
    """
    settings = load(config_path)
    cluster = cluster_of(settings, machine or (None if removal is None else removal.machine))
    if cluster is not None:
        report(undone(cluster, removal), "restored")
        return
    if removal is None:
        found = ask(settings, "/_thawd/dead/removals", None, lambda view: view.removals())["removals"]
        if not found:
            fail("there is no removal that can be undone; that is possible for ten minutes")
        removal = Id(None, found[0]["id"])
    wanted = removal.number
    document = ask(
        settings, "/_thawd/dead/undo", json.dumps({"removal": wanted}).encode(), lambda view: view.undo(wanted)
    )
    report([(None, {**document, "unknown": []})], "restored")


def _change(verb: str, ids: tuple[Id, ...], chosen: Chosen, config_path: Path, *, what: str) -> None:
    import msgspec

    from thawd.stores.events.dead_letters import Selection

    if [bool(ids), chosen.function is not None, chosen.everything].count(True) != 1:
        raise click.UsageError("choose dead letters by ID, with --function or with --all: exactly one of the three")
    settings = load(config_path)
    cluster = cluster_of(settings, chosen.machine)
    if cluster is not None:
        report(changed(cluster, verb, ids, chosen), what)
        return
    if foreign := [each for each in ids if each.machine is not None]:
        fail(f"{foreign[0]} names a machine of a cluster, and this server belongs to none, or does not run")
    numbers = [each.number for each in ids]
    selection = Selection(ids=numbers or None, function=chosen.function, all=chosen.everything)
    document = ask(
        settings,
        f"/_thawd/dead/{verb}",
        msgspec.json.encode(selection),
        lambda view: view.redrive(selection) if verb == "redrive" else view.remove(selection),
    )
    report([(None, document)], what)
