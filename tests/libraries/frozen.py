"""Freezes a program of `programs/`, kills the original, and thaws copies."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from thawd.snapshot.engine import PROGRAM_NAME, native_folder

PROGRAMS = Path(__file__).parent / "programs"
THAW = Path(native_folder() or "") / PROGRAM_NAME
FREEZE_DEADLINE_S = 240.0
COPY_DEADLINE_S = 240.0
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "TOKENIZERS_PARALLELISM": "true"}


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended and what it printed."""

    status: int
    said: str
    errors: str


class Copies:
    """An image on disk with a dead original, and the copies that are thawed from it."""

    def __init__(self, image: Path) -> None:
        self.image = image

    def start(self, name: str, *arguments: str) -> subprocess.Popen[str]:
        """Start thawing one copy. The copy gets `name` as an environment variable."""
        return subprocess.Popen(
            [THAW, self.image, *arguments],
            env={**os.environ, **OFFLINE, "COPY": name},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def end(self, copy: subprocess.Popen[str]) -> Ended:
        """Wait until a copy ends by itself."""
        try:
            said, errors = copy.communicate(timeout=COPY_DEADLINE_S)
        finally:
            copy.kill()
        return Ended(copy.wait(), said, errors)

    def run(self, name: str, *arguments: str) -> Ended:
        """Thaw one copy and wait for its end."""
        return self.end(self.start(name, *arguments))


def freeze(
    image: Path, program: str, *options: str, environment: dict[str, str] | None = None, python: str = sys.executable
) -> Copies:
    """Run `program` in the interpreter `python` until it is frozen in `image`, then kill it.

    Raises:
        AssertionError: it did not get that far; the message has its output.
    """
    command = [python, "-B", str(PROGRAMS / f"{program}.py"), str(image), *options]
    run_until_frozen(image, command, {"COPY": "original", **(environment or {})})
    return Copies(image)


def freeze_copy(copies: Copies, image: Path) -> Copies:
    """Thaw a copy that freezes itself again into `image`; then kill the copy."""
    run_until_frozen(image, [str(THAW), str(copies.image), "again"], {"COPY": "again"})
    return Copies(image)


def run_until_frozen(image: Path, command: list[str], environment: dict[str, str]) -> None:
    """Run `command` until it prints that it is frozen in `image`, and kill it."""
    errors_path = image.with_suffix(".errors")
    with errors_path.open("wb") as errors:
        original = subprocess.Popen(
            command,
            env={**os.environ, **OFFLINE, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
    try:
        line = first_line(original)
    finally:
        original.send_signal(signal.SIGKILL)
        status = original.wait()
        original.communicate()
    assert line.startswith(b"frozen "), (
        f"{command} said {line!r}, ended with {status}: {errors_path.read_text()[-3000:]}"
    )


def first_line(process: subprocess.Popen[bytes]) -> bytes:
    """Return the first line of a process's standard output, or as much of it as there is when the process ends."""
    assert process.stdout is not None
    line, deadline = b"", time.monotonic() + FREEZE_DEADLINE_S
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while not line.endswith(b"\n"):
            assert selector.select(deadline - time.monotonic()), f"no line within {FREEZE_DEADLINE_S} s"
            if not (more := os.read(process.stdout.fileno(), 4096)):
                break
            line += more
    return line
