"""How long a caller waits if the function has no environment, with and without a spare, with and without a 1 GB model.

What: the time from the HTTP request to its answer when the function has no execution environment, minus the time of the
same request right afterwards, when the environment exists. Without spares, the request has an environment thawed; with
spares, a spare becomes the environment. The same without HTTP: the time from the start of the thaw, or from the request
for the spare, until the handler has its first result, minus the handler's time right afterwards.

How: two servers, without and with spares, have the same two functions. One function uses ONNX Runtime with the 1 GiB
model of `programs/onnx_stack.py`, in one thread. The other one does nothing. Both have snapshots, which are primed with
the event of the requests. An environment ends when it has been idle for half a second. Each round waits until no
environment is left, then sends one request and several more right after it. The times without HTTP are those of the
header ``Server-Timing``. The figures are medians with a hot page cache.

Why: the difference between this figure and the engine's (`benchmarks.engine`) is what the platform adds to a start.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks import engine_models, machine, needs, progress, serving
from benchmarks.report import AT_MOST, BenchmarkError, Figure

TITLE = "thawing: functions without environments, with a 1 GB model and without"

MOST_OVER_WARM_MS = 25.0
TARGETS_MS = {"model": 1.5, "small": 2.0}
"""Targets for the time that a start from a spare adds to a request, by function."""
FIRST_RESULT_MS = {False: 4.0, True: 1.5}
"""Targets for the time from a start to the model's first result, minus a warm inference, without and with a spare."""
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
[server]
spares = {spares}

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
        first_result_ms: time from the start of the environment to the handler's first result, milliseconds.
        warm_result_ms: median time of the handler right afterwards, milliseconds.
    """

    thawed_ms: float
    warm_ms: float
    first_result_ms: float
    warm_result_ms: float


def measure() -> Sequence[Figure]:
    """Measure the time that a thaw, or a start from a spare, adds to a request, for both functions.

    Raises:
        BenchmarkError: a library is missing, or the environments were not thawed.
    """
    lacking = needs.missing(sys.executable, ["numpy", "onnx", "onnxruntime"])
    if lacking:
        raise BenchmarkError(f"{', '.join(lacking)} is not installed; install the extra `demo`")
    progress.step("make the model, unless it is there")
    model = engine_models.with_model("onnx_stack", sys.executable).argument
    figures: list[Figure] = []
    for spares in (0, len(TARGETS_MS)):
        configuration = CONFIGURATION.format(programs=engine_models.PROGRAMS, model=model, spares=spares)
        progress.step(f"start a server with {spares} spares")
        with serving.thawd(configuration, {"function/model.py": HANDLER, "small/small.py": serving.NOOP}) as served:
            figures += [each for function in TARGETS_MS for each in _figures(served, function, spares=spares > 0)]
    return figures


def _figures(served: serving.Served, function: str, *, spares: bool) -> Sequence[Figure]:
    progress.step(f"{function}: wait for its snapshot")
    await_snapshot(served, function)
    expected = serving.invoke(served, function, {})
    rounds = []
    for _ in progress.rounds(ROUNDS, f"{function}: round"):
        if spares:
            serving.wait_for(lambda: served.function(function)["spare"] or None, "a spare", within_s=30.0)
        rounds.append(one_round(served, function, expected))
    starts = served.function(function)["starts"]
    if starts["thaw"]["count"] < ROUNDS:
        raise BenchmarkError(f"{ROUNDS} environments of {function} should have been thawed; there were {starts}")
    thawed_ms, warm_ms = (statistics.median(getattr(one, name) for one in rounds) for name in ("thawed_ms", "warm_ms"))
    slowness = machine.slowness()
    kind = "uses a spare" if spares else "thaws"
    return [
        Figure(
            f"{function}: request that {kind}, minus a warm one",
            statistics.median(one.thawed_ms - one.warm_ms for one in rounds),
            "ms",
            AT_MOST,
            MOST_OVER_WARM_MS * slowness,
            f"{thawed_ms:.1f} ms against {warm_ms:.1f} ms",
            TARGETS_MS[function] * slowness if spares else None,
        ),
        Figure(
            f"{function}: start to first result of a request that {kind}, minus a warm result",
            statistics.median(one.first_result_ms - one.warm_result_ms for one in rounds),
            "ms",
            AT_MOST,
            note=f"start to ready {starts['thaw']['p50_ms']:.1f} ms",
            target=FIRST_RESULT_MS[spares] * slowness if function == "model" else None,
        ),
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
    (thawed_ms, first_result_ms), *others = (_request(served, function, expected) for _ in range(1 + WARM_REQUESTS))
    warm_ms, warm_result_ms = (statistics.median(each) for each in zip(*others, strict=True))
    return Round(thawed_ms, warm_ms, first_result_ms, warm_result_ms)


def _asleep(served: serving.Served, function: str) -> None:
    """Wait until the function has no environment."""

    def none_alive() -> bool | None:
        return None if any(served.function(function)["environments"].values()) else True

    serving.wait_for(none_alive, f"the environments of {function} to end", within_s=30.0)


def _request(served: serving.Served, function: str, expected: object) -> tuple[float, float]:
    """Return the time from the request to its answer, and the time of start and handler alone, milliseconds."""
    request = urllib.request.Request(
        f"{served.url}/2015-03-31/functions/{function}/invocations",
        data=b"{}",
        headers={"X-Thawd-Timing": "1"},
        method="POST",
    )
    begun_s = time.perf_counter()
    with urllib.request.urlopen(request, timeout=120) as response:
        answer = json.load(response)
    taken_ms = (time.perf_counter() - begun_s) * 1000
    if answer != expected:
        raise BenchmarkError(f"a thawed environment of {function} answered {answer}, another one {expected}")
    durations = dict(re.findall(r"(start|handler)(?:;desc=\w+)?;dur=([0-9.]+)", response.headers["Server-Timing"]))
    return taken_ms, sum(float(duration) for duration in durations.values())
