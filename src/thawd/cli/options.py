"""Options that several commands share, checks of their values, and the examples below a command's help text.

`load` reads the configuration. It imports `thawd.config` only when it is called, so that ``--help`` does not wait for
that import.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from thawd.cli.exits import fail
from thawd.deploy.projects.discovery import ASSEMBLY, find_project, is_project
from thawd.errors import ConfigurationError, ThawdError

if TYPE_CHECKING:
    from thawd.config import Settings

RUN_CONFIGURATION = Path(".thawd", "run", "thawd.toml")
"""Where `thawd run` writes its configuration, in the folder of the file that it serves."""

_SERVING = ("up", "check", "deploy", "package", "image")

config_option = click.option(
    "-c",
    "--config",
    "config_path",
    default="thawd.toml",
    show_default=True,
    type=click.Path(path_type=Path),
    help="Configuration file.",
)


quiet_option = click.option(
    "-q", "--quiet", is_flag=True, help="Print only problems: no lines about requests, publications and progress."
)


log_format_option = click.option(
    "--log-format",
    type=click.Choice(["text", "json", "journald"]),
    help="What the server prints: lines for people, JSON objects, or entries of systemd's journal. Overrides "
    "server.log_format.",
)


def begin_log(log_format: str | None, path: Path) -> None:
    """Print in the form of the option ``--log-format``, or if it is not given, of the configuration.

    Also mistakes in the configuration are printed in that form, if the file can be read.

    Args:
        log_format: the option; None: it was not given.
        path: the configuration; there may be none.
    """
    from thawd import config
    from thawd.telemetry import console

    console.use(log_format or config.log_format_of(path, environ=config.process_environment()))


def examples(*lines: str) -> str:
    """Return the end of a command's help text: example command lines, which click prints without wrapping them."""
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])


def project_of(path: Path) -> Path | None:
    """The project of another tool that a command's ``--config`` names, or that is in the folder without thawd.toml.

    Returns:
        The project's file, for example ``template.yaml``; None if the configuration is thawd's own.
    """
    if is_project(path):
        return path
    return find_project(path.parent) if path.name == "thawd.toml" and not path.exists() else None


def load(path: Path, environ: Mapping[str, str] | None = None) -> Settings:
    """Load the configuration file. If it contains mistakes, print all of them and end the command.

    For a project of another tool, the settings are the defaults, and those of environment variables.
    """
    from thawd import config

    project = project_of(path)
    if project is None and path.name == "thawd.toml" and not path.exists() and not _serves():
        # Commands that ask a server reach one that `thawd run` has started, too.
        run_by_file = path.parent / RUN_CONFIGURATION
        path = run_by_file if run_by_file.exists() else path
    try:
        if project is not None:
            root = project.parent.parent if project.parent.name == ASSEMBLY else project.parent
            return config.without_file(root / project.name, environ=environ)
        return config.load(path, environ=environ)
    except ConfigurationError as error:
        count = len(error.problems)
        for problem in error.problems:
            click.echo(str(problem), err=True)
        fail(f"{count} mistake{'' if count == 1 else 's'} in the configuration")


def data_folder(path: Path) -> Path:
    """Return the data folder: that of thawd.toml, or without one the default, for commands that need no thawd.toml."""
    if path == Path("thawd.toml") and not path.exists():
        return Path(os.environ.get("THAWD_DATA") or ".thawd").resolve()
    return load(path).server.data


def _serves() -> bool:
    """Whether the command in progress serves or deploys a configuration, so that it must be the user's own."""
    context = click.get_current_context(silent=True)
    while context is not None:
        if context.info_name in _SERVING:
            return True
        context = context.parent
    return False


def complete_function(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """The functions of thawd.toml whose names begin with `incomplete`, for a shell that completes a command line."""
    import tomllib

    path = Path(context.params.get("config_path") or "thawd.toml")
    try:
        functions = tomllib.loads(path.read_text()).get("functions", {})
    except (OSError, ValueError):
        return []
    return [name for name in functions if name.startswith(incomplete)] if isinstance(functions, dict) else []


def check_writable(path: Path | None) -> None:
    """End the command if no file can be written at `path`. Call it before a long measurement, not after it."""
    if path is None:
        return
    if not os.access(path, os.F_OK, effective_ids=True):
        folder = Path(os.path.realpath(path)).parent
        if not os.access(folder, os.W_OK | os.X_OK, effective_ids=True):
            fail(f"{path} cannot be written: its folder is missing or not writable; name another file")
    elif path.is_dir() or not os.access(path, os.W_OK, effective_ids=True):
        fail(f"{path} cannot be written: it is a folder, or a file that is not writable; name another file")


def check_page(path: Path | None) -> None:
    """End the command if no HTML page can be written at `path`, or the library that makes pages is not installed."""
    from thawd.bench.pages import require_templates

    check_writable(path)
    if path is not None:
        try:
            require_templates()
        except ThawdError as error:
            fail(str(error))


class Finite(click.FloatRange):
    """Type of an option: a finite number within bounds. click's own `FloatRange` accepts ``nan`` and ``inf``, too."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See `click.ParamType`."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} must be finite.", param, ctx)
        return number
