"""How long a caller waits if the function has no environment and one is thawed, with and without a 1 GB model.

What: the time from the HTTP request to its answer when the function has no execution environment and one is thawed,
minus the time of the same request right afterwards, when the environment exists.

How: one server with two functions. One uses ONNX Runtime with the 1 GiB model of `programs/onnx_stack.py`, in one
thread. The other one does nothing. Both have snapshots, which are primed with the event of the requests. An environment
ends when it has been idle for half a second. Each round waits until no environment is left, then sends one request and
several more right after it. The figures are medians with a hot page cache.

Why: the difference between this figure and the engine's (`benchmarks.engine`) is what the platform adds to a start.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks import engine_models, machine, needs, progress, serving
from benchmarks.report import AT_MOST, BenchmarkError, Figure

TITLE = "thawing: functions without environments, with a 1 GB model and without"

MOST_OVER_WARM_MS = 25.0
TARGETS_MS = {"model": 1.5, "small": 2.0}
"""Targets for the time that a start adds to a request, for versions that have a spare. The server of this benchmark has
no spares (``server.spares`` is 0), so its figures are those of thaws."""
ROUNDS = 9
WARM_REQUESTS = 3
FROZEN_S = 300.0

HANDLER = """
import hashlib
import os
import sys

sys.path.insert(0, os.environ["PROGRAMS"])
import onnx_stack

infer = onnx_stack.load(os.environ["MODEL"])


def handler(event, context):
    return hashlib.sha256(infer()).hexdigest()
"""

CONFIGURATION = """
[functions.model]
handler = "model.handler"
code = "function"
memory_mb = 4096
timeout_s = 60
init_timeout_s = 120
idle_timeout_s = 0.5
prime = {{}}
environment = {{ PROGRAMS = "{programs}", MODEL = "{model}" }}

[functions.small]
handler = "small.handler"
code = "small"
timeout_s = 60
idle_timeout_s = 0.5
prime = {{}}
"""


@dataclass(frozen=True, slots=True)
class Round:
    """One request to a function without environments, and the requests after it.

    Attributes:
        thawed_ms: time from request to answer with no environment alive, milliseconds.
        warm_ms: median time of the requests right afterwards, milliseconds.
    """

    thawed_ms: float
    warm_ms: float


def measure() -> Sequence[Figure]:
    """Measure the time that a thaw adds to a request, for both functions.

    Raises:
        BenchmarkError: a library is missing, or the environments were not thawed.
    """
    lacking = needs.missing(sys.executable, ["numpy", "onnx", "onnxruntime"])
    if lacking:
        raise BenchmarkError(f"{', '.join(lacking)} is not installed; install the extra `demo`")
    progress.step("make the model, unless it is there")
    model = engine_models.with_model("onnx_stack", sys.executable).argument
    configuration = CONFIGURATION.format(programs=engine_models.PROGRAMS, model=model)
    progress.step("start the server")
    with serving.thawd(configuration, {"function/model.py": HANDLER, "small/small.py": serving.NOOP}) as served:
        return [figure for function in TARGETS_MS for figure in _figures(served, function)]


def _figures(served: serving.Served, function: str) -> Sequence[Figure]:
    progress.step(f"{function}: wait for its snapshot")
    await_snapshot(served, function)
    expected = serving.invoke(served, function, {})
    rounds = [one_round(served, function, expected) for _ in progress.rounds(ROUNDS, f"{function}: round")]
    starts = served.function(function)["starts"]
    if starts["thaw"]["count"] < ROUNDS:
        raise BenchmarkError(f"{ROUNDS} environments of {function} should have been thawed; there were {starts}")
    thawed_ms, warm_ms = (statistics.median(getattr(one, name) for one in rounds) for name in ("thawed_ms", "warm_ms"))
    slowness = machine.slowness()
    return [
        Figure(
            f"{function}: request that thaws, minus a warm one",
            statistics.median(one.thawed_ms - one.warm_ms for one in rounds),
            "ms",
            AT_MOST,
            MOST_OVER_WARM_MS * slowness,
            f"{thawed_ms:.1f} ms against {warm_ms:.1f} ms",
            TARGETS_MS[function] * slowness,
        ),
        Figure(f"{function}: start to ready of a thaw", starts["thaw"]["p50_ms"], "ms"),
    ]


def await_snapshot(served: serving.Served, function: str) -> None:
    """Invoke the function until an environment is thawed for it.

    An environment that was started in another way must end first, because requests would use it instead of a thaw.
    """

    def thawed() -> bool | None:
        serving.invoke(served, function, {})
        if "thaw" in served.function(function)["starts"]:
            return True
        _asleep(served, function)
        return None

    serving.wait_for(thawed, f"a first thaw of {function}", within_s=FROZEN_S)


def one_round(served: serving.Served, function: str, expected: object) -> Round:
    _asleep(served, function)
    first, *others = (_request_ms(served, function, expected) for _ in range(1 + WARM_REQUESTS))
    return Round(first, statistics.median(others))


def _asleep(served: serving.Served, function: str) -> None:
    """Wait until the function has no environment."""

    def none_alive() -> bool | None:
        return None if any(served.function(function)["environments"].values()) else True

    serving.wait_for(none_alive, f"the environments of {function} to end", within_s=30.0)


def _request_ms(served: serving.Served, function: str, expected: object) -> float:
    begun_s = time.perf_counter()
    answer = serving.invoke(served, function, {})
    taken_ms = (time.perf_counter() - begun_s) * 1000
    if answer != expected:
        raise BenchmarkError(f"a thawed environment of {function} answered {answer}, another one {expected}")
    return taken_ms
