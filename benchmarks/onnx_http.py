"""Measures a burst to a function without environments: Inception V3 behind a route, 1,000 requests, 50 at a time.

What: with ``admission = "cores"``, the time of the slowest request divided by the median; the time of all requests and
the environments' memory (PSS), divided by those with ``admission = "all"``, where each of 50 simultaneous requests gets
an environment.

How: `thawd bench` on the function of `examples/onnx-http`, thawed, with a new server for each run. The server's limits
allow 50 environments, whatever the machine: by default, a machine with 24 GB would have only ten of this function, and
``admission = "all"`` would be limited by memory. Each round has one run with each kind of admission. The figures are
medians of the rounds.

Why: if a burst meets no environments, every environment that thawd starts for it takes time and memory and slows the
others, so too many of them do the most harm.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks import progress, serving
from benchmarks.report import AT_MOST, BenchmarkError, Figure
from thawd.bench import runs
from thawd.bench.runs import Run
from thawd.bench.summary import summarise

TITLE = "onnx-http: Inception V3 behind a route, 1,000 requests 50 at a time from zero environments"

EXAMPLE = serving.REPOSITORY / "examples" / "onnx-http"
REQUESTS = 1000
CONCURRENCY = 50
MEMORY_MB = 1769
ROUNDS = 2
MOST_SLOWEST = 1.15
MOST_TIME = 0.92
MOST_MEMORY = 0.25

_CONFIGURATION = """
[server]
admission = "{admission}"
queue_timeout_s = 300
max_environments = {concurrency}
memory_mb = {all_memory_mb}

[functions.predict]
handler = "predict.handler"
code = "{example}/function"
memory_mb = {memory_mb}
timeout_s = 60
prime = "{example}/prime.json"

[routes]
"POST /predict" = "predict"
"""


def measure() -> Sequence[Figure]:
    """Measure the three ratios.

    Raises:
        BenchmarkError: the example could not be prepared, or an answer was wrong.
    """
    progress.step("make the model, unless it is there")
    _run([sys.executable, str(EXAMPLE / "run.py"), "prepare"], PYTHONPATH=str(EXAMPLE.parent))
    rounds = []
    with tempfile.TemporaryDirectory(prefix="bench-", dir=serving.BUILD) as folder:
        for _ in progress.rounds(ROUNDS):
            rounds.append({admission: _measure(Path(folder), admission) for admission in ("cores", "all")})
    cores, everything = ([each[admission] for each in rounds] for admission in ("cores", "all"))
    slowest = [_slowest(run) for run in cores]
    memory = [(_pss_mib(ours), _pss_mib(theirs)) for ours, theirs in zip(cores, everything, strict=True)]
    took_s = [(ours.took_s, theirs.took_s) for ours, theirs in zip(cores, everything, strict=True)]
    return [
        Figure(
            "slowest request, relative to the median",
            statistics.median(slowest),
            "x",
            AT_MOST,
            note=f'{statistics.median(map(_slowest, everything)):.2f} with admission = "all"',
            target=MOST_SLOWEST,
        ),
        _against("time of all requests", took_s, "s", MOST_TIME),
        _against("environments' memory (PSS)", memory, "MiB", MOST_MEMORY),
    ]


def _against(name: str, pairs: Sequence[tuple[float, float]], unit: str, target: float) -> Figure:
    """Return a figure with a target: the median over the pairs of the first value divided by the second."""
    ours, theirs = (statistics.median(values) for values in zip(*pairs, strict=True))
    return Figure(
        f'{name}, relative to admission = "all"',
        statistics.median(first / second for first, second in pairs),
        "x",
        AT_MOST,
        note=f"{ours:,.4g} {unit} against {theirs:,.4g} {unit}",
        target=target,
    )


def _measure(folder: Path, admission: str) -> Run:
    progress.step(f'{REQUESTS:,} requests with admission = "{admission}"')
    config, result = folder / "thawd.toml", folder / "result.json"
    config.write_text(
        _CONFIGURATION.format(
            admission=admission,
            example=EXAMPLE,
            concurrency=CONCURRENCY,
            memory_mb=MEMORY_MB,
            all_memory_mb=CONCURRENCY * MEMORY_MB,
        )
    )
    command = [sys.executable, "-m", "thawd", "bench", "/predict", "--config", str(config), "--engine", "thaw"]
    command += ["-n", str(REQUESTS), "-C", str(CONCURRENCY), "--from", "zero", "--expect-text", "predictions"]
    command += ["-p", f"@{EXAMPLE / 'picture.jpg'}", "-H", "Content-Type: image/jpeg", "--json", str(result)]
    result.unlink(missing_ok=True)
    _run(command)
    [run] = runs.read_json(result)
    return run


def _run(command: list[str], **variables: str) -> None:
    """Run a command without showing its output.

    Raises:
        BenchmarkError: it failed.
    """
    environment = {**os.environ, **variables}
    done = subprocess.run(command, cwd=EXAMPLE, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stdout + done.stderr)[-2000:]
        raise BenchmarkError(f"{' '.join(command[1:4])} ended with {done.returncode}:\n{said}")


def _slowest(run: Run) -> float:
    """Return the slowest latency, divided by the median."""
    percentiles = summarise(run).percentiles_ms
    return percentiles["max"] / percentiles["p50"]


def _pss_mib(run: Run) -> float:
    """Return the peak memory of all environments together."""
    memory_mib = summarise(run).memory_mib
    if memory_mib is None:
        raise BenchmarkError("the memory of the environments is unknown; it needs Linux 4.14")
    return memory_mib
