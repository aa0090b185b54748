"""Starts the emulator's process. `starting` then tells the process its folder, and connects it with the server.

The command `thawd up` does this first, so that the emulator's process imports moto while the server's own process
imports the rest of thawd. So this module imports little.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from thawd.resources import ACCOUNT_ID
from thawd.telemetry.console import stderr_of_children

_NEEDED = ("moto", "flask", "httpx")


def missing_packages() -> list[str]:
    """Return the packages that the emulator needs and that are not installed."""
    return [name for name in _NEEDED if importlib.util.find_spec(name) is None]


class EmulatorProcess:
    """A process of the emulator that waits for its folder. It exits if this process does.

    Args:
        environ: environment variables of the platform.
        for_stacks: whether a project's stacks will be made. If so, the process imports what they need in advance.

    Attributes:
        popen: the process.
    """

    def __init__(self, environ: Mapping[str, str], *, for_stacks: bool) -> None:
        self.popen = subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "thawd.server.emulator.moto_program", "--folder-follows"),
                *(("--for-stacks",) if for_stacks else ()),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr_of_children(),
            start_new_session=True,
            # moto must use the account id that thawd's ARNs contain.
            env={**environ, "MOTO_ACCOUNT_ID": ACCOUNT_ID},
        )
        self._is_used = False

    def use(self, folder: Path) -> None:
        """Let the process load its state from a folder, and serve. From now on, the caller ends the process.

        Raises:
            OSError: the process has ended.
        """
        self._is_used = True
        assert self.popen.stdin is not None
        self.popen.stdin.write(json.dumps(str(folder)).encode() + b"\n")
        self.popen.stdin.flush()

    def discard(self) -> None:
        """End the process, unless it is used."""
        if not self._is_used:
            self._is_used = True
            self.popen.kill()
            self.popen.communicate()
