"""A program that repeatedly measures the memory of a server and of its descendants, for `thawd bench`.

It runs as a process of its own, so that it does not delay the process that sends requests. It imports only the standard
library, so that it starts fast.

    python -m thawd.bench.memory PID

The program writes a line every quarter of a second, or less often if it would otherwise use more than a twentieth of a
core. A line contains the time in nanoseconds of the monotonic clock, the memory of all descendants of the process PID,
and the memory of PID, in MiB. Memory is measured as PSS: a page that several processes share is divided among them. The
program exits when its standard input is closed, or when PID exits.

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
    """Measure until standard input is closed or the measured process exits."""
    pid = int(sys.argv[1])
    took_s = _look(pid)
    while took_s is not None:
        is_last = bool(select.select([sys.stdin], [], [], max(_EVERY_S, took_s / _SHARE))[0])
        took_s = _look(pid)
        if is_last:
            return


def _look(pid: int) -> float | None:
    """Measure once and write a line.

    Returns:
        How long the measurement took, seconds; None: the process `pid` has exited.
    """
    begun_ns = time.perf_counter_ns()
    server_mib, below_mib = measure(pid)
    if server_mib is None:
        return None
    print(begun_ns, round(below_mib, 2), round(server_mib, 2), flush=True)
    return (time.perf_counter_ns() - begun_ns) / 1e9


def measure(pid: int) -> tuple[float | None, float]:
    """Return the PSS of a process (None if it cannot be read), and the PSS of all its descendants together, MiB."""
    return pss_mib(pid), sum(pss_mib(child) or 0.0 for child in descendants(pid))


def pss_mib(pid: int) -> float | None:
    """Return the PSS of one process, MiB; None if it has exited, or this process has no permission to read it."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024
    except OSError:
        pass
    return None


def descendants(pid: int) -> list[int]:
    """Return the process ids of the children of `pid`, of their children, and so on."""
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
