"""The time in state files: seconds since the epoch that never jump while this process lives.

The wall clock may be set while the server runs; a retry that is due in a minute is still due in a minute. So the wall
clock is read once, and the time since then is that of a clock that cannot be set.
"""

from __future__ import annotations

import time

# CLOCK_BOOTTIME goes on while the machine sleeps, as the wall clock does.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", None)


def _elapsed() -> float:
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)


_OFFSET = time.time() - _elapsed()


def now() -> float:
    """Seconds since the epoch, by the wall clock of this process's start."""
    return _OFFSET + _elapsed()
