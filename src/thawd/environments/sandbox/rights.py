"""Capabilities of functions' processes: none, unless the operator asks for them.

A server that runs as root, or has capabilities, would pass them on to each process that it starts. So thawd-thaw drops
them: in environments and in forks after their folders are mounted. A template under root keeps the capabilities that
its forks need for mounting, in a user namespace of its own, outside of which they are void; where there are no user
namespaces, it keeps none.

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
        environment: for an environment; empty: nothing is dropped.
        template: for a process that is frozen or forked.
    """

    environment: tuple[str, ...] = ()
    template: tuple[str, ...] = ()

    @property
    def drops(self) -> bool:
        """Whether capabilities are dropped."""
        return bool(self.environment)


def held_capabilities() -> bool:
    """Whether this process has a capability, or passes one on. Source: proc_pid_status(5)."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return False
    return any(int(line.split()[1], 16) for line in lines if line.startswith(_HELD))


def find_rights(program: Path | None, *, capabilities: bool) -> Rights:
    """The capabilities that this server's functions are to drop. Blocks.

    Args:
        program: thawd-thaw; None where there is none, and nothing can be dropped.
        capabilities: whether the operator wants functions to keep this server's.
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
    """The warning for an operator who runs thawd as root, with the way out; None for another user."""
    if os.geteuid() != 0:
        return None
    theirs = (
        "without capabilities (server.capabilities = true leaves them)"
        if rights.drops or not held_capabilities()
        else "with all capabilities that this process has"
    )
    return (
        f"thawd: RUNNING AS ROOT: functions run as root too, {theirs}, and can read and change whatever root owns. "
        "Run thawd as an ordinary user, or let it become one: thawd up --user NAME"
    )
