"""How much processor time and memory an idle server uses: ten functions, a bucket, a table, and no requests.

What: the processor time of the server process over ten seconds, as a share of one core, and its resident memory.

How: ``utime + stime`` from ``/proc/PID/stat`` before and after, and ``VmRSS`` from ``/proc/PID/status``. The
measurement begins when every function has been invoked. Templates and environments are separate processes. The time and
memory that they use depend on the functions' code, so they are shown beside the server's figures without a bound.

Why: an idle platform must not keep a laptop's fan running. A busy loop or a polling thread would show here first.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from benchmarks import progress, serving
from benchmarks.report import AT_MOST, Figure
from thawd.bench import memory

TITLE = "idle: a server with ten functions and no requests"

MOST_CPU_PERCENT = 1.0
MOST_RESIDENT_MIB = 80.0
FUNCTIONS = 10
WATCHED_S = 10.0

_NAMES = [f"noop-{number}" for number in range(FUNCTIONS)]
CONFIGURATION = (
    "".join(f'[functions.{name}]\nhandler = "noop.handler"\ncode = "function"\n' for name in _NAMES)
    + '[buckets.uploads]\nnotify = [{ function = "noop-0" }]\n[tables.items]\n'
)


def measure() -> Sequence[Figure]:
    """Measure the server's share of a core and its memory, and those of its child processes without a bound."""
    with serving.thawd(CONFIGURATION, {"function/noop.py": serving.NOOP}) as served:
        for name in _NAMES:
            serving.invoke(served, name, {})
        children = memory.descendants(served.pid)
        before_s = serving.cpu_s(served.pid), sum(map(serving.cpu_s, children))
        progress.step(f"watch for {WATCHED_S:.0f} s")
        # This waits for no event: it lets the measured time pass.
        time.sleep(WATCHED_S)
        after_s = serving.cpu_s(served.pid), sum(map(serving.cpu_s, children))
        resident_mib = serving.resident_mib(served.pid)
        children_mib = sum(map(serving.resident_mib, children))
    server, others = ((after - before) / WATCHED_S * 100 for before, after in zip(before_s, after_s, strict=True))
    return [
        Figure("processor share of the server", server, "%", AT_MOST, MOST_CPU_PERCENT, f"over {WATCHED_S:.0f} s"),
        Figure("resident memory of the server", resident_mib, "MiB", AT_MOST, MOST_RESIDENT_MIB),
        Figure(
            f"processor share of its {len(children)} processes",
            others,
            "%",
            note=f"{children_mib:.0f} MiB, shared pages counted each time",
        ),
    ]
