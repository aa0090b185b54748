"""The options of `thawd up` and `thawd run` for debugging functions."""

from __future__ import annotations

import os
import sys
import termios
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import click

from thawd.cli.exits import fail
from thawd.cli.suggestions import did_you_mean

if TYPE_CHECKING:
    from thawd.environments.debugging import Debugging

_PORT = 5678

_debug_port = click.option(
    "--debug-port",
    type=click.IntRange(1, 65_500),
    default=_PORT,
    show_default=True,
    help="Port at which an editor attaches; the second debugged function gets the next one.",
)
_debug_wait = click.option("--debug-wait", is_flag=True, help="Let init wait until an editor has attached.")


def debug_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--debug``, ``--debug-port`` and ``--debug-wait`` to a command."""
    named = click.option(
        "--debug",
        metavar="FUNCTION",
        multiple=True,
        help="Let a debugger stop this function: an editor by debugpy, or pdb in this terminal. The function has one "
        "environment, without snapshot and time limits. May be given several times.",
    )
    return named(_debug_port(_debug_wait(command)))


def debug_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the same options to a command that serves one file, so that ``--debug`` names no function."""
    flag = click.option(
        "--debug",
        is_flag=True,
        help="Let a debugger stop the functions: an editor by debugpy, or pdb in this terminal. Each function has one "
        "environment, without snapshot and time limits.",
    )
    return flag(_debug_port(_debug_wait(command)))


def debugging_of(names: tuple[str, ...], port: int, *, waits: bool, known: Collection[str] | None) -> Debugging | None:
    """What the options ask for; None: nothing.

    Args:
        names: the functions.
        port: port of the first function.
        waits: whether init waits for an editor.
        known: names of the declared functions; None: they are not known yet.
    """
    if not names:
        if waits:
            raise click.UsageError("--debug-wait needs --debug: name the function that an editor debugs")
        return None
    for name in names:
        if known is not None and name not in known:
            fail(f"--debug {name}: there is no function {name}; {did_you_mean(name, known)}")
    from thawd.environments.debugging import Debugging

    ports = {name: port + index for index, name in enumerate(dict.fromkeys(names))}
    return Debugging(ports, waits=waits, terminal=_terminal())


@contextmanager
def terminal_restored(debugging: Debugging | None) -> Iterator[None]:
    """Restore the terminal's mode after the ``with`` block: readline may have ended with its process while it read."""
    if debugging is None or debugging.terminal is None:
        yield
        return
    fd = sys.stdin.fileno()
    try:
        mode = termios.tcgetattr(fd)
    except termios.error:
        yield
        return
    try:
        yield
    finally:
        if not _is_in_background(fd):  # from there, the change would stop this process
            with suppress(termios.error):
                termios.tcsetattr(fd, termios.TCSADRAIN, mode)


def _is_in_background(terminal: int) -> bool:
    try:
        return os.tcgetpgrp(terminal) != os.getpgrp()
    except OSError:
        return False  # it is not the terminal that controls this process


def _terminal() -> str | None:
    """Path of the terminal from which the command reads; None: there is none."""
    try:
        return os.ttyname(sys.stdin.fileno()) if sys.stdin is not None and sys.stdin.isatty() else None
    except (OSError, ValueError):
        return None
