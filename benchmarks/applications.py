"""How long a newcomer waits: the first request to a sleeping FastAPI application, and a change of a small function.

What: the time of a request to a FastAPI application of which no environment is alive, started cold, divided by the same
time if it is thawed from a snapshot. With ``--watch``, the time from writing a changed handler until it answers.

How: one server has the same application as two functions, each behind a route of its own; one has ``snapshot = false``.
Their environments end as soon as they are idle. Requests alternate between the two routes. A request to a warm
application is not measured here (`benchmarks.overhead`). The small function imports nothing but the standard library.

Why: an application that sleeps costs nothing, but only a start that nobody notices makes that useful. Somebody who
changes code wants to see the change when his editor's window is gone. `benchmarks.package_bases` measures the change of
a function that imports torch.
"""

from __future__ import annotations

import importlib.util
import statistics
import time
import urllib.request
from collections.abc import Sequence

from benchmarks import progress, serving
from benchmarks.report import AT_LEAST, BenchmarkError, Figure, Skipped

TITLE = "applications: a sleeping FastAPI application, and a changed handler"

LEAST_TIMES_FASTER = 8.0
MOST_CHANGED_MS = 300.0
COLD_STARTS = 7
THAWS_PER_COLD_START = 5
CHANGES = 15
ANSWERS_S = 30.0

APPLICATION = """
import fastapi
import pydantic

app = fastapi.FastAPI()


class Answer(pydantic.BaseModel):
    name: str
    length: int


@app.get("/{kind}/{name}")
def length(kind: str, name: str) -> Answer:
    return Answer(name=name, length=len(name))
"""

HANDLER = """
def handler(event, context):
    return {answer}
"""

CONFIGURATION = """
[functions.thawed]
handler = "web.app"
code = "application"
memory_mb = 512
idle_timeout_s = 0

[functions.cold]
handler = "web.app"
code = "application"
memory_mb = 512
idle_timeout_s = 0
snapshot = false

[functions.small]
handler = "app.handler"
code = "small"

[routes]
"GET /thawed/{name}" = "thawed"
"GET /cold/{name}" = "cold"
"""


def measure() -> Sequence[Figure]:
    """Measure the ratio of first answers, and the time until a changed handler answers.

    Raises:
        Skipped: FastAPI is not installed.
        BenchmarkError: a function was not started in the intended way, or did not answer.
    """
    if importlib.util.find_spec("fastapi") is None:
        raise Skipped("fastapi is not installed; install the extra `test`")
    waits_ms: dict[str, list[float]] = {"cold": [], "thawed": []}
    files = {"application/web.py": APPLICATION, "small/app.py": HANDLER.format(answer=0)}
    with serving.thawd(CONFIGURATION, files, options=["--watch"]) as served:
        for _ in progress.rounds(COLD_STARTS):
            waits_ms["cold"].append(_first_answer_ms(served, "cold"))
            waits_ms["thawed"] += [_first_answer_ms(served, "thawed") for _ in range(THAWS_PER_COLD_START)]
        starts = served.function("thawed")["starts"]
        if starts.get("thaw", {}).get("count", 0) < len(waits_ms["thawed"]):
            raise BenchmarkError(f"not every start of the application was a thaw: {starts}")
        serving.invoke(served, "small", {})
        changed_ms = [_changed_ms(served, change + 1) for change in progress.rounds(CHANGES, "change a handler")]
    waited_ms = {name: statistics.median(values) for name, values in waits_ms.items()}
    return [
        Figure(
            "first answer of a sleeping FastAPI application, cold relative to thawed",
            waited_ms["cold"] / waited_ms["thawed"],
            "x",
            AT_LEAST,
            LEAST_TIMES_FASTER,
            f"{waited_ms['cold']:.0f} ms against {waited_ms['thawed']:.1f} ms",
        ),
        serving.changed_handler(changed_ms, most_ms=MOST_CHANGED_MS),
    ]


def _first_answer_ms(served: serving.Served, name: str) -> float:
    """Return how long a caller waits when the application has no environment, milliseconds."""

    def none_alive() -> bool | None:
        environments = served.function(name)["environments"]
        return True if not any(environments.values()) else None

    serving.wait_for(none_alive, f"the environments of {name} to end", within_s=ANSWERS_S)
    begun_s = time.perf_counter()
    with urllib.request.urlopen(f"{served.url}/{name}/thawd", timeout=ANSWERS_S) as response:
        answer = response.read()
    taken_ms = (time.perf_counter() - begun_s) * 1000
    if answer != b'{"name":"thawd","length":5}':
        raise BenchmarkError(f"{name} answered {answer!r}")
    return taken_ms


def _changed_ms(served: serving.Served, change: int) -> float:
    begun_s = time.perf_counter()
    (served.folder / "small" / "app.py").write_text(HANDLER.format(answer=change))
    serving.wait_for(
        lambda: True if serving.invoke(served, "small", {}) == change else None,
        "the changed handler to answer",
        within_s=ANSWERS_S,
    )
    return (time.perf_counter() - begun_s) * 1000
