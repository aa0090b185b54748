"""The consoles that the documentation shows, run as they stand: each command, and what it prints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
_END = "@@done "


def steps(page: Path) -> list[tuple[str, list[str]]]:
    """Commands and the lines they print, as the page shows them."""
    found: list[tuple[str, list[str]]] = []
    for console in re.findall(r"```console\n(.*?)```", page.read_text(), re.DOTALL):
        for line in console.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            else:
                found[-1][1].append(line)
    return found


def run(page: Path, folder: Path, *, told: Callable[[str], str]) -> None:
    """Type the commands of a page into one shell, one after the other, and compare what they print.

    Args:
        page: it.
        folder: where the shell begins.
        told: from a command of the page to what is typed.
    """
    tools = Path(sys.executable).parent
    variables = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "AWS_PAGER": "", "LC_ALL": "C.UTF-8"}
    shell = subprocess.Popen(
        ["bash"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=folder,
        env=variables,
        text=True,
    )
    assert shell.stdin is not None
    assert shell.stdout is not None
    try:
        for command, expected in steps(page):
            shell.stdin.write(f"{told(command)}\necho '{_END}'$?\n")
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
