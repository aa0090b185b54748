"""Virtual environments that measurements need in addition to the one that runs them. Rules of the Makefile make them.

A virtual environment is made, or brought up to date with pyproject.toml, when the first measurement asks for it. That
needs the package index. If the index cannot be reached, a virtual environment that was completed earlier is used. If
there is none, the measurement is skipped.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Sequence

from benchmarks import progress, serving
from benchmarks.report import Skipped

LIBRARIES_VARIABLE = "BENCH_LIBRARIES_PYTHON"
_LIBRARIES = ("torch", "transformers", "tokenizers", "safetensors")
_PEERS = ("litserve", "bentoml", "onnxruntime")
_SAID = 600


def libraries() -> str:
    """Return an interpreter that has torch and transformers: ``.venv-libraries``, or that of `LIBRARIES_VARIABLE`.

    Raises:
        Skipped: the interpreter that `LIBRARIES_VARIABLE` names lacks a module, or the virtual environment cannot be
            made.
    """
    named = os.environ.get(LIBRARIES_VARIABLE)
    if named is None:
        return _environment(".venv-libraries", _LIBRARIES)
    if lacking := missing(named, _LIBRARIES):
        raise Skipped(
            f"{named}, which {LIBRARIES_VARIABLE} names, lacks {', '.join(lacking)}; install that or unset the variable"
        )
    return named


def peers() -> str:
    """Return the interpreter of ``.venv-peers``, which has LitServe and BentoML.

    Raises:
        Skipped: the virtual environment cannot be made.
    """
    return _environment(".venv-peers", _PEERS)


def missing(python: str, needed: Sequence[str]) -> list[str]:
    """Return the modules that the interpreter `python` cannot find; all if there is no such interpreter."""
    look = "import importlib.util as u, sys; print(*[n for n in sys.argv[1:] if u.find_spec(n) is None])"
    try:
        done = subprocess.run([python, "-c", look, *needed], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return list(needed)
    return done.stdout.split()


def _environment(name: str, needed: Sequence[str]) -> str:
    """Make the virtual environment `name` in the repository's folder and return its interpreter."""
    progress.step(f"make {name}, unless it is there")
    # If `make` runs this program, these variables pass its options on to the `make` that is started here, and would
    # change what that one does.
    environment = {key: value for key, value in os.environ.items() if key not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    command = ["make", "--silent", f"PYTHON={sys.executable}", f"{name}/.installed"]
    folder = serving.REPOSITORY / name
    serving.BUILD.mkdir(exist_ok=True)
    # Two benchmarks that run at the same time must not install into the same folder.
    with (serving.BUILD / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            done = subprocess.run(
                command, cwd=serving.REPOSITORY, env=environment, capture_output=True, text=True, check=False
            )
            failed = "" if done.returncode == 0 else f"{done.stdout}{done.stderr}".strip()[-_SAID:] or "make failed"
        except OSError as error:
            failed = str(error)
    # The rule's last step makes this file: an environment without it is incomplete.
    if failed and not (folder / ".installed").exists():
        raise Skipped(f"`{' '.join(command)}` does not make {name}; does pip reach its package index?\n{failed}")
    python = str(folder / "bin" / "python")
    if lacking := missing(python, needed):
        raise Skipped(f"{name} lacks {', '.join(lacking)}; remove the folder, so that it is made again")
    if failed:
        progress.step(f"{name} cannot be brought up to date, and is used as it is: {failed.splitlines()[-1]}")
    return python
