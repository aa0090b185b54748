"""The workloads of the snapshot benchmarks: models, which are made once and kept under ``build/``, and the commands
that load them.

ONNX Runtime comes from the interpreter that runs the benchmarks (the extra `demo`). torch and transformers come from
the interpreter that `benchmarks.needs.libraries` returns.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks import serving
from benchmarks.report import BenchmarkError
from thawd.snapshot import engine

PROGRAMS = Path(__file__).parent / "programs"
MODELS = serving.BUILD / "bench-models"
MAKE_S = 600.0


@dataclass(frozen=True, slots=True)
class Workload:
    """A program from `PROGRAMS` and the model it loads.

    Attributes:
        name: module in `PROGRAMS`.
        python: path of the interpreter.
        argument: the argument of its `load`; usually the folder of its model.
    """

    name: str
    python: str
    argument: str

    @property
    def command(self) -> list[str]:
        """Return the command that starts the workload from nothing."""
        return [self.python, str(PROGRAMS / "subject.py"), self.name, self.argument]


def environment() -> dict[str, str]:
    """Return the environment variables of a measured process. They name thawd's source and compiled library, so thawd
    need not be installed in the process's interpreter."""
    return {
        **os.environ,
        "PYTHONPATH": str(serving.REPOSITORY / "src"),
        engine.LIBRARY_VARIABLE: str(_native(engine.LIBRARY_NAME)),
        "HF_HUB_OFFLINE": "1",
    }


def thaw_command(image: Path) -> list[str]:
    """Return the command that starts a copy of the process in `image`."""
    return [str(_native(engine.PROGRAM_NAME)), str(image)]


def _native(name: str) -> Path:
    folder = engine.native_folder()
    reason = engine.unavailable(folder)
    if folder is None or reason is not None:
        raise BenchmarkError(reason or "thawd is not installed with its compiled parts")
    return Path(folder) / name


def with_model(name: str, python: str) -> Workload:
    """Return the workload `name`. Make its model unless the current version of its program has made it already.

    Raises:
        BenchmarkError: the model could not be made.
    """
    source = PROGRAMS / f"{name}.py"
    folder = MODELS / f"{name}-{hashlib.sha256(source.read_bytes()).hexdigest()[:12]}"
    if not folder.exists():
        for outdated in MODELS.glob(f"{name}-*"):
            shutil.rmtree(outdated)
        MODELS.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="partial-", dir=MODELS) as partial:
            model = Path(partial) / "model"
            model.mkdir()
            command = [python, str(source), str(model)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=MAKE_S, check=False)
            if done.returncode:
                raise BenchmarkError(f"{' '.join(command)} ended with status {done.returncode}:\n{done.stderr[-2000:]}")
            model.rename(folder)
    return Workload(name, python, str(folder))


@contextmanager
def image_folder() -> Iterator[Path]:
    """Make a folder for images on the repository's disk for a ``with`` block, and remove it after the block."""
    serving.BUILD.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=serving.BUILD) as name:
        yield Path(name)
