"""What functions that begin with the same imports share over a package base: memory and disk, and a changed handler.

What: ten functions, each with a small torch model, and ``server.bases = "auto"``. PSS (memory, where a page that N
processes share counts as 1/N in each) of one environment of each function, divided by that of a single environment.
Disk space of all images and bases, divided by that of one image with its bases. With ``--watch``, the time from writing
a changed handler until it answers.

How: one server; the functions run in the interpreter of ``.venv-libraries``. Each function is invoked twice before its
PSS is read. The time is the median of several changes. How much of torch's files and of the base the kernel maps into a
single environment differs by a factor of two from run to run, and so does the ratio of memory; the memory of each
further environment hardly differs.

Why: without bases, each of these functions needs the memory and the disk space of torch again, and each change of a
handler imports torch.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import needs, progress, serving
from benchmarks.report import AT_MOST, BenchmarkError, Figure
from thawd.bench import memory

TITLE = "package-bases: ten functions on torch that share a base"

TARGET = 1.6
MOST_MEMORY = 2.6
MOST_FURTHER_MIB = 4.0
MOST_DISK = 1.6
MOST_CHANGED_MS = 400.0
FUNCTIONS = 10
CHANGES = 7
ANSWERS_S = 30.0

HANDLER = """
import torch

layer = torch.nn.Linear(64, 10)


def handler(event, context):
    with torch.no_grad():
        return {{"answer": {answer}, "label": int(layer(torch.ones(64)).argmax())}}
"""
TABLE = """
[functions.{name}]
handler = "app.handler"
code = "{name}"
python = "{python}"
memory_mb = 1024
timeout_s = 60
init_timeout_s = 120
"""
_NAMES = [f"classify-{number}" for number in range(FUNCTIONS)]


def measure() -> Sequence[Figure]:
    """Measure memory, disk space and the time until a changed handler answers.

    Raises:
        Skipped: torch is not installed and cannot be.
        BenchmarkError: a function has no package base, or does not answer.
    """
    python = needs.libraries()
    tables = (TABLE.format(name=name, python=python) for name in _NAMES)
    files = {f"{name}/app.py": HANDLER.format(answer=0) for name in _NAMES}
    progress.step("start the server; it publishes ten functions")
    with serving.thawd('[server]\nbases = "auto"\n' + "".join(tables), files, options=["--watch"]) as served:
        for name in _NAMES:
            refused = served.function(name)["snapshot"].get("base_refused", "it has no snapshot")
            if refused is not None:
                raise BenchmarkError(f"{name} has no package base: {refused}")
        _invoke(served, _NAMES[0])
        alone_mib = _pss_mib(served)
        for name in _NAMES[1:]:
            _invoke(served, name)
        all_mib = _pss_mib(served)
        alone_bytes, all_bytes = _disk_bytes(served)
        changed_ms = [_changed_ms(served, change) for change in progress.rounds(CHANGES, "change a handler")]
    return [
        Figure(
            "memory of one environment of each",
            all_mib / alone_mib,
            "x",
            AT_MOST,
            MOST_MEMORY,
            f"{all_mib:.1f} MiB against {alone_mib:.1f} MiB of a single one",
            TARGET,
        ),
        Figure(
            "memory of each further environment",
            (all_mib - alone_mib) / (FUNCTIONS - 1),
            "MiB",
            AT_MOST,
            MOST_FURTHER_MIB,
        ),
        Figure(
            "disk space of all images",
            all_bytes / alone_bytes,
            "x",
            AT_MOST,
            MOST_DISK,
            f"{all_bytes / 1e6:.0f} MB against {alone_bytes / 1e6:.0f} MB for one function",
        ),
        serving.changed_handler(changed_ms, most_ms=MOST_CHANGED_MS),
    ]


def _invoke(served: serving.Served, name: str) -> None:
    for _ in range(2):
        serving.invoke(served, name, {})


def _pss_mib(served: serving.Served) -> float:
    """PSS of all environments of the server."""
    kib = 0
    for pid in memory.descendants(served.pid):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        kib += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return kib / 1024


def _disk_bytes(served: serving.Served) -> tuple[int, int]:
    """Disk space of one function's image with the bases, and of all images with the bases."""
    total = sum(path.stat().st_blocks * 512 for path in served.folder.rglob("*.img"))
    own = [served.function(name)["snapshot"]["stored_bytes"] for name in _NAMES]
    return total - sum(own[1:]), total


def _changed_ms(served: serving.Served, change: int) -> float:
    path = served.folder / _NAMES[0] / "app.py"
    begun_s = time.perf_counter()
    path.write_text(HANDLER.format(answer=change + 1))

    def changed() -> bool | None:
        answer = serving.invoke(served, _NAMES[0], {})
        return True if isinstance(answer, dict) and answer["answer"] == change + 1 else None

    serving.wait_for(changed, f"the changed handler of {_NAMES[0]} to answer", within_s=ANSWERS_S)
    return (time.perf_counter() - begun_s) * 1000
