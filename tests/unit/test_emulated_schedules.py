"""`thawd.server.emulator.eventbridge_schedules`: when emulated rules and schedules run, and what their targets get."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from thawd.grammar.schedule_expressions import utc_text
from thawd.server.emulator import eventbridge_schedules, state
from thawd.server.emulator.eventbridge_schedules import Clock
from thawd.server.emulator.eventbridge_targets import Sender

ACCOUNT, REGION = "000000000000", "us-east-1"
QUEUE = {"Arn": "arn:aws:sqs:us-east-1:000000000000:q", "RoleArn": "arn:aws:iam::000000000000:role/r"}
NOW = 1_800_000_030.0


class Targets:
    """Notes what is delivered."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def send(self, target: dict[str, Any], make_text: Callable[[], str], sender: Sender) -> None:
        self.texts.append(make_text())


class House:
    """moto's rules and schedules, and a clock for them.

    Attributes:
        events: moto's backend of EventBridge.
        scheduler: moto's backend of EventBridge Scheduler.
        changes: how often the clock has said that the state must be saved.
    """

    def __init__(self) -> None:
        from moto.events.models import events_backends
        from moto.scheduler.models import scheduler_backends

        self.events, self.scheduler = events_backends[ACCOUNT][REGION], scheduler_backends[ACCOUNT][REGION]
        self.targets = Targets()
        self.changes = 0
        self.begin()

    def begin(self) -> None:
        """Start the clock, as at a start of the emulator."""

        def changed() -> None:
            self.changes += 1

        targets: Any = self.targets
        self._clock = Clock(lambda: eventbridge_schedules.find(targets), changed=changed, complain=pytest.fail)

    def look(self, now: float) -> list[str]:
        """What is delivered at this time."""
        self.targets.texts.clear()
        for thread in self._clock.look(now):
            thread.join()
        return list(self.targets.texts)

    def schedule(self, expression: str, **given: Any) -> Any:
        """Make a schedule."""
        settings = {
            name: given.get(name)
            for name in ("description", "group_name", "kms_key_arn", "schedule_expression_timezone", "state")
        }
        return self.scheduler.create_schedule(
            **settings,
            name="s",
            schedule_expression=expression,
            target={**QUEUE, "Input": given.get("input")},
            flexible_time_window={"Mode": "OFF"},
            start_date=given.get("start"),
            end_date=given.get("end"),
            action_after_completion=given.get("then"),
        )


@pytest.fixture
def house() -> Iterator[House]:
    made = House()
    yield made
    made.events.event_buses["default"].rules.clear()
    made.scheduler.schedule_groups["default"].schedules.clear()


def test_a_rule_runs_at_its_times_and_its_targets_get_awss_event(house: House) -> None:
    house.events.put_rule("r", scheduled_expression="cron(* * * * ? *)")
    house.events.put_targets("r", None, [{"Id": "1", **QUEUE}, {"Id": "2", **QUEUE, "Input": '"constant"'}])
    assert house.look(NOW) == []
    whole, constant = house.look(NOW + 31)
    event = json.loads(whole)
    at = NOW + 30
    assert event.pop("id")
    assert event == {
        "version": "0",
        "detail-type": "Scheduled Event",
        "source": "aws.events",
        "account": ACCOUNT,
        "time": utc_text(at),
        "region": REGION,
        "resources": [f"arn:aws:events:{REGION}:{ACCOUNT}:rule/r"],
        "detail": {},
    }
    assert constant == '"constant"'
    assert house.look(NOW + 32) == []
    assert len(house.look(NOW + 91)) == 2
    assert house.changes > 0
    house.events.disable_rule("r", None)
    assert house.look(NOW + 151) == []


def test_the_rate_of_a_rule_begins_after_a_period_and_that_of_a_schedule_at_once(house: House) -> None:
    house.events.put_rule("r", scheduled_expression="rate(2 minutes)")
    house.events.put_targets("r", None, [{"Id": "1", **QUEUE, "Input": '"rule"'}])
    house.schedule("rate(2 minutes)", input='"schedule"')
    assert house.look(NOW) == ['"schedule"']
    assert house.look(NOW + 119) == []
    assert sorted(house.look(NOW + 120.5)) == ['"rule"', '"schedule"']


@pytest.mark.parametrize(("rate", "period_s"), [("rate(2 minute)", 120), ("rate(1 minutes)", 60)])
def test_the_unit_of_a_schedules_rate_may_be_singular_or_plural(house: House, rate: str, period_s: int) -> None:
    house.schedule(rate, input='"schedule"')
    assert house.look(NOW) == ['"schedule"']
    assert house.look(NOW + period_s + 1) == ['"schedule"']


def test_a_schedule_has_a_time_zone_a_start_and_an_end(house: House) -> None:
    # 2027-01-15T09:00:30 in Berlin
    house.schedule(
        "cron(0/1 9 * * ? *)",
        schedule_expression_timezone="Europe/Berlin",
        start=NOW + 100,
        end=NOW + 200,
        input="x",
    )
    assert [bool(house.look(NOW + after)) for after in (0, 31, 91, 151, 211, 271)] == [
        False,
        False,
        False,
        True,
        False,
        False,
    ]


def test_a_schedule_for_one_time_runs_once_also_when_the_emulator_was_off_then(house: House) -> None:
    house.schedule(f"at({utc_text(NOW + 10)[:-1]})", then="DELETE", input="<aws.scheduler.scheduled-time>")
    assert house.look(NOW) == []
    house.begin()
    assert house.look(NOW + 3600) == [utc_text(NOW + 10)]
    assert house.look(NOW + 3601) == []
    assert house.scheduler.schedule_groups["default"].schedules == {}
    house.schedule(f"at({utc_text(NOW + 10)[:-1]})", input="x")
    assert house.look(NOW + 100) == []  # it had passed when it was made


def test_times_that_passed_while_the_emulator_was_off_are_left_out(house: House) -> None:
    schedule = house.schedule("rate(1 minute)", input="x")
    assert house.look(NOW) == ["x"]
    saved = pickle.loads(pickle.dumps(vars(schedule)))
    vars(schedule).update(saved)
    house.begin()
    assert house.look(NOW + 3630) == []
    assert house.look(NOW + 3661) == ["x"]


def test_progress_that_an_earlier_version_saved_is_loaded() -> None:
    progress = eventbridge_schedules._Progress((), NOW, NOW + 60)
    now, then = (b"cthawd.server.emulator.%s\n" % name for name in (b"eventbridge_schedules", b"schedules"))
    saved = pickle.dumps(progress, protocol=2)
    assert now in saved
    assert state._unpickled(saved.replace(now, then), None) == progress


def test_a_schedule_that_is_changed_begins_anew(house: House) -> None:
    schedule = house.schedule("rate(1 minute)", input="x")
    assert house.look(NOW) == ["x"]
    schedule.schedule_expression = "rate(5 minutes)"
    assert house.look(NOW + 61) == ["x"]
    assert house.look(NOW + 121) == []


def test_without_an_input_the_target_of_a_schedule_gets_awss_event(house: House) -> None:
    house.schedule("rate(1 minute)")
    (text,) = house.look(NOW)
    event = json.loads(text)
    assert (event["source"], event["detail"], event["time"]) == ("aws.scheduler", "{}", utc_text(NOW))
    assert event["resources"] == [f"arn:aws:scheduler:{REGION}:{ACCOUNT}:schedule/default/s"]
