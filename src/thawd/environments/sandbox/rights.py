"""What functions' processes may do beside what their user may: nothing, unless the operator asks for it.

A server that runs as root, or was given capabilities, would pass them on to whatever it starts. So they are given up on
the way, by thawd-thaw: in environments after their folders are mounted, in forks after theirs. A template of root's
keeps what its forks need for that, in a user namespace of its own, outside of which it counts for nothing; where there
are no such namespaces, it keeps nothing.

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
    """What is given up, as options of thawd-thaw.

    Attributes:
        environment: of an environment; empty: nothing.
        template: of a process that is frozen or forked.
    """

    environment: tuple[str, ...] = ()
    template: tuple[str, ...] = ()

    @property
    def drops(self) -> bool:
        """Whether capabilities are given up."""
        return bool(self.environment)


def held_capabilities() -> bool:
    """Whether this process has any capability, or passes one on. Source: proc_pid_status(5)."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return False
    return any(int(line.split()[1], 16) for line in lines if line.startswith(_HELD))


def find_rights(program: Path | None, *, capabilities: bool) -> Rights:
    """What to give up in this server's functions. Blocks.

    Args:
        program: thawd-thaw; None where there is none, and nothing can be given up.
        capabilities: whether the operator wants functions to have this server's.
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
    """What an operator should know who runs thawd as root, with the way out; None for another user."""
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
