"""Runs the benchmarks and compares their figures with the bounds; exits with status 1 if a figure is out of bounds.

python -m benchmarks                 runs all of them
python -m benchmarks overhead idle   runs only these two
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from benchmarks import (
    applications,
    arriving,
    backlog,
    cluster,
    container_images,
    durable,
    engine,
    engine_libraries,
    forwarding,
    idle,
    onnx_http,
    overhead,
    package_bases,
    peers,
    progress,
    recording,
    report,
    runtime_api,
    serving,
    starts,
    streaming,
    thawing,
)
from benchmarks.report import BenchmarkError, Figure, Skipped

BENCHMARKS = {
    "overhead": overhead,
    "runtime-api": runtime_api,
    "streaming": streaming,
    "starts": starts,
    "idle": idle,
    "backlog": backlog,
    "durable": durable,
    "engine": engine,
    "thawing": thawing,
    "package-bases": package_bases,
    "container-images": container_images,
    "engine-libraries": engine_libraries,
    "peers": peers,
    "onnx-http": onnx_http,
    "applications": applications,
    "forwarding": forwarding,
    "cluster": cluster,
    "arriving": arriving,
    "recording": recording,
}
RESULTS = serving.BUILD / "bench.json"


def main(arguments: Sequence[str]) -> int:
    """Run the named benchmarks, or all of them, and return the exit status."""
    if {"-h", "--help"} & set(arguments):
        print(f"{__doc__}\nThe benchmarks:")
        for name, module in BENCHMARKS.items():
            print(f"  {name:17} {module.TITLE}")
        return 0
    unknown = set(arguments) - set(BENCHMARKS)
    if unknown:
        print(f"unknown benchmark: {', '.join(sorted(unknown))}; choose from {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    results: dict[str, Sequence[Figure]] = {}
    failed: list[str] = []
    skipped: list[str] = []
    begun = time.monotonic()
    serving.BUILD.mkdir(exist_ok=True)
    names = arguments or list(BENCHMARKS)
    for number, name in enumerate(names, start=1):
        module = BENCHMARKS[name]
        progress.part(f"{number} of {len(names)}, {name}")
        try:
            results[name] = module.measure()
        except Skipped as reason:
            print(f"{module.TITLE}\n  skipped: {reason}", flush=True)
            skipped.append(name)
            continue
        except BenchmarkError as error:
            print(f"{module.TITLE}\n  FAILS: {error}", flush=True)
            failed.append(name)
            continue
        print(report.show(module.TITLE, results[name]), flush=True)
        failed += [figure.name for figure in results[name] if not figure.holds]
    report.write(RESULTS, results)
    taken_s = time.monotonic() - begun
    print(f"\n{taken_s:.0f} s; figures in {RESULTS.relative_to(serving.REPOSITORY)}")
    if skipped:
        print(f"not measured: {', '.join(skipped)}")
    if failed:
        print(f"failed or out of bounds: {'; '.join(failed)}")
        return 1
    print("all measured figures are within their bounds" if skipped else "all figures are within their bounds")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
