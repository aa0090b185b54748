"""Schedule expressions in EventBridge's dialect: the times they denote, on every kind of day."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thawd.grammar.schedule_expressions import ScheduleError, parse, utc_text


def times(expression: str, start: str, *, zone: str = "UTC", count: int = 3) -> list[str]:
    """Return the first times after `start`, in the zone's local time, which `start` also uses."""
    schedule = parse(expression, zone=ZoneInfo(zone))
    moment = anchor = datetime.fromisoformat(start).replace(tzinfo=ZoneInfo(zone)).timestamp()
    found = []
    for _ in range(count):
        at = schedule.after(moment, anchor=anchor)
        if at is None:
            break
        found.append(datetime.fromtimestamp(at, ZoneInfo(zone)).strftime("%Y-%m-%d %H:%M"))
        moment = at
    return found


@pytest.mark.parametrize(
    ("expression", "start", "expected"),
    [
        ("cron(0 10 * * ? *)", "2026-01-01T10:00", ["2026-01-02 10:00", "2026-01-03 10:00", "2026-01-04 10:00"]),
        ("cron(15 12 * * ? *)", "2026-01-01", ["2026-01-01 12:15", "2026-01-02 12:15", "2026-01-03 12:15"]),
        ("cron(0 18 ? * MON-FRI *)", "2026-01-02T18:00", ["2026-01-05 18:00", "2026-01-06 18:00", "2026-01-07 18:00"]),
        ("cron(0 8 1 * ? *)", "2026-01-01T08:00", ["2026-02-01 08:00", "2026-03-01 08:00", "2026-04-01 08:00"]),
        ("cron(0/15 * * * ? *)", "2026-01-01T00:01", ["2026-01-01 00:15", "2026-01-01 00:30", "2026-01-01 00:45"]),
        (
            "cron(0/5 8-17 ? * MON-FRI *)",
            "2026-01-02T17:50",
            ["2026-01-02 17:55", "2026-01-05 08:00", "2026-01-05 08:05"],
        ),
        ("cron(0 10 ? * 6L 2026-2027)", "2026-01-01", ["2026-01-30 10:00", "2026-02-27 10:00", "2026-03-27 10:00"]),
        ("cron(0 0 ? * L *)", "2026-01-01", ["2026-01-03 00:00", "2026-01-10 00:00", "2026-01-17 00:00"]),
        ("cron(0 0 L * ? *)", "2026-02-01", ["2026-02-28 00:00", "2026-03-31 00:00", "2026-04-30 00:00"]),
        ("cron(0 0 LW * ? *)", "2026-01-01", ["2026-01-30 00:00", "2026-02-27 00:00", "2026-03-31 00:00"]),
        ("cron(0 0 3W * ? *)", "2026-01-01", ["2026-01-02 00:00", "2026-02-03 00:00", "2026-03-03 00:00"]),
        ("cron(0 0 1W * ? *)", "2026-07-15", ["2026-08-03 00:00", "2026-09-01 00:00", "2026-10-01 00:00"]),
        ("cron(0 0 31W * ? *)", "2026-05-01", ["2026-05-29 00:00", "2026-07-31 00:00", "2026-08-31 00:00"]),
        ("cron(0 0 ? * 2#1 *)", "2026-01-06", ["2026-02-02 00:00", "2026-03-02 00:00", "2026-04-06 00:00"]),
        ("cron(0 0 ? * FRI#5 *)", "2026-01-01", ["2026-01-30 00:00", "2026-05-29 00:00", "2026-07-31 00:00"]),
        ("cron(0 0 29 2 ? *)", "2026-01-01", ["2028-02-29 00:00", "2032-02-29 00:00", "2036-02-29 00:00"]),
        ("cron(0 0 1 JAN,jul ? *)", "2026-01-01", ["2026-07-01 00:00", "2027-01-01 00:00", "2027-07-01 00:00"]),
        ("cron(0 0 ? * FRI-MON *)", "2026-01-01", ["2026-01-02 00:00", "2026-01-03 00:00", "2026-01-04 00:00"]),
        ("cron(0 0 ? * FRI-MON/2 *)", "2026-01-01", ["2026-01-02 00:00", "2026-01-04 00:00", "2026-01-09 00:00"]),
        ("cron(0 0 1 NOV-FEB ? *)", "2026-10-01", ["2026-11-01 00:00", "2026-12-01 00:00", "2027-01-01 00:00"]),
        ("cron(0 0 1 NOV-FEB ? *)", "2027-01-01", ["2027-02-01 00:00", "2027-11-01 00:00", "2027-12-01 00:00"]),
        # the last day of one month and the first of the next; a month that ends on a Sunday; a month before one that
        # begins on a Friday
        ("cron(0 0 ? * THU,FRI *)", "2026-12-25", ["2026-12-31 00:00", "2027-01-01 00:00", "2027-01-07 00:00"]),
        ("cron(0 0 LW * ? *)", "2026-05-15", ["2026-05-29 00:00", "2026-06-30 00:00", "2026-07-31 00:00"]),
        ("cron(0 0 ? * FRIL *)", "2026-04-10", ["2026-04-24 00:00", "2026-05-29 00:00", "2026-06-26 00:00"]),
        ("cron(0 0 1 1 ? 2027)", "2026-01-01", ["2027-01-01 00:00"]),
        ("rate(36500 days)", "2026-01-01", ["2125-12-08 00:00", "2225-11-14 00:00", "2325-10-21 00:00"]),
        ("rate(1 minute)", "2026-01-01", ["2026-01-01 00:01", "2026-01-01 00:02", "2026-01-01 00:03"]),
        ("rate(12 hours)", "2026-01-01T01:00", ["2026-01-01 13:00", "2026-01-02 01:00", "2026-01-02 13:00"]),
        ("at(2026-12-01T09:00:00)", "2026-01-01", ["2026-12-01 09:00"]),
        ("at(2026-12-01T09:00:00)", "2026-12-01T09:00", []),
    ],
)
def test_an_expression_stands_for_its_times(expression: str, start: str, expected: list[str]) -> None:
    assert times(expression, start) == expected


@pytest.mark.parametrize(
    ("expression", "zone", "start", "expected"),
    [
        # In Berlin, 2026-03-29 02:00 to 03:00 does not exist, and 2026-10-25 02:00 to 03:00 comes twice.
        ("cron(30 2 * * ? *)", "Europe/Berlin", "2026-03-27T12:00", ["2026-03-28 02:30", "2026-03-30 02:30"]),
        ("cron(30 2 * * ? *)", "Europe/Berlin", "2026-10-24T12:00", ["2026-10-25 02:30", "2026-10-26 02:30"]),
        ("cron(0 * * * ? *)", "Europe/Berlin", "2026-03-29T01:00", ["2026-03-29 03:00", "2026-03-29 04:00"]),
        ("cron(0 2 ? * SUN#2 *)", "America/New_York", "2026-03-01", ["2026-04-12 02:00", "2026-05-10 02:00"]),
        ("cron(0 0 1 1 ? 2027)", "Pacific/Auckland", "2026-06-01", ["2027-01-01 00:00"]),
        ("at(2026-07-01T09:00:00)", "America/New_York", "2026-01-01", ["2026-07-01 09:00"]),
    ],
)
def test_a_clock_that_is_put_forward_skips_and_one_that_is_put_back_repeats_nothing(
    expression: str, zone: str, start: str, expected: list[str]
) -> None:
    assert times(expression, start, zone=zone, count=2) == expected


def test_the_repeated_hour_counts_the_first_time() -> None:
    schedule = parse("cron(30 2 * * ? *)", zone=ZoneInfo("Europe/Berlin"))
    at = schedule.after(datetime(2026, 10, 24, 12, tzinfo=UTC).timestamp(), anchor=0)
    assert at is not None
    assert datetime.fromtimestamp(at, UTC) == datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
    # Within the repeated hour the next time is on the next day.
    again = schedule.after(at + 3600, anchor=0)
    assert again is not None
    assert datetime.fromtimestamp(again, UTC) == datetime(2026, 10, 26, 1, 30, tzinfo=UTC)


def test_a_rate_of_days_is_24_hours_whatever_the_clock_does() -> None:
    found = times("rate(1 day)", "2026-03-28T12:00", zone="Europe/Berlin", count=2)
    assert found == ["2026-03-29 13:00", "2026-03-30 13:00"]


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "5 minutes",
        "rate(0 minutes)",
        "rate(36501 days)",
        "rate(5\u0663 minutes)",
        "cron(1\u0663 10 * * ? *)",
        "rate(1 minutes)",
        "rate(5 minute)",
        "rate(5 weeks)",
        "rate(1.5 hours)",
        "cron(0 12 * * ?)",
        "cron(0 12 * * * *)",
        "cron(0 12 ? * ? *)",
        "cron(60 12 * * ? *)",
        "cron(0 24 * * ? *)",
        "cron(0 12 32 * ? *)",
        "cron(0 12 0 * ? *)",
        "cron(0 12 * 13 ? *)",
        "cron(0 12 ? * 8 *)",
        "cron(0 12 ? * 0 *)",
        "cron(0 12 ? * MON#6 *)",
        "cron(0 12 * * ? 1969)",
        "cron(5-1 12 * * ? *)",
        "cron(0/0 12 * * ? *)",
        "cron(0, 12 * * ? *)",
        "cron(a 12 * * ? *)",
        "cron(0 0 31 2 ? *)",
        "cron(0 0 29 2 ? 2027)",
        "at(2026-12-01)",
        "at(2026-13-01T00:00:00)",
        "at(2026-12-01T09:00:00Z)",
    ],
)
def test_what_is_no_expression_is_refused(expression: str) -> None:
    with pytest.raises(ScheduleError):
        parse(expression, zone=ZoneInfo("UTC"))


MONTHS = "JAN, FEB, MAR, APR, MAY, JUN, JUL, AUG, SEP, OCT, NOV, DEC"
DAYS = "SUN, MON, TUE, WED, THU, FRI, SAT"


@pytest.mark.parametrize(
    ("expression", "field", "said"),
    [
        ("cron(60 0 * * ? *)", "minutes", ["'60'", "from 0 to 59"]),
        ("cron(0 24 * * ? *)", "hours", ["'24'", "from 0 to 23"]),
        ("cron(0 0 32 * ? *)", "day-of-month", ["'32'", "from 1 to 31"]),
        ("cron(0 0 32W * ? *)", "day-of-month", ["'32'", "from 1 to 31"]),
        ("cron(0 0 1 13 ? *)", "month", ["'13'", "from 1 to 12", MONTHS]),
        ("cron(0 0 ? * 8 *)", "day-of-week", ["'8'", "from 1 to 7", DAYS]),
        ("cron(0 0 ? * 8L *)", "day-of-week", ["'8'", "from 1 to 7", DAYS]),
        ("cron(0 0 ? * 8#1 *)", "day-of-week", ["'8'", "from 1 to 7", DAYS]),
        ("cron(0 0 1 1 ? 2200)", "year", ["'2200'", "from 1970 to 2199"]),
        ("cron(0 0 5-1 * ? *)", "day-of-month", ["'5-1'"]),
        ("cron(0/x 0 * * ? *)", "minutes", ["'0/X'"]),
    ],
)
def test_what_is_wrong_is_told_with_its_field_and_its_bounds(expression: str, field: str, said: list[str]) -> None:
    with pytest.raises(ScheduleError) as error:
        parse(expression, zone=ZoneInfo("UTC"))
    assert str(error.value).startswith(f"{field}: ")
    assert all(part in str(error.value) for part in said)
    assert ", or " in str(error.value) or field not in ("month", "day-of-week")


def test_cron_is_told_to_have_six_fields_by_their_names() -> None:
    with pytest.raises(ScheduleError, match=r"minutes hours day-of-month month day-of-week year.* 2$"):
        parse("cron(0 0)", zone=ZoneInfo("UTC"))


def test_a_time_in_an_event_is_in_utc_to_the_second() -> None:
    assert utc_text(1_795_000_000.9) == "2026-11-18T11:06:40Z"


@pytest.fixture
def far_east(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The machine's own zone is Kiritimati, 14 hours ahead of UTC and 25 ahead of Pago Pago."""
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "Pacific/Kiritimati")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("far_east")
def test_the_machines_own_time_zone_plays_no_part() -> None:
    assert utc_text(1_795_000_000) == "2026-11-18T11:06:40Z"
    found = times("cron(30 23 * * ? *)", "2026-11-18T23:15", zone="Pacific/Pago_Pago", count=2)
    assert found == ["2026-11-18 23:30", "2026-11-19 23:30"]
    assert times("at(2026-12-01T09:00:00)", "2026-01-01") == ["2026-12-01 09:00"]


@settings(deadline=None)
@given(
    st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"]),
    st.sampled_from(["cron(0/10 * * * ? *)", "cron(30 1-3 * * ? *)", "cron(0 0 ? * 1L *)", "cron(5 2 15W * ? *)"]),
    st.datetimes(datetime(2020, 1, 1), datetime(2035, 1, 1)),
)
def test_times_follow_each_other_and_none_is_shown_twice(zone: str, expression: str, start: datetime) -> None:
    schedule = parse(expression, zone=ZoneInfo(zone))
    moment = start.replace(tzinfo=UTC).timestamp()
    found = []
    for _ in range(20):
        at = schedule.after(moment, anchor=0)
        assert at is not None
        found.append(at)
        moment = at
    assert all(one < other for one, other in pairwise(found))
    shown = [datetime.fromtimestamp(at, ZoneInfo(zone)).replace(tzinfo=None) for at in found]
    assert len(set(shown)) == len(shown)
    # There is no time between two of them that the second call would have missed.
    assert schedule.after(found[0] - timedelta(seconds=1).total_seconds(), anchor=0) == found[0]


def test_a_time_that_its_only_day_skips_is_refused() -> None:
    with pytest.raises(ScheduleError, match="has no times"):
        parse("cron(30 2 29 3 ? 2026)", zone=ZoneInfo("Europe/Berlin"))
