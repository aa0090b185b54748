"""Decides which successful invocations are recorded: all of a quiet function, a sample of a busy one.

It stands in the path of each invocation, so it is one comparison: the time from which the next success is recorded.
"""

from __future__ import annotations

import time


class Sampler:
    """Lets at most `per_s` successes a second of one function be recorded, and after a pause twice as many together.

    Attributes:
        next_s: from when the next success is recorded, ``time.monotonic()`` seconds; infinite: none is.
        skipped: successes that were not recorded since the last one that was.
    """

    __slots__ = ("_burst_s", "_interval_s", "next_s", "skipped")

    def __init__(self, per_s: float) -> None:
        self._interval_s = 1 / per_s if per_s > 0 else 0.0
        self._burst_s = 2.0
        self.next_s = time.monotonic() - self._burst_s if per_s > 0 else float("inf")
        self.skipped = 0

    def take(self, now_s: float, *, is_success: bool = True) -> int:
        """Count one record. Return how many invocations it stands for.

        Args:
            now_s: the time, ``time.monotonic()`` seconds.
            is_success: whether it is one of those that are sampled: it stands for itself, and for those skipped since
                the last one. A record of a failure stands for itself alone.
        """
        # The theoretical arrival time of the generic cell rate algorithm (ITU-T I.371), less the burst.
        self.next_s = max(self.next_s, now_s - self._burst_s) + self._interval_s
        if not is_success:
            return 1
        stands_for, self.skipped = self.skipped + 1, 0
        return stands_for
