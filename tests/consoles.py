"""Runs the console sessions and files that the documentation shows: types each command and compares its output."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests import shell_programs

DOCS = Path(__file__).parents[1] / "docs"
# `thawd up` prints this line if publications take longer than 2 s.
_ONLY_IF_SLOW = "not yet published. thawd publishes first"
_END = "@@done "
_PATIENCE_S = 60.0
# A block of code. If the line before the block ends with a file name, as in "`app.py`:", that is the block's file.
_BLOCK = re.compile(r"(?:`(?P<file>[\w./-]+)`:\n\n)?^```(?P<language>\w+)\n(?P<text>.*?)^```", re.DOTALL | re.MULTILINE)


@dataclass
class Command:
    """A command line, and the output lines that the page shows below it."""

    text: str
    prints: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class File:
    """A file that the page tells its reader to write."""

    name: str
    text: str


def steps(page: Path) -> list[Command | File]:
    """Return what a reader of the page does, in order."""
    found: list[Command | File] = []
    for block in _BLOCK.finditer(page.read_text()):
        if block["language"] == "console":
            found += _commands(block["text"])
        elif block["file"]:
            found.append(File(block["file"], block["text"]))
    return found


def _commands(console: str) -> list[Command]:
    found: list[Command] = []
    for line in console.splitlines():
        if line.startswith("$ "):
            found.append(Command(line[2:]))
        else:
            found[-1].prints.append(line)
    return found


def commands(page: Path) -> list[str]:
    """Return only the command lines."""
    return [step.text for step in steps(page) if isinstance(step, Command)]


def run(
    page: Path,
    folder: Path,
    *,
    told: Callable[[str], str],
    variables: Mapping[str, str] | None = None,
    write_files: bool = False,
    repeat: Callable[[str], bool] = lambda _: False,
    tools: Path | None = None,
) -> None:
    """Type the commands of a page into one shell, one after the other, and compare what they print.

    Args:
        page: the page.
        folder: where the shell begins, and where files are written.
        told: turns a command of the page into the command to type.
        variables: further environment variables of the shell.
        write_files: whether to write the files that the page shows, in the order of the page.
        repeat: whether a command only reads state. Such a command is repeated for at most a minute until its output
            matches the page.
        tools: folder with the commands `thawd` and `aws`; None: that of `shell_programs`.
    """
    path = f"{tools or shell_programs.folder()}:{Path(sys.executable).parent}"
    environment = {**os.environ, "PATH": f"{path}:{os.environ['PATH']}", "AWS_PAGER": "", "LC_ALL": "C.UTF-8"}
    # Only an editable installation, as that of the tests, makes pytest warn that thawd's plugin is not rewritten.
    environment["PYTEST_ADDOPTS"] = "-W ignore::pytest.PytestAssertRewriteWarning"
    shell = subprocess.Popen(
        ["bash"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=folder,
        env={**environment, **(variables or {})},
        text=True,
    )
    try:
        for step in steps(page):
            if isinstance(step, Command):
                begun_s = time.monotonic()
                status, printed = _type(shell, told(step.text))
                while repeat(step.text) and not agrees(printed, step.prints):
                    waited_s = time.monotonic() - begun_s
                    if waited_s > _PATIENCE_S:
                        break
                    # Most commands need half a second of processor time, so that they are repeated less and less often.
                    time.sleep(min(2.0, 0.2 + waited_s / 4))
                    status, printed = _type(shell, told(step.text))
                assert status == "0", (step.text, printed)
                assert agrees(printed, step.prints), (step.text, printed)
            elif write_files:
                path = folder / step.name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(step.text)
    finally:
        assert shell.stdin is not None
        assert shell.stdout is not None
        shell.stdin.close()
        shell.stdout.close()
        shell.kill()
        shell.wait()


def _type(shell: subprocess.Popen[str], command: str) -> tuple[str, list[str]]:
    """Type a command and return its exit status and the lines that it printed."""
    assert shell.stdin is not None
    assert shell.stdout is not None
    # The newline puts the end mark on a separate line, even if the command's output does not end with a newline.
    shell.stdin.write(f"{command}\nprintf '\\n{_END}%s\\n' $?\n")
    shell.stdin.flush()
    printed = ""
    for line in shell.stdout:
        if line.startswith(_END):
            return line.removeprefix(_END).strip(), printed.removesuffix("\n").splitlines()
        if _ONLY_IF_SLOW not in line:
            printed += line
    raise AssertionError(f"the shell ended in {command}: {printed}")


def agrees(printed: list[str], shown: list[str]) -> bool:
    """Return whether the output matches the page.

    In the page's lines, ``…`` stands for any text; alone on a line it stands for any number of lines.
    """
    pattern = "".join(
        r"(?:.*\n)*?" if line.strip() == "…" else ".*".join(map(re.escape, line.split("…"))) + r"\n" for line in shown
    )
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in printed)) is not None
