"""A program that measures the memory of a server and of all processes under it, over time.

It is a separate process, so that it does not delay the measuring client, and uses only the standard library, so that
it starts fast.

    python -m thawd.bench.memory PID

writes a line every quarter of a second, or less often to stay below a twentieth of a core: time in nanoseconds of the
monotonic clock, MiB of the processes under PID, MiB of PID. Memory is PSS: each page is divided among the processes
that share it. The program ends with its standard input, or with PID.

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
    """Measure until standard input or the process ends."""
    pid = int(sys.argv[1])
    took_s = _look(pid)
    while took_s is not None:
        is_last = bool(select.select([sys.stdin], [], [], max(_EVERY_S, took_s / _SHARE))[0])
        took_s = _look(pid)
        if is_last:
            return


def _look(pid: int) -> float | None:
    """Write a line; returns how long that took, seconds, or None when the process has ended."""
    begun_ns = time.perf_counter_ns()
    server_mib, below_mib = measure(pid)
    if server_mib is None:
        return None
    print(begun_ns, round(below_mib, 2), round(server_mib, 2), flush=True)
    return (time.perf_counter_ns() - begun_ns) / 1e9


def measure(pid: int) -> tuple[float | None, float]:
    """PSS of a process (None if it cannot be read) and of all processes under it, MiB."""
    return pss_mib(pid), sum(pss_mib(child) or 0.0 for child in descendants(pid))


def pss_mib(pid: int) -> float | None:
    """PSS of one process, MiB; None if it has ended or may not be read."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024
    except OSError:
        pass
    return None


def descendants(pid: int) -> list[int]:
    """Processes that `pid` started, and those that they started."""
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
