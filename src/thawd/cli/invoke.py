"""The command ``thawd invoke``: run a function on the running server."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from thawd.cli.client import fetch, message_of, refusal, request
from thawd.cli.exits import fail
from thawd.cli.machines import Cluster, cluster_of
from thawd.cli.options import complete_function, config_option, examples, load, project_of
from thawd.cli.projects import function_named
from thawd.system.suggestions import did_you_mean

if TYPE_CHECKING:
    from thawd.config import Settings

EXIT_FUNCTION_ERROR = 3
"""Exit status: the function ran and failed. It is 1 if the function could not be invoked."""


@click.command(
    epilog=examples(
        """thawd invoke classify -p '{"image": "cat.png"}'""",
        "thawd invoke classify -p @event.json --tail",
        "cat event.json | thawd invoke classify -p - --event",
        "thawd event sqs --set body=hello | thawd invoke classify -p -",
        "thawd invoke --last                  # the event of the latest invocation again",
        "thawd invoke --replay 7010a3f2-5b8e-4a0e-9a53-0d6b1d1b1f0e",
    )
)
@click.argument("function", required=False, shell_complete=complete_function)
@click.option(
    "-p", "--payload", help="The event as JSON; @FILE reads it from a file, - from standard input. [default: {}]"
)
@click.option(
    "--last", is_flag=True, help="Send the event of the latest recorded invocation again, of FUNCTION or any."
)
@click.option("--replay", metavar="ID", help="Send the event of the recorded invocation with this request id again.")
@click.option("--event", "asynchronous", is_flag=True, help="Invoke asynchronously: store the event now, run it later.")
@click.option("--tail", is_flag=True, help="Print the end of the invocation's log on standard error.")
@config_option
def invoke(  # noqa: PLR0913, PLR0917 - an option each
    function: str | None,
    payload: str | None,
    last: bool,
    replay: str | None,
    asynchronous: bool,
    tail: bool,
    config_path: Path,
) -> None:
    """Invoke FUNCTION and print its answer.

    The running server invokes the function. Of a project's function, the name in its template will do, too. The exit
    status is 3 if the function failed, and 1 if it could not be invoked.
    """
    import base64

    headers = {"X-Amz-Invocation-Type": "Event" if asynchronous else "RequestResponse"}
    if tail and not asynchronous:
        headers["X-Amz-Log-Type"] = "Tail"
    settings = load(config_path)
    if last or replay is not None:
        if payload is not None or (last and replay is not None):
            raise click.UsageError("--last, --replay and --payload exclude each other")
        function, event = _recorded(settings, function, replay)
    elif function is None:
        raise click.UsageError("name the FUNCTION to invoke, or use --last or --replay")
    else:
        event = _read_payload("{}" if payload is None else payload)
    status, answered, body = request(settings, _path(function), event, headers)
    if status == 404 and project_of(config_path) is not None and (found := function_named(settings, function)):
        status, answered, body = request(settings, _path(found), event, headers)
    if status == 404:
        fail(f"HTTP 404: {message_of(body)}{_suggestion(settings, function)}")
    if status >= 300:
        fail(f"HTTP {status}: {refusal(settings, status, message_of(body))}")
    if tail and "x-amz-log-result" in answered:
        click.echo(base64.b64decode(answered["x-amz-log-result"]).decode(errors="replace"), err=True, nl=False)
    if asynchronous:
        click.echo(f"accepted as {answered.get('x-amzn-requestid')}")
        return
    click.echo(body.decode(errors="replace"))
    if "x-amz-function-error" in answered:
        sys.exit(EXIT_FUNCTION_ERROR)


def _recorded(settings: Settings, function: str | None, request_id: str | None) -> tuple[str, bytes]:
    """The function and the event of a recorded invocation.

    Args:
        settings: address and credentials of the server.
        function: the function, with or without a qualifier, that gets the event; None: the one that had it.
        request_id: the invocation; None: the latest of the function, or of all.
    """
    from urllib.parse import quote, urlencode

    if (cluster := cluster_of(settings, None)) is not None:
        return _event_of(_recorded_in(cluster, function, request_id), function)
    if request_id is None:
        query = {"limit": "1"} | ({} if function is None else {"function": function.partition(":")[0]})
        found = fetch(settings, f"/_thawd/invocations?{urlencode(query)}")["invocations"]
        if not found:
            whose = "" if function is None else f" of {function}"
            fail(f"no invocation{whose} is recorded; invoke it with -p first, or make an event with `thawd event`")
        request_id = found[0]["request_id"]
    return _event_of(fetch(settings, f"/_thawd/invocations/{quote(str(request_id), safe='')}"), function)


def _recorded_in(cluster: Cluster, function: str | None, request_id: str | None) -> dict[str, Any]:
    """The document of an invocation that a machine of the cluster has recorded; see `_recorded`.

    If several machines have recorded attempts of it, the document is that of the last attempt.
    """
    wanted = {"prefix": request_id} if request_id is not None else {"function": (function or "").partition(":")[0]}
    answers = cluster.ask("find", wanted)
    found = [
        (row["id"], machine, row["request_id"])
        for machine, document in answers.documents.items()
        for row in document["found"]
        if request_id in (None, row["request_id"])
    ]
    if not found or request_id is None:
        answers.warn_away()  # of these machines, one may have it, or a later one
    if not found:
        what = "no invocation" if request_id is None else f"no invocation with the request id {request_id}"
        whose = f" of {function}" if function is not None and request_id is None else ""
        fail(f"{what}{whose} is recorded on these machines: {', '.join(answers.documents)}; send an event with -p")
    _, machine, request_id = max(found)
    recorded = cluster.ask("record", {"request_id": request_id}, only=machine)
    if machine not in recorded.documents:
        fail(f"the machine {machine} has recorded it, and cannot be asked now: {recorded.away.get(machine)}")
    document: dict[str, Any] = recorded.documents[machine]
    return document


def _event_of(document: dict[str, Any], function: str | None) -> tuple[str, bytes]:
    """The function that gets a recorded event, and the event. If it cannot be sent again, the command ends."""
    attempt = document["attempts"][-1]
    request_id = attempt["request_id"]
    if (why := document["why_not_replayable"]) is not None:
        fail(f"the invocation {request_id} cannot be repeated: {why}; send an event with -p")
    click.echo(f"thawd: {function or attempt['function']} gets the event of {request_id}", err=True)
    return function or attempt["function"], json.dumps(document["event"]).encode()


def _suggestion(settings: Settings, function: str) -> str:
    """What the user probably meant, as the end of a message; empty if the function exists and only its version not."""
    name = function.partition(":")[0]
    known = [*fetch(settings, "/_thawd/status")["functions"]]
    return "" if name in known else f"; {did_you_mean(name, known)}"


def _path(function: str) -> str:
    from urllib.parse import quote

    return f"/2015-03-31/functions/{quote(os.fsencode(function), safe='')}/invocations"


def _read_payload(text: str) -> bytes:
    if text == "-":
        return sys.stdin.buffer.read()
    if text.startswith("@"):
        try:
            return Path(text[1:]).read_bytes()
        except OSError as error:
            fail(f"the payload {text[1:]} cannot be read: {error.strerror}")
    try:
        json.loads(text)
    except ValueError as error:
        if Path(text).is_file():
            fail(f"the payload {text} is not JSON, but there is a file of this name; write -p @{text}")
        quoted = re.sub(r"([{,]\s*)([A-Za-z_]\w*)\s*:", r'\1"\2":', text)
        meant = f"; quote the names: -p '{quoted}'" if quoted != text else "; quote it for the shell: -p '{\"n\": 1}'"
        fail(f"the payload {text[:80]} is not JSON: {error}{meant}")
    return os.fsencode(text)
