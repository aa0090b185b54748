"""The walk-through of docs/pull-the-plug.md, run as it stands against a server that it starts and kills itself."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.durability.server import free_port
from tests.integration.conftest import processes_of

PAGE = Path(__file__).parents[2] / "docs" / "pull-the-plug.md"
_END = "@@done "
pytestmark = pytest.mark.timeout(600)


def block(language: str) -> str:
    """The only block of the page in that language."""
    (found,) = re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return str(found)


def steps() -> list[tuple[str, list[str]]]:
    """Commands and the lines they print, as the page shows them."""
    found: list[tuple[str, list[str]]] = []
    for console in re.findall(r"```console\n(.*?)```", PAGE.read_text(), re.DOTALL):
        for line in console.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            else:
                found[-1][1].append(line)
    return found


def test_every_command_prints_what_the_page_shows(tmp_path: Path) -> None:
    port = str(free_port())
    (tmp_path / "app.py").write_text(block("python"))
    (tmp_path / "thawd.toml").write_text(block("toml").replace("8350", port))
    tools = Path(sys.executable).parent
    variables = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "AWS_PAGER": "", "LC_ALL": "C.UTF-8"}
    shell = subprocess.Popen(
        ["bash"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=tmp_path,
        env=variables,
        text=True,
    )
    assert shell.stdin is not None
    assert shell.stdout is not None
    try:
        for command, expected in steps():
            shell.stdin.write(f"{command.replace('8350', port)}\necho '{_END}'$?\n")
            shell.stdin.flush()
            printed = []
            for line in shell.stdout:
                if line.startswith(_END):
                    status = line.removeprefix(_END).strip()
                    break
                printed.append(line.rstrip("\n"))
            assert (status, printed) == ("0", expected), command
    finally:
        shell.stdin.close()
        shell.stdout.close()
        shell.kill()
        shell.wait()
        for pid in [*servers_in(tmp_path), *processes_of(tmp_path / ".thawd")]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def servers_in(folder: Path) -> list[int]:
    """Processes of thawd whose working directory is `folder`."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            is_ours = entry.name.isdigit() and (entry / "cwd").readlink() == folder
            if is_ours and b"thawd" in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found
