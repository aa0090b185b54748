"""Schedules of provisioned concurrency: how many environments to keep initialised at a given time.

This module only computes; it starts no environment.

A schedule has entries such as "10 environments from 8 o'clock on working days". Each entry sets the number at its
times, and that number applies until the next time of any entry. So the entry with the most recent time applies, whether
or not a server ran at that time.

Source: Application Auto Scaling user guide, "Scheduled scaling"; Lambda developer guide, "Managing Lambda provisioned
concurrency with Application Auto Scaling".
"""

from __future__ import annotations

import zoneinfo
from collections.abc import Sequence

from thawd.grammar import schedule_expressions
from thawd.resources import ProvisionedSchedule

_FIRST_LOOK_S = 3600.0
_LONGEST_LOOK_S = 60 * 366 * 86_400.0


class ProvisionedPlan:
    """The schedule of one function.

    Args:
        entries: the entries in the order of the file; if two entries have the same time, the later one applies.
        otherwise: number of environments before the first time of any entry.
    """

    def __init__(self, entries: Sequence[ProvisionedSchedule], *, otherwise: int) -> None:
        self._entries = [(_parse(entry), entry.count) for entry in entries]
        self._otherwise = otherwise

    def count(self, now: float) -> int:
        """Return the number of environments to keep initialised at the time `now` (seconds since the epoch)."""
        last: tuple[float, int] | None = None
        for schedule, count in self._entries:
            at = _last(schedule, now)
            if at is not None and (last is None or at >= last[0]):
                last = (at, count)
        return self._otherwise if last is None else last[1]

    def next_change(self, now: float) -> float | None:
        """Return the first time of any entry after `now`, seconds since the epoch; None: there are no more."""
        times = [at for schedule, _ in self._entries if (at := schedule.after(now, anchor=0.0)) is not None]
        return min(times, default=None)

    def most(self) -> int:
        """Return the highest number of environments that the schedule asks for."""
        return max([self._otherwise, *(count for _, count in self._entries)])


def _parse(entry: ProvisionedSchedule) -> schedule_expressions.ScheduleExpression:
    return schedule_expressions.parse(entry.schedule, zone=zoneinfo.ZoneInfo(entry.timezone))


def _last(schedule: schedule_expressions.ScheduleExpression, now: float) -> float | None:
    """Return the last time of a schedule that is not after `now`; None: there is none within sixty years."""
    look_s = _FIRST_LOOK_S
    while True:
        at = schedule.after(now - look_s, anchor=0.0)
        if at is not None and at <= now:
            break
        if look_s >= _LONGEST_LOOK_S:
            return None
        look_s = min(2 * look_s, _LONGEST_LOOK_S)
    while (later := schedule.after(at, anchor=0.0)) is not None and later <= now:
        at = later
    return at
