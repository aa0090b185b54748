"""Provisioned concurrency by the clock: which count applies, when it changes, and what happens then."""

from __future__ import annotations

import asyncio
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from thawd import config
from thawd.cost.report import provisioned_seconds
from thawd.errors import ConfigurationError, ResourceNotFoundException
from thawd.resources import ProvisionedSchedule
from thawd.scheduling.provisioned import ProvisionedPlan
from thawd.sources.provisioned_schedules import ProvisionedSchedules

BERLIN = "Europe/Berlin"
OFFICE = (
    ProvisionedSchedule(schedule="cron(0 8 ? * MON-FRI *)", count=4, timezone=BERLIN),
    ProvisionedSchedule(schedule="cron(0 18 ? * MON-FRI *)", count=1, timezone=BERLIN),
)


def at(text: str, zone: str = BERLIN) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


@pytest.mark.parametrize(
    ("moment", "count"),
    [
        ("2026-11-20T07:59:59", 1),  # a Friday
        ("2026-11-20T08:00:00", 4),
        ("2026-11-20T17:59:59", 4),
        ("2026-11-20T18:00:00", 1),
        ("2026-11-22T12:00:00", 1),  # a Sunday
        ("2026-10-26T08:30:00", 4),  # the Monday after the end of daylight saving time
    ],
)
def test_the_entry_that_came_last_is_in_force(moment: str, count: int) -> None:
    assert ProvisionedPlan(OFFICE, otherwise=0).count(at(moment)) == count


def test_before_the_first_time_the_functions_own_count_is_in_force() -> None:
    plan = ProvisionedPlan([ProvisionedSchedule(schedule="at(2026-12-01T09:00:00)", count=8)], otherwise=2)
    assert plan.count(at("2026-12-01T08:59:59", "UTC")) == 2
    assert plan.count(at("2026-12-01T09:00:00", "UTC")) == 8
    assert plan.count(at("2046-12-01T09:00:00", "UTC")) == 8
    assert plan.next_change(at("2026-12-01T09:00:00", "UTC")) is None
    assert plan.most() == 8


def test_of_two_entries_for_the_same_time_the_later_one_of_the_file_holds() -> None:
    entries = [ProvisionedSchedule(schedule="cron(0 8 * * ? *)", count=count) for count in (3, 5)]
    assert ProvisionedPlan(entries, otherwise=0).count(at("2026-11-20T09:00:00", "UTC")) == 5


@pytest.mark.parametrize(("moment", "count"), [("08:04:59", 2), ("08:05:00", 1), ("08:06:59", 1), ("08:07:00", 2)])
def test_of_entries_that_take_turns_the_one_whose_time_has_just_come_holds(moment: str, count: int) -> None:
    plan = ProvisionedPlan(
        [
            ProvisionedSchedule(schedule="cron(0/5 * * * ? *)", count=1),
            ProvisionedSchedule(schedule="cron(2/5 * * * ? *)", count=2),
        ],
        otherwise=0,
    )
    assert plan.count(at(f"2026-11-20T{moment}", "UTC")) == count


def test_a_time_that_comes_once_in_four_years_is_found() -> None:
    plan = ProvisionedPlan([ProvisionedSchedule(schedule="cron(0 0 29 2 ? *)", count=7)], otherwise=0)
    assert plan.count(at("2026-11-20T00:00:00", "UTC")) == 7


def test_environment_seconds_are_those_of_each_count() -> None:
    plan = ProvisionedPlan(OFFICE, otherwise=0)
    found = provisioned_seconds(plan, at("2026-11-20T00:00:00"), at("2026-11-21T00:00:00"))
    assert found == 8 * 3600 + 10 * 3600 * 4 + 6 * 3600


def test_a_night_in_which_the_clock_is_changed_has_an_hour_less_or_more() -> None:
    nights = (
        ProvisionedSchedule(schedule="cron(0 0 * * ? *)", count=1, timezone=BERLIN),
        ProvisionedSchedule(schedule="cron(0 6 * * ? *)", count=0, timezone=BERLIN),
    )
    plan = ProvisionedPlan(nights, otherwise=0)
    for day, next_day, hours in (
        ("2026-03-28", "2026-03-29", 6),
        ("2026-03-29", "2026-03-30", 5),
        ("2026-10-25", "2026-10-26", 7),
    ):
        assert provisioned_seconds(plan, at(f"{day}T00:00:00"), at(f"{next_day}T00:00:00")) == hours * 3600
    # 2:30 comes once on the day when the clock is put back, and not at all when it is put forward.
    half_past_two = ProvisionedPlan(
        [ProvisionedSchedule(schedule="cron(30 2 * * ? *)", count=1, timezone=BERLIN)], otherwise=0
    )
    for day, found in (("2026-10-25T00:00:00", "2026-10-25T02:30:00"), ("2026-03-29T00:00:00", "2026-03-30T02:30:00")):
        assert half_past_two.next_change(at(day)) == at(found)
    assert half_past_two.next_change(at("2026-10-25T02:30:00")) == at("2026-10-26T02:30:00")


class _Clock:
    """Its sleeps end when the test sets the time."""

    def __init__(self, now: float) -> None:
        self._now = now
        self._woken = asyncio.Condition()

    def now(self) -> float:
        return self._now

    async def sleep(self, wait_s: float) -> None:
        until = self._now + wait_s
        async with self._woken:
            await self._woken.wait_for(lambda: self._now >= until)

    async def go_to(self, now: float) -> None:
        self._now = now
        async with self._woken:
            self._woken.notify_all()


def test_counts_are_set_when_declared_when_due_and_given_back_when_removed() -> None:
    async def main() -> list[tuple[str, int | None]]:
        calls: list[tuple[str, int | None]] = []
        clock = _Clock(at("2026-11-20T07:00:00"))
        schedules = ProvisionedSchedules(lambda name, count: calls.append((name, count)), clock=clock)
        schedules.declare({"f": ProvisionedPlan(OFFICE, otherwise=0)})
        running = asyncio.get_running_loop().create_task(schedules.run())
        for moment in ("2026-11-20T07:30:00", "2026-11-20T08:00:00", "2026-11-20T08:30:00", "2026-11-20T18:00:01"):
            await asyncio.sleep(0)
            await clock.go_to(at(moment))
            for _ in range(20):
                await asyncio.sleep(0)
        schedules.declare({})
        running.cancel()
        return calls

    assert asyncio.run(main()) == [("f", 1), ("f", 4), ("f", 1), ("f", None)]


def test_a_function_that_is_gone_does_no_harm() -> None:
    def provision(name: str, count: int | None) -> None:
        raise ResourceNotFoundException(name)

    schedules = ProvisionedSchedules(provision, clock=_Clock(at("2026-11-20T07:00:00")))
    schedules.declare({"f": ProvisionedPlan(OFFICE, otherwise=0)})
    schedules.declare({})


# The configuration file

HELLO = "[functions.hello]\nhandler = 'hello.handler'\n"
ENTRY = "[[functions.hello.provisioned_schedule]]\nschedule = 'cron(0 8 ? * MON-FRI *)'\ncount = 4\n"


def load(folder: Path, text: str) -> config.Settings:
    (folder / "thawd.toml").write_text(text)
    return config.load(folder / "thawd.toml", environ={})


def test_a_schedule_is_read_and_does_not_change_the_functions_version(tmp_path: Path) -> None:
    settings = load(tmp_path, HELLO + ENTRY + "timezone = 'Europe/Berlin'\n")
    assert settings.provisioned_schedules == {"hello": (OFFICE[0],)}
    assert settings.functions == load(tmp_path, HELLO).functions


def test_room_is_needed_for_the_most_that_a_schedule_asks_for(tmp_path: Path) -> None:
    assert config.required_environments(load(tmp_path, HELLO + ENTRY)) == 4
    with pytest.raises(ConfigurationError) as error:
        load(tmp_path, "[server]\nmax_environments = 3\n" + HELLO + ENTRY)
    assert [one.key for one in error.value.problems] == ["server.max_environments"]


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (ENTRY.replace("cron(0 8 ? * MON-FRI *)", "rate(5 minutes)"), "provisioned_schedule[0].schedule"),
        (ENTRY.replace("cron(0 8 ? * MON-FRI *)", "cron(0 8 * * *)"), "provisioned_schedule[0].schedule"),
        (ENTRY.replace("count = 4", "count = -1"), "provisioned_schedule[0].count"),
        (ENTRY.replace("count = 4\n", ""), "provisioned_schedule[0].count"),
        (ENTRY + "timezone = 'Mars/Olympus'\n", "provisioned_schedule[0].timezone"),
        ("reserved_concurrency = 3\n" + ENTRY, "provisioned_schedule[0].count"),
        ("keep_alive = 'sometimes'\n", "keep_alive"),
        ("provisioned_schedule = 5\n", "provisioned_schedule"),
    ],
)
def test_a_mistake_is_told_once_and_by_its_place(tmp_path: Path, text: str, key: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        load(tmp_path, HELLO + text)
    assert [one.key for one in error.value.problems] == [f"functions.hello.{key}"]
