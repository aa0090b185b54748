"""Drops the capabilities of functions' processes, unless ``server.capabilities = true`` lets functions keep them.

A server that runs as root, or has capabilities, would pass its capabilities on to each process that it starts. So
thawd-thaw drops them before it executes or thaws an environment. A forked environment drops them itself, after it has
mounted its folders. If the server runs as root, a template keeps the capabilities that its forks need for mounting. It
has them only in its own user namespace, outside of which they have no effect; if the machine offers no user namespaces,
the template keeps none.

Source: capabilities(7), user_namespaces(7).
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

_TRY_S = 10.0
_HELD = ("CapInh:", "CapPrm:", "CapAmb:")


@dataclass(frozen=True, slots=True)
class Rights:
    """Options of thawd-thaw that drop capabilities.

    Attributes:
        environment: options for an environment; empty: nothing is dropped.
        template: options for a process that is frozen, or from which environments are forked.
    """

    environment: tuple[str, ...] = ()
    template: tuple[str, ...] = ()

    @property
    def drops(self) -> bool:
        """Whether capabilities are dropped."""
        return bool(self.environment)


def held_capabilities() -> bool:
    """Return whether this process has a capability or would pass one on. Source: proc_pid_status(5)."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return False
    return any(int(line.split()[1], 16) for line in lines if line.startswith(_HELD))


def find_rights(program: Path | None, *, capabilities: bool) -> Rights:
    """Return the options with which this server's functions drop capabilities.

    Blocks, because it runs thawd-thaw for a test.

    Args:
        program: thawd-thaw; None if it was not built, and then nothing can be dropped.
        capabilities: whether the operator wants functions to keep the server's capabilities.
    """
    if program is None or capabilities or not held_capabilities():
        return Rights()
    none = ("--rights", "none")
    namespace = ("--rights", "namespace")
    return Rights(none, namespace if os.geteuid() == 0 and _works(program, namespace) else none)


def _works(program: Path, options: tuple[str, ...]) -> bool:
    command = [str(program), *options, "--try", "disk", os.devnull]
    try:
        return subprocess.run(command, capture_output=True, timeout=_TRY_S, check=False).returncode == 0
    except (OSError, subprocess.SubprocessError):
        return False


def notice(rights: Rights) -> str | None:
    """Return a warning for an operator who runs thawd as root, with a remedy; None when thawd runs as another user."""
    if os.geteuid() != 0:
        return None
    theirs = (
        "without capabilities (server.capabilities = true lets functions keep them)"
        if rights.drops or not held_capabilities()
        else "with all capabilities of this process"
    )
    return (
        f"thawd: RUNNING AS ROOT: functions run as root too, {theirs}, and can read and change everything that root "
        "owns. Run thawd as an ordinary user, or let it switch to one: thawd up --user NAME"
    )
