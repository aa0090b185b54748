"""A real ``thawd up`` on one port and one data folder, which tests kill and start repeatedly."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests import prestarted
from tests.clients import client_of
from tests.integration.conftest import processes_of
from tests.ports import quiet_port
from tests.tables import rows_of
from tests.waiting import pause


def until(condition: Callable[[], Any]) -> Any:
    """Wait until `condition()` is true and return its value. There is no limit but pytest's timeout."""
    begun_s = time.monotonic()
    while not (value := condition()):
        pause(begun_s)
    return value


class Ended(Exception):
    """The server ended although the test expected it to run."""


class Server:
    """A project and its server.

    Args:
        root: the project's folder, made when missing.
        code: text of ``app.py``.
        config: text of ``thawd.toml`` without the section ``[server]``.
        environ: additional environment variables of the server's process.

    Attributes:
        serving: whether the current process has reported that it serves.
    """

    def __init__(self, root: Path, *, code: str, config: str, environ: dict[str, str] | None = None) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.root = root
        self.data = root / ".thawd"
        # Every server of a test listens on the same port, because the clients keep using it.
        self.url = f"http://127.0.0.1:{(port := quiet_port())}"
        self.environ = environ or {}
        # The log is beside the project, so that it is not on the disk that the server uses.
        self.log = root.parent / "server.log"
        self._ready = root.parent / "ready.json"
        self._process: subprocess.Popen[bytes] | None = None
        (root / "app.py").write_text(textwrap.dedent(code))
        own = f"[server]\nport = {port}\nretry_wait_s = 0.05\n"
        (root / "thawd.toml").write_text(own + textwrap.dedent(config))

    @property
    def serving(self) -> bool:
        return self.alive and self._ready.exists()

    @property
    def alive(self) -> bool:
        """Return whether the process is still running."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Return the id of the process that was started last."""
        assert self._process is not None
        return self._process.pid

    def client(self, service: str) -> Any:
        """Return a boto3 client that does not retry."""
        return client_of(self.url, service)

    def said(self) -> str:
        """Return everything that the servers of this project have written so far."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def start(self) -> None:
        """Start the server without waiting until it serves."""
        assert not self.alive
        self._ready.unlink(missing_ok=True)
        with self.log.open("ab") as log:
            self._process = prestarted.Popen(
                [sys.executable, "-m", "thawd", "up", "--ready-file", str(self._ready), "--ready-when", "published"],
                cwd=self.root,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.environ},
            )

    def until_serving(self) -> None:
        """Wait until it serves.

        Raises:
            Ended: the server ended first.
        """
        until(lambda: self._ready.exists() or not self.alive)
        if not self.alive:
            raise Ended(f"the server did not start:\n{self.said()[-4000:]}")

    def up(self) -> None:
        """Start the server and wait until it serves."""
        self.start()
        self.until_serving()

    def kill(self) -> None:
        """Send SIGKILL to the server process only."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def kill_all(self) -> None:
        """Kill the server and every process of its functions together, as if the machine stopped."""
        if self._process is not None:
            self.kill()
        while pids := processes_of(self.data):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def stop(self) -> None:
        """Send SIGTERM. The server must exit with status 0."""
        assert self._process is not None
        self._process.terminate()
        status = self._process.wait()
        assert status == 0, f"it ended with {status}:\n{self.said()[-4000:]}"

    def environments(self) -> list[int]:
        """Return the processes of its functions."""
        return processes_of(self.data)

    def status(self) -> dict[str, Any]:
        """Return the document of ``/_thawd/status``."""
        with urllib.request.urlopen(f"{self.url}/_thawd/status") as answer:
            document: dict[str, Any] = json.loads(answer.read())
        return document

    def unfinished(self) -> int:
        """Return how many accepted events have not ended."""
        functions = self.status()["functions"].values()
        return sum(one.get(state, 0) for one in functions for state in ("queued", "leased", "delivering"))

    def rows(self, table: str) -> dict[str, dict[str, Any]]:
        """Return a table's items by key."""
        return rows_of(self.root, table)
