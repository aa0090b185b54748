"""The built engine, the programs of native/tests compiled against it, and functions to freeze and thaw one of them."""

from __future__ import annotations

import fcntl
import hashlib
import os
import pwd
import re
import shutil
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

from tests.native.processes import SELF, Identity, Keeper, Outcome, end, end_of, read_until
from thawd.snapshot.engine import native_folder

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCES = REPOSITORY / "native" / "tests"
NOT_HERE = 77
COMPILER = ("cc", "-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread")


@dataclass(frozen=True, slots=True)
class Case:
    """One CASE of a program in native/tests. `claim` says what it shows."""

    program: str
    name: str
    claim: str

    def __str__(self) -> str:
        return f"{self.program}.{self.name}"


def cases_of(*programs: str) -> list[Case]:
    """Return the cases of `programs`, read from their sources."""
    found = []
    for program in programs:
        text = (SOURCES / f"{program}.c").read_text()
        found += [Case(program, *match) for match in re.findall(r'^CASE\((\w+),\s+"((?:[^"\\]|\\.)*)"\)', text, re.M)]
    return found


def compile_c(sources: Sequence[Path], target: Path, *options: str) -> None:
    """Compile files of native. A failure shows the compiler's output."""
    done = subprocess.run([*COMPILER, "-o", target, *sources, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{target.name} does not compile:\n{done.stderr}"


@cache
def _programs() -> Path:
    """Return the folder of compiled programs.

    It is kept until a file of native/ changes, for all workers and later runs.
    """
    state = hashlib.sha256(" ".join(COMPILER).encode())
    for path in sorted((REPOSITORY / "native").rglob("*.[ch]")):
        state.update(path.name.encode() + path.read_bytes())
    return REPOSITORY / "build" / "native-tests" / state.hexdigest()[:16]


def _compiled(source: Path, target: str, *options: str) -> Path:
    path = _programs() / target
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_name(f"{target}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one worker compiles the program, the others wait
        if not path.exists():
            partial = path.with_name(f"{target}.partial")
            compile_c([source], partial, *options)
            partial.rename(path)
    return path


@dataclass(frozen=True, slots=True)
class Engine:
    """The freeze library and the thaw program, copied once per session into `folder`, where all users can read them.

    Because they are copies, a rebuild during the tests does not change the files that images refer to.

    Attributes:
        folder: folder of the copies and of all programs compiled against them.
    """

    folder: Path
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        for name in ("libthawd_freeze.so", "thawd-thaw"):
            built = Path(native_folder() or "") / name
            assert built.exists(), f"the engine was not built: {built} is missing"
            shutil.copy2(built, self.folder / name)

    @property
    def freezer(self) -> Path:
        """Return the library that a process loads to freeze itself."""
        return self.folder / "libthawd_freeze.so"

    @property
    def thaw(self) -> Path:
        """Return the program that thaws."""
        return self.folder / "thawd-thaw"

    @property
    def tied(self) -> Path:
        """Return the program that starts all others; see native/tests/tied.c."""
        return self._made("tied", "tied", "-O2")

    def program(self, name: str) -> Path:
        """Return the program native/tests/NAME.c, compiled on first use."""
        link = (f"-L{self.folder}", "-Wl,-rpath,$ORIGIN", "-lthawd_freeze", "-ldl", "-lm")
        return self._made(name, name, *link)

    def plugin(self) -> Path:
        """Return the library that tls.c loads."""
        return self._made("plugin", "plugin.so", "-shared", "-fPIC")

    def asks(self) -> Path:
        """Return the library that stacks.c loads. It requests an executable stack."""
        return self._made("asks", "asks.so", "-shared", "-fPIC", "-Wl,-z,execstack")

    def _made(self, source: str, target: str, *options: str) -> Path:
        path = self.folder / target
        with self._lock:
            if not path.exists():
                shutil.copy2(_compiled(SOURCES / f"{source}.c", target, *options), path)
        return path

    def keeper(self, folder: Path) -> Keeper:
        """Return a keeper that starts programs in `folder`."""
        return Keeper(self.tied, folder)


class Trial:
    """One case in its own folder. Freeze it, then thaw it any number of times."""

    def __init__(
        self,
        engine: Engine,
        case: Case,
        folder: Path,
        *,
        identity: Identity = SELF,
        program: Sequence[object] = (),
    ) -> None:
        self.engine = engine
        self.program = program or (engine.program(case.program),)
        self.case = case
        self.folder = folder
        self.identity = identity
        self.image = folder / "image"
        self.said = ""
        self.keeper = engine.keeper(folder)
        if case.program == "tls":
            shutil.copy2(engine.plugin(), folder / "plugin.so")
        if case.program == "stacks":
            shutil.copy2(engine.asks(), folder / "asks.so")
        give(folder, identity)

    def _variables(self) -> dict[str, str]:
        """Return the variables an interpreter needs to find the engine's Python package and this copy of the engine."""
        return {
            "PYTHONPATH": str(REPOSITORY / "src"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "THAWD_FREEZE_LIBRARY": str(self.engine.freezer),
        }

    def _start_original(self, flags: int, environment: dict[str, str]) -> subprocess.Popen[str]:
        return self.keeper.start(
            [*self.program, self.case.name, self.image],
            identity=self.identity,
            environment={**self._variables(), "FREEZE_FLAGS": str(flags), **environment},
        )

    def run(self, mode: str, *, environment: dict[str, str] | None = None) -> Outcome:
        """Run the program without killing it, in mode `goes-on` or `dry` (see native/tests/harness.h)."""
        return end_of(self._start_original(0, {"THAWD_TEST": mode, **(environment or {})}))

    def freeze(self, *, flags: int = 0, environment: dict[str, str] | None = None) -> Outcome | None:
        """Run the program until it prints that it is frozen, kill it and return None.

        If it ends first, return its outcome.
        """
        return self.await_freeze(self._start_original(flags, environment or {}))

    def await_freeze(self, program: subprocess.Popen[str]) -> Outcome | None:
        """Wait until `program`, or a copy, prints that it is frozen, and kill it.

        If it ends first, return its outcome.
        """
        self.said = read_until(program, "frozen\n")
        if self.said.endswith("frozen\n"):
            end(program)
            return None
        rest = end_of(program)
        return Outcome(rest.status, self.said + rest.output, rest.errors)

    def start_copy(
        self,
        *arguments: str,
        image: Path | None = None,
        thaw_options: Sequence[str] = (),
        environment: dict[str, str] | None = None,
        pass_fds: Sequence[int] = (),
    ) -> subprocess.Popen[str]:
        """Start thaw; the copy's standard input is a pipe."""
        return self.keeper.start(
            [self.engine.thaw, *thaw_options, image or self.image, *arguments],
            identity=self.identity,
            environment=environment,
            stdin=subprocess.PIPE,
            pass_fds=pass_fds,
        )

    def thaw(
        self,
        *arguments: str,
        image: Path | None = None,
        thaw_options: Sequence[str] = (),
        environment: dict[str, str] | None = None,
        pass_fds: Sequence[int] = (),
    ) -> Outcome:
        """Thaw one copy and wait for its end."""
        copy = self.start_copy(
            *arguments, image=image, thaw_options=thaw_options, environment=environment, pass_fds=pass_fds
        )
        return end_of(copy)

    def thaw_many(
        self, *, serial: int = 1, parallel: int = 2, thaw_options: Sequence[str] = (), image: Path | None = None
    ) -> list[Outcome]:
        """Thaw copies one after the other, and then some concurrently."""
        outcomes = [self.thaw(thaw_options=thaw_options, image=image) for _ in range(serial)]
        copies = [self.start_copy(thaw_options=thaw_options, image=image) for _ in range(parallel)]
        return outcomes + [end_of(copy) for copy in copies]

    def check(self, *, serial: int = 1, parallel: int = 2, thaw_options: Sequence[str] = (), flags: int = 0) -> None:
        """Freeze, kill, thaw, and require that every copy passes its checks. Skip a case that cannot run here."""
        ended = self.freeze(flags=flags)
        if ended is not None:
            require(self.case, ended)
            return
        assert self.image.stat().st_mode & 0o777 == 0o600
        for outcome in self.thaw_many(serial=serial, parallel=parallel, thaw_options=thaw_options):
            require(self.case, outcome)


def give(path: Path, identity: Identity) -> None:
    """Make the identity's user the owner of a file or folder, if the tests may do that."""
    if identity.user is not None and os.geteuid() == 0:
        entry = pwd.getpwnam(identity.user)
        os.chown(path, entry.pw_uid, entry.pw_gid)


def require(case: Case, outcome: Outcome) -> None:
    """Fail the test unless the outcome is a pass. Skip it if the case cannot run here."""
    if outcome.status == NOT_HERE:
        pytest.skip(outcome.output.strip().splitlines()[-1])
    assert outcome.passed, f"{case} ({case.claim}): status {outcome.status}\n{outcome.output}{outcome.errors}"
