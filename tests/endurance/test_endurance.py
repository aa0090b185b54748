"""Thousands of copies, one at a time and many together: each answers exactly as the original did; none fails or hangs.

THAWD_ENDURANCE is the number of copies that a test thaws in each of three ways: one at a time, 4 together, 16 together.
The default is 4; ``make endurance`` sets 2,000.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tests.native.engine import Engine, cases_of, give
from tests.native.processes import NOBODY, SELF, Identity, Keeper, Outcome, end, end_of, read_until

PROGRAMS = Path(__file__).parent / "programs"
SOURCES = Path(__file__).resolve().parents[2] / "src"
COUNT = int(os.environ.get("THAWD_ENDURANCE", "4"))
AT_ONCE = (1, 4, 16)
SHOWN = 3
pytestmark = pytest.mark.timeout(600 + COUNT * len(AT_ONCE))


@dataclass(frozen=True, slots=True)
class Circumstances:
    """How a program is frozen and thawed.

    Attributes:
        mode: whether it is ``busy`` at the freeze, with five threads, or ``waiting``.
        identity: the user, and the restrictions, that it runs with.
        share: the fraction of THAWD_ENDURANCE copies to thaw.
    """

    mode: str
    identity: Identity = SELF
    share: float = 1.0


CIRCUMSTANCES = {
    "waiting": Circumstances("waiting"),
    "busy": Circumstances("busy"),
    "busy as nobody": Circumstances("busy", NOBODY, 0.25),
    "busy in a user namespace": Circumstances(
        "busy", Identity(options=("--user-namespace", "--no-new-privileges")), 0.25
    ),
}


def frozen(keeper: Keeper, command: Sequence[object], identity: Identity, environment: dict[str, str]) -> str:
    """Run a program until it is frozen, and kill it. Return what a copy must print."""
    give(keeper.folder, identity)
    program = keeper.start(command, identity=identity, environment=environment)
    said = read_until(program, "frozen\n")
    assert said.endswith("frozen\n"), f"{said}{end_of(program)}"
    end(program)
    return said.removesuffix("frozen\n") + "pass\n"


def thaw(start: Callable[[], subprocess.Popen[str]], *, count: int, at_once: int) -> list[Outcome]:
    """Thaw `count` copies, with `at_once` alive at a time, and return their outcomes."""
    outcomes: list[Outcome] = []
    alive: deque[subprocess.Popen[str]] = deque()
    for _ in range(count):
        if len(alive) == at_once:
            outcomes.append(end_of(alive.popleft()))
        alive.append(start())
    return outcomes + [end_of(copy) for copy in alive]


def check(keeper: Keeper, command: Sequence[object], expected: str, circumstances: Circumstances) -> None:
    """Thaw copies and check that each prints what is expected and exits with status 0."""

    def start() -> subprocess.Popen[str]:
        return keeper.start(command, identity=circumstances.identity)

    right = Outcome(0, expected, "")
    count = max(1, round(COUNT * circumstances.share))
    for at_once in AT_ONCE:
        outcomes = thaw(start, count=count, at_once=at_once)
        wrong = [outcome for outcome in outcomes if outcome != right]
        assert len(outcomes) == count
        assert not wrong, f"{len(wrong)} of {count}, {at_once} at once; expected {right}, got {wrong[:SHOWN]}"


def interpreter(keeper: Keeper, identity: Identity, environment: dict[str, str]) -> str:
    """Return this interpreter, or another of the same version if other users may not run this one.

    Both use this interpreter's packages.
    """
    name = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    elsewhere = [str(Path(folder) / name) for folder in ("/usr/bin", "/usr/local/bin")]
    for candidate in (sys.executable, *elsewhere):
        tried = end_of(keeper.start([candidate, "-c", "import numpy"], identity=identity, environment=environment))
        if tried.status == 0:
            return candidate
    pytest.skip(f"{identity.user} can use neither {sys.executable} nor {' nor '.join(elsewhere)}: {tried.errors}")


@pytest.fixture(scope="session")
def model(open_folder: Path) -> Path:
    """The model that digits.py loads."""
    path = open_folder / "model.onnx"
    subprocess.run([sys.executable, PROGRAMS / "make_model.py", path], check=True)
    return path


@pytest.mark.parametrize("name", CIRCUMSTANCES)
def test_no_copy_of_a_program_in_c_fails(name: str, engine: Engine, keeper: Keeper) -> None:
    circumstances = CIRCUMSTANCES[name]
    [case] = (case for case in cases_of("endurance") if case.name == circumstances.mode)
    image = keeper.folder / "image"
    expected = frozen(keeper, [engine.program(case.program), case.name, image], circumstances.identity, {})
    assert expected.startswith("sum ")
    check(keeper, [engine.thaw, image], expected, circumstances)


@pytest.mark.parametrize("name", CIRCUMSTANCES)
def test_no_copy_of_python_with_onnx_runtime_fails(name: str, model: Path, engine: Engine, keeper: Keeper) -> None:
    circumstances = CIRCUMSTANCES[name]
    shutil.copy2(model, keeper.folder)
    environment = {
        "PYTHONPATH": f"{SOURCES}:{Path(np.__file__).parents[1]}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "THAWD_FREEZE_LIBRARY": str(engine.freezer),
        "ORT_DISABLE_TELEMETRY": "1",
        "OPENBLAS_NUM_THREADS": "2",
    }
    image = keeper.folder / "image"
    python = interpreter(keeper, circumstances.identity, environment)
    command = [python, PROGRAMS / "digits.py", image, circumstances.mode]
    expected = frozen(keeper, command, circumstances.identity, environment)
    check(keeper, [engine.thaw, image], expected, circumstances)
