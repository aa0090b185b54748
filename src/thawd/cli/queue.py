"""The commands ``thawd queue`` and ``thawd dead …``: how asynchronous events stand, and what was given up.

They ask the running server; where none runs they look into its state file, with the data folder locked meanwhile. Own
the looks of it. Heavy imports happen inside the verbs, so that help is instant.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import click

from thawd.cli.client import message_of, request
from thawd.cli.terminal import print_text
from thawd.cli.verbs import EXIT_FAILED, Verbs, config_option, fail, load, warn
from thawd.errors import ThawdError
from thawd.invocation import in_a_line

if TYPE_CHECKING:
    from thawd.config import Settings
    from thawd.queue.desk import QueueDesk

_WATCH_S = 1.0
_ERROR_SHOWN = 70
_ID = click.IntRange(1, (1 << 63) - 1)
_CLEAR = "\x1b[H\x1b[2J"

Ask = Callable[["QueueDesk"], Awaitable[dict[str, Any]]]
"""What is asked where no server runs."""


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@click.option("--watch", is_flag=True, help="Again each second, until Ctrl-C.")
@config_option
def queue(as_json: bool, watch: bool, config_path: Path) -> None:
    """Show how asynchronous events stand, by function.

    Queued: waiting to run, the oldest for so long. Delivering: run, and the outcome waits for its destination. Dead:
    given up, see `thawd dead`. Rates are those of the last minute; the rest is counted since the data folder was made.
    """
    settings = load(config_path)
    try:
        with contextlib.suppress(KeyboardInterrupt) if watch else contextlib.nullcontext():
            _show_queue(settings, as_json=as_json, again=watch)
            while watch:
                time.sleep(_WATCH_S)
                _show_queue(settings, as_json=as_json, again=True)
    except ThawdError as error:
        fail(str(error))


def _show_queue(settings: Settings, *, as_json: bool, again: bool) -> None:
    document = _answer(settings, "/_thawd/queue", None, lambda desk: desk.overview())
    if again and sys.stdout.isatty():
        click.echo(_CLEAR, nl=False)
    _print_queue(document, as_json=as_json, on_one_line=again)
    sys.stdout.flush()


def _print_queue(document: dict[str, Any], *, as_json: bool, on_one_line: bool) -> None:
    if as_json:
        click.echo(json.dumps(document, indent=None if on_one_line else 2))
        return
    functions = document["functions"]
    if not functions:
        click.echo("no asynchronous events so far")
        return
    print_text([_queue_row(name, entry) for name, entry in functions.items()], key_name="function")


def _queue_row(name: str, entry: dict[str, Any]) -> dict[str, Any]:
    shown = ("queued", "running", "delivering", "dead")
    rates = {"in/s": entry["accepted_per_s"], "done/s": entry["done_per_s"]}
    return {
        "function": name,
        **{column: f"{entry[column]:,}" for column in shown},
        "oldest": "" if entry["oldest_age_s"] is None else _age(entry["oldest_age_s"]),
        **{column: f"{value:,.1f}" for column, value in rates.items()},
        **{column: f"{entry[column]:,}" for column in ("accepted", "done", "retried", "buried")},
    }


def _age(seconds: float) -> str:
    for unit_s, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:.0f} {unit}"
    return f"{seconds:.0f} s"


@click.group(cls=Verbs)
def dead() -> None:
    """Look after dead letters: asynchronous events that were given up.

    They are kept with their payload and error until they are redriven, removed, or older than
    server.dead_letter_retention_s.
    """


@dead.command("list")
@click.argument("function", required=False)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@click.option("-n", "--limit", type=click.IntRange(1), help="At most so many.")
@config_option
def list_(function: str | None, as_json: bool, limit: int | None, config_path: Path) -> None:
    """List dead letters, of FUNCTION or of all, those accepted first first; no payloads are shown."""
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
    from thawd.queue.desk import MAX_PAGE

    after: int | None = 0
    left = limit
    while after is not None and left != 0:
        size = MAX_PAGE if left is None else min(left, MAX_PAGE)
        query = {"after": after, "limit": size} | ({} if function is None else {"function": function})
        document = _answer(
            settings,
            f"/_thawd/dead?{urlencode(query)}",
            None,
            lambda desk, after=after, size=size: desk.page(function, after=after, limit=size),  # type: ignore[misc]
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
        "given up": f"{_age(max(0.0, age_s))} ago",
        "error": error if len(error) <= _ERROR_SHOWN else error[:_ERROR_SHOWN] + "...",
    }


@dead.command()
@click.argument("number", metavar="ID", type=_ID)
@config_option
def show(number: int, config_path: Path) -> None:
    """Print a dead letter with its payload, as JSON."""
    document = _answer(load(config_path), f"/_thawd/dead/{number}", None, lambda desk: desk.show(number))
    click.echo(json.dumps(document, indent=2, ensure_ascii=False).encode(errors="backslashreplace"))


_numbers = click.argument("numbers", metavar="[ID]...", nargs=-1, type=_ID)
_function = click.option("--function", help="All dead letters of this function.")
_all = click.option("--all", "everything", is_flag=True, help="All dead letters.")


@dead.command()
@_numbers
@_function
@_all
@config_option
def redrive(numbers: tuple[int, ...], function: str | None, everything: bool, config_path: Path) -> None:
    """Queue dead letters again, as if they had just been accepted.

    Where the function had run and only its destination was away, the outcome is taken there again, and the function
    does not run.
    """
    document = _change("redrive", numbers, function, everything=everything, config_path=config_path)
    _tell(document, "queued again")


@dead.command("rm")
@_numbers
@_function
@_all
@config_option
def remove(numbers: tuple[int, ...], function: str | None, everything: bool, config_path: Path) -> None:
    """Forget dead letters, with their payloads."""
    document = _change("remove", numbers, function, everything=everything, config_path=config_path)
    _tell(document, "removed")


def _change(
    verb: str, numbers: tuple[int, ...], function: str | None, *, everything: bool, config_path: Path
) -> dict[str, Any]:
    import msgspec

    from thawd.stores.events.dead_letters import Selection

    if [bool(numbers), function is not None, everything].count(True) != 1:
        raise click.UsageError("name the dead letters by ID, or give --function or --all: one of the three")
    selection = Selection(ids=list(numbers) or None, function=function, all=everything)
    return _answer(
        load(config_path),
        f"/_thawd/dead/{verb}",
        msgspec.json.encode(selection),
        lambda desk: desk.redrive(selection) if verb == "redrive" else desk.remove(selection),
    )


def _tell(document: dict[str, Any], what: str) -> None:
    count = document["count"]
    click.echo(f"{count:,} dead letter{'' if count == 1 else 's'} {what}")
    for number in document["unknown"]:
        warn(f"there is no dead letter {number}")
    if document["unknown"]:
        sys.exit(EXIT_FAILED)


def _answer(settings: Settings, path: str, body: bytes | None, ask: Ask) -> dict[str, Any]:
    """The running server's answer, or the state file's where none runs.

    Raises:
        ThawdError: there is none.
    """
    from thawd.server.claims import StartError, lock

    if not settings.server.data.is_dir():
        fail(f"there is no data folder {settings.server.data} yet; `thawd up -c {settings.path}` makes it")
    with contextlib.ExitStack() as holding:
        try:
            holding.enter_context(lock(settings.server.data))
        except StartError:
            return _from_server(settings, path, body)
        return asyncio.run(_from_file(settings, ask))


def _from_server(settings: Settings, path: str, body: bytes | None) -> dict[str, Any]:
    status, _, answered = request(settings, path, body, {} if body is None else {"Content-Type": "application/json"})
    if status != 200:
        fail(message_of(answered))
    try:
        document: dict[str, Any] = json.loads(answered)
    except ValueError:
        fail("what answers is not thawd; look which server has the port")
    return document


async def _from_file(settings: Settings, ask: Ask) -> dict[str, Any]:
    import msgspec

    from thawd.queue.desk import QueueDesk
    from thawd.queue.upkeep import Upkeep
    from thawd.stores.events.dead_letters import DeadLetters
    from thawd.stores.events.queue import EventQueue
    from thawd.stores.schema import open_state

    state = open_state(settings.server.data / "thawd.db")
    try:
        letters = DeadLetters(state)
        upkeep = Upkeep(
            state,
            EventQueue(state),
            letters,
            names=lambda: (),
            retention_s=settings.server.dead_letter_retention_s,
            report=warn,
        )
        document = await ask(QueueDesk(letters, upkeep, wake=lambda functions: None))
        # As it comes from a server: payloads stand in it as they are.
        shown: dict[str, Any] = json.loads(msgspec.json.encode(document))
        return shown
    finally:
        state.close()
