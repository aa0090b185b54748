"""Measures how slow this machine is. Bounds that are times fit only the machine where they were set, and are adapted.

The measure is the start of a bare interpreter, ``python -I -S -c pass``. Like most of what thawd does, it takes
processor time and page faults, maps memory and reads files. It is measured in the same run as the figures. The fastest
of several starts counts, because other work on the machine makes starts slower and would so loosen the bounds. On a
faster machine the bounds stay as they are, because they are what thawd promises.
"""

from __future__ import annotations

import subprocess
import sys
import time

REFERENCE_MS = 8.0
"""Time of this start on the reference machine, where the bounds were set: 2 virtual cores (AMD EPYC), Linux 6.18,
CPython 3.11."""
_STARTS = 15


def slowness() -> float:
    """Return the time of an interpreter's start here, divided by that on the reference machine; at least 1."""
    times_ms = []
    for _ in range(_STARTS):
        begun_s = time.perf_counter()
        subprocess.run([sys.executable, "-I", "-S", "-c", "pass"], check=True)
        times_ms.append((time.perf_counter() - begun_s) * 1000)
    return max(1.0, min(times_ms) / REFERENCE_MS)


def bound(reference: float) -> float:
    """Return the largest time allowed on this machine. `reference` is the largest time on the reference machine."""
    return reference * slowness()
