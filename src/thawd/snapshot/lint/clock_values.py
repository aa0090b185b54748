"""Decides whether a number or a date is likely to be a clock reading taken since this process started.

Standard library only, Python 3.9 and later. Used by `thawd.snapshot.lint.checks` alone.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

# Offsets of time zones from UTC: below 15 hours, in multiples of 15 minutes.
_LONGEST_OFFSET_S = 15 * 3600
_OFFSETS_DIFFER_BY_S = 900
_SLACK_S = 0.05  # The kernel reports the start of a process in hundredths of a second.


class Lifetime:
    """The time from the start of this process until now, on every clock that Python reads."""

    def __init__(self) -> None:
        self._now_s = time.time()
        self._age_s = process_age_s() + _SLACK_S
        self._monotonic_s = time.monotonic()
        local = time.localtime(self._now_s)
        self._local_offset_s = local.tm_gmtoff
        self._today = {time.gmtime(self._now_s)[:3], local[:3]}

    def clock(self, value: Any) -> str:
        """The kind of clock reading that `value` may be, in words; empty if no clock has shown it since the start.

        Besides numbers, this recognises instances of ``time.struct_time``, ``datetime.datetime`` and ``datetime.date``,
        but not of their subclasses: to examine such an instance, the subclass's code would have to run.
        """
        cls = type(value)
        if cls is float:
            return self._clock_of_float(value)
        if cls is int:
            return self._clock_of_int(value)
        if cls is time.struct_time:
            plain = all(type(field) is int for field in value[:6])
            return "a calendar time" if plain and self._is_shown_by_a_clock(_calendar_s(value[:6])) else ""
        datetime = sys.modules.get("datetime")
        return self._clock_of_date(value, datetime) if datetime is not None else ""

    def _clock_of_date(self, value: Any, datetime: Any) -> str:
        if type(value) is datetime.datetime and self._is_moment(value, datetime):
            return "a date and time"
        if type(value) is datetime.date and (value.year, value.month, value.day) in self._today:
            return "today's date"
        return ""

    def _clock_of_float(self, value: float) -> str:
        if self._now_s - self._age_s <= value <= self._now_s:
            return "a reading of time.time()"
        # A value with few decimals is likely to be a constant.
        if self._monotonic_s - self._age_s <= value <= self._monotonic_s and round(value, 3) != value:
            return "a reading of time.monotonic() or time.perf_counter()"
        return ""

    def _clock_of_int(self, value: int) -> str:
        for unit, clock in ((1, "int(time.time())"), (1_000, "time.time() in ms"), (1_000_000_000, "time.time_ns()")):
            if int((self._now_s - self._age_s) * unit) <= value <= self._now_s * unit:
                return f"a reading of {clock}"
        if (self._monotonic_s - self._age_s) * 1e9 <= value <= self._monotonic_s * 1e9 and value % 1000:
            return "a reading of time.monotonic_ns() or time.perf_counter_ns()"
        return ""

    def _is_moment(self, value: Any, datetime: Any) -> bool:
        shown_s = _calendar_s((value.year, value.month, value.day, value.hour, value.minute, value.second))
        shown_s += value.microsecond / 1e6
        zone = value.tzinfo
        if zone is None:
            return self._is_shown_by_a_clock(shown_s)
        if type(zone) is datetime.timezone:
            behind_s: float = self._now_s - value.timestamp()
            return 0 <= behind_s <= self._age_s
        # The code of other time zone classes must not run, so any offset from UTC that is in use is accepted.
        behind_s = self._now_s - shown_s
        return abs(behind_s) < _LONGEST_OFFSET_S and behind_s % _OFFSETS_DIFFER_BY_S <= self._age_s

    def _is_shown_by_a_clock(self, shown_s: float) -> bool:
        """Whether a clock has shown the date and time `shown_s`, in UTC or local time, since the process started.

        `shown_s` is that date and time in seconds since 1970, possibly without the fraction of a second.
        """
        first_s = self._now_s - self._age_s - 1
        return any(first_s <= shown_s - offset_s <= self._now_s for offset_s in (0, self._local_offset_s))


def _calendar_s(fields: Any) -> float:
    import calendar

    try:
        return float(calendar.timegm((*fields, 0, 0, 0)))
    except (OverflowError, ValueError):
        return 0.0  # the calendar has no such day


def process_age_s() -> float:
    """Seconds since this process started; if /proc cannot be read, the processor time that it has used.

    Source: proc_pid_stat(5), field 22, in clock ticks since boot.
    """
    try:
        with open("/proc/self/stat", "rb") as file:
            began_ticks = int(file.read().rpartition(b")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - began_ticks / os.sysconf("SC_CLK_TCK")
    except (AttributeError, OSError):
        return time.process_time()
