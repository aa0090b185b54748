"""A real ``thawd up`` on one port and one data folder, to be killed and started again and again."""

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
    """Wait until `condition()` is true and return its value; pytest's timeout is the only limit."""
    begun_s = time.monotonic()
    while not (value := condition()):
        pause(begun_s)
    return value


class Ended(Exception):
    """The server ended while something was expected of it."""


class Server:
    """A project and its server.

    Args:
        root: the project's folder, made when missing.
        code: of ``app.py``.
        config: of ``thawd.toml``, but for the part ``[server]``.
        environ: further variables of the server's process.

    Attributes:
        serving: whether the present process has said that it serves.
    """

    def __init__(self, root: Path, *, code: str, config: str, environ: dict[str, str] | None = None) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.root = root
        self.data = root / ".thawd"
        # Servers of one test all listen on it, as clients do not look for another.
        self.url = f"http://127.0.0.1:{(port := quiet_port())}"
        self.environ = environ or {}
        # Beside the project: they do not lie on the disk that the server uses.
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
        """Whether its process has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process that was started last."""
        assert self._process is not None
        return self._process.pid

    def client(self, service: str) -> Any:
        """A boto3 client that asks once."""
        return client_of(self.url, service)

    def said(self) -> str:
        """All that the servers of this project have written so far."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def start(self) -> None:
        """Start it; returns at once."""
        assert not self.alive
        self._ready.unlink(missing_ok=True)
        with self.log.open("ab") as log:
            self._process = prestarted.Popen(
                [sys.executable, "-m", "thawd", "up", "--ready-file", str(self._ready)],
                cwd=self.root,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.environ},
            )

    def until_serving(self) -> None:
        """Wait until it serves.

        Raises:
            Ended: it ended instead.
        """
        until(lambda: self._ready.exists() or not self.alive)
        if not self.alive:
            raise Ended(f"the server did not start:\n{self.said()[-4000:]}")

    def up(self) -> None:
        """Start it and wait until it serves."""
        self.start()
        self.until_serving()

    def kill(self) -> None:
        """kill -9, and nothing else."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def kill_all(self) -> None:
        """The machine stops: the server and every process of its functions at once."""
        if self._process is not None:
            self.kill()
        while pids := processes_of(self.data):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM; it must end well."""
        assert self._process is not None
        self._process.terminate()
        status = self._process.wait()
        assert status == 0, f"it ended with {status}:\n{self.said()[-4000:]}"

    def environments(self) -> list[int]:
        """Processes of its functions."""
        return processes_of(self.data)

    def status(self) -> dict[str, Any]:
        """The document of ``/_thawd/status``."""
        with urllib.request.urlopen(f"{self.url}/_thawd/status") as answer:
            document: dict[str, Any] = json.loads(answer.read())
        return document

    def unfinished(self) -> int:
        """How many accepted events have not come to their end."""
        functions = self.status()["functions"].values()
        return sum(one.get(state, 0) for one in functions for state in ("queued", "leased", "delivering"))

    def rows(self, table: str) -> dict[str, dict[str, Any]]:
        """A table's items by key."""
        return rows_of(self.root, table)
