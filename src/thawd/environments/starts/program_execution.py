"""Executes a program in a new session, with the descriptors of an environment's channels."""

from __future__ import annotations

import fcntl
import os
import resource
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from thawd.snapshot.engine import PROGRAM_NAME
from thawd.wire import frames

# How long to wait until thawd-thaw reports that it has executed a program. That takes milliseconds unless a disk hangs.
_EXECUTION_S = 2.0
# Limit on the open files of a program. Source: Lambda quotas, "File descriptors".
_OPEN_FILES = 1024


def execute_program(argv: Sequence[str], variables: Mapping[str, str], *, cwd: str, lifeline: int, output: int) -> int:
    """Execute, in a new session, a program that was not written for thawd; returns its process id.

    The kernel kills the process group of the program when the platform's end of the pipe `lifeline` closes. Which group
    gets the signal is a property of the open file, which the process inherits. So the platform can set it, and the
    program need not (`die_with_platform` in `thawd.runtime.process` has the sources).

    Args:
        argv: program and arguments.
        variables: all its environment variables.
        cwd: its working folder.
        lifeline: read end of the lifeline.
        output: descriptor for its standard output and error.

    Raises:
        OSError: the program does not exist, or there is no memory or process left.
    """
    pid = spawn(argv, variables, cwd=cwd, output=output, pass_fds=(lifeline,))
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -pid)
    if hasattr(fcntl, "F_SETSIG"):
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    if hasattr(resource, "prlimit"):
        _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        limit = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, hard))
    return pid


def spawn(
    command: Sequence[str], variables: Mapping[str, str], *, cwd: str, output: int, pass_fds: tuple[int, ...]
) -> int:
    """Execute a program in a new session and return its process id. `Children` reaps the process.

    Raises:
        OSError: this process or thawd-thaw could not execute the program.
    """
    status_read, status_write = os.pipe()
    wrapped = Path(command[0]).name == PROGRAM_NAME
    options = ["--status-fd", str(status_write)] if wrapped else []
    try:
        process = subprocess.Popen(
            [command[0], *options, *command[1:]],
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=(*pass_fds, status_write) if wrapped else pass_fds,
            cwd=cwd,
            start_new_session=True,
        )
        os.close(status_write)
        status_write = -1
        error = error_of(status_read)
        if error:
            process.wait()
            raise OSError(error, os.strerror(error), command[command.index("--run") + 1])
    finally:
        os.close(status_read)
        if status_write >= 0:
            os.close(status_write)
    process.returncode = 0
    return process.pid


def error_of(status_read: int) -> int:
    """Return the errno of thawd-thaw's attempt to execute its program; 0 when that worked or has not happened yet.

    The pipe `status_read` closes without a message when thawd-thaw executes the program.
    """
    poll = select.poll()  # select(2) accepts only descriptors below 1,024
    poll.register(status_read, select.POLLIN)
    if not poll.poll(_EXECUTION_S * 1000):
        return 0
    text = os.read(status_read, 4)
    return int.from_bytes(text, sys.byteorder) if len(text) == 4 else 0


def file_actions(
    process_ends: tuple[int, int, int, int], *, kept: int = -1
) -> list[tuple[int, ...] | tuple[int, int, str, int, int]]:
    """Return the actions that give the channels the numbers `frames.DESCRIPTORS`, and the log pipe 1 and 2.

    Args:
        process_ends: the channels and the log pipe.
        kept: a descriptor that keeps its number, which is higher than those; -1: none.
    """
    actions: list[tuple[int, ...] | tuple[int, int, str, int, int]] = []
    if kept >= 0:
        actions.append((os.POSIX_SPAWN_DUP2, kept, kept))  # so that it is not closed on exec
    sources = list(process_ends)
    if set(process_ends) & {0, 1, 2, *frames.DESCRIPTORS}:
        # Copy all descriptors to higher numbers first: one could be overwritten before it is copied to its own number.
        above = max(*process_ends, *frames.DESCRIPTORS, kept) + 1
        sources = [above + index for index in range(len(process_ends))]
        actions += [(os.POSIX_SPAWN_DUP2, fd, source) for fd, source in zip(process_ends, sources, strict=True)]
        closing: list[tuple[int, ...]] = [(os.POSIX_SPAWN_CLOSE, source) for source in sources]
    else:
        closing = []
    *channels, output = sources
    actions.append((os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0))
    actions += [(os.POSIX_SPAWN_DUP2, fd, number) for fd, number in zip(channels, frames.DESCRIPTORS, strict=True)]
    actions += [(os.POSIX_SPAWN_DUP2, output, 1), (os.POSIX_SPAWN_DUP2, output, 2)]
    return actions + closing
