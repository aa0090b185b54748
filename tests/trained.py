"""The digits example, trained once for all tests of a run and all workers."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

# In one thread it takes a tenth of the time: the matrices are so small that threads mostly wait for each other.
TRAINING = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
"""Environment variables for `train.py`. With another number of threads, the model has other last digits."""
EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "digits"


def digits(factory: pytest.TempPathFactory) -> Path:
    """The example's folder after `train.py`. Tests must not change it.

    Skips the test if the packages of the extra `demo` are missing.
    """
    for needed in ("sklearn", "skl2onnx", "onnxruntime", "PIL"):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed; the example needs the extra `demo`")
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "digits"
    with open(folder.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            partial = folder.with_suffix(".partial")
            (partial / "function").mkdir(parents=True)
            shutil.copy(EXAMPLE / "train.py", partial)
            shutil.copy(EXAMPLE / "function" / "classify.py", partial / "function")
            done = subprocess.run(
                [sys.executable, partial / "train.py"], capture_output=True, text=True, env=TRAINING, timeout=300
            )
            assert done.returncode == 0, done.stderr
            partial.rename(folder)
    return folder
