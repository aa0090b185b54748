"""What the verbs of the command line share: the configuration file, and how an expected trouble is told.

Owns no verb. Heavy imports happen when they are needed, so that help is instant.
"""

from __future__ import annotations

import math
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from thawd.errors import ConfigurationError, ScarcityError, ThawdError

if TYPE_CHECKING:
    from thawd.config import Settings

EXIT_FAILED = 1
EXIT_SCARCE = 71
"""The machine has too few threads or too little memory for thawd; sysexits.h: EX_OSERR, "cannot fork" and the like."""
EXIT_INTERRUPTED = 128 + signal.SIGINT

config_option = click.option(
    "-c",
    "--config",
    "config_path",
    default="thawd.toml",
    show_default=True,
    type=click.Path(path_type=Path),
    help="The configuration file.",
)


def check_writable(path: Path | None) -> None:
    """End the command where no file can be written at `path`: a measurement of an hour must not be lost to that."""
    if path is not None and (path.is_dir() or not os.access(path.parent, os.W_OK)):
        fail(f"{path}: not a place where a file can be written")


class Verbs(click.Group):
    """A group of verbs and their border: an expected trouble ends it with a line, never with a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ThawdError as error:
            fail(str(error))


class Finite(click.FloatRange):
    """A number within bounds that is one: click takes ``nan`` and ``inf``, too."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See `click.ParamType`."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a number to reckon with.", param, ctx)
        return number


def load(path: Path, environ: Mapping[str, str] | None = None) -> Settings:
    """The configuration; ends the command with every mistake in it."""
    from thawd import config

    try:
        return config.load(path, environ=environ)
    except ConfigurationError as error:
        count = len(error.problems)
        for problem in error.problems:
            click.echo(str(problem), err=True)
        fail(f"{count} mistake{'' if count == 1 else 's'} in the configuration; see docs/reference/configuration.md")


def fail(message: str) -> NoReturn:
    """End the command with a line on standard error."""
    warn(message)
    sys.exit(EXIT_FAILED)


def scarce(error: ScarcityError) -> NoReturn:
    """End the command because the machine has too little for it."""
    warn(str(error))
    sys.exit(EXIT_SCARCE)


def warn(message: str) -> None:
    """A line on standard error."""
    if sys.stdout is not None:
        sys.stdout.flush()  # so that it stands where it belongs when both go to one place
    click.echo(f"thawd: {message}", err=True)
