"""The processes of the snapshot benchmarks: started from nothing or thawed from an image, and timed from exec on.

Every process is started with posix_spawn, which does not copy the caller's page tables as fork does. The time of a
start begins just before posix_spawn. It ends when the process reads the clock after its inference, so the time to read
the answer does not count. `programs/subject.py` describes what the processes do.
"""

from __future__ import annotations

import json
import os
import select
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from benchmarks.report import BenchmarkError

ANSWER_S = 120.0
END_S = 10.0


@dataclass(frozen=True, slots=True)
class Subject:
    """A running process that takes commands.

    Attributes:
        pid: process id.
        begun_ns: CLOCK_MONOTONIC before the process was started, nanoseconds.
        commands: file descriptor to write commands to.
        answers: file descriptor to read answers from.
        errors: the file that collects its standard error.
    """

    pid: int
    begun_ns: int
    commands: int
    answers: int
    errors: IO[bytes]
    _unread: bytearray = field(default_factory=bytearray)

    def answer(self) -> dict[str, Any]:
        """Return the next answer.

        Raises:
            BenchmarkError: the process ended, or did not answer for `ANSWER_S` seconds.
        """
        deadline = time.monotonic() + ANSWER_S
        while b"\n" not in self._unread:
            if not select.select([self.answers], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise BenchmarkError(f"process {self.pid} did not answer within {ANSWER_S:.0f} s: {self._said()}")
            data = os.read(self.answers, 65536)
            if not data:
                raise BenchmarkError(f"process {self.pid} ended instead of answering: {self._said()}")
            self._unread.extend(data)
        line, _, rest = bytes(self._unread).partition(b"\n")
        self._unread[:] = rest
        answer: dict[str, Any] = json.loads(line)
        return answer

    def send(self, command: str) -> None:
        """Send a command without waiting for its answer."""
        os.write(self.commands, command.encode() + b"\n")

    def ask(self, command: str) -> dict[str, Any]:
        """Send a command and wait for its answer."""
        self.send(command)
        return self.answer()

    def first_ms(self, answer: Mapping[str, Any]) -> float:
        """Return the time from before the start to the end of the inference in `answer`, milliseconds."""
        return float(answer["at_ns"] - self.begun_ns) / 1e6

    def pss_mib(self) -> float:
        """Return the process's memory, MiB.

        A page that several processes share counts in equal parts for each of them (PSS).
        """
        for line in Path(f"/proc/{self.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024
        raise BenchmarkError(f"/proc/{self.pid}/smaps_rollup has no Pss; it needs Linux 4.14")

    def _said(self) -> str:
        self.errors.seek(0)
        return self.errors.read().decode(errors="replace").strip()[-2000:] or "it wrote no error"


@contextmanager
def started(command: list[str], environment: Mapping[str, str]) -> Iterator[Subject]:
    """Run `command` as a process for a ``with`` block. At the end of the block, close the process's input, and kill the
    process if it still runs `END_S` seconds later."""
    _set_close_on_exec()
    with tempfile.TemporaryFile() as errors:
        commands, answers = os.pipe(), os.pipe()
        actions = [
            (os.POSIX_SPAWN_DUP2, commands[0], 0),
            (os.POSIX_SPAWN_DUP2, answers[1], 1),
            (os.POSIX_SPAWN_DUP2, errors.fileno(), 2),
        ]
        begun_ns = time.monotonic_ns()
        try:
            pid = os.posix_spawn(command[0], command, environment, file_actions=actions)
        finally:
            os.close(commands[0])
            os.close(answers[1])
        try:
            yield Subject(pid, begun_ns, commands[1], answers[0], errors)
        finally:
            os.close(commands[1])
            _end(pid)
            os.close(answers[0])


def inference_ms(answer: Mapping[str, Any]) -> float:
    """Return how long the inference in `answer` took, or the fork and its inference, milliseconds."""
    return float(answer["at_ns"] - answer["begun_ns"]) / 1e6


def _set_close_on_exec() -> None:
    """Set close-on-exec for descriptors that a shell or build tool left open: a process that inherits a pipe cannot be
    frozen."""
    for number in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        try:
            if number > 2 and os.get_inheritable(number):
                os.set_inheritable(number, False)
        except OSError:
            # This descriptor was used to list the folder and is closed by now.
            continue


def _end(pid: int) -> None:
    pidfd = os.pidfd_open(pid)
    try:
        if not select.select([pidfd], [], [], END_S)[0]:
            os.kill(pid, signal.SIGKILL)
    finally:
        os.close(pidfd)
        os.waitpid(pid, 0)
