"""Measures CRIU, another program that restores processes, on the process of `benchmarks.engine`, if CRIU is installed.

CRIU needs privileges, cannot restore a second copy while the first one runs, and passes no pipes to the restored
process. So the process waits for a file to appear and writes its answer to another file. The CRIU versions in
distributions of 2024 and before fail on kernels from 6.13 on, because they do not know these kernels' vDSO. ``criu
check`` reports this.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from benchmarks import engine_models, serving
from benchmarks.engine_models import Workload
from benchmarks.engine_starts import check
from benchmarks.report import BenchmarkError, Figure

NAME = "CRIU, restore to first result"
GO, ANSWER = "go", "answer"
RUN_S = 120.0


def figure(workload: Workload, folder: Path, result: str) -> Figure:
    """Measure the time from one CRIU restore to the end of the first inference.

    If CRIU cannot be used, the figure has the value 0 and its note says why.

    Raises:
        BenchmarkError: a CRIU that passes its own check could not dump or restore.
    """
    criu = shutil.which("criu")
    reason = "not on PATH" if criu is None else _failed_check(criu)
    if criu is None or reason is not None:
        return Figure(NAME, 0.0, "ms", note=f"not measured: {reason}")
    folder.mkdir()
    _dump(workload, folder, criu)
    return Figure(NAME, _restore_ms(folder, criu, result), "ms", note="one copy, page cache hot")


def _failed_check(criu: str) -> str | None:
    """Return why CRIU's own check fails, or None if it passes."""
    done = subprocess.run([criu, "check"], capture_output=True, text=True, timeout=30, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["no output"]
        return f"criu check exits with status {done.returncode}: {said[-1]}"
    return None


def _dump(workload: Workload, folder: Path, criu: str) -> None:
    """Start the process, wait until it has loaded, and have CRIU dump it to ``images`` in `folder`.

    The dump ends the process.
    """
    images, log = folder / "images", folder / "subject.log"
    images.mkdir()
    command = [*workload.command, f"await {folder / GO} {folder / ANSWER}"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=engine_models.environment(),
            start_new_session=True,
        )
    try:
        # The first line answers the first inference, the second says that the process waits.
        serving.wait_for(lambda: len(log.read_bytes().splitlines()) >= 2 or None, f"two lines in {log}", within_s=60.0)
        _run([criu, "dump", "--tree", str(process.pid), "--images-dir", str(images)])
    finally:
        process.kill()
        process.wait()


def _restore_ms(folder: Path, criu: str, result: str) -> float:
    (folder / GO).touch()
    begun_ns = time.monotonic_ns()
    _run([criu, "restore", "--restore-detached", "--images-dir", str(folder / "images")])

    def answered() -> dict[str, Any] | None:
        try:
            answer: dict[str, Any] = json.loads((folder / ANSWER).read_text())
        except FileNotFoundError:
            return None
        return answer

    answer = serving.wait_for(answered, "the answer of the restored process", within_s=60.0)
    check(answer["result"], result)
    return float(answer["at_ns"] - begun_ns) / 1e6


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S, check=False)
    if done.returncode:
        raise BenchmarkError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
