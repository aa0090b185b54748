"""Schedule expressions: ``rate(…)``, ``cron(…)``, ``at(…)`` in Amazon EventBridge's form. No side effects.

Times are seconds since the epoch. The times of a cron expression are local times of its time zone. A local time that
does not exist because the clock goes forward in spring is skipped. A local time that occurs twice in autumn is used
once, at its first occurrence.

Source: Amazon EventBridge Scheduler user guide, "Schedule types", "Daylight savings time"; Amazon EventBridge user
guide, "Cron expressions reference".
"""

from __future__ import annotations

import calendar
import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

_UNITS_S = {"minute": 60, "hour": 3600, "day": 86_400}
_MONTHS = {name.upper(): number for number, name in enumerate(calendar.month_abbr) if name}
_DAYS = {name: number for number, name in enumerate(("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"), 1)}
_FIRST_YEAR, _LAST_YEAR = 1970, 2199
_RATE = re.compile(r"([1-9][0-9]{0,6}) (minute|hour|day)(s?)")
_LONGEST_RATE_S = 36_500 * 86_400
_AT = "%Y-%m-%dT%H:%M:%S"


class ScheduleError(ValueError):
    """A text is not a schedule expression; the message says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class ScheduleExpression:
    """The times of a schedule."""

    def after(self, moment: float, *, anchor: float) -> float | None:
        """Return the first time after `moment`; None: there is none.

        Args:
            moment: seconds since the epoch.
            anchor: start of the schedule, from which rates are counted, seconds since the epoch.
        """
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class _Rate(ScheduleExpression):
    period_s: int

    def after(self, moment: float, *, anchor: float) -> float | None:
        return anchor + (max(0, int((moment - anchor) // self.period_s)) + 1) * self.period_s


@dataclass(frozen=True, slots=True)
class _At(ScheduleExpression):
    at: float

    def after(self, moment: float, *, anchor: float) -> float | None:
        return self.at if moment < self.at else None


@dataclass(frozen=True, slots=True)
class _Cron(ScheduleExpression):
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: _Days
    months: frozenset[int]
    years: frozenset[int]
    zone: ZoneInfo

    def after(self, moment: float, *, anchor: float) -> float | None:
        # Start a day earlier, so that no time is missed where the clock goes back from one date to the date before.
        day = datetime.fromtimestamp(moment, self.zone).date() - timedelta(days=1)
        while day.year <= max(self.years):
            if day.year in self.years and day.month in self.months:
                if day.day in self.days.in_month(day.year, day.month):
                    found = self._first_on(day, moment)
                    if found is not None:
                        return found
                day += timedelta(days=1)
            elif day.year in self.years:
                day = (day.replace(day=1) + timedelta(days=32)).replace(day=1)
            else:
                day = date(day.year + 1, 1, 1)
        return None

    def _first_on(self, day: date, moment: float) -> float | None:
        """Return the first time on `day` that is after `moment`; None: there is none."""
        for hour in self.hours:
            if datetime(day.year, day.month, day.day, hour, 59, tzinfo=self.zone).timestamp() <= moment:
                continue
            for minute in self.minutes:
                wall = datetime(day.year, day.month, day.day, hour, minute, tzinfo=self.zone)
                at = wall.timestamp()
                # Skip a local time that does not exist on this day: it converts back to a different one.
                if at > moment and datetime.fromtimestamp(at, self.zone).replace(fold=0) == wall:
                    return at
        return None


@dataclass(frozen=True, slots=True)
class _Days:
    """Days of a month, by number or by day of the week. The days of the week are 1 (Sunday) to 7 (Saturday).

    Attributes:
        numbers: days of the month.
        last: whether the last day of the month is included (``L``).
        last_weekday: whether the last day from Monday to Friday is included (``LW``).
        nearest: the day from Monday to Friday nearest to this day of the month is included (``15W``); None: not used.
        weekdays: days of the week.
        last_of: the last occurrence of this day of the week in the month is included (``6L``); None: not used.
        nth: day of the week and the number of its occurrence in the month (``6#3``); None: not used.
    """

    numbers: frozenset[int] = frozenset()
    last: bool = False
    last_weekday: bool = False
    nearest: int | None = None
    weekdays: frozenset[int] = frozenset()
    last_of: int | None = None
    nth: tuple[int, int] | None = None

    def in_month(self, year: int, month: int) -> frozenset[int]:
        """Return the days of the month that are included."""
        first, length = calendar.monthrange(year, month)

        def weekday(day: int) -> int:
            return (first + day) % 7 + 1  # in `calendar`, Monday is 0

        days = {day for day in self.numbers if day <= length}
        days |= {day for day in range(1, length + 1) if weekday(day) in self.weekdays}
        if self.last:
            days.add(length)
        if self.last_weekday:
            days.add(max(day for day in range(1, length + 1) if weekday(day) not in (1, 7)))
        if self.nearest is not None and self.nearest <= length:
            working = [day for day in range(1, length + 1) if weekday(day) not in (1, 7)]
            days.add(min(working, key=lambda day: abs(day - (self.nearest or 0))))
        if self.last_of is not None:
            days.add(max(day for day in range(1, length + 1) if weekday(day) == self.last_of))
        if self.nth is not None:
            same = [day for day in range(1, length + 1) if weekday(day) == self.nth[0]]
            days |= set(same[self.nth[1] - 1 : self.nth[1]])
        return frozenset(days)


def parse(expression: str, *, zone: ZoneInfo, any_unit: bool = False) -> ScheduleExpression:
    """Parse a schedule expression.

    Args:
        expression: ``rate(5 minutes)``, ``cron(0 12 * * ? *)`` or ``at(2026-12-01T09:00:00)``.
        zone: time zone of ``cron`` and ``at``.
        any_unit: whether a rate may also be ``rate(5 minute)`` or ``rate(1 minutes)``.

    Raises:
        ScheduleError: the text is not a schedule expression.
    """
    match = re.fullmatch(r"(rate|cron|at)\((.*)\)", expression)
    if match is None:
        raise ScheduleError('it must be "rate(…)", "cron(…)" or "at(…)"')
    kind, inner = match.groups()
    if kind == "rate":
        return _rate(inner, any_unit=any_unit)
    return {"cron": _cron, "at": _at}[kind](inner, zone)


def _rate(inner: str, *, any_unit: bool) -> ScheduleExpression:
    match = _RATE.fullmatch(inner)
    if match is None or (not any_unit and (match[1] == "1") is bool(match[3])):
        raise ScheduleError('a rate must be like "1 minute", "5 minutes", "1 hour", "2 hours", "1 day" or "3 days"')
    period_s = int(match[1]) * _UNITS_S[match[2]]
    if period_s > _LONGEST_RATE_S:
        raise ScheduleError("a rate must be at most 36500 days")
    return _Rate(period_s)


def _at(inner: str, zone: ZoneInfo) -> ScheduleExpression:
    try:
        wall = datetime.strptime(inner, _AT).replace(tzinfo=zone)
    except ValueError:
        raise ScheduleError('a time must be written like "2026-12-01T09:00:00"') from None
    return _At(wall.timestamp())


def _cron(inner: str, zone: ZoneInfo) -> ScheduleExpression:
    fields = inner.split()
    if len(fields) != 6:
        names = "minutes hours day-of-month month day-of-week year"
        raise ScheduleError(f"cron must have six fields ({names}), not {len(fields)}")
    minutes, hours, of_month, months, of_week, years = (field.upper() for field in fields)
    if (of_month == "?") is (of_week == "?"):
        raise ScheduleError('either day-of-month or day-of-week must be "?", but not both')
    cron = _Cron(
        minutes=tuple(sorted(_numbers(minutes, "minutes", 0, 59))),
        hours=tuple(sorted(_numbers(hours, "hours", 0, 23))),
        days=_days_of_month(of_month) if of_week == "?" else _days_of_week(of_week),
        months=_numbers(months, "month", 1, 12, _MONTHS),
        years=_numbers(years, "year", _FIRST_YEAR, _LAST_YEAR),
        zone=zone,
    )
    if cron.after(datetime(min(cron.years), 1, 1, tzinfo=zone).timestamp() - 1, anchor=0.0) is None:
        raise ScheduleError(
            f"{inner!r} has no times: there is no such day, or the clock skips that time on each such day"
        )
    return cron


def _days_of_month(field: str) -> _Days:
    if field == "L":
        return _Days(last=True)
    if field == "LW":
        return _Days(last_weekday=True)
    if match := re.fullmatch(r"([0-9]{1,2})W", field):
        return _Days(nearest=_number(match[1], "day-of-month", 1, 31, {}))
    return _Days(numbers=_numbers(field, "day-of-month", 1, 31))


def _days_of_week(field: str) -> _Days:
    if field == "L":
        return _Days(weekdays=frozenset({7}))
    if match := re.fullmatch(r"(\w+?)L", field):
        return _Days(last_of=_number(match[1], "day-of-week", 1, 7, _DAYS))
    if match := re.fullmatch(r"(\w+)#([1-5])", field):
        return _Days(nth=(_number(match[1], "day-of-week", 1, 7, _DAYS), int(match[2])))
    return _Days(weekdays=_numbers(field, "day-of-week", 1, 7, _DAYS))


def _numbers(field: str, what: str, low: int, high: int, names: dict[str, int] | None = None) -> frozenset[int]:
    """Return the numbers that a field of a cron expression names.

    A field is a list, separated by commas, of ``*``, numbers, names and ranges, each with or without a step (``0/15``).

    Args:
        field: text of the field, in capitals.
        what: name of the field, for errors.
        low: smallest allowed number.
        high: largest allowed number.
        names: the names that stand for numbers; None: the field allows no names.
    """
    found: set[int] = set()
    for part in field.split(","):
        span, slash, step_text = part.partition("/")
        step = 1
        if slash:
            if not re.fullmatch(r"[1-9][0-9]{0,3}", step_text):
                raise ScheduleError(f"{what}: the step in {part!r} must be a number from 1 to 9999")
            step = int(step_text)
        first_text, dash, last_text = span.partition("-")
        if span == "*":
            first, last = low, high
        else:
            first = _number(first_text, what, low, high, names or {})
            last = _number(last_text, what, low, high, names or {}) if dash else high if slash else first
        if first <= last:
            found.update(range(first, last + 1, step))
        elif what in ("day-of-week", "month"):  # a range across the end of the week or year: FRI-MON, NOV-FEB
            count = high - low + 1
            found.update(low + (number - low) % count for number in range(first, last + count + 1, step))
        else:
            raise ScheduleError(f"{what}: the range {span!r} ends before it begins")
    return frozenset(found)


def _number(text: str, what: str, low: int, high: int, names: dict[str, int]) -> int:
    number = names.get(text, int(text) if re.fullmatch(r"[0-9]{1,4}", text) else -1)
    if not low <= number <= high:
        also = f", or {', '.join(names)}" if names else ""
        raise ScheduleError(f"{what}: {text!r} is not a number from {low} to {high}{also}")
    return number


def utc_text(moment: float) -> str:
    """Return a time in the form of EventBridge's events: in UTC, without fractions of a second."""
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
