"""Runs the walk-through of ``pull-the-plug.md`` unchanged, with a server that it starts and kills itself."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from pathlib import Path

import pytest

from tests import consoles, shell_programs
from tests.integration.conftest import processes_of
from tests.ports import quiet_port

PAGE = consoles.DOCS / "explanation" / "pull-the-plug.md"
pytestmark = pytest.mark.timeout(600)


def block(language: str) -> str:
    """Return the only block of the page in that language."""
    (found,) = re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return str(found)


def test_every_command_prints_what_the_page_shows(tmp_path: Path) -> None:
    port = str(quiet_port())
    (tmp_path / "app.py").write_text(block("python"))
    (tmp_path / "thawd.toml").write_text(block("toml").replace("8350", port))
    try:
        # A reader's commands start slowly enough not to ask for the rows before the first one is stored.
        tools = shell_programs.TOOLS
        consoles.run(PAGE, tmp_path, told=lambda command: command.replace("8350", port), tools=tools)
    finally:
        for pid in [*servers_in(tmp_path), *processes_of(tmp_path / ".thawd")]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def servers_in(folder: Path) -> list[int]:
    """Return the thawd processes with `folder` as working directory."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            is_ours = entry.name.isdigit() and (entry / "cwd").readlink() == folder
            if is_ours and b"thawd" in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found
