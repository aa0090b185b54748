"""The command ``thawd logs``: print and follow a function's log. It reads the log files and needs no server."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import click

from thawd.cli.exits import fail, warn
from thawd.cli.options import config_option, examples, load, project_of
from thawd.cli.output import print_log_lines

if TYPE_CHECKING:
    from thawd.config import Settings

_FOLLOW_S = 0.05


@click.command(
    epilog=examples(
        "thawd logs classify --follow",
        "thawd logs classify -n 1000 --raw | grep Error",
        "thawd logs /team/shared               # a log group that functions share",
    )
)
@click.argument("function")
@click.option("-f", "--follow", is_flag=True, help="Print further lines as they are written, until Ctrl-C.")
@click.option(
    "-n", "--lines", type=click.IntRange(0), default=100, show_default=True, help="Number of past lines to print."
)
@click.option("--raw", is_flag=True, help="Print only the messages, without time and log stream.")
@config_option
def logs(function: str, follow: bool, lines: int, raw: bool, config_path: Path) -> None:
    """Print the log of FUNCTION.

    The log contains everything that the function printed, and the START, END and REPORT lines of each invocation. If
    FUNCTION contains a slash, it is the name of a log group, which several functions can share (option log_group). The
    command works whether or not the server runs. While it runs, the logical id of a project's function will do, too.
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
    elif not is_group and project_of(config_path) is not None:
        group = _group_in_project(settings, function, group)
    with LogReader(path_of_group(settings.server.data / "logs", group), report=warn) as log:
        last = log.start(lines, unfinished=not follow)
        if function not in settings.functions and not log.exists:
            known = ", ".join(settings.functions) or "none"
            if is_group:
                fail(f"there is no log group {function!r}")
            fail(f"there is no function {function!r}, and no log of such a function; {config_path} has: {known}")
        print_log_lines(last, raw=raw)
        with contextlib.suppress(KeyboardInterrupt):
            while follow:
                if more := log.read():
                    print_log_lines(more, raw=raw)
                else:
                    time.sleep(_FOLLOW_S)


def _group_in_project(settings: Settings, function: str, group: str) -> str:
    """The log group of a project's function, by its name, or by its logical id if the server runs."""
    from thawd.cli.projects import function_named
    from thawd.telemetry.logs.groups import DEFAULT_PREFIX, path_of_group

    if path_of_group(settings.server.data / "logs", group).exists():
        return group
    found = function_named(settings, function)
    return group if found is None else DEFAULT_PREFIX + found
