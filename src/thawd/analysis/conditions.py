"""Under which conditions a function is measured, and the private server that holds them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from thawd.config import Settings
from thawd.errors import StoreError

ENGINES = ("auto", "cold", "fork", "thaw", "provisioned")
"""How environments start: as configured; each by its own init; by fork of a process that has run it; from the snapshot;
ahead of the requests."""

_LOOK_S = 0.02
_TOLD_BYTES = 3000


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """What the private server is told.

    Attributes:
        config: the configuration, absolute.
        function: the one function that it serves.
        engine: one of `ENGINES`.
        environments: most at once.
        provisioned: environments kept initialised.
        data: its data folder, absolute.
        ready_file: written when it serves.
        parent: process id of who starts it.
    """

    config: str
    function: str
    engine: str
    environments: int
    provisioned: int
    data: str
    ready_file: str
    parent: int


class PrivateServer(msgspec.Struct, frozen=True):
    """A server that runs.

    Attributes:
        url: of it.
        pid: of its process.
    """

    url: str
    pid: int


@contextlib.contextmanager
def private_server(
    settings: Settings, *, function: str, engine: str, environments: int, provisioned: int
) -> Iterator[PrivateServer]:
    """A server of one function in a data folder of its own, which is removed afterwards.

    The folder lies in the configured data folder, so on the same disk; environments of requirements are shared.

    Raises:
        StoreError: it could not start, or the folder cannot be made.
    """
    with _own_folder(settings.server.data) as folder:
        yield from _serving(settings, folder, function, engine, environments, provisioned)


@contextlib.contextmanager
def _own_folder(data: Path) -> Iterator[Path]:
    """A folder in `data` that is gone afterwards, whenever Ctrl-C comes."""
    try:
        data.mkdir(parents=True, exist_ok=True)
        _clean(data)
        (data / "environments").mkdir(exist_ok=True)
        made = tempfile.TemporaryDirectory(prefix=f"bench-{os.getpid()}-", dir=data, ignore_cleanup_errors=True)
    except OSError as error:
        raise StoreError(f"a folder for the private server cannot be made in {data}: {error.strerror}") from error
    with made as name:
        (Path(name) / "data").mkdir()
        (Path(name) / "data" / "environments").symlink_to(data / "environments")
        yield Path(name)


def _serving(
    settings: Settings, folder: Path, function: str, engine: str, environments: int, provisioned: int
) -> Iterator[PrivateServer]:
    conditions = Conditions(
        config=str(settings.path),
        function=function,
        engine=engine,
        environments=environments,
        provisioned=provisioned,
        data=str(folder / "data"),
        ready_file=str(folder / "ready.json"),
        parent=os.getpid(),
    )
    command = [sys.executable, "-m", "thawd.bench_server", msgspec.json.encode(conditions).decode()]
    with (folder / "server.log").open("wb") as log:
        # In a session of its own: Ctrl-C is for the load, which wants its last answers.
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        ready = _await_ready(process, folder)
        yield PrivateServer(ready["url"], ready["pid"])
    finally:
        process.terminate()
        process.wait()


def _await_ready(process: subprocess.Popen[bytes], folder: Path) -> dict[str, Any]:
    ready = folder / "ready.json"
    while True:
        with contextlib.suppress(FileNotFoundError, ValueError):
            document: dict[str, Any] = json.loads(ready.read_text())
            return document
        if process.poll() is not None:
            said = (folder / "server.log").read_bytes()[-_TOLD_BYTES:].decode(errors="replace").strip()
            raise StoreError(f"the private server ended with status {process.returncode}:\n{said}")
        time.sleep(_LOOK_S)


def _clean(data: Path) -> None:
    """Remove folders that measurements left which were killed."""
    for folder in data.glob("bench-*"):
        owner = folder.name.split("-")[1]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            shutil.rmtree(folder, ignore_errors=True)
