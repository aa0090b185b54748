"""The programs that people deploy with: AWS's SAM CLI, CDK and Chalice, each installed once in a folder in build/.

uv installs what pip would install, in a tenth of pip's processor time.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clients import REGION
from thawd.publishing.uv import find_uv, uv_settings

BUILD = Path(__file__).parents[1] / "build" / "deployment-clients"
SAM = "aws-sam-cli>=1.140,<2"
CHALICE = "chalice>=1.31,<2"
# The library of CDK writes assemblies of a version which only as new a program reads. These two fit one another.
CDK = ("aws-cdk@2.1147.0", "aws-cdk-lib@2.260.0", "constructs@10")


def sam() -> Path:
    """The program `sam`. Skips the test where pip cannot install it."""

    return _installed("sam", "bin/sam", _by_pip(SAM))


def chalice() -> Path:
    """The program `chalice`. Skips the test where pip cannot install it."""

    return _installed("chalice", "bin/chalice", _by_pip(CHALICE))


def cdk() -> Path:
    """The folder `node_modules` with the program `.bin/cdk` and CDK's library. Skips where npm cannot install them."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not installed")

    def install(folder: Path) -> list[list[str]]:
        npm = ["npm", "install", "--prefix", str(folder), "--no-audit", "--no-fund", "--ignore-scripts", "--silent"]
        return [[*npm, *CDK]]

    return _installed("cdk", "node_modules/.bin/cdk", install).parents[1]


def cdk_python() -> Path:
    """An interpreter that has CDK's library. Skips the test where pip cannot install it, or Node is missing."""
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    return _installed("cdk-python", "bin/python", _by_pip("aws-cdk-lib==2.260.0"))


def environment(url: str, home: Path) -> dict[str, str]:
    """The variables of a client that knows thawd's address, and nothing else of AWS.

    Args:
        url: the address.
        home: a folder for the client's own files.
    """
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": REGION,
        "AWS_DEFAULT_REGION": REGION,
        "SAM_CLI_TELEMETRY": "0",
        "CDK_DISABLE_CLI_TELEMETRY": "1",
    }


class Client:
    """Runs a client in a folder, with the server's address and nothing else of AWS.

    Args:
        program: the client.
        url: the server.
        folder: the folder; the client's own files go into ``home`` in it.
    """

    def __init__(self, program: Path, url: str, folder: Path) -> None:
        (folder / "home").mkdir()
        self._program, self._folder, self._environment = program, folder, environment(url, folder / "home")

    def __call__(self, *command: str, fails: bool = False) -> str:
        """What the client prints: to standard output, or, if it is to fail, to standard error."""
        ended = subprocess.run(
            [self._program, *command],
            cwd=self._folder,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert (ended.returncode != 0) == fails, ended.stdout + ended.stderr
        return ended.stderr if fails else ended.stdout


def _by_pip(package: str) -> Callable[[Path], list[list[str]]]:
    def install(folder: Path) -> list[list[str]]:
        python, uv, settings = str(folder / "bin" / "python"), find_uv(), uv_settings(os.environ)
        if uv is None or settings.why_pip:
            program = [sys.executable, "-m", "pip", "--python", python, "install", "--no-compile"]
        else:
            program = [str(uv), "pip", "install", "--python", python, *settings.arguments]
            program += ["--no-config", "--no-python-downloads", "--index-strategy", "unsafe-best-match"]
        return [[sys.executable, "-m", "venv", "--without-pip", str(folder)], [*program, "--quiet", package]]

    return install


def _installed(name: str, program: str, install: Callable[[Path], list[list[str]]]) -> Path:
    BUILD.mkdir(parents=True, exist_ok=True)
    folder, done = BUILD / name, BUILD / f"{name}.installed"
    variables = os.environ | uv_settings(os.environ).variables
    with (BUILD / f"{name}.lock").open("w") as lock:  # two workers may come at once
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            for command in install(folder):
                try:
                    ended = subprocess.run(
                        command, env=variables, capture_output=True, text=True, check=False, timeout=400
                    )
                except subprocess.TimeoutExpired:
                    pytest.skip(f"{name} cannot be installed within 400 s")
                if ended.returncode:
                    pytest.skip(f"{name} cannot be installed: {ended.stderr.strip()[-300:]}")
            done.touch()
    return folder / program
