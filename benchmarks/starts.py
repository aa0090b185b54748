"""How much faster a fork is than a cold start, for a function that imports scikit-learn and ONNX Runtime.

What: two ratios of cold starts to forks of the same function: of the times from requesting an execution environment
until it is ready, and of the times until a caller's first answer if no environment is alive. Snapshots are off, as on
machines where the snapshot engine does not run; `benchmarks.thawing` measures starts from snapshots.

How: one server has the same code as two functions, ``forked`` and ``cold`` (with ``snapshot = false``), in the
interpreter that runs the benchmark. Invocations alternate between the two functions. Before each invocation, the
benchmark waits until the function's environments have ended, which they do as soon as they are idle. The time until an
environment is ready is the median in the server's status. The benchmark itself measures the caller's time.

Why: fast starts are the purpose of the platform. A function that was unused must answer almost as fast as one that is
in use.
"""

from __future__ import annotations

import importlib.util
import statistics
import time
from collections.abc import Sequence

from benchmarks import progress, serving
from benchmarks.report import AT_LEAST, BenchmarkError, Figure

TITLE = "starts: a function that holds scikit-learn and ONNX Runtime"

LEAST_TIMES_FASTER = 20.0
COLD_STARTS = 7
FORKS_PER_COLD_START = 5

HANDLER = """
import onnxruntime
import sklearn.ensemble
import sklearn.linear_model
import sklearn.svm

options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1


def handler(event, context):
    return {"onnxruntime": onnxruntime.__version__, "scikit-learn": sklearn.__version__}
"""

CONFIGURATION = """
[server]
snapshots = "off"

[functions.forked]
handler = "heavy.handler"
code = "function"
memory_mb = 1024
idle_timeout_s = 0

[functions.cold]
handler = "heavy.handler"
code = "function"
memory_mb = 1024
idle_timeout_s = 0
snapshot = false
"""


def measure() -> Sequence[Figure]:
    """Measure both ratios: until the environment is ready, and until the caller's answer.

    Raises:
        BenchmarkError: a library is missing, or a function was not started in the intended way.
    """
    for needed in ("sklearn", "onnxruntime"):
        if importlib.util.find_spec(needed) is None:
            raise BenchmarkError(f"{needed} is not installed; install the extra `demo`")
    waits_ms: dict[str, list[float]] = {"forked": [], "cold": []}
    with serving.thawd(CONFIGURATION, {"function/heavy.py": HANDLER}) as served:
        for _ in progress.rounds(COLD_STARTS):
            waits_ms["cold"].append(_first_answer_ms(served, "cold"))
            waits_ms["forked"] += [_first_answer_ms(served, "forked") for _ in range(FORKS_PER_COLD_START)]
        fork = _starts(served, "forked", "fork", len(waits_ms["forked"]))
        cold = _starts(served, "cold", "cold", len(waits_ms["cold"]))
    waited_ms = {name: statistics.median(values) for name, values in waits_ms.items()}
    return [
        Figure(
            "start to ready, cold relative to fork",
            cold["p50_ms"] / fork["p50_ms"],
            "x",
            AT_LEAST,
            LEAST_TIMES_FASTER,
            f"{cold['p50_ms']:.0f} ms against {fork['p50_ms']:.1f} ms",
        ),
        Figure(
            "first answer over HTTP, cold relative to fork",
            waited_ms["cold"] / waited_ms["forked"],
            "x",
            AT_LEAST,
            LEAST_TIMES_FASTER,
            f"{waited_ms['cold']:.0f} ms against {waited_ms['forked']:.1f} ms",
        ),
    ]


def _first_answer_ms(served: serving.Served, name: str) -> float:
    """Return how long a caller waits when the function has no environment, milliseconds."""

    def none_alive() -> bool | None:
        environments = served.function(name)["environments"]
        return True if not any(environments.values()) else None

    serving.wait_for(none_alive, f"the environments of {name} to end", within_s=30.0)
    begun = time.perf_counter()
    serving.invoke(served, name, {})
    return (time.perf_counter() - begun) * 1000


def _starts(served: serving.Served, name: str, kind: str, expected: int) -> dict[str, float]:
    """Return what the server's status says about the function's starts of this kind.

    Raises:
        BenchmarkError: there were fewer than `expected` starts of this kind.
    """
    starts: dict[str, dict[str, float]] = served.function(name)["starts"]
    if starts.get(kind, {}).get("count", 0) < expected:
        raise BenchmarkError(f"expected {expected} starts of {name}, all of kind {kind}; found {starts}")
    return starts[kind]
