"""Ends commands: with an exit status, and for an expected error with a line on standard error and no traceback."""

from __future__ import annotations

import signal
import sys
from typing import Any, NoReturn

import click

from thawd.errors import ScarcityError, ThawdError
from thawd.telemetry.console import harmless

EXIT_FAILED = 1
EXIT_SCARCE = 71
"""Exit status: the machine cannot provide enough threads or memory. Source: sysexits.h, EX_OSERR."""
EXIT_INTERRUPTED = 128 + signal.SIGINT


class VerbGroup(click.Group):
    """A group of commands, such as ``thawd dead``. For an expected error, it prints one line instead of a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ThawdError as error:
            fail(str(error))


def fail(message: str) -> NoReturn:
    """Print `message` on standard error and end the command with status 1."""
    warn(message)
    sys.exit(EXIT_FAILED)


def fail_scarce(error: ScarcityError) -> NoReturn:
    """Print `error` and end the command with status 71: the machine cannot provide enough threads or memory."""
    warn(str(error))
    sys.exit(EXIT_SCARCE)


def warn(message: str) -> None:
    """Print a line on standard error. Control characters are escaped: other machines and files choose some texts."""
    if sys.stdout is not None:
        sys.stdout.flush()  # keeps the order of the lines when both streams go to the same file or terminal
    click.echo("\n".join(map(harmless, f"thawd: {message}".split("\n"))), err=True)
