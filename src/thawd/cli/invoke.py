"""The command ``thawd invoke``: run a function on the running server."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from thawd.cli.client import message_of, request
from thawd.cli.exits import fail
from thawd.cli.options import config_option, examples, load, project_of
from thawd.cli.projects import function_named

EXIT_FUNCTION_ERROR = 3
"""Exit status: the function ran and failed. It is 1 if the function could not be invoked."""


@click.command(
    epilog=examples(
        """thawd invoke classify -p '{"image": "cat.png"}'""",
        "thawd invoke classify -p @event.json --tail",
        "cat event.json | thawd invoke classify -p - --event",
    )
)
@click.argument("function")
@click.option(
    "-p", "--payload", default="{}", help="The event as JSON; @FILE reads it from a file, - from standard input."
)
@click.option("--event", "asynchronous", is_flag=True, help="Invoke asynchronously: store the event now, run it later.")
@click.option("--tail", is_flag=True, help="Print the end of the invocation's log on standard error.")
@config_option
def invoke(function: str, payload: str, asynchronous: bool, tail: bool, config_path: Path) -> None:
    """Invoke FUNCTION and print its answer.

    The running server invokes the function. Of a project's function, the name in its template will do, too. The exit
    status is 3 if the function failed, and 1 if it could not be invoked.
    """
    import base64

    headers = {"X-Amz-Invocation-Type": "Event" if asynchronous else "RequestResponse"}
    if tail and not asynchronous:
        headers["X-Amz-Log-Type"] = "Tail"
    settings, event = load(config_path), _read_payload(payload)
    status, answered, body = request(settings, _path(function), event, headers)
    if status == 404 and project_of(config_path) is not None and (found := function_named(settings, function)):
        status, answered, body = request(settings, _path(found), event, headers)
    if status >= 300:
        fail(f"HTTP {status}: {message_of(body)}")
    if tail and "x-amz-log-result" in answered:
        click.echo(base64.b64decode(answered["x-amz-log-result"]).decode(errors="replace"), err=True, nl=False)
    if asynchronous:
        click.echo(f"accepted as {answered.get('x-amzn-requestid')}")
        return
    click.echo(body.decode(errors="replace"))
    if "x-amz-function-error" in answered:
        sys.exit(EXIT_FUNCTION_ERROR)


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
    return os.fsencode(text)
