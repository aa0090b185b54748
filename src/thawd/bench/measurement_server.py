"""Starts a private server: a thawd server in its own process and data folder, which runs only for one measurement.

After the measurement, the process is ended and the data folder is removed.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from thawd.config import Settings
from thawd.errors import StoreError

_LOOK_S = 0.02
_TOLD_BYTES = 3000


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Paths of the files of a private server, and the process that starts the server.

    Attributes:
        config: the configuration file, absolute.
        data: data folder of the private server, absolute.
        ready_file: file that the server writes when it accepts requests.
        parent: process id of the process that starts the server.
        aws: ``none``, or URL of the server whose AWS services the functions use.
    """

    config: str
    data: str
    ready_file: str
    parent: int
    aws: str = "none"


class PrivateServer(msgspec.Struct, frozen=True):
    """A running private server.

    Attributes:
        url: URL of the server.
        pid: process id of the server.
    """

    url: str
    pid: int


@contextlib.contextmanager
def private_server(
    settings: Settings, *, purpose: str, conditions: Callable[[Place], msgspec.Struct], aws: str = "none"
) -> Iterator[PrivateServer]:
    """Run a private server inside the ``with`` block. Its data folder is removed afterwards.

    The server's data folder is created inside the configured one, so that both are on the same disk. The server uses
    the virtual environments and container images of the configured data folder, so that functions' requirements are not
    installed again.

    Args:
        settings: the configuration.
        purpose: ``bench`` or ``tune``; the program that serves is ``thawd.server.measurement.PURPOSE``.
        conditions: makes the argument of this program from the paths of the server's files.
        aws: ``none``, or URL of the server whose AWS services the functions use.

    Raises:
        StoreError: the server could not start, or its folder cannot be created.
    """
    with _own_folder(settings.server.data, purpose) as folder:
        yield from _serving(settings, folder, purpose, conditions, aws)


@contextlib.contextmanager
def _own_folder(data: Path, purpose: str) -> Iterator[Path]:
    """Create a folder in `data` for the private server, and remove it after the ``with`` block, even after Ctrl-C."""
    folder = data / f"{purpose}-{os.getpid()}-{secrets.token_hex(4)}"
    try:  # Ctrl-C may come while the folder is created, too
        try:
            data.mkdir(parents=True, exist_ok=True)
            _clean(data, purpose)
            (data / "environments").mkdir(exist_ok=True)
            folder.mkdir(mode=0o700)
            (folder / "data").mkdir()
            (folder / "data" / "environments").symlink_to(data / "environments")
            if (data / "images").is_dir():
                (folder / "data" / "images").symlink_to(data / "images")
        except OSError as error:
            raise StoreError(
                f"a folder for the private server cannot be created in {data}: {error.strerror}; make {data} writable, "
                "or name another folder in server.data"
            ) from error
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _serving(
    settings: Settings, folder: Path, purpose: str, conditions: Callable[[Place], msgspec.Struct], aws: str
) -> Iterator[PrivateServer]:
    """Start the server with its files in `folder`, yield it when it is ready, and end it."""
    place = Place(
        config=str(settings.path),
        data=str(folder / "data"),
        ready_file=str(folder / "ready.json"),
        parent=os.getpid(),
        aws=aws,
    )
    argument = msgspec.json.encode(conditions(place)).decode()
    with (folder / "server.log").open("wb") as log:
        # The server runs in its own session, so that Ctrl-C reaches only this process. After Ctrl-C, this process still
        # waits for the server's last answers before it stops the server.
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", f"thawd.server.measurement.{purpose}", argument],
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
    """Remove the folders of measurements that were killed: the process whose id is in a folder's name has ended."""
    for folder in data.glob(f"{purpose}-*-*"):
        owner = folder.name.split("-")[1]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            shutil.rmtree(folder, ignore_errors=True)
