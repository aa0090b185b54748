"""How tests wait for what they cannot be told of: by looking again and again, less often the longer it takes."""

from __future__ import annotations

import time

_FIRST_S, _LONGEST_S = 0.005, 0.1


def pause(begun_s: float) -> None:
    """Sleep until the next look.

    Args:
        begun_s: when the waiting began, `time.monotonic()`; a tenth of the time since then is slept, so that looking
            takes little of the processor and the wait is hardly longer than it must be.
    """
    time.sleep(min(_LONGEST_S, _FIRST_S + (time.monotonic() - begun_s) / 10))
