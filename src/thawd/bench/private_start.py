"""Starting a private server for a measurement: a process and a data folder of its own, of which nothing is left."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from thawd.config import Settings
from thawd.errors import StoreError

_LOOK_S = 0.02
_TOLD_BYTES = 3000


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """What every private server is told.

    Attributes:
        config: the configuration, absolute.
        data: its data folder, absolute.
        ready_file: written when it serves.
        parent: process id of who starts it.
    """

    config: str
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
    settings: Settings, *, purpose: str, conditions: Callable[[Place], msgspec.Struct]
) -> Iterator[PrivateServer]:
    """A server in a data folder of its own, which is removed afterwards.

    The folder lies in the configured data folder, so on the same disk; environments of requirements are shared.

    Args:
        settings: the configuration.
        purpose: ``bench`` or ``tune``; the program is ``thawd.PURPOSE_server``.
        conditions: what the program is told.

    Raises:
        StoreError: it could not start, or the folder cannot be made.
    """
    with _own_folder(settings.server.data, purpose) as folder:
        yield from _serving(settings, folder, purpose, conditions)


@contextlib.contextmanager
def _own_folder(data: Path, purpose: str) -> Iterator[Path]:
    """A folder in `data` that is gone afterwards, whenever Ctrl-C comes."""
    try:
        data.mkdir(parents=True, exist_ok=True)
        _clean(data, purpose)
        (data / "environments").mkdir(exist_ok=True)
        made = tempfile.TemporaryDirectory(prefix=f"{purpose}-{os.getpid()}-", dir=data, ignore_cleanup_errors=True)
    except OSError as error:
        raise StoreError(f"a folder for the private server cannot be made in {data}: {error.strerror}") from error
    with made as name:
        (Path(name) / "data").mkdir()
        (Path(name) / "data" / "environments").symlink_to(data / "environments")
        yield Path(name)


def _serving(
    settings: Settings, folder: Path, purpose: str, conditions: Callable[[Place], msgspec.Struct]
) -> Iterator[PrivateServer]:
    """The server in its folder, while it is wanted."""
    place = Place(
        config=str(settings.path),
        data=str(folder / "data"),
        ready_file=str(folder / "ready.json"),
        parent=os.getpid(),
    )
    told = msgspec.json.encode(conditions(place)).decode()
    with (folder / "server.log").open("wb") as log:
        # In a session of its own: Ctrl-C is for this process, which may want its last answers, and ends it.
        process = subprocess.Popen(
            [sys.executable, "-m", f"thawd.server.private.{purpose}", told],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield _await_ready(process, folder)
    finally:
        process.terminate()
        process.wait()


def _await_ready(process: subprocess.Popen[bytes], folder: Path) -> PrivateServer:
    while True:
        with contextlib.suppress(FileNotFoundError, ValueError):
            ready = json.loads((folder / "ready.json").read_text())
            return PrivateServer(ready["url"], ready["pid"])
        if process.poll() is not None:
            said = (folder / "server.log").read_bytes()[-_TOLD_BYTES:].decode(errors="replace").strip()
            raise StoreError(f"the private server ended with status {process.returncode}:\n{said}")
        time.sleep(_LOOK_S)


def _clean(data: Path, purpose: str) -> None:
    """Remove folders that measurements left which were killed."""
    for folder in data.glob(f"{purpose}-*-*"):
        owner = folder.name.split("-")[1]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            shutil.rmtree(folder, ignore_errors=True)
