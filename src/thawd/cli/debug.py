"""The options of `thawd up` and `thawd run` for debugging functions."""

from __future__ import annotations

import os
import sys
import termios
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import click

from thawd.cli.exits import fail
from thawd.system.suggestions import did_you_mean
from thawd.telemetry import console

if TYPE_CHECKING:
    from thawd.environments.debugging import Debugging

_PORT = 5678
_PORTS_TRIED = 30
_LEFT_OVER_S = 5.0
_LOOK_AGAIN_S = 0.05

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
    _check_ports(ports)
    return Debugging(ports, waits=waits, terminal=_terminal())


def _check_ports(ports: Mapping[str, int]) -> None:
    """End the command if an editor could not attach at one of the ports.

    The debugger of a server that has just ended has its port a little longer.
    """
    from thawd.environments.debugging import HOST, is_free
    from thawd.system.listeners import listener_at

    for name, port in ports.items():
        until_s = time.monotonic() + _LEFT_OVER_S
        while not is_free(port):
            holder = listener_at(HOST, port)
            if holder is None or "debugpy" not in holder.command or time.monotonic() > until_s:
                who = "another program" if holder is None else f"process {holder.pid} ({holder.name})"
                fail(
                    f"--debug {name}: {who} listens on port {port}, at which an editor would attach; stop it, or "
                    f"choose another port: --debug-port {_free_port(len(ports), port)}"
                )
            time.sleep(_LOOK_AGAIN_S)


def _free_port(count: int, taken: int) -> int:
    """The first of several free ports in a row, after one that is taken."""
    from thawd.environments.debugging import is_free

    first = range(taken + 1, taken + _PORTS_TRIED)
    return next((port for port in first if all(is_free(port + index) for index in range(count))), taken + 1)


@contextmanager
def terminal_shared(debugging: Debugging | None) -> Iterator[None]:
    """Share the terminal with pdb in the ``with`` block.

    Lines wait while pdb has its prompt. Afterwards, the terminal's mode is restored: readline may have ended with its
    process while it read.
    """
    if debugging is None or debugging.terminal is None:
        yield
        return
    console.share_terminal(debugging.terminal)
    fd = sys.stdin.fileno()
    try:
        mode = termios.tcgetattr(fd)
    except termios.error:
        yield
        console.end_sharing()
        return
    try:
        yield
    finally:
        console.end_sharing()
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
