"""The commands ``thawd dead …``: list, show, redrive, remove and restore dead letters."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import click

from thawd.cli.exits import EXIT_FAILED, VerbGroup, fail, warn
from thawd.cli.options import config_option, examples, load
from thawd.cli.output import age, print_text
from thawd.cli.queue_answers import ask
from thawd.invocation import in_a_line

if TYPE_CHECKING:
    from thawd.config import Settings

_ERROR_SHOWN = 70


class _DeadLetterId(click.IntRange):
    """Type of an argument: the id of a dead letter."""

    name = "id"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See `click.ParamType`."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            self.fail(
                f"{value!r} is no id of a dead letter, which is a number; `thawd dead list` shows them", param, ctx
            )


_ID = _DeadLetterId(1, (1 << 63) - 1)


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
    """


@dead.command("list")
@click.argument("function", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one object a line.")
@click.option("-n", "--limit", type=click.IntRange(1), help="List at most this many dead letters.")
@config_option
def list_(function: str | None, as_json: bool, limit: int | None, config_path: Path) -> None:
    """List dead letters of FUNCTION, or of all functions.

    They are listed in the order in which their events were accepted, without payloads; `thawd dead show` prints one
    payload.
    """
    settings = load(config_path)
    count = 0
    for page in _pages(settings, function, limit):
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
        "id": str(letter["id"]),
        "function": letter["function"] + (f":{qualifier}" if qualifier else ""),
        "condition": letter["condition"],
        "attempts": str(letter["attempts"]),
        "dead-lettered": f"{age(max(0.0, age_s))} ago",
        "error": error if len(error) <= _ERROR_SHOWN else error[:_ERROR_SHOWN] + "...",
    }


@dead.command()
@click.argument("number", metavar="ID", type=_ID)
@config_option
def show(number: int, config_path: Path) -> None:
    """Print a dead letter with its payload, as JSON."""
    document = ask(load(config_path), f"/_thawd/dead/{number}", None, lambda view: view.show(number))
    click.echo(json.dumps(document, indent=2, ensure_ascii=False).encode(errors="backslashreplace"))


_numbers = click.argument("numbers", metavar="[ID]...", nargs=-1, type=_ID)
_function = click.option("--function", help="Choose all dead letters of this function.")
_all = click.option("--all", "everything", is_flag=True, help="Choose the dead letters of all functions.")


@dead.command()
@_numbers
@_function
@_all
@config_option
def redrive(numbers: tuple[int, ...], function: str | None, everything: bool, config_path: Path) -> None:
    """Queue the events of dead letters again, as if they had just been accepted. This cannot be undone.

    If the function ran, and only sending its outcome to a destination failed, thawd sends the outcome again, and the
    function does not run.
    """
    document = _change("redrive", numbers, function, everything=everything, config_path=config_path)
    _report(document, "queued again")


@dead.command("rm")
@_numbers
@_function
@_all
@config_option
def remove(numbers: tuple[int, ...], function: str | None, everything: bool, config_path: Path) -> None:
    """Remove dead letters and their payloads.

    For ten minutes, `thawd dead undo` brings them back. Then they are deleted for good. More than 10,000 dead letters,
    or 256 MiB of events, are deleted for good immediately.
    """
    document = _change("remove", numbers, function, everything=everything, config_path=config_path)
    _report(document, "removed")


@dead.command()
@click.argument("removal", required=False, type=click.IntRange(1, (1 << 63) - 1))
@config_option
def undo(removal: int | None, config_path: Path) -> None:
    """Bring back the dead letters of the last removal, or of REMOVAL, a number that `thawd dead rm` has printed.

    That is possible for ten minutes, also after a restart of the server. To redrive dead letters cannot be undone.
    """
    settings = load(config_path)
    if removal is None:
        found = ask(settings, "/_thawd/dead/removals", None, lambda view: view.removals())["removals"]
        if not found:
            fail("there is no removal that can be undone; that is possible for ten minutes")
        removal = found[0]["id"]
    wanted = removal
    document = ask(
        settings, "/_thawd/dead/undo", json.dumps({"removal": wanted}).encode(), lambda view: view.undo(wanted)
    )
    _report({**document, "unknown": []}, "restored")


def _change(
    verb: str, numbers: tuple[int, ...], function: str | None, *, everything: bool, config_path: Path
) -> dict[str, Any]:
    import msgspec

    from thawd.stores.events.dead_letters import Selection

    if [bool(numbers), function is not None, everything].count(True) != 1:
        raise click.UsageError("choose dead letters by ID, with --function or with --all: exactly one of the three")
    selection = Selection(ids=list(numbers) or None, function=function, all=everything)
    return ask(
        load(config_path),
        f"/_thawd/dead/{verb}",
        msgspec.json.encode(selection),
        lambda view: view.redrive(selection) if verb == "redrive" else view.remove(selection),
    )


def _report(document: dict[str, Any], what: str) -> None:
    count = document["count"]
    click.echo(f"{count:,} dead letter{'' if count == 1 else 's'} {what}")
    if removal := document.get("undo"):
        until = datetime.fromisoformat(removal["until"]).astimezone()
        them = "it" if count == 1 else "them"
        click.echo(f"`thawd dead undo {removal['id']}` restores {them} until {until:%H:%M}", err=True)
    elif what == "removed" and count:
        click.echo("they were too many or too large to be kept, so this cannot be undone", err=True)
    for number in document["unknown"]:
        warn(f"there is no dead letter {number}")
    if document["unknown"]:
        sys.exit(EXIT_FAILED)
