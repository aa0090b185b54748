"""A real thawd in a separate process, and a project for it to serve."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests import prestarted
from tests.clients import client_of
from tests.integration.emulated import EmulatedAws, There
from tests.integration.receiving import Receiver, receiving
from tests.integration.served import Served
from tests.tables import rows_of
from tests.waiting import pause

DEADLINE_S = 300.0

ECHO = """
import os
import time
VERSION = 1
def handler(event, context):
    if event.get("s"):
        time.sleep(event["s"])
    while "gate" in event and not os.path.exists(event["gate"]):
        time.sleep(0.005)
    return VERSION
"""
"""The handler of the fixture `echo`."""


def eventually(condition: Callable[[], Any], *, what: str = "the condition") -> Any:
    """Wait until `condition()` is true and return its value. A failure message names `what`."""
    begun_s = time.monotonic()
    while time.monotonic() < begun_s + DEADLINE_S:
        value = condition()
        if value:
            return value
        pause(begun_s)
    raise AssertionError(f"{what} did not become true within {DEADLINE_S} s")


def processes_of(data: Path) -> list[int]:
    """Return the runtime processes that run code from the data folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                variables = (entry / "environ").read_bytes()
                state = (entry / "stat").read_bytes().rpartition(b")")[2].split()[0]
            except OSError:
                continue
            if f"THAWD_CODE={data}".encode() in variables and state != b"Z":
                found.append(int(entry.name))
    return found


@dataclass
class Running:
    """A running server."""

    process: subprocess.Popen[str]
    url: str
    project: Project
    output: list[str] = field(default_factory=list)
    _clients: dict[str, Any] = field(default_factory=dict)

    def client(self, **config: Any) -> Any:
        """Return a boto3 Lambda client that does not retry. May be called from any thread.

        Without `config` it is one client for all tests of this server: leave its events and settings as they are.
        """
        if config:
            return client_of(self.url, "lambda", read_timeout=120, max_pool_connections=64, **config)
        return self._client("lambda", read_timeout=120, max_pool_connections=64)

    def s3(self) -> Any:
        """A boto3 S3 client, the same one for all tests of this server."""
        return self._client("s3")

    def _client(self, service: str, **config: Any) -> Any:
        if service not in self._clients:  # making one takes longer than most calls
            self._clients[service] = client_of(self.url, service, **config)
        return self._clients[service]

    def invoke(self, function: str, event: Any = None, **kwargs: Any) -> tuple[Any, str | None]:
        """Invoke a function and return its answer and FunctionError."""
        answer = self.client().invoke(FunctionName=function, Payload=json.dumps(event), **kwargs)
        return json.loads(answer["Payload"].read()), answer.get("FunctionError")

    def status(self) -> dict[str, Any]:
        """Return the status document."""
        import urllib.request

        with urllib.request.urlopen(f"{self.url}/_thawd/status", timeout=30) as answer:
            return json.loads(answer.read())

    def function(self, name: str) -> dict[str, Any]:
        """Return one function's part of the status document."""
        return self.status()["functions"][name]

    def invoke_at_once(
        self, function: str, count: int, event: dict[str, Any], *, gate: Path
    ) -> list[tuple[Any, str | None]]:
        """Run `count` invocations, none of which ends before all have started. Return their answers and FunctionErrors.

        Args:
            function: a function with a handler that waits until the file exists that its event names as ``gate``.
            count: number of invocations.
            event: the event of each invocation.
            gate: the file; deleted first if it exists.
        """
        gate.unlink(missing_ok=True)
        client, payload = self.client(), json.dumps({**event, "gate": str(gate)})

        def one(_: int) -> tuple[Any, str | None]:
            answer = client.invoke(FunctionName=function, Payload=payload)
            return json.loads(answer["Payload"].read()), answer.get("FunctionError")

        with ThreadPoolExecutor(count) as threads:
            asked = [threads.submit(one, number) for number in range(count)]
            try:
                eventually(
                    lambda: (
                        any(each.done() for each in asked) or self.function(function)["environments"]["busy"] == count
                    ),
                    what=f"{count} invocations at once",
                )
            finally:
                gate.touch()
            return [each.result() for each in asked]

    def until_said(self, text: str) -> None:
        """Wait until a line of the server's output contains `text`. The output is read a moment after it is written."""
        eventually(lambda: any(text in line for line in self.output), what=f"the word {text!r}")

    def stop(self, *, number: int = signal.SIGTERM) -> int:
        """Send a signal, wait until the server ends, and return its exit status."""
        self.process.send_signal(number)
        return self.process.wait(DEADLINE_S)


@dataclass
class Project:
    """A folder with a thawd.toml and code."""

    root: Path

    @property
    def data(self) -> Path:
        """Return the data folder."""
        return self.root / ".thawd"

    def code(self, text: str, name: str = "app.py") -> None:
        """Write a file of code."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))

    def config(self, text: str) -> None:
        """Write thawd.toml. The server listens on a free port."""
        (self.root / "thawd.toml").write_text("[server]\nport = 0\nretry_wait_s = 0.05\n" + textwrap.dedent(text))

    def rows(self, table: str) -> dict[str, dict[str, Any]]:
        """Return a table's items by key; none if nothing was stored yet."""
        return rows_of(self.root, table)

    def command(self, *arguments: str, **kwargs: Any) -> subprocess.CompletedProcess[str]:
        """Run the `thawd` command in the project's folder."""
        return prestarted.run(
            [sys.executable, "-m", "thawd", *arguments],
            cwd=self.root,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            **kwargs,
        )

    @contextlib.contextmanager
    def run(self, *arguments: str) -> Iterator[Running]:
        """Serve a file by ``thawd run``, on a free port; see `up`. Its functions may be published later."""
        with self.up(*arguments, "--port", "0", command=("run",)) as running:
            yield running

    @contextlib.contextmanager
    def up(
        self,
        *arguments: str,
        environ: dict[str, str] | None = None,
        python: str = sys.executable,
        command: tuple[str, ...] = ("up", "--ready-when", "published"),
        **kwargs: Any,
    ) -> Iterator[Running]:
        """Run a server for this project. At the end, stop it and check that it leaves no process behind.

        When this returns, all functions are published, except with the arguments ``--ready-when answering``.
        """
        ready = self.root / "ready.json"
        ready.unlink(missing_ok=True)
        process = prestarted.Popen(
            [python, "-m", "thawd", *command, "--ready-file", str(ready), *arguments],
            cwd=self.root,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **(environ or {})},
            **kwargs,
        )
        running = Running(process, "", self)
        assert process.stdout is not None
        stdout = process.stdout

        def gather() -> None:
            for line in stdout:
                running.output.append(line.rstrip("\n"))

        reader = threading.Thread(target=gather)
        reader.start()
        try:
            eventually(lambda: ready.exists() or process.poll() is not None, what="the server's start")
            if process.poll() is not None:
                reader.join()
                raise AssertionError(
                    f"the server did not start; it ended with status {process.returncode}:\n"
                    + "\n".join(running.output)
                )
            running.url = json.loads(ready.read_text())["url"]
            if "answering" not in arguments and "published" in command:
                running.until_said("Ctrl-C stops")
            yield running
            if process.poll() is None:
                process.terminate()
                # A server that a test killed just before may take a moment to end.
                assert process.wait(DEADLINE_S) in (0, -signal.SIGKILL), "\n".join(running.output)
            eventually(lambda: not processes_of(self.data), what="the end of all processes")
        finally:
            process.kill()
            process.wait()
            reader.join()
            stdout.close()


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """An empty project."""
    root = tmp_path / "project"
    root.mkdir()
    return Project(root)


@pytest.fixture
def echo(project: Project) -> Project:
    """A project with one function, ``app``, that waits if its event says so and answers its version."""
    project.code(ECHO)
    project.config('[functions.app]\nhandler = "app.handler"\n')
    return project


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """The object API alone, on a free port."""
    with tempfile.TemporaryDirectory() as folder, Served(Path(folder)) as running:
        yield running


@pytest.fixture
def s3(served: Served) -> Iterator[Any]:
    """A boto3 S3 client of the object API, with an empty bucket."""
    with served.empty_client() as client:
        yield client


@pytest.fixture(scope="module")
def aws() -> Iterator[EmulatedAws]:
    """Emulated AWS services for the tests of one module."""
    with EmulatedAws() as running:
        yield running


@pytest.fixture(scope="module")
def emulating(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server that emulates AWS and has no function."""
    project = Project(tmp_path_factory.mktemp("emulator"))
    project.config("")
    with project.up("--aws") as served:
        yield served


@pytest.fixture
def aws_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set made-up values where boto3 looks for AWS settings."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")


@pytest.fixture
def there(aws: EmulatedAws, request: pytest.FixtureRequest) -> There:
    """A bucket for this test only."""
    return There(aws, f"b{abs(hash(request.node.name)) % 10**12}-there")


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """An HTTP server that receives records and answers as a test demands."""
    with receiving() as running:
        yield running
