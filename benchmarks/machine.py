"""Measures how slow this machine is, to adapt bounds that are times: they hold for the machine where they were set.

The unit is the start of a bare interpreter, ``python -I -S -c pass``: processor, page faults, `mmap`, reading files, as
in most of what thawd does. It is measured beside each figure, in the same run, and the fastest of several starts
counts, so that other work on the machine does not loosen the bounds. On a faster machine the bounds stay: they are
promises.
"""

from __future__ import annotations

import subprocess
import sys
import time

REFERENCE_MS = 8.0
"""On the machine where the bounds were set: 2 cores (AMD EPYC, virtual), Linux 6.18, CPython 3.11."""
_STARTS = 15


def slowness() -> float:
    """Return how many times as long as on the reference machine a start takes here, at least 1."""
    times_ms = []
    for _ in range(_STARTS):
        begun_s = time.perf_counter()
        subprocess.run([sys.executable, "-I", "-S", "-c", "pass"], check=True)
        times_ms.append((time.perf_counter() - begun_s) * 1000)
    return max(1.0, min(times_ms) / REFERENCE_MS)


def bound(reference: float) -> float:
    """Return the largest time allowed on this machine, given the largest time on the reference machine."""
    return reference * slowness()
