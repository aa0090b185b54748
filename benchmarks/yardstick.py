"""Measures the workloads in examples/ cold, forked and thawed, each with the load that its `yardstick.toml` specifies.

    make yardstick
    python -m benchmarks.yardstick onnx-http     only this workload

Writes ``report.md``, ``report.html`` and each workload's measurements, ``NAME.json``, to ``build/yardstick``. Exits
with status 1 if a workload does not keep a promise of its `yardstick.toml`. An example takes part if it has a
`yardstick.toml`. Before the measurement, ``run.py prepare``, or the command that `yardstick.toml` names as `prepare`,
makes the files that the example serves.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import needs, progress, serving, yardstick_report
from benchmarks.report import BenchmarkError, Skipped
from benchmarks.yardstick_report import Told, Workload
from thawd.bench import runs
from thawd.cli.bench import EXIT_WRONG_ANSWERS

EXAMPLES = serving.REPOSITORY / "examples"
OUTPUT = serving.BUILD / "yardstick"
ENGINES = ("cold", "fork", "thaw")
LIBRARIES = '"../../.venv-libraries"'


def main(names: Sequence[str]) -> int:
    """Measure the named workloads, or all of them, and return the exit status."""
    known = sorted(path.parent.name for path in EXAMPLES.glob("*/yardstick.toml"))
    if unknown := set(names) - set(known):
        print(f"unknown workload: {', '.join(sorted(unknown))}; choose from {', '.join(known)}", file=sys.stderr)
        return 2
    OUTPUT.mkdir(parents=True, exist_ok=True)
    begun_s, busy = time.monotonic(), os.getloadavg()[0]
    measured: list[Workload] = []
    told: list[Told] = []
    left_out: dict[str, str] = {}
    for number, name in enumerate(names or known, start=1):
        print(f"\n{name}", flush=True)
        progress.part(f"{number} of {len(names or known)}, {name}")
        try:
            asked = tomllib.loads((EXAMPLES / name / "yardstick.toml").read_text())
            if "target" in asked:
                measured.append(_measure(name, asked))
            if "command" in asked:
                told.append(_told(name, asked))
        except Skipped as reason:
            print(f"  left out: {reason}", flush=True)
            left_out[name] = str(reason)
    if not measured:
        print("nothing was measured", file=sys.stderr)
        return 1
    took_s = time.monotonic() - begun_s
    text = yardstick_report.markdown(measured, left_out, took_s=took_s, load_before=busy, told=told)
    page = yardstick_report.page(measured, left_out, took_s=took_s, load_before=busy, told=told)
    (OUTPUT / "report.md").write_text(text)
    (OUTPUT / "report.html").write_text(page)
    print(f"\n{text}\nwritten to {OUTPUT.relative_to(serving.REPOSITORY)}/report.md and report.html")
    promises = [judgement.holds for one in measured for judgement in one.judgements]
    return 0 if all([*promises, *(one.holds for one in told)]) else 1


def _told(name: str, asked: dict[str, Any]) -> Told:
    """Run the command with which a workload measures itself, and return what it prints."""
    program, *arguments = asked["command"]
    command = [sys.executable, str(EXAMPLES / name / program), *arguments]
    progress.step("the example measures itself")
    lines = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            lines.append(line)
    return Told(asked["title"], "".join(lines), process.returncode == 0)


def _measure(name: str, asked: dict[str, Any]) -> Workload:
    folder = EXAMPLES / name
    if LIBRARIES in (folder / "thawd.toml").read_text():
        needs.libraries()
    progress.step("make the models, unless they are there")
    environment = {**os.environ, "PYTHONPATH": str(EXAMPLES)}
    program, *arguments = asked.get("prepare", ["run.py", "prepare"])
    _run([sys.executable, str(folder / program), *arguments], folder, environment)
    local = folder / "local-thawd.toml"
    config = local if local.exists() and "BENCH_LIBRARIES_PYTHON" in os.environ else folder / "thawd.toml"
    result = OUTPUT / f"{name}.json"
    result.unlink(missing_ok=True)
    progress.step(f"{asked['requests']:,} requests for each of {', '.join(ENGINES)}")
    _run(_command(asked, config, result), folder, dict(os.environ), accepted=(0, EXIT_WRONG_ANSWERS))
    return Workload(name, asked, tuple(runs.read_json(result)))


def _command(asked: dict[str, Any], config: Path, result: Path) -> list[str]:
    command = [sys.executable, "-m", "thawd", "bench", asked["target"], "--config", str(config)]
    command += ["-n", str(asked["requests"]), "-C", str(asked["concurrency"]), "-p", f"@{asked['payload']}"]
    for header in asked.get("headers", ()):
        command += ["-H", header]
    for engine in ENGINES:
        command += ["--engine", engine]
    return [*command, "--from", "zero", "--expect-text", asked["expect"], "--json", str(result)]


def _run(command: list[str], folder: Path, environment: dict[str, str], accepted: Sequence[int] = (0,)) -> None:
    if (status := subprocess.run(command, cwd=folder, env=environment, check=False).returncode) not in accepted:
        raise BenchmarkError(f"{' '.join(command[1:4])} in {folder} ended with status {status}")


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except BenchmarkError as error:
        print(f"yardstick: {error}", file=sys.stderr)
        sys.exit(1)
