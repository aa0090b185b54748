"""A program that measures the memory of a server and of the processes below it over time, for `thawd bench`.

It runs as a separate process, so that it does not delay the process that sends requests. It uses only the standard
library, so that it starts fast.

    python -m thawd.bench.memory PID

This command writes a line every quarter of a second, or less often if it would use more than a twentieth of a core. A
line contains the time in nanoseconds of the monotonic clock, the memory of all descendants of PID, and the memory of
PID, in MiB. Memory is PSS: each page is divided among the processes that share it. The program exits when its standard
input is closed, or when PID exits.

Source: proc(5), smaps_rollup.
"""

from __future__ import annotations

import select
import sys
import time
from pathlib import Path

_EVERY_S = 0.25
_SHARE = 0.05


def main() -> None:
    """Measure until standard input is closed or the process exits."""
    pid = int(sys.argv[1])
    took_s = _look(pid)
    while took_s is not None:
        is_last = bool(select.select([sys.stdin], [], [], max(_EVERY_S, took_s / _SHARE))[0])
        took_s = _look(pid)
        if is_last:
            return


def _look(pid: int) -> float | None:
    """Measure once and write a line. Returns how long that took in seconds, or None if the process has exited."""
    begun_ns = time.perf_counter_ns()
    server_mib, below_mib = measure(pid)
    if server_mib is None:
        return None
    print(begun_ns, round(below_mib, 2), round(server_mib, 2), flush=True)
    return (time.perf_counter_ns() - begun_ns) / 1e9


def measure(pid: int) -> tuple[float | None, float]:
    """PSS of a process (None if it cannot be read), and of all its descendants together, MiB."""
    return pss_mib(pid), sum(pss_mib(child) or 0.0 for child in descendants(pid))


def pss_mib(pid: int) -> float | None:
    """PSS of one process, MiB; None if it has exited or may not be read."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024
    except OSError:
        pass
    return None


def descendants(pid: int) -> list[int]:
    """Process ids of the children of `pid`, their children, and so on."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(int(stat.parent.name))
    found: list[int] = []
    pending = [pid]
    while pending:
        for child in children.get(pending.pop(), []):
            found.append(child)
            pending.append(child)
    return found


if __name__ == "__main__":
    main()
