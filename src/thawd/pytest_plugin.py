"""Fixtures for pytest: a server with the project's functions, which is started once for all tests of a session.

pytest loads this module wherever thawd is installed. A test that takes one of these fixtures starts the server:

::

    def test_a_picture_gets_a_label(bucket, table):
        bucket("uploads").write("cat.png", picture)
        assert table("labels").wait_for("cat.png")["label"] == "cat"

The server is private: it has a free port, its own data folder, empty tables, and empty folders for the buckets. Each
function is initialised once and thawed for the tests, as on the running server. No schedule runs, no queue is read, and
destinations outside of the server get nothing.

This module imports nothing of the platform before a test needs the server.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from thawd.config import Settings

_PATIENCE_S = 30.0
_LOOK_S = 0.01
_WRITTEN_AFTER_S = 0.1
_OPTION = "thawd_config"


class FunctionFailed(AssertionError):
    """A function failed.

    Attributes:
        error_type: the error's type, for example ``ValueError``.
        message: the error's message.
        trace: lines of the traceback in the function's files.
    """

    def __init__(self, function: str, document: dict[str, Any]) -> None:
        self.error_type = str(document.get("errorType", ""))
        self.message = str(document.get("errorMessage", ""))
        self.trace = "".join(document.get("stackTrace") or [])
        super().__init__(f"{function} failed: {self.error_type}: {self.message}\n{self.trace}".rstrip())


class Bucket:
    """A bucket of the server.

    Args:
        folder: the folder with its objects.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, key: str, data: bytes) -> None:
        """Put an object, as a client of S3 would. The functions that the bucket notifies are invoked."""
        path = self._folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = self._folder.parent / f"{uuid.uuid4().hex}.partial"  # outside the bucket, so that it is no object
        beside.write_bytes(data)
        beside.rename(path)

    def read(self, key: str) -> bytes:
        """The object's bytes.

        Raises:
            FileNotFoundError: there is no such object.
        """
        return (self._folder / key).read_bytes()

    def keys(self) -> list[str]:
        """The keys of all objects, sorted."""
        files = (path for path in self._folder.rglob("*") if path.is_file() and not path.name.startswith("."))
        return sorted(str(path.relative_to(self._folder)) for path in files)

    def wait_for(self, key: str, *, timeout_s: float = _PATIENCE_S) -> bytes:
        """Wait until an object exists, and return its bytes.

        Raises:
            AssertionError: it does not exist after `timeout_s` seconds.
        """
        return self.read(_until(lambda: key if (self._folder / key).is_file() else None, f"object {key!r}", timeout_s))


class Table:
    """A table of the server.

    Args:
        declared: the table as declared, with the file that the server uses.
    """

    def __init__(self, declared: Any) -> None:
        self._declared = declared

    def get(self, key: str) -> dict[str, Any] | None:
        """The item under `key`, or None."""
        return dict(self.scan()).get(key)

    def scan(self) -> list[tuple[str, dict[str, Any]]]:
        """All items as (key, item), in order of their keys."""
        from thawd.errors import NothingStored
        from thawd.stores.tables.access import read_table

        try:
            return sorted((key, json.loads(item)) for key, item in read_table(self._declared))
        except NothingStored:
            return []

    def wait_for(self, key: str, *, timeout_s: float = _PATIENCE_S) -> dict[str, Any]:
        """Wait until there is an item under `key`, and return it.

        Raises:
            AssertionError: there is none after `timeout_s` seconds.
        """
        found: dict[str, Any] = _until(lambda: self.get(key), f"item {key!r}", timeout_s)
        return found


class Server:
    """The server of a session.

    Attributes:
        url: its URL.
        settings: its configuration.
    """

    def __init__(self, url: str, settings: Settings) -> None:
        self.url = url
        self.settings = settings

    def invoke(self, function: str, event: Any = None) -> Any:
        """Invoke a function and return its answer.

        Args:
            function: its name, or NAME:QUALIFIER.
            event: anything that JSON can express.

        Raises:
            FunctionFailed: the function failed.
            AssertionError: the function could not be invoked.
        """
        import urllib.error
        import urllib.parse
        import urllib.request

        path = f"/2015-03-31/functions/{urllib.parse.quote(function, safe='')}/invocations"
        request = urllib.request.Request(self.url + path, data=json.dumps(event).encode(), method="POST")
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # the server is on this machine
        try:
            with opener.open(request, timeout=960) as answer:
                document = json.loads(answer.read() or b"null")
                failed = answer.headers.get("X-Amz-Function-Error") is not None
        except urllib.error.HTTPError as error:
            known = ", ".join(self.settings.functions)
            raise AssertionError(
                f"{function} could not be invoked: HTTP {error.code}: {error.read().decode()}; functions: {known}"
            ) from None
        if failed:
            raise FunctionFailed(function, document)
        return document

    def bucket(self, name: str) -> Bucket:
        """Return a bucket. Raises AssertionError if the configuration declares none of that name."""
        return Bucket(_declared(self.settings.buckets, name, "bucket").path)

    def table(self, name: str) -> Table:
        """Return a table. Raises AssertionError if the configuration declares none of that name."""
        return Table(_declared(self.settings.tables, name, "table"))

    def log_lines(self, function: str, *, since_ms: int = 0) -> list[tuple[int, str]]:
        """Return what a function has logged: when, in milliseconds since 1970, and the text of each line."""
        from thawd.telemetry.logs.events import LogEvents
        from thawd.telemetry.logs.groups import path_of_group

        declared = _declared(self.settings.functions, function, "function")
        path = path_of_group(self.settings.server.data / "logs", declared.log_group_name)
        if not path.exists():
            return []
        with LogEvents(path) as events:
            return [
                (event.time_ms, event.message.decode(errors="replace"))
                for event in events.forward(start_ms=since_ms)
                if event.time_ms >= since_ms
            ]


class CapturedLogs:
    """What functions have logged since the test began.

    Args:
        server: the server.
        since_ms: when the test began, milliseconds since 1970.
    """

    _PLATFORM = ("START RequestId", "END RequestId", "REPORT RequestId", "INIT_START", "RESTORE_", "INIT_REPORT")

    def __init__(self, server: Server, since_ms: int) -> None:
        self._server = server
        self._since_ms = since_ms

    def lines(self, function: str, *, platform: bool = False) -> list[str]:
        """The lines that a function has logged, with `platform` also those that the platform writes.

        The server writes lines to the log every 50 ms, so the lines of the last moment are waited for. An invocation
        that nobody waits for, as after an upload, may log more later: see `wait_for`.
        """
        time.sleep(_WRITTEN_AFTER_S)
        texts = [text for _, text in self._server.log_lines(function, since_ms=self._since_ms)]
        return texts if platform else [text for text in texts if not text.startswith(self._PLATFORM)]

    def text(self, function: str) -> str:
        """The same as one text."""
        return "\n".join(self.lines(function))

    def wait_for(self, function: str, text: str, *, timeout_s: float = _PATIENCE_S) -> str:
        """Wait until a function has logged a line that contains `text`, and return the line.

        Raises:
            AssertionError: it has not after `timeout_s` seconds.
        """

        def found() -> str | None:
            return next((line for line in self.lines(function) if text in line), None)

        line: str = _until(found, f"line of {function} with {text!r}", timeout_s)
        return line


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option and the setting that name the configuration."""
    parser.getgroup("thawd").addoption("--thawd-config", metavar="FILE", help="thawd.toml of the fixture `thawd`")
    parser.addini(_OPTION, "thawd.toml of the fixture `thawd`, relative to the root of the tests", default="thawd.toml")


@pytest.fixture(scope="session")
def thawd(request: pytest.FixtureRequest) -> Iterator[Server]:
    """The server: `thawd.invoke`, `thawd.bucket`, `thawd.table`, and `thawd.url` for other clients."""
    from thawd.bench.measurement_server import Place, private_server
    from thawd.config import load
    from thawd.errors import ConfigurationError, StoreError
    from thawd.server.measurement.testing import TestConditions, settings_of

    named = request.config.getoption("--thawd-config") or request.config.getini(_OPTION)
    path = request.config.rootpath / named
    places: list[Place] = []

    def conditions(place: Place) -> TestConditions:
        places.append(place)
        return TestConditions(place=place)

    try:
        settings = load(path)
        with private_server(settings, purpose="testing", conditions=conditions) as server:
            yield Server(server.url, settings_of(settings, TestConditions(place=places[0])))
    except (ConfigurationError, StoreError) as error:
        pytest.fail(f"no server can be started for {path}: {error}", pytrace=False)


@pytest.fixture
def invoke(thawd: Server) -> Callable[..., Any]:
    """``invoke(function, event)`` invokes a function and returns its answer; see `Server.invoke`."""
    return thawd.invoke


@pytest.fixture
def bucket(thawd: Server) -> Iterator[Callable[[str], Bucket]]:
    """``bucket(name)`` returns a bucket. After the test, the objects of all buckets are removed."""
    yield thawd.bucket
    for declared in thawd.settings.buckets.values():
        for path in declared.path.rglob("*"):
            if path.is_file():
                path.unlink(missing_ok=True)


@pytest.fixture
def table(thawd: Server) -> Callable[[str], Table]:
    """``table(name)`` returns a table. Rows of earlier tests are still there: use other keys."""
    return thawd.table


@pytest.fixture
def capture_logs(thawd: Server) -> CapturedLogs:
    """``capture_logs.lines(function)`` returns what the function has logged since the test began."""
    return CapturedLogs(thawd, int(time.time() * 1000))


def _declared(known: Any, name: str, kind: str) -> Any:
    if name not in known:
        raise AssertionError(
            f"the configuration declares no {kind} {name!r}; it declares: {', '.join(known) or 'none'}"
        )
    return known[name]


def _until(condition: Callable[[], Any], what: str, timeout_s: float) -> Any:
    until_s = time.monotonic() + timeout_s
    while (found := condition()) is None:
        if time.monotonic() > until_s:
            raise AssertionError(f"there is no {what} after {timeout_s:g} s")
        time.sleep(_LOOK_S)
    return found
