"""The clock for times in state files: seconds since the epoch that never jump while this process runs.

Somebody may set the wall clock while the server runs, but a retry that is due in a minute must still be due in a
minute. So the wall clock is read once, and the time since then is measured with a clock that cannot be set.
"""

from __future__ import annotations

import time

# CLOCK_BOOTTIME continues while the machine sleeps, like the wall clock.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", None)


def _elapsed() -> float:
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)


_OFFSET = time.time() - _elapsed()


def now() -> float:
    """Seconds since the epoch, according to the wall clock as it was set when this process started."""
    return _OFFSET + _elapsed()
