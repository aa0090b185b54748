"""Follows the tutorials unchanged in an empty folder: writes each file and runs each command.

Installing packages is left out: tests have no network, and their virtual environment has the packages that the
tutorials name.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import signal
import sys
from pathlib import Path

import pytest

from tests import consoles, deployment_clients, shell_programs
from tests.integration.conftest import processes_of
from tests.ports import quiet_port

TUTORIALS = consoles.DOCS / "tutorials"
NEEDS = {
    "first-endpoint": (),
    "http-model": ("sklearn", "joblib"),
    "bucket-pipeline": ("PIL",),
    "existing-lambda": ("boto3", "moto", "awscli"),
    "from-cdk": ("boto3", "moto", "awscli"),
    "from-docker": ("httpx",),
    "from-sam": ("boto3", "moto", "awscli", "samtranslator"),
    "event-chain": ("boto3", "moto", "awscli"),
    "fastapi-app": ("fastapi",),
}

# Pages outside of the tutorials that are followed, too.
GUIDES = ("typed-functions",)

# The programs of this tutorial start as they do for a reader; those of the others are forks, which takes less time.
EXECUTED = ("existing-lambda",)

# Commands that a reader would repeat until the result is there.
LOOKS = (
    "thawd table",
    "thawd dead list",
    "thawd status",
    "thawd logs",
    "ls ",
    "aws dynamodb get-item",
    "aws logs",
    "curl --silent $AWS_ENDPOINT_URL",
    "curl --silent $URL",
)


def as_typed(command: str, *, port: int, log: Path) -> str:
    """Return what to type here for a reader's command: the server runs in the background, and pip does nothing."""
    command = command.replace("127.0.0.1:8350", f"127.0.0.1:{port}")
    command = command.replace("python3.11", f"python3.{sys.version_info[1]}")
    if re.match(r"((\S*python3? -m )?pip|npm) install ", command):
        return "true"
    if command.startswith("npx cdk "):
        interpreter, program = deployment_clients.cdk_python(), deployment_clients.cdk() / ".bin" / "cdk"
        return f"PATH={interpreter.parent}:$PATH {program} {command.removeprefix('npx cdk ')} --no-notices"
    if command.startswith(("thawd up", "thawd run")):
        ready = log.with_suffix(".ready")
        when = "--ready-when published" if command.startswith("thawd up") else ""
        started = f"({command} --ready-file {ready} {when} > {log} 2>&1; touch {ready}) < /dev/null &"
        # The page shows what the server prints after it has begun to listen, but not the lines about the machine before
        # that.
        return (
            f"{started} until [ -e {ready} ]; do sleep 0.1; done; sed -n 's/:{port}/:8350/; /^thawd serves/,$p' {log}"
        )
    return command


@pytest.mark.parametrize("name", [*sorted(NEEDS), *GUIDES])
def test_a_tutorial_works_as_it_stands(name: str, tmp_path: Path) -> None:
    for module in NEEDS.get(name, ()):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    folder, port = tmp_path / name, quiet_port()
    folder.mkdir()
    try:
        consoles.run(
            consoles.DOCS / ("how-to" if name in GUIDES else "tutorials") / f"{name}.md",
            folder,
            told=lambda command: as_typed(command, port=port, log=tmp_path / "log"),
            variables={"THAWD_PORT": str(port)},
            write_files=True,
            repeat=lambda command: command.startswith(LOOKS),
            tools=shell_programs.TOOLS if name in EXECUTED else None,
        )
    finally:
        end(folder)


def end(folder: Path) -> None:
    """Stop the server that runs in `folder`, and its functions."""
    with contextlib.suppress(FileNotFoundError, ValueError, ProcessLookupError):
        os.kill(int((folder / ".thawd" / "lock").read_text()), signal.SIGKILL)
    for pid in processes_of(folder / ".thawd"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_every_tutorial_is_followed() -> None:
    assert {page.stem for page in TUTORIALS.glob("*.md")} - {"index"} == set(NEEDS)
