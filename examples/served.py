"""Functions that the examples' `run.py` share: they start a server with an empty data folder, call it, print lines."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LIBRARIES_VARIABLE = "BENCH_LIBRARIES_PYTHON"
_REPOSITORY = Path(__file__).resolve().parents[1]
_LOOK_S = 0.02
_TOLD = 3000


class ExampleError(Exception):
    """A step did not do what it should. The message says which step."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of the server.

    Attributes:
        document: the body, as JSON.
        took_ms: time from the request to the complete answer, milliseconds.
        start: how the environment was started: ``cold``, ``fork``, ``thaw``, ``warm``; empty if the answer does not
            say.
    """

    document: Any
    took_ms: float
    start: str = ""


class Served:
    """The running server of an example.

    Attributes:
        url: base URL.
        config: path of the server's thawd.toml.
        data: the server's data folder, which was empty when the server was started.
    """

    def __init__(self, url: str, config: Path, data: Path) -> None:
        self.url = url
        self.config = config
        self.data = data

    def post(self, path: str, body: bytes, kind: str) -> Answer:
        """Post `body` of media type `kind` to `path` and return the answer.

        Raises:
            ExampleError: the answer is not 2xx.
        """
        begun_s = time.perf_counter()
        request = urllib.request.Request(self.url + path, data=body, headers={"Content-Type": kind})
        try:
            with urllib.request.urlopen(request) as response:
                text, failed = response.read(), response.headers.get("X-Amz-Function-Error")
        except urllib.error.HTTPError as error:
            raise ExampleError(f"{path} answered {error.code}: {error.read().decode(errors='replace')}") from None
        took_ms = (time.perf_counter() - begun_s) * 1000
        if failed:
            raise ExampleError(f"{path} failed: {text.decode()}")
        return Answer(json.loads(text), took_ms)

    def invoke(self, function: str, event: object) -> Answer:
        """Invoke the function with `event` and return its answer.

        Raises:
            ExampleError: the function failed.
        """
        before = self.starts(function)
        answer = self.post(f"/2015-03-31/functions/{function}/invocations", json.dumps(event).encode(), "text/json")
        begun = [kind for kind, count in self.starts(function).items() if count > before.get(kind, 0)]
        return Answer(answer.document, answer.took_ms, begun[0] if begun else "warm")

    def starts(self, function: str) -> dict[str, int]:
        """Return how many of the function's environments were started, by kind of start."""
        kinds = self.status(function)["starts"]
        return {kind: figures["count"] for kind, figures in kinds.items() if kind != "warm"}

    def status(self, function: str) -> dict[str, Any]:
        """Return what ``/_thawd/status`` reports about the function."""
        with urllib.request.urlopen(self.url + "/_thawd/status") as response:
            document: dict[str, Any] = json.load(response)["functions"][function]
        return document

    def rows(self, table: str) -> dict[str, dict[str, Any]]:
        """Return the items of a table by their keys, as ``thawd table`` prints them."""
        command = [sys.executable, "-m", "thawd", "table", table, "--json", "--config", str(self.config)]
        environment = {**os.environ, "THAWD_DATA": str(self.data), "THAWD_PORT": self.url.rpartition(":")[2]}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        if done.returncode:
            raise ExampleError(f"{' '.join(command[1:])} ended with status {done.returncode}: {done.stderr}")
        return {row.pop("_key"): row for row in map(json.loads, done.stdout.splitlines())}

    def wait_for(self, probe: Callable[[], Any], what: str, functions: Sequence[str]) -> Any:
        """Call `probe` until it returns something true, and return that.

        Raises:
            ExampleError: one of `functions` failed meanwhile.
        """
        while not (answer := probe()):
            for name in functions:
                told = self.status(name)
                if failed := told["errors"] + told["timeouts"] + told["exits"] + told["init_failures"]:
                    raise ExampleError(f"{name} failed {failed} times while waiting for {what}; {self.log()}")
            time.sleep(_LOOK_S)
        return answer

    def log(self) -> str:
        """Return the last lines of the server's output."""
        return (self.data.parent / "server.log").read_text(errors="replace")[-_TOLD:]


@contextlib.contextmanager
def serving(config: Path, *arguments: str, environment: dict[str, str] | None = None) -> Iterator[Served]:
    """Run `thawd up` on `config` at any free port with an empty data folder; stop it and delete the folder at the end.

    Args:
        arguments: more arguments of the command line.
        environment: more environment variables.

    Raises:
        ExampleError: the server did not start, or a function is not usable.
    """
    home = config.parent / ".thawd"
    home.mkdir(exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(prefix="run-", dir=home) as name:
        folder = Path(name)
        ready, data = folder / "ready.json", folder / "data"
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("THAWD_")}
        command = [sys.executable, "-m", "thawd", "up", "--config", str(config), "--port", "0", *arguments]
        with (folder / "server.log").open("wb") as log:
            process = subprocess.Popen(
                [*command, "--ready-file", str(ready), "--ready-when", "published"],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**inherited, "THAWD_DATA": str(data), **(environment or {})},
                # In a separate session, the server gets no signal from Ctrl-C. Only the example does, and then stops
                # the server.
                start_new_session=True,
            )
        served = Served("", config, data)
        try:
            served.url = _await_ready(process, ready, served)
            _check_usable(served)
            yield served
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()


def _await_ready(process: subprocess.Popen[bytes], ready: Path, served: Served) -> str:
    while process.poll() is None:
        with contextlib.suppress(FileNotFoundError, ValueError):
            url: str = json.loads(ready.read_text())["url"]
            return url
        time.sleep(_LOOK_S)
    raise ExampleError(f"thawd up ended with status {process.returncode}:\n{served.log()}")


def _check_usable(served: Served) -> None:
    with urllib.request.urlopen(served.url + "/_thawd/status") as response:
        functions = json.load(response)["functions"]
    for name, function in functions.items():
        if function["state"] != "Active":
            raise ExampleError(f"the function {name} is {function['state']}: {function['reason']}\n{served.log()}")


def object_created(bucket: str, key: str) -> dict[str, Any]:
    """Make the event of an object in a bucket, with the fields that the examples' handlers read."""
    from urllib.parse import quote_plus

    record = {"s3": {"bucket": {"name": bucket}, "object": {"key": quote_plus(key, safe="/")}}}
    return {"Records": [{"eventSource": "aws:s3", "eventName": "ObjectCreated:Put", **record}]}


def libraries_python() -> Path:
    """Return the interpreter that is expected to have torch and transformers. It may not exist."""
    return Path(os.environ.get(LIBRARIES_VARIABLE, _REPOSITORY / ".venv-libraries" / "bin" / "python"))


def say(step: str, text: str) -> None:
    """Print a line about a step."""
    print(f"  {step:<10} {text}", flush=True)


def table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print aligned columns: the first left-aligned, the others right-aligned."""
    texts = [list(map(str, row)) for row in (heads, *rows)]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    print()
    for first, *others in texts:
        cells = [text.rjust(width) for text, width in zip(others, widths[1:], strict=True)]
        print("    " + "   ".join([first.ljust(widths[0]), *cells]).rstrip())
    print(flush=True)


def configuration(path: Path) -> Path:
    """Return the path of the configuration to use.

    If BENCH_LIBRARIES_PYTHON is set, that is a copy of `path` in which the interpreter is the one that the variable
    names.
    """
    named = os.environ.get(LIBRARIES_VARIABLE)
    if named is None:
        return path
    local = path.with_name(f"local-{path.name}")
    local.write_text(path.read_text().replace('"../../.venv-libraries"', json.dumps(named)))
    return local


def main(run: Callable[[], None], prepare: Callable[[], None]) -> int:
    """Run an example and return the exit status. With the argument ``prepare``, only make the files that it serves."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if sys.argv[1:] == ["prepare"]:
            prepare()
        else:
            run()
    except ExampleError as error:
        print(f"\nthe example failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0
