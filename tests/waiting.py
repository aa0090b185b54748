"""How tests wait for events without a notification: by polling, less often the longer it takes."""

from __future__ import annotations

import time

_FIRST_S, _LONGEST_S = 0.005, 0.1


def pause(begun_s: float) -> None:
    """Sleep until the next poll.

    Args:
        begun_s: when the waiting began, `time.monotonic()`. The sleep lasts a tenth of the time since then. So polling
            takes little processor time, and the wait is at most about a tenth too long.
    """
    time.sleep(min(_LONGEST_S, _FIRST_S + (time.monotonic() - begun_s) / 10))
