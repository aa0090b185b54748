"""Runs the measured servers: `thawd up` with a given configuration, the plain echo, and the Runtime API's endpoint.

Each server is a separate process, so that the client's work does not count as the server's.
"""

from __future__ import annotations

import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from benchmarks import machine
from benchmarks.report import AT_MOST, BenchmarkError, Figure

REPOSITORY = Path(__file__).resolve().parents[1]
BUILD = REPOSITORY / "build"

START_S = 180.0
STOP_S = 30.0
POLL_S = 0.02
_Answer = TypeVar("_Answer")
_CPU_CLOCK = 2

NOOP = """
def handler(event, context):
    return event
"""


@dataclass(frozen=True, slots=True)
class Served:
    """A running server.

    Attributes:
        url: base URL, without a slash at the end.
        pid: process id.
        folder: the folder of its configuration.
    """

    url: str
    pid: int
    folder: Path

    def status(self) -> dict[str, Any]:
        """Return the answer of ``/_thawd/status``."""
        with urllib.request.urlopen(f"{self.url}/_thawd/status", timeout=10) as response:
            document: dict[str, Any] = json.load(response)
        return document

    def function(self, name: str) -> dict[str, Any]:
        """Return the status of one function."""
        function: dict[str, Any] = self.status()["functions"][name]
        return function


def invoke(served: Served, function: str, event: object) -> object:
    """Invoke `function` and wait for its answer.

    Raises:
        BenchmarkError: the function failed.
    """
    request = urllib.request.Request(
        f"{served.url}/2015-03-31/functions/{function}/invocations",
        data=json.dumps(event).encode(),
        method="POST",
    )
    with urllib.request.urlopen(request, timeout=120) as response:
        answer: object = json.load(response)
        if response.headers.get("X-Amz-Function-Error"):
            raise BenchmarkError(f"{function} failed: {answer}")
    return answer


@contextmanager
def thawd(configuration: str, files: dict[str, str], *, options: Sequence[str] = ()) -> Iterator[Served]:
    """Run `thawd up` on `configuration` (TOML), with `files` (texts by their paths) beside it.

    `options` are further options of the command.

    The server stops at the end of the ``with`` block. Its folder is under ``build/``, because temporary folders are
    often on a memory file system, where the queue would be faster than on a disk.

    Raises:
        BenchmarkError: the server did not start or did not stop.
    """
    BUILD.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=BUILD) as name:
        folder = Path(name)
        for path, text in {**files, "thawd.toml": configuration}.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
            if text.startswith("#!"):
                (folder / path).chmod(0o755)
        with thawd_in(folder, options=["--ready-when", "published", *options]) as served:
            yield served


@contextmanager
def thawd_in(folder: Path, *, options: Sequence[str] = ()) -> Iterator[Served]:
    """Run `thawd up` in a folder with a ``thawd.toml``, from its first connection until the end of the ``with`` block.

    Raises:
        BenchmarkError: the server did not start or did not stop.
    """
    ready = folder / "ready.json"
    ready.unlink(missing_ok=True)
    command = [sys.executable, "-m", "thawd", "up", "--config", str(folder / "thawd.toml")]
    command += ["--port", "0", "--ready-file", str(ready), *options]
    with _process(command, folder / "server.log") as process:
        announced = await_ready(ready, process, folder / "server.log")
        yield Served(announced["url"], announced["pid"], folder)


def command(folder: Path, *arguments: str) -> str:
    """Run a command of thawd in a folder, and return what it printed.

    Raises:
        BenchmarkError: it failed.
    """
    done = subprocess.run(
        [sys.executable, "-m", "thawd", *arguments], cwd=folder, capture_output=True, check=False, text=True
    )
    if done.returncode:
        raise BenchmarkError(f"thawd {' '.join(arguments)} failed: {done.stderr[-2000:]}")
    return done.stdout


@contextmanager
def bucket(folder: Path) -> Iterator[Served]:
    """Serve a folder as a bucket (`benchmarks.bucket`) until the end of the ``with`` block."""
    with _program("benchmarks.bucket", str(folder)) as served:
        yield served


@contextmanager
def bare_echo() -> Iterator[Served]:
    """Run the echo of `benchmarks.echo` on uvicorn until the end of the ``with`` block."""
    with _program("benchmarks.echo") as served:
        yield served


@contextmanager
def runtime_endpoint() -> Iterator[Served]:
    """Run the endpoint of `benchmarks.runtime_endpoint` until the end of the ``with`` block."""
    with _program("benchmarks.runtime_endpoint") as served:
        yield served


@contextmanager
def _program(module: str, *arguments: str) -> Iterator[Served]:
    BUILD.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=BUILD) as name:
        folder = Path(name)
        ready = folder / "ready.json"
        command = [sys.executable, "-m", module, str(ready), *arguments]
        with _process(command, folder / "server.log") as process:
            announced = await_ready(ready, process, folder / "server.log")
            yield Served(announced["url"], announced["pid"], folder)


@contextmanager
def _process(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=REPOSITORY)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise BenchmarkError(f"{' '.join(command[1:4])} was still running {STOP_S:.0f} s after SIGTERM") from None


def await_ready(ready: Path, process: subprocess.Popen[bytes], log: Path) -> dict[str, Any]:
    """Wait until the server has written its ready file completely, and return the file's contents.

    Raises:
        BenchmarkError: the server ended first, or took longer than `START_S`.
    """

    def announced() -> dict[str, Any] | None:
        if process.poll() is not None:
            raise BenchmarkError(f"the server ended with status {process.returncode}:\n{log.read_text()[-2000:]}")
        try:
            document: dict[str, Any] = json.loads(ready.read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return None
        return document

    return wait_for(announced, f"the server's ready file; its log is {log}", within_s=START_S)


def wait_for(probe: Callable[[], _Answer | None], what: str, *, within_s: float) -> _Answer:
    """Call `probe` until it returns something other than None, and return that.

    Raises:
        BenchmarkError: it returned only None for `within_s` seconds.
    """
    deadline = time.monotonic() + within_s
    while True:
        answer = probe()
        if answer is not None:
            return answer
        if time.monotonic() > deadline:
            raise BenchmarkError(f"waited {within_s:.0f} s without success for {what}")
        time.sleep(POLL_S)


def resident_mib(pid: int) -> float:
    """Return the resident memory of one process, MiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise BenchmarkError(f"process {pid} has ended: it has no resident memory")


def cpu_s(pid: int) -> float:
    """Return the processor time of one process with all its threads so far, user and system, seconds.

    Source: Linux, include/linux/posix-timers.h: the clock of a process, which clock_getcpuclockid(3) returns.
    """
    return time.clock_gettime(~pid << 3 | _CPU_CLOCK)


def changed_handler(took_ms: Sequence[float], *, most_ms: float) -> Figure:
    """Return the figure for changes of a handler.

    Args:
        took_ms: for each change, the time from writing the file until the new handler answered, milliseconds.
        most_ms: the bound for the median on the machine where it was set, milliseconds.
    """
    return Figure(
        "from writing a changed handler to its answer",
        statistics.median(took_ms),
        "ms",
        AT_MOST,
        machine.bound(most_ms),
        f"{min(took_ms):.0f} to {max(took_ms):.0f} ms",
    )
