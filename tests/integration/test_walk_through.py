"""The walk-through of docs/lambda-api.md, run as it stands by the AWS CLI against a new server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from .conftest import Project

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "lambda-api.md"
_END = "@@done "


def steps() -> list[tuple[str, list[str]]]:
    """Commands and the lines they print, as the page shows them."""
    found: list[tuple[str, list[str]]] = []
    for block in re.findall(r"```console\n(.*?)```", PAGE.read_text(), re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            else:
                found[-1][1].append(line)
    return found


def test_every_command_prints_what_the_page_shows(project: Project) -> None:
    project.config("")
    tools = Path(sys.executable).parent
    variables = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "AWS_PAGER": "", "LC_ALL": "C.UTF-8"}
    runtime = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    with project.up() as running:
        shell = subprocess.Popen(
            ["bash"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=project.root,
            env=variables,
            text=True,
        )
        assert shell.stdin is not None
        assert shell.stdout is not None
        try:
            for command, expected in steps():
                told = command.replace("http://127.0.0.1:8350", running.url).replace("python3.11", runtime)
                shell.stdin.write(f"{told}\necho '{_END}'$?\n")
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


def test_the_page_has_all_that_it_is_for() -> None:
    commands = " ".join(command for command, _ in steps())
    for needed in ("create-function ", "invoke", "publish-version", "create-alias", "concurrency", "url", "aws logs"):
        assert needed in commands
