"""How verbs end: exit statuses, and one line on standard error for an expected error instead of a traceback."""

from __future__ import annotations

import signal
import sys
from typing import Any, NoReturn

import click

from thawd.errors import ScarcityError, ThawdError

EXIT_FAILED = 1
EXIT_SCARCE = 71
"""The machine has too few threads or too little memory for thawd; sysexits.h: EX_OSERR, "cannot fork" and the like."""
EXIT_INTERRUPTED = 128 + signal.SIGINT


class VerbGroup(click.Group):
    """A group of verbs, such as ``thawd dead``, that ends with one line for an expected error."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ThawdError as error:
            fail(str(error))


def fail(message: str) -> NoReturn:
    """End the command with a line on standard error."""
    warn(message)
    sys.exit(EXIT_FAILED)


def fail_scarce(error: ScarcityError) -> NoReturn:
    """End the command because the machine has too few threads or too little memory."""
    warn(str(error))
    sys.exit(EXIT_SCARCE)


def warn(message: str) -> None:
    """Print a line on standard error."""
    if sys.stdout is not None:
        sys.stdout.flush()  # keeps the order of the lines when both streams go to one place
    click.echo(f"thawd: {message}", err=True)
