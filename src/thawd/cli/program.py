"""The command ``thawd``: one verb a function. Heavy imports happen inside the verbs, so that help is instant."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import click

from thawd import __version__
from thawd.cli import bench, cost, data, queue, snapshot, source, table
from thawd.cli.client import message_of, request
from thawd.cli.interrupts import interruptible, raising
from thawd.cli.terminal import let_go_of_output, print_log_lines, print_status, sigpipe
from thawd.cli.verbs import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_SCARCE, config_option, fail, load, scarce, warn
from thawd.errors import ScarcityError, ThawdError
from thawd.system import threads

EXIT_FUNCTION_ERROR = 3
"""The function ran and failed; told apart from a request that could not be made."""

_FOLLOW_S = 0.05


class _Commands(click.Group):
    """The border of every verb: an expected trouble ends it with a line, never with a traceback."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        # A reader that has enough (`| head`) ends us as it ends cat and grep. Python ignores the signal by habit.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):  # not every terminal can show every name
                stream.reconfigure(errors="backslashreplace")
        return super().main(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            raising()
            result = super().invoke(ctx)
            if sys.stdout is not None:
                sys.stdout.flush()
        except KeyboardInterrupt:
            sys.exit(EXIT_INTERRUPTED)
        except OSError as error:
            let_go_of_output()
            fail(f"{error.filename or 'the output cannot be written'}: {error.strerror or error}")
        return result


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="thawd")
def main() -> None:
    """Serverless machine-learning inference on your own machine, in AWS Lambda's language.

    Begin with `thawd up` beside a thawd.toml. boto3 and the AWS CLI are its clients, with their endpoint URL set.
    """


main.add_command(snapshot.group)
main.add_command(bench.bench)
main.add_command(data.backup)
main.add_command(data.restore)
main.add_command(table.table)
main.add_command(queue.queue)
main.add_command(queue.dead)
main.add_command(source.group)
main.add_command(cost.cost)
main.add_command(cost.tune)


@main.command()
@config_option
@click.option("--host", help="Address to listen on; overrides server.host. Other than loopback needs server.key.")
@click.option("--port", type=click.IntRange(0, 65535), help="Port; overrides server.port. 0 takes any free one.")
@click.option("--user", help="Become that user first, and functions with it; for root. Overrides server.user.")
@click.option("--watch", is_flag=True, help="Publish a function anew when its code changes.")
@click.option(
    "--ready-file",
    type=click.Path(path_type=Path),
    help='Write {"url": …, "pid": …} there once everything is served; for scripts.',
)
@click.option("--aws", "local_aws", is_flag=True, help="Serve S3, DynamoDB, SQS and others, too, emulated by moto.")
@click.option("--aws-real", "real_aws", is_flag=True, help="Functions call your own AWS account by your credentials.")
def up(  # noqa: PLR0913, PLR0917 - an option each
    config_path: Path,
    host: str | None,
    port: int | None,
    user: str | None,
    watch: bool,
    ready_file: Path | None,
    local_aws: bool,
    real_aws: bool,
) -> None:
    """Serve everything in the configuration, in the foreground.

    SIGINT (Ctrl-C) and SIGTERM let what runs finish within server.grace_s; a second one ends it at once. SIGHUP reads
    the configuration anew and publishes what has changed.
    """
    with interruptible():
        try:
            from thawd import config
            from thawd.server import serving
            from thawd.stores import threads as store_threads
        except (ImportError, MemoryError) as error:
            if (told := threads.scarcity(error)) is None:
                raise
            scarce(told)
    environ = dict(config.process_environment())
    if host is not None:
        environ["THAWD_HOST"] = host
    if port is not None:
        environ["THAWD_PORT"] = str(port)
    if user is not None:
        environ["THAWD_USER"] = user
    if local_aws and real_aws:
        raise click.UsageError("--aws and --aws-real exclude each other")
    settings = load(config_path, environ)
    mode = "local" if local_aws else "real" if real_aws else "none"
    if ready_file is not None:
        _check_ready_file(ready_file)
    status = 0
    with sigpipe(signal.SIG_IGN):  # a server outlives the terminal and the clients that it writes to
        try:
            serving.run(settings, environ=environ, watch=watch, ready_file=ready_file, aws=mode)
        except (ThawdError, OSError) as error:
            warn(str(error))
            status = EXIT_SCARCE if isinstance(error, ScarcityError) else EXIT_FAILED
        finally:
            # All is ended: what is left, Python's own end, is not worth interrupting.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            let_go_of_output()
        if store_threads.are_left():
            os._exit(status)  # Python would wait for them, and they for an endpoint that does not answer
        if status:
            sys.exit(status)


@main.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("image", type=click.Path(path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def thaw(image: Path, arguments: tuple[str, ...]) -> None:
    """Become the process that was frozen into IMAGE by `thawd.snapshot.freeze`.

    It goes on where freeze was called, and is given ARGUMENTS, this command's environment and its standard streams.
    Exit status 120: the image does not fit this machine, 121: a stage of the thaw failed; else the process's own.
    """
    from thawd.snapshot import engine

    try:
        program = engine.program_path()
    except engine.SnapshotFailed as error:
        fail(str(error))
    os.execv(program, [program, str(image), *arguments])


@main.command()
@config_option
def check(config_path: Path) -> None:
    """Validate the configuration: every mistake by file, key path, what was found, what is allowed."""
    settings = load(config_path)
    parts = {
        "function": len(settings.functions),
        "bucket": len(settings.buckets) + len(settings.remote_buckets),
        "route": len(settings.routes),
        "queue": sum(map(len, settings.sources.values())),
        "schedule": len(settings.schedules),
        "table": len(settings.tables),
    }
    optional = ("queue", "schedule")
    said = ", ".join(
        f"{count} {name}{'' if count == 1 else 's'}" for name, count in parts.items() if count or name not in optional
    )
    click.echo(f"{config_path}: no mistakes; {said}")


@main.command()
@click.argument("function")
@click.option(
    "-p", "--payload", default="{}", help="The event as JSON; @FILE reads it from a file, - from standard input."
)
@click.option("--event", "asynchronous", is_flag=True, help="Invoke asynchronously: stored now, run later.")
@click.option("--tail", is_flag=True, help="Print the end of the invocation's log on standard error.")
@config_option
def invoke(function: str, payload: str, asynchronous: bool, tail: bool, config_path: Path) -> None:
    """Invoke FUNCTION on the running server and print its answer."""
    import base64
    from urllib.parse import quote

    headers = {"X-Amz-Invocation-Type": "Event" if asynchronous else "RequestResponse"}
    if tail and not asynchronous:
        headers["X-Amz-Log-Type"] = "Tail"
    status, answered, body = request(
        load(config_path),
        f"/2015-03-31/functions/{quote(os.fsencode(function), safe='')}/invocations",
        _read_payload(payload),
        headers,
    )
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


@main.command()
@click.argument("function")
@click.option("-f", "--follow", is_flag=True, help="Go on as lines are written, until Ctrl-C.")
@click.option("-n", "--lines", type=click.IntRange(0), default=100, show_default=True, help="Begin with so many lines.")
@click.option("--raw", is_flag=True, help="Messages only, without time and log stream.")
@config_option
def logs(function: str, follow: bool, lines: int, raw: bool, config_path: Path) -> None:
    """Print the log of FUNCTION: what it printed, and START, END and REPORT of each invocation.

    A name with a slash, such as /team/shared, is a log group's.
    """
    import time

    from thawd.config.options.functions import FUNCTION_NAME, LOG_GROUP
    from thawd.telemetry.logs.groups import DEFAULT_PREFIX, path_of_group
    from thawd.telemetry.logs.reader import LogReader

    settings = load(config_path)
    is_group = "/" in function and not function.startswith(".")
    allowed = LOG_GROUP if is_group else FUNCTION_NAME
    if not allowed.accepts(function):
        fail(f"{function!r} is not {allowed.allowed}")
    declared = settings.functions.get(function)
    group = function if is_group else DEFAULT_PREFIX + function
    if declared is not None:
        group = declared.log_group_name
    with LogReader(path_of_group(settings.server.data / "logs", group), report=warn) as log:
        last = log.start(lines, unfinished=not follow)
        if function not in settings.functions and not log.exists:
            known = ", ".join(settings.functions) or "none"
            if is_group:
                fail(f"there is no log group {function!r}")
            fail(f"there is no function {function!r} and no log of one; {config_path} has: {known}")
        print_log_lines(last, raw=raw)
        with contextlib.suppress(KeyboardInterrupt):
            while follow:
                if more := log.read():
                    print_log_lines(more, raw=raw)
                else:
                    time.sleep(_FOLLOW_S)


@main.command()
@click.option("--json", "as_json", is_flag=True, help="The whole status document.")
@config_option
def status(as_json: bool, config_path: Path) -> None:
    """Show what the running server is doing: environments, starts and latencies by function."""
    code, _, body = request(load(config_path), "/_thawd/status", None, {})
    if code != 200:
        fail(f"HTTP {code}: {message_of(body)}")
    try:
        document = json.loads(body)
    except ValueError:
        fail("what answers is not thawd; look which server has the port, or start thawd with `thawd up`")
    if as_json:
        click.echo(json.dumps(document, indent=2))
        return
    print_status(document)


def _check_ready_file(path: Path) -> None:
    """Find out before anything starts that the file could not be written at the end of the start."""
    folder = path.parent
    if path.is_dir():
        fail(f"the ready file {path} is a folder; name a file in it")
    if not folder.is_dir():
        fail(f"the ready file {path} cannot be written: there is no folder {folder}; make it, or name another file")
    if not os.access(folder, os.W_OK | os.X_OK):
        fail(f"the ready file {path} cannot be written: the folder {folder} may not be written; name another file")


def _read_payload(text: str) -> bytes:
    if text == "-":
        return sys.stdin.buffer.read()
    if text.startswith("@"):
        try:
            return Path(text[1:]).read_bytes()
        except OSError as error:
            fail(f"the payload {text[1:]} cannot be read: {error.strerror}")
    return os.fsencode(text)
