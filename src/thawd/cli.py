"""The command ``thawd``: one verb a function. Heavy imports happen inside the verbs, so that help is instant."""

from __future__ import annotations

import csv
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from thawd import __version__
from thawd.errors import ConfigurationError, ThawdError

if TYPE_CHECKING:
    from thawd.config import Settings

EXIT_FAILED = 1
EXIT_FUNCTION_ERROR = 3
"""The function ran and failed; told apart from a request that could not be made."""

_config_option = click.option(
    "-c",
    "--config",
    "config_path",
    default="thawd.toml",
    show_default=True,
    type=click.Path(path_type=Path),
    help="The configuration file.",
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="thawd")
def main() -> None:
    """Serverless machine-learning inference on your own machine, in AWS Lambda's language.

    Begin with `thawd up` beside a thawd.toml. boto3 and the AWS CLI are its clients, with their endpoint URL set.
    """


@main.command()
@_config_option
@click.option("--host", help="Address to listen on; overrides server.host. Other than loopback needs server.key.")
@click.option("--port", type=click.IntRange(0, 65535), help="Port; overrides server.port. 0 takes any free one.")
@click.option("--watch", is_flag=True, help="Publish a function anew when its code changes.")
@click.option(
    "--ready-file",
    type=click.Path(path_type=Path),
    help='Write {"url": …, "pid": …} there once everything is served; for scripts.',
)
def up(config_path: Path, host: str | None, port: int | None, watch: bool, ready_file: Path | None) -> None:
    """Serve everything in the configuration, in the foreground.

    SIGINT (Ctrl-C) and SIGTERM let what runs finish within server.grace_s; a second one ends it at once. SIGHUP reads
    the configuration anew and publishes what has changed.
    """
    from thawd import config, server

    environ = dict(config.process_environment())
    if host is not None:
        environ["THAWD_HOST"] = host
    if port is not None:
        environ["THAWD_PORT"] = str(port)
    settings = _load(config_path, environ)
    try:
        server.run(settings, environ=environ, watch=watch, ready_file=ready_file)
    except* ThawdError as group:
        _fail(str(_first(group)))


@main.command()
@_config_option
def check(config_path: Path) -> None:
    """Validate the configuration: every mistake by file, key path, what was found, what is allowed."""
    settings = _load(config_path)
    parts = {
        "function": len(settings.functions),
        "bucket": len(settings.buckets),
        "route": len(settings.routes),
        "table": len(settings.tables),
    }
    said = ", ".join(f"{count} {name}{'' if count == 1 else 's'}" for name, count in parts.items())
    click.echo(f"{config_path}: no mistakes; {said}")


@main.command()
@click.argument("function")
@click.option(
    "-p", "--payload", default="{}", help="The event as JSON; @FILE reads it from a file, - from standard input."
)
@click.option("--event", "asynchronous", is_flag=True, help="Invoke asynchronously: stored now, run later.")
@click.option("--tail", is_flag=True, help="Print the end of the invocation's log on standard error.")
@_config_option
def invoke(function: str, payload: str, asynchronous: bool, tail: bool, config_path: Path) -> None:
    """Invoke FUNCTION on the running server and print its answer."""
    import base64

    headers = {"X-Amz-Invocation-Type": "Event" if asynchronous else "RequestResponse"}
    if tail and not asynchronous:
        headers["X-Amz-Log-Type"] = "Tail"
    status, answered, body = _request(
        _load(config_path), f"/2015-03-31/functions/{function}/invocations", _read_payload(payload), headers
    )
    if status >= 300:
        _fail(f"HTTP {status}: {_message(body)}")
    if tail and "x-amz-log-result" in answered:
        click.echo(base64.b64decode(answered["x-amz-log-result"]).decode(errors="replace"), err=True, nl=False)
    if asynchronous:
        click.echo(f"accepted as {answered.get('x-amzn-requestid')}")
        return
    click.echo(body.decode(errors="replace"))
    if "x-amz-function-error" in answered:
        sys.exit(EXIT_FUNCTION_ERROR)


@main.command()
@click.argument("function")
@click.option("-f", "--follow", is_flag=True, help="Go on as lines are written, until Ctrl-C.")
@click.option("-n", "--lines", type=click.IntRange(0), default=100, show_default=True, help="Begin with so many lines.")
@click.option("--raw", is_flag=True, help="Messages only, without time and log stream.")
@_config_option
def logs(function: str, follow: bool, lines: int, raw: bool, config_path: Path) -> None:
    """Print the log of FUNCTION: what it printed, and START, END and REPORT of each invocation."""
    from collections import deque

    from thawd.telemetry.logs import log_path, read_lines

    settings = _load(config_path)
    path = log_path(settings.server.data / "logs", function)
    if function not in settings.functions and not path.exists():
        _fail(f"there is no function {function!r}; {config_path} has: {', '.join(settings.functions)}")
    for line in deque(read_lines(path), maxlen=lines):
        _print_log_line(line, raw=raw)
    if follow:
        try:
            for line in _follow(path):
                _print_log_line(line, raw=raw)
        except KeyboardInterrupt:
            return


@main.command()
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, with its key as `_key`.")
@click.option("--csv", "as_csv", is_flag=True, help="CSV with a header line.")
@click.option("--key", help="Only the item with this key.")
@click.option("-n", "--limit", type=click.IntRange(1), help="At most so many items.")
@_config_option
def table(name: str, as_json: bool, as_csv: bool, key: str | None, limit: int | None, config_path: Path) -> None:
    """Print the items of the table NAME, by key; works whether thawd runs or not."""
    import itertools

    from thawd.state.tables import read_table

    settings = _load(config_path)
    if name not in settings.tables:
        _fail(f"there is no table {name!r}; {config_path} has: {', '.join(settings.tables) or 'none'}")
    if as_json and as_csv:
        raise click.UsageError("--json and --csv exclude each other")
    try:
        found = ((k, json.loads(v)) for k, v in read_table(settings.tables[name].path) if key is None or k == key)
        rows = itertools.islice(found, limit)
        if as_json:
            for item_key, item in rows:
                click.echo(json.dumps({"_key": item_key, **item}, ensure_ascii=False))
        else:
            _print_rows(list(rows), as_csv=as_csv)
    except ThawdError as error:
        _fail(str(error))


@main.command()
@click.option("--json", "as_json", is_flag=True, help="The whole status document.")
@_config_option
def status(as_json: bool, config_path: Path) -> None:
    """Show what the running server is doing: environments, starts and latencies by function."""
    code, _, body = _request(_load(config_path), "/_thawd/status", None, {})
    if code != 200:
        _fail(f"HTTP {code}: {_message(body)}")
    document = json.loads(body)
    if as_json:
        click.echo(json.dumps(document, indent=2))
        return
    click.echo(f"{document['url']}  process {document['pid']}  memory limits by {document['memory_limit']}")
    for name, entry in document["functions"].items():
        environments = ", ".join(f"{count} {state}" for state, count in entry["environments"].items())
        click.echo(f"\n{name}: {entry['state']}; {environments}; {entry['waiting']} waiting; {entry['queued']} queued")
        if entry["reason"]:
            click.echo(f"  {entry['reason']}")
        for title, kinds in (("start", entry["starts"]), ("invoke", entry["invocations"])):
            for kind, d in kinds.items():
                click.echo(
                    f"  {title:<6} {kind:<5} {d['count']:>8}   p50 {d['p50_ms']:>10.2f} ms"
                    f"   p99 {d['p99_ms']:>10.2f} ms   max {d['max_ms']:>10.2f} ms"
                )
        counters = ("errors", "timeouts", "exits", "throttles", "init_failures", "fallbacks", "dead")
        told = ", ".join(f"{entry[c]} {c.replace('_', ' ')}" for c in counters if entry[c])
        if told:
            click.echo(f"  {told}")


def _load(path: Path, environ: dict[str, str] | None = None) -> Settings:
    from thawd import config

    try:
        return config.load(path, environ=environ)
    except ConfigurationError as error:
        count = len(error.problems)
        for problem in error.problems:
            click.echo(str(problem), err=True)
        _fail(f"{count} mistake{'' if count == 1 else 's'} in the configuration; see docs/configuration.md")


def _fail(message: str) -> NoReturn:
    click.echo(f"thawd: {message}", err=True)
    sys.exit(EXIT_FAILED)


def _first(group: BaseExceptionGroup[Any]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _read_payload(text: str) -> bytes:
    if text == "-":
        return sys.stdin.buffer.read()
    if text.startswith("@"):
        try:
            return Path(text[1:]).read_bytes()
        except OSError as error:
            _fail(f"the payload {text[1:]} cannot be read: {error.strerror}")
    return text.encode()


def _request(
    settings: Settings, path: str, body: bytes | None, headers: dict[str, str]
) -> tuple[int, dict[str, str], bytes]:
    """One request to the running server: status, headers (lower case), body; ends the command when there is none."""
    import http.client

    server = settings.server
    host, port = _address(settings)
    if server.key is not None:
        headers = {**headers, "X-Api-Key": server.key}
    connection = http.client.HTTPConnection(host, port, timeout=960)
    try:
        connection.request("GET" if body is None else "POST", path, body=body, headers=headers)
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    except OSError as error:
        _fail(f"no thawd answers at {host}:{port} ({error}); start it with `thawd up -c {settings.path}`")


def _address(settings: Settings) -> tuple[str, int]:
    """Where the server of this data folder listens: the one it wrote down, else the configured one."""
    from thawd.server import ADDRESS_FILE

    try:
        host, port = json.loads((settings.server.data / ADDRESS_FILE).read_text())
        return str(host), int(port)
    except (OSError, ValueError):
        return settings.server.host, settings.server.port


def _message(body: bytes) -> str:
    try:
        return str(json.loads(body)["Message"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace")


def _print_log_line(line: bytes, *, raw: bool) -> None:
    text = line.decode(errors="replace").rstrip("\n")
    click.echo(text.split("\t", 2)[-1] if raw else text.replace("\t", " ", 2))


def _follow(path: Path) -> Iterator[bytes]:
    """Lines as they are written, across rotations."""
    file = None
    rest = b""
    try:
        file = path.open("rb")
        file.seek(0, 2)
    except FileNotFoundError:
        pass
    while True:
        data = file.read() if file is not None else b""
        if data:
            *lines, rest = (rest + data).split(b"\n")
            yield from lines
            continue
        time.sleep(0.1)
        try:
            if file is None or path.stat().st_ino != _inode(file):
                left = file.read() if file is not None else b""
                file, old = path.open("rb"), file
                if old is not None:
                    old.close()
                *lines, rest = (rest + left).split(b"\n")
                yield from lines
        except FileNotFoundError:
            continue


def _inode(file: Any) -> int:
    import os

    return os.fstat(file.fileno()).st_ino


def _print_rows(rows: list[tuple[str, dict[str, Any]]], *, as_csv: bool) -> None:
    columns = list(dict.fromkeys(name for _, item in rows for name in item))
    cells = [["key", *columns]]
    for key, item in rows:
        cells.append([key, *(_cell(item.get(name)) for name in columns)])
    if as_csv:
        csv.writer(sys.stdout, lineterminator="\n").writerows(cells)
        return
    widths = [min(60, max(len(row[i]) for row in cells)) for i in range(len(cells[0]))]
    for row in cells:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
