"""Starts the processes of the tests, and makes sure that none outlives the tests.

Every process of a session works in the session's folder, or has the folder's name in an environment variable, which its
children and thawed copies inherit. So each can be found, whatever its parent is by now. Three things end a process. The
test that started it kills it. native/tests/tied.c makes the kernel kill it when the tests die, or when it has used two
minutes of processor time. A guard process in a separate session kills what is left when the tests end for any reason.
When run as a program, this module is that guard.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

DEADLINE_S = 300.0
GRACE_S = 120.0  # time for processes to end that were killed or lost their parent
LOOK_AGAIN_S = 0.01
MARK = "THAWD_TESTS_IN"
OUTLIVES = "outlives"


@dataclass(frozen=True, slots=True)
class Identity:
    """The user that programs run as, and how they run.

    Attributes:
        user: name of the user; None for the user of the tests. Only root can choose another.
        options: options of native/tests/tied.c.
    """

    user: str | None = None
    options: tuple[str, ...] = ()

    def arguments(self) -> tuple[str, ...]:
        """Return the arguments of native/tests/tied.c.

        That program changes the user, because subprocess.Popen would have to copy the tests' address space to do it.
        """
        if self.user is None or os.geteuid() != 0:
            return self.options
        entry = pwd.getpwnam(self.user)
        return (f"--user={entry.pw_uid}:{entry.pw_gid}", *self.options)


SELF = Identity()
NOBODY = Identity(user="nobody", options=("--no-new-privileges",))


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a program or a thawed copy ended."""

    status: int
    output: str
    errors: str

    @property
    def passed(self) -> bool:
        """Return whether it checked itself and found no error."""
        return self.status == 0 and self.output.splitlines()[-1:] == ["pass"] and not self.errors


class Keeper:
    """Starts programs that work in one folder, and makes sure that they end."""

    def __init__(self, tied: Path, folder: Path) -> None:
        self._tied = tied
        self.folder = folder
        self._started: list[subprocess.Popen[str]] = []

    def start(
        self,
        command: Sequence[object],
        *,
        identity: Identity = SELF,
        environment: dict[str, str] | None = None,
        stdin: int | IO[str] = subprocess.DEVNULL,
        pass_fds: Sequence[int] = (),
    ) -> subprocess.Popen[str]:
        """Start a program in a new session. Its environment variables are PATH and `environment`."""
        started = subprocess.Popen(
            [str(part) for part in (self._tied, os.getpid(), *identity.arguments(), "--", *command)],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=pass_fds,
            text=True,
            errors="replace",
            cwd=self.folder,
            start_new_session=True,
            env={"PATH": os.environ["PATH"], MARK: str(self.folder), **(environment or {})},
        )
        self._started.append(started)
        return started

    def close(self) -> None:
        """Kill what still runs, also a process that has called outlive() of native/tests/harness.h.

        Raises:
            AssertionError: another process still runs, such as a program's child; it is killed.
        """
        for started in self._started:
            end(started)
        self._started.clear()
        with contextlib.suppress(FileNotFoundError):
            outlives = (self.folder / OUTLIVES).read_text()
            if _belongs(outlives, str(self.folder)):
                os.kill(int(outlives), signal.SIGKILL)
        expect_none(self.folder)


def end(program: subprocess.Popen[str]) -> None:
    """Kill a program and its session, unless it has ended, and close its pipes."""
    if program.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
        program.wait()
    for stream in (program.stdin, program.stdout, program.stderr):
        if stream is not None:
            with contextlib.suppress(BrokenPipeError):
                stream.close()


def end_of(program: subprocess.Popen[str], *, deadline_s: float = DEADLINE_S) -> Outcome:
    """Close a program's input, wait until it ends and return its outcome.

    If it does not end, kill it and fail the test.
    """
    try:
        output, errors = program.communicate("" if program.stdin else None, timeout=deadline_s)
    except subprocess.TimeoutExpired as hung:
        state = states_of(program.pid)
        raise AssertionError(
            f"{program.args!r} did not end; it said {hung.stdout!r} {hung.stderr!r}\n{state}"
        ) from None
    finally:
        end(program)
    return Outcome(program.returncode, output, errors)


def read_until(program: subprocess.Popen[str], ending: str, *, deadline_s: float = DEADLINE_S) -> str:
    """Return the output of the program up to `ending`, or all of it if the program ends first.

    Kill a program that is silent.
    """
    assert program.stdout is not None
    said = b""
    until_s = time.monotonic() + deadline_s
    while not said.endswith(ending.encode()):
        if not select.select([program.stdout], [], [], max(0.0, until_s - time.monotonic()))[0]:
            state = states_of(program.pid)
            end(program)
            raise AssertionError(f"{program.args!r} did not say {ending!r}; it said {said!r}\n{state}")
        got = os.read(program.stdout.fileno(), 1)
        if not got:
            break
        said += got
    return said.decode(errors="replace")


def states_of(pid: int) -> str:
    """Return which system calls the threads of a process wait in, for the report of a hang."""
    lines = []
    for task in sorted(Path(f"/proc/{pid}/task").glob("*")):
        try:
            call = (task / "syscall").read_text().strip()
            lines.append(f"{task.name} {(task / 'comm').read_text().strip()}: {call}")
        except OSError as error:
            lines.append(f"{task.name}: {error}")
    return "\n".join(lines)


def _belongs(process: str, folder: str) -> bool:
    """Return whether a process in /proc belongs to `folder`.

    A process that has ended does not, even if it is a zombie.
    """
    try:
        for place in (os.readlink(f"/proc/{process}/exe"), os.readlink(f"/proc/{process}/cwd")):  # noqa: PTH115
            if f"{place}/".startswith(f"{folder}/"):
                return True
        with open(f"/proc/{process}/environ", "rb", buffering=0) as file:
            variables = b"\0" + file.read()
    except OSError:  # it has ended, is a kernel thread, or belongs to another user, so the tests did not start it
        return False
    marked = os.fsencode(f"\0{MARK}={folder}")
    return marked + b"\0" in variables or marked + b"/" in variables


def living(folder: Path) -> Iterator[int]:
    """Yield the ids of all processes that belong to `folder`, except the caller.

    Every test calls this at its end, so it makes few system calls and no Path objects.
    """
    own = str(os.getpid())
    for process in os.listdir("/proc"):  # noqa: PTH208
        if process.isdigit() and process != own and _belongs(process, str(folder)):
            yield int(process)


def expect_none(folder: Path) -> None:
    """Wait until no process belongs to `folder`.

    Raises:
        AssertionError: some still do after GRACE_S seconds; they are killed.
    """
    until_s = time.monotonic() + GRACE_S
    while left := list(living(folder)):
        if time.monotonic() > until_s:
            states = "\n".join(f"{pid}:\n{states_of(pid)}" for pid in left)
            kill_all(folder)
            raise AssertionError(f"processes were left behind in {folder}:\n{states}")
        time.sleep(LOOK_AGAIN_S)


def kill_all(folder: Path) -> None:
    """Kill the processes that belong to `folder` until there are none: a killed process may have started more."""
    while left := list(living(folder)):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(LOOK_AGAIN_S)


@contextlib.contextmanager
def guarded(folder: Path) -> Iterator[None]:
    """Guard `folder` within the block.

    At its end, normal or not, the processes are killed and the folder is removed.
    """
    guard = subprocess.Popen(
        [sys.executable, "-I", __file__, folder], stdin=subprocess.PIPE, start_new_session=True, cwd="/", env={}
    )
    assert guard.stdin is not None
    try:
        yield
    finally:
        guard.stdin.close()
        guard.wait()


if __name__ == "__main__":
    sys.stdin.read()  # until the tests close it or die
    kill_all(Path(sys.argv[1]))
    shutil.rmtree(sys.argv[1], ignore_errors=True)
