"""A private PostgreSQL server for tests: in its own folder, with a socket there, stopped when the tests end."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from urllib.parse import quote

import pytest

PASSWORD = "p@ss/w:rd%"
DEFAULT_PORT = 5432  # only part of the Unix socket's name, unless the server listens on TCP
# Commits are acknowledged before they are on disk, and are written late. So acknowledged data survives a crash only if
# the client has requested more.
_SETTINGS = """
fsync = off
synchronous_commit = off
wal_writer_delay = 10s
max_connections = 60
"""


class Postgresql:
    """A server that can be stopped abruptly and started again.

    Args:
        port: TCP port on loopback; with None it listens only on its Unix socket.
        address: where it listens on TCP, too, at the default port. Everybody who reaches this address may log in.
    """

    def __init__(self, port: int | None = None, *, address: str = "") -> None:
        self._bin = binaries()
        self._port = port
        self._address = address or ("" if port is None else "127.0.0.1")
        self.folder = Path(tempfile.mkdtemp(prefix="thawd-pg-"))
        # PostgreSQL refuses to run as root.
        self._user = pwd.getpwnam("nobody").pw_uid if os.getuid() == 0 else None
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Postgresql:
        if self._user is not None:
            os.chown(self.folder, self._user, -1)
        secret = self.folder / "secret"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)
        made = subprocess.run(
            [self._bin / "initdb", "-D", self.folder / "data", "-U", "thawd", "-A", "scram-sha-256", "--no-sync"]
            + ["--pwfile", str(secret), "--encoding", "UTF8", "--locale", "C.UTF-8"],
            user=self._user,
            cwd=self.folder,
            capture_output=True,
            text=True,
            env={"PATH": os.environ["PATH"], "HOME": str(self.folder)},
        )
        assert made.returncode == 0, made.stderr
        with open(self.folder / "data" / "postgresql.conf", "a") as settings:
            settings.write(_SETTINGS)
            settings.write(f"listen_addresses = '{self._address}'\n")
            settings.write(f"port = {self._port or DEFAULT_PORT}\n")
        with open(self.folder / "data" / "pg_hba.conf", "a") as who:
            who.write("host all all samenet scram-sha-256\n")
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self) -> None:
        """Start the server and wait until it accepts connections."""
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                [self._bin / "postgres", "-D", self.folder / "data", "-k", self.folder],
                user=self._user,
                cwd=self.folder,
                stdout=log,
                stderr=log,
                env={"PATH": os.environ["PATH"], "HOME": str(self.folder)},
            )
        port = str(self._port or DEFAULT_PORT)
        while subprocess.run([self._bin / "pg_isready", "-q", "-h", self.folder, "-p", port]).returncode:
            assert self._process.poll() is None, (self.folder / "log").read_text()

    def stop(self) -> None:
        """Stop the server as a crash would: connections break, nothing is written."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait()
            self._process = None

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Suspend the server: it answers nothing meanwhile, but its connections stay open."""
        assert self._process is not None
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text()
        pids = [self._process.pid, *map(int, children.split())]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

    def restart(self) -> None:
        """Crash the server and start it again."""
        self.stop()
        self.start()

    def url(self, *, password: str = PASSWORD, host: str | None = None, **parameters: str) -> str:
        """Return a URL of the server: through its Unix socket, or through the address `host`."""
        query = "".join(f"&{name}={quote(value, safe='')}" for name, value in parameters.items())
        where = quote(host or str(self.folder), safe="")
        port = "" if self._port is None else f"&port={self._port}"
        return f"postgresql://thawd:{quote(password, safe='')}@/postgres?host={where}{port}{query}"


def binaries() -> Path:
    """Return the folder of PostgreSQL's programs, or skip the test if it is not installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    on_path = shutil.which("initdb")
    if not found and on_path is None:
        pytest.skip("there is no PostgreSQL server here (Debian: apt install postgresql)")
    return found[-1].parent if found else Path(str(on_path)).resolve().parent
