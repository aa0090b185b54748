"""The command ``thawd logs``: print and follow a function's log. It reads the log files and needs no server."""

from __future__ import annotations

import contextlib
import re
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from thawd.cli.cluster_logs import ClusterLog, print_log
from thawd.cli.exits import fail, warn
from thawd.cli.log_lines import Layout, LogLine, print_lines
from thawd.cli.machines import cluster_of, machine_option
from thawd.cli.options import complete_function, config_option, examples, load, project_of
from thawd.cli.times import moment
from thawd.system.suggestions import did_you_mean

if TYPE_CHECKING:
    from thawd.config import Settings
    from thawd.telemetry.logs.reader import LogReader
    from thawd.telemetry.logs.selection import Selection

_FOLLOW_S = 0.05
_LINES = 100


@click.command(
    epilog=examples(
        "thawd logs classify --follow",
        "thawd logs classify --since 10m --grep Error",
        "thawd logs classify --request 7010a3f2       # the lines of one invocation",
        "thawd logs classify -n 1000 --raw | less",
        "thawd logs /team/shared               # a log group that functions share",
        "thawd logs classify --machine b       # the lines of one machine of a cluster",
    )
)
@click.argument("function", shell_complete=complete_function)
@click.option("-f", "--follow", is_flag=True, help="Print further lines as they are written, until Ctrl-C.")
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(0),
    help=f"Number of past lines to print: {_LINES} unless lines are selected, then all of them.",
)
@click.option("--since", metavar="TIME", help="Print lines from this time on: 30s, 10m, 2h, 3d ago, or a time in UTC.")
@click.option("-g", "--grep", metavar="PATTERN", help="Print lines whose message contains this regular expression.")
@click.option("--request", metavar="ID", help="Print the lines of one invocation: its request id, or the beginning.")
@click.option("--raw", is_flag=True, help="Print only the messages, without time and log stream.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one object a line, with the request id.")
@click.option(
    "--long/--short",
    "is_long",
    default=None,
    help="Print times and log streams whole, or short. Default: short on a terminal.",
)
@machine_option
@config_option
def logs(  # noqa: PLR0913, PLR0917 - an option each
    function: str,
    follow: bool,
    lines: int | None,
    since: str | None,
    grep: str | None,
    request: str | None,
    raw: bool,
    as_json: bool,
    is_long: bool | None,
    machine: str | None,
    config_path: Path,
) -> None:
    """Print the log of FUNCTION.

    The log contains everything that the function printed, and the START, END and REPORT lines of each invocation. If
    FUNCTION contains a slash, it is the name of a log group, which several functions can share (option log_group). The
    command works whether or not the server runs. While it runs, the logical id of a project's function will do, too.

    In a cluster, the lines of all machines are merged by time, and each has the name of its machine, except with --raw.
    The server on this machine asks the others.
    """
    from thawd.telemetry.logs.groups import path_of_group
    from thawd.telemetry.logs.reader import LogReader
    from thawd.telemetry.logs.selection import Selection

    if raw and as_json:
        raise click.UsageError("--raw and --json exclude each other")
    selection = Selection(_pattern(grep), _request(request), 0 if since is None else int(moment(since) * 1000))
    settings = load(config_path)
    group = _group(function, settings, config_path)
    layout = Layout.RAW if raw else Layout.JSON if as_json else _layout(is_long)
    count = lines if lines is not None else _LINES if selection.wants_all else None
    is_member = settings.cluster is not None or machine is not None
    cluster = cluster_of(settings, machine, or_alone=True) if is_member else None
    if cluster is not None:
        whole = ClusterLog(cluster, group, selection)
        if not print_log(whole, layout, count=count, follow=follow, may_be_missing=function in settings.functions):
            _fail_missing(function, settings)
        return
    path = path_of_group(settings.server.data / "logs", group)
    with LogReader(path, report=warn) as log:
        last = log.start((count or 0) if selection.wants_all else 0, unfinished=not follow)
        if function not in settings.functions and not log.exists:
            _fail_missing(function, settings)
        past = _parsed(last, selection) if selection.wants_all else _selected(path, selection)
        if count is None and not follow:
            print_lines(past, layout)  # without keeping them: a log may be large
            return
        shown = deque(past, maxlen=count)
        print_lines(shown, layout)
        with contextlib.suppress(KeyboardInterrupt):
            if follow:
                _follow(log, selection, layout, {line.text for line in shown})


def _fail_missing(function: str, settings: Settings) -> NoReturn:
    if "/" in function:
        fail(f"there is no log group {function!r}")
    fail(
        f"there is no function {function!r}, and no log of such a function; "
        f"{did_you_mean(function, settings.functions)}"
    )


def _follow(log: LogReader, selection: Selection, layout: Layout, printed: set[bytes]) -> None:
    """Print the lines that are written from now on; those in `printed` were written while the past was read."""
    import time

    while True:
        more = log.read()
        if more:
            print_lines([line for line in _parsed(more, selection) if line.text not in printed], layout)
        else:
            printed = set()
            time.sleep(_FOLLOW_S)


def _parsed(lines: list[bytes], selection: Selection) -> Iterator[LogLine]:
    for text in lines:
        time_text, stream, message = (*text.split(b"\t", 2), b"", b"")[:3]
        if not message and not stream:
            time_text, message = b"", text  # a line that a full disk has cut off
        is_wanted, request_id = selection.take(stream, message)
        if is_wanted:
            yield LogLine(time_text, stream, message, request_id)


def _selected(path: Path, selection: Selection) -> Iterator[LogLine]:
    """The wanted lines of a log, oldest first."""
    from thawd.telemetry.logs.events import LogEvents

    if not path.exists():
        return
    with LogEvents(path) as events:
        for event in events.forward(start_ms=selection.since_ms):
            is_wanted, request_id = selection.take(event.stream, event.message)
            if is_wanted and event.time_ms >= selection.since_ms:
                yield LogLine.at(event.time_ms, event.stream, event.message, request_id)


def _pattern(text: str | None) -> re.Pattern[bytes] | None:
    if text is None:
        return None
    try:
        return re.compile(text.encode())
    except re.error as error:
        fail(f"--grep {text!r} is no regular expression: {error}; write a literal character as [.] or \\.")


def _request(text: str | None) -> bytes:
    if text is None:
        return b""
    if not re.fullmatch(r"[0-9a-fA-F-]{4,36}", text):
        fail(f"--request {text!r} is no request id: copy it from a REPORT line, or at least its first 4 digits")
    return text.lower().encode()


def _layout(is_long: bool | None) -> Layout:
    if is_long is None:
        is_long = not sys.stdout.isatty()
    return Layout.LONG if is_long else Layout.SHORT


def _group(function: str, settings: Settings, config_path: Path) -> str:
    """The name of the log group that FUNCTION stands for. If it cannot be one, the command ends."""
    from thawd.config.options.functions import FUNCTION_NAME, LOG_GROUP
    from thawd.telemetry.logs.groups import DEFAULT_PREFIX

    is_group = "/" in function and not function.startswith(".")
    allowed = LOG_GROUP if is_group else FUNCTION_NAME
    if not allowed.accepts(function):
        fail(f"{function!r} is not {allowed.allowed}")
    declared = settings.functions.get(function)
    if declared is not None:
        return declared.log_group_name
    group = function if is_group else DEFAULT_PREFIX + function
    return _group_in_project(settings, function, group) if not is_group and project_of(config_path) else group


def _group_in_project(settings: Settings, function: str, group: str) -> str:
    """The log group of a project's function, by its name, or by its logical id if the server runs."""
    from thawd.cli.projects import function_named
    from thawd.telemetry.logs.groups import DEFAULT_PREFIX, path_of_group

    if path_of_group(settings.server.data / "logs", group).exists():
        return group
    found = function_named(settings, function)
    return group if found is None else DEFAULT_PREFIX + found
