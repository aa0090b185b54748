"""A data folder, and processes with temporary folders that are really frozen and thawed, as the tests' user and as
others."""

from __future__ import annotations

import ast
import contextlib
import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import thawd
from thawd.snapshot.disk.temporary_folders import Disks, DiskSnapshot, MountKind
from thawd.snapshot.engine import native_folder
from thawd.snapshot.store.trust_and_locks import remove_tree

NATIVE = Path(native_folder() or "")
SOURCE = Path(thawd.__file__).parents[1]
PROGRAM = Path(__file__).with_name("disk_program.py")
NOBODY = 65534
MIB = 1 << 20
DEADLINE_S = 300.0
_PR_CAPBSET_DROP = 24
_CAP_SYS_ADMIN = 21
_libc = ctypes.CDLL(None, use_errno=True)


def without_mounting() -> None:
    """Drop the right to mount, as for root in a container. Source: capabilities(7)."""
    if _libc.prctl(_PR_CAPBSET_DROP, _CAP_SYS_ADMIN, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl PR_CAPBSET_DROP")


@dataclass(frozen=True, slots=True)
class User:
    """The user that processes run as. `uid` None means the user of the tests."""

    uid: int | None
    python: str
    prepare: Callable[[], None] | None = None

    @contextlib.contextmanager
    def acting(self) -> Iterator[None]:
        """Act as the same user for the platform's part of the work."""
        if self.uid is None:
            yield
            return
        groups = os.getgroups()
        os.setgroups([])
        os.setresgid(self.uid, self.uid, 0)
        os.setresuid(self.uid, self.uid, 0)
        try:
            yield
        finally:
            os.setresuid(0, 0, 0)
            os.setresgid(0, 0, 0)
            os.setgroups(groups)

    def options(self) -> dict[str, Any]:
        """Return keyword arguments for subprocess.Popen."""
        options: dict[str, Any] = {} if self.prepare is None else {"preexec_fn": self.prepare}
        if self.uid is not None:
            options.update(user=self.uid, group=self.uid, extra_groups=[])
        return options


def python_of_nobody() -> str | None:
    """Return an interpreter that another user may run: one from pyenv may lie in a home folder.

    None if there is none.
    """
    for python in (sys.executable, shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin")):
        command = [python, "-c", "import sys; sys.exit(sys.version_info < (3, 9))"]
        with contextlib.suppress(OSError):
            if python and not subprocess.run(command, user=NOBODY, group=NOBODY, capture_output=True).returncode:
                return python
    return None


USERS = ("self", "nobody", "container")


def user_named(name: str) -> User:
    """Return the user with this name.

    "self" is the user of the tests. The others need root: "nobody", and "container", which is root without the right to
    mount.
    """
    if name == "self":
        return User(None, sys.executable)
    if os.geteuid() != 0:
        pytest.skip("the tests run as an unprivileged user already")
    if name == "container":
        return User(None, sys.executable, without_mounting)
    python = python_of_nobody()
    if python is None:
        pytest.skip("no interpreter that nobody may run")
    return User(NOBODY, python)


class Process:
    """A running disk_program."""

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self.popen = popen

    @property
    def pid(self) -> int:
        return self.popen.pid

    def do(self, text: str) -> Any:
        """Have it execute Python; return the value if the text is an expression."""
        answer = self.ask(text)
        assert not answer.startswith("error: "), answer
        return ast.literal_eval(answer)

    def ask(self, text: str) -> str:
        """Like `do`, but return the value's representation, or ``error: …``."""
        assert self.popen.stdin is not None
        self.popen.stdin.write(json.dumps(text).encode() + b"\n")
        self.popen.stdin.flush()
        return self.answer()

    def answer(self) -> str:
        """Return the next line that it prints."""
        assert self.popen.stdout is not None
        line = self.popen.stdout.readline()
        assert line, f"it ended with {self.popen.wait(DEADLINE_S)}"
        answer: str = json.loads(line)
        return answer

    def kill(self) -> None:
        """Kill the process."""
        self.popen.kill()
        self.popen.wait(DEADLINE_S)
        for pipe in (self.popen.stdin, self.popen.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()


@dataclass
class Bench:
    """A data folder, and processes of one user."""

    data: Path
    user: User
    disks: Disks
    image: Path
    processes: list[Process] = field(default_factory=list)
    count: int = 0

    def start(self, command: list[Any], folder: Path) -> Process:
        """Start a process whose temporary folder is `folder`."""
        process = Process(
            subprocess.Popen(
                [os.fspath(part) for part in command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={
                    "TMPDIR": str(folder),
                    "PYTHONPATH": str(SOURCE),
                    "THAWD_FREEZE_LIBRARY": str(NATIVE / "libthawd_freeze.so"),
                },
                cwd="/",
                **self.user.options(),
            )
        )
        self.processes.append(process)
        return process

    def template(self, *steps: str) -> Process:
        """Start a process and have it execute `steps`."""
        with self.user.acting():
            folder = self.disks.make("template")
        process = self.start([self.user.python, "-B", PROGRAM], folder)
        for step in steps:
            process.do(step)
        return process

    def freeze(self, *steps: str) -> DiskSnapshot | None:
        """Freeze a process that has executed `steps`, kill it, and keep the files it left."""
        process = self.template(*steps)
        assert process.do(f"freeze({str(self.image)!r})") == "frozen"
        with self.user.acting():
            found = self.disks.look("template", frozen_unix_ns=time.time_ns())
            process.kill()
            return found and self.disks.take(found, self.data / "image.disk")

    def thaw(self, snapshot: DiskSnapshot | None, name: str | None = None) -> Process:
        """Thaw a copy with a separate folder, and wait until it runs."""
        self.count += 1
        with self.user.acting():
            prepared = self.disks.prepare(snapshot, name or f"copy-{self.count}")
        process = self.start([NATIVE / "thawd-thaw", *prepared.options, self.image], prepared.path)
        assert process.answer() == "'thawed'"
        return process

    def refused(self, options: list[str]) -> subprocess.CompletedProcess[str]:
        """Try to thaw a copy that must be refused."""
        return subprocess.run(
            [NATIVE / "thawd-thaw", *options, self.image],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            **self.user.options(),
        )


@contextlib.contextmanager
def bench_of(user: User) -> Iterator[Bench]:
    """A bench for one test. Its processes and folders are removed at the end."""
    data = Path(tempfile.mkdtemp(prefix="thawd-disk,:="))  # the name contains the separators of mount options
    processes: list[Process] = []
    try:
        if user.uid is not None:
            os.chown(data, user.uid, user.uid)
        with user.acting():
            disks = Disks(data / "tmp", program=NATIVE / "thawd-thaw")
            if user.prepare is not None:
                # the test process itself may mount, but its children may not
                disks._mount_kind = (MountKind.OVERLAY, "")
            elif disks.mount_kind()[0] is MountKind.NONE:
                pytest.skip(f"mount namespaces cannot be had here: {disks.mount_kind()[1]}")
        yield Bench(data, user, disks, data / "image", processes)
    finally:
        for process in processes:
            process.kill()
        remove_tree(data)


SOME_FILES = """
import mmap, shutil, subprocess
os.chdir(FOLDER)
open("model", "wb").write(b"weights " * (1 << 17))
open("notes", "w").write("from init\\n")
os.mkdir("folder")
open("folder/inside", "w").write("x")
os.symlink("notes", "link")
"""

MAPPED = """
class Mapped: pass
m = Mapped()
with open("model", "rb") as file:
    m.shared = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    m.private = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE)
m.private[0:7] = b"CHANGED"
m.reading = open("model", "rb")
m.reading.seek(8)
m.log = open("log", "a+")
m.log.write("one\\n")
m.log.flush()
m.gone = open("gone", "w+b")
m.gone.write(b"no name " * 4096)
m.gone.flush()
m.lost = mmap.mmap(m.gone.fileno(), 0, access=mmap.ACCESS_READ)
os.remove("gone")
"""
