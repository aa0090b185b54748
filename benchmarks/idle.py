"""What a server costs that has nothing to do: ten functions, a bucket, a table, and no request.

What: processor time of the server's process over ten seconds as a share of one core, and its resident
memory.

How: ``utime + stime`` of ``/proc/PID/stat`` before and after, ``VmRSS`` of ``/proc/PID/status``, once every
function has been invoked and the start is over. The templates and environments are processes of their own;
what they use meanwhile is shown beside, not judged: it is the functions' memory.

Why: a platform that sleeps must not keep a laptop's fan running; a busy loop or a polling thread shows here
first.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from benchmarks import serving
from benchmarks.report import AT_MOST, Figure
from thawd.bench import memory

TITLE = "idle: a server with ten functions and nothing to do"

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
    """Share of a core and memory of the server; the same of its children, for information."""
    with serving.thawd(CONFIGURATION, {"function/noop.py": serving.NOOP}) as served:
        for name in _NAMES:
            serving.invoke(served, name, {})
        children = memory.descendants(served.pid)
        before_s = serving.cpu_s(served.pid), sum(map(serving.cpu_s, children))
        # Nothing is awaited here: the passing of time is what is measured.
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
