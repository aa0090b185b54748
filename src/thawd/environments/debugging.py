"""Functions that a debugger can stop (``thawd up --debug``): what is different about them and their processes.

Such a function runs in one environment at a time, which is started cold: a debugger's threads and connections cannot be
frozen. Its files are imported from the user's own folder, so that a debugger finds breakpoints in the files that the
user has open. Time limits would end an invocation that a debugger has stopped, so they are a week.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from thawd.environments.version import Version
from thawd.resources import Function
from thawd.telemetry.console import stderr_of_children

VARIABLE = "THAWD_DEBUG"
"""Environment variable with what `thawd.runtime.debugging` needs, as JSON."""
HOST = "127.0.0.1"
FIRST_PORT = 5678
"""The port that editors suggest for debugpy."""
MEMORY_MB = 512
"""Memory for the debugger, in addition to the function's own limit, MiB."""
WHY_COLD = "it is started for a debugger, whose threads and connections cannot be frozen"
_HELD_S = 7 * 86_400
_ANSWER_WITHIN_S = 10.0
_FREE_WITHIN_S = 10.0
_LOOK_AGAIN_S = 0.1
_LISTENS = "0A"
_TABLE = Path("/proc/net/tcp")
_HAS_DEBUGPY = "import importlib.util, sys; sys.exit(importlib.util.find_spec('debugpy') is None)"


@dataclass(frozen=True, slots=True)
class Debugging:
    """What ``thawd up --debug`` asks for.

    Attributes:
        ports: by name of the function, the port at which an editor can attach.
        waits: whether init waits until an editor has attached.
        terminal: path of the server's terminal, for pdb; None: the server has no terminal.
    """

    ports: Mapping[str, int]
    waits: bool = False
    terminal: str | None = None

    def variable(self, function: Function, python: Path, *, package: Path) -> str:
        """Return the value of `VARIABLE` for a function's processes. Blocks while the interpreter starts.

        Args:
            function: the function.
            python: its interpreter.
            package: the copy of its code at this publication; a changed copy makes a new version.
        """
        found = _has_debugpy(python)
        spec = None if found else find_spec("debugpy")
        folder = None if spec is None or spec.origin is None else str(Path(spec.origin).parent.parent)
        return json.dumps(
            {
                "function": function.name,
                "host": HOST,
                "port": self.ports[function.name] if found or folder is not None else None,
                "debugpy": folder,
                "waits": self.waits,
                "terminal": self.terminal,
                "terminal_kind": os.environ.get("TERM"),
                "package": package.name,
            }
        )

    @staticmethod
    def why_nothing_stops(variable: str) -> str | None:
        """Return why no debugger can stop a function with this `VARIABLE`, and the way out; None: one can."""
        facts = json.loads(variable)
        if facts["port"] is not None or facts["terminal"] is not None:
            return None
        return (
            "no debugger can stop it: an editor needs debugpy, and pdb needs a terminal. Install debugpy (pip install "
            "'thawd[debug]', or add it to the function's packages), or start thawd in a terminal"
        )


def held(function: Function) -> Function:
    """Return the function with settings that let a debugger hold its one environment for as long as it likes."""
    return msgspec.structs.replace(
        function,
        timeout_s=_HELD_S,
        init_timeout_s=_HELD_S,
        provisioned_concurrency=1,
        keep_alive="fixed",
        freeze_idle=False,
    )


@asynccontextmanager
async def announced(version: Version, say: Callable[[str], None]) -> AsyncIterator[None]:
    """Say how a debugger can stop the version that is started in the ``with`` block, once an editor can attach.

    That may be long before the end of the block, because init may wait for an editor.
    """
    if not version.debugged:
        yield
        return
    facts = json.loads(version.variables[VARIABLE])
    if facts["port"] is None:
        say(_line(facts))
        yield
        return
    before = _listener(facts["port"])

    async def once_it_listens() -> None:
        while _listener(facts["port"]) in {None, before}:  # noqa: ASYNC110 - see `port_released`
            await asyncio.sleep(_LOOK_AGAIN_S)
        say(_line(facts))

    announcing = asyncio.create_task(once_it_listens())
    try:
        yield
        if not announcing.done() and _listener(facts["port"]) not in {None, before}:  # it began a moment ago
            say(_line(facts))
    finally:
        announcing.cancel()


def is_free(port: int) -> bool:
    """Return whether a debugger could listen at a port of `HOST`."""
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as debugpy's adapter does
        try:
            trial.bind((HOST, port))
        except OSError:
            return False
    return True


async def port_released(version: Version) -> None:
    """Wait until the port of a debugged version is free: the debugger's adapter ends a little after its function."""
    port, until_s = json.loads(version.variables[VARIABLE])["port"], time.monotonic() + _FREE_WITHIN_S
    while _listener(port) is not None and time.monotonic() < until_s:  # noqa: ASYNC110 - the kernel reports no such event
        await asyncio.sleep(_LOOK_AGAIN_S)


def _line(facts: Mapping[str, Any]) -> str:
    pdb = "breakpoint() opens pdb in this terminal" if facts["terminal"] else "no terminal for pdb"
    if facts["port"] is None:
        return f"{pdb}; for an editor: pip install 'thawd[debug]', or add debugpy to the function's packages"
    waits = "init waits until an editor attaches" if facts["waits"] else "an editor can attach"
    return f"{waits} at {facts['host']}:{facts['port']} (debugpy); without one, {pdb}"


def _listener(port: int | None) -> str | None:
    """Return the inode of the socket that listens at a port of `HOST`; None: none does.

    A connection would tell as much, but debugpy's adapter takes it for an editor. Source: proc_pid_net(5), "tcp".
    """
    if port is None:
        return None
    try:
        rows = [line.split() for line in _TABLE.read_text().splitlines()[1:]]
    except OSError:
        return None
    local = f"0100007F:{port:04X}"
    return next((row[9] for row in rows if row[1] == local and row[3] == _LISTENS), None)


def _has_debugpy(python: Path) -> bool:
    """Return whether the interpreter can import debugpy."""
    try:
        done = subprocess.run(
            [python, "-c", _HAS_DEBUGPY],
            stdin=subprocess.DEVNULL,
            stderr=stderr_of_children(),
            timeout=_ANSWER_WITHIN_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
