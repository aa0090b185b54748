"""Runs the schedules of EventBridge's rules and of EventBridge Scheduler. Runs in the emulator's own process.

moto, the emulator, stores schedules and never runs them. Here a thread checks once a second which schedules are due.
The time of a schedule's next run is an attribute of moto's rule or schedule, so it is saved with moto's state. A run is
recorded after its event was delivered. If the emulator is killed between delivery and record, a one-time schedule runs
twice.

A recurring schedule skips the times that passed while the emulator did not run. A one-time schedule whose time passed
then runs when the emulator starts. Flexible time windows are ignored: a schedule runs at the window's start.

Source: EventBridge user guide, "Creating a rule that runs on a schedule"; EventBridge Scheduler user guide, "Schedule
types", "Adding context attributes", "Deleting a schedule".
"""

from __future__ import annotations

import json
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

from thawd.grammar import schedule_expressions
from thawd.grammar.schedule_expressions import ScheduleError, ScheduleExpression, utc_text
from thawd.server.emulator import eventbridge_rules
from thawd.server.emulator.eventbridge_targets import EventTargets, Sender

_LOOK_S = 1.0
# A run that is later than this was missed.
# Source: EventBridge Scheduler: "invoke their targets with 60 second precision".
_ON_TIME_S = 60.0
# The attribute of moto's rules and schedules for what `_Progress` holds.
_PROGRESS = "_thawd_progress"
_INVALID_RULE = "Parameter ScheduleExpression is not valid."


@dataclass(slots=True)
class _Progress:
    """When a rule or schedule runs next.

    Attributes:
        settings: the settings for which `due_at` was computed.
        anchor: start of the schedule, seconds since the epoch. The runs of a rate are multiples of it after the anchor.
        due_at: time of the next run, seconds since the epoch; None: there is no further run.
    """

    settings: tuple[Any, ...]
    anchor: float
    due_at: float | None


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A rule or schedule of moto, as `Clock` needs it.

    Attributes:
        owner: moto's object.
        settings: all settings on which the times of its runs depend.
        expression: the schedule expression.
        starts_at: the time before which it does not run, seconds since the epoch; None: no limit.
        ends_at: the time after which it does not run, seconds since the epoch; None: no limit.
        is_once: whether it is a one-time schedule, ``at(...)``.
        is_immediate: whether the first run of a rate is at the start, as in EventBridge Scheduler. Otherwise it is one
            period later.
        run: delivers the event of one run. Its argument is the run's time, seconds since the epoch.
        complete: called after the last run.
    """

    owner: Any
    settings: tuple[Any, ...]
    expression: ScheduleExpression
    starts_at: float | None
    ends_at: float | None
    is_once: bool
    is_immediate: bool
    run: Callable[[float], None]
    complete: Callable[[], None]


class Clock:
    """Runs the rules and schedules that are due.

    Args:
        find: returns all enabled rules with schedules, and all enabled schedules.
        changed: called when the state has changed and must be saved.
        complain: prints a line for the operator.
    """

    def __init__(
        self, find: Callable[[], Iterator[Scheduled]], *, changed: Callable[[], None], complain: Callable[[str], None]
    ) -> None:
        self._find = find
        self._changed = changed
        self._complain = complain
        self._running: set[int] = set()

    def start(self) -> None:
        """Start the thread that checks once a second what is due."""
        threading.Thread(target=self._look_for_ever, daemon=True).start()

    def _look_for_ever(self) -> None:
        while True:
            try:
                self.look(time.time())
            except RuntimeError:
                pass  # a request has added or removed something during the look; the next look sees it
            except Exception as error:  # nothing that one schedule triggers must end the others
                self._complain(f"thawd: --aws: schedules failed inside thawd: {error!r}")
            time.sleep(_LOOK_S)

    def look(self, now: float) -> list[threading.Thread]:
        """Start the runs that are due. Returns their threads. Each ends when its event has been delivered."""
        started = []
        for one in self._find():
            if id(one.owner) in self._running:
                continue
            progress = self._progress(one, now)
            if progress.due_at is None or progress.due_at > now:
                continue
            # A recurring schedule skips times that passed while the emulator did not run. A one-time schedule runs.
            if now - progress.due_at > _ON_TIME_S and not one.is_once:
                self._advance(one, progress, now)
                continue
            self._running.add(id(one.owner))
            thread = threading.Thread(target=self._run, args=(one, progress, now), daemon=True)
            thread.start()
            started.append(thread)
        return started

    def _progress(self, one: Scheduled, now: float) -> _Progress:
        """Return a schedule's progress. It is computed for a new schedule, and for one whose settings have changed."""
        found: _Progress | None = vars(one.owner).get(_PROGRESS)
        if found is not None and found.settings == one.settings:
            return found
        anchor = now if one.starts_at is None else one.starts_at
        made = _Progress(one.settings, anchor, None)
        if one.is_once:  # a time that has just passed is accepted: the client may have computed it a moment ago
            made.due_at = _next(one, made, now - _ON_TIME_S)
        elif one.is_immediate and anchor > now - _ON_TIME_S:
            made.due_at = anchor
        else:
            made.due_at = _next(one, made, max(now, anchor - 1))
        setattr(one.owner, _PROGRESS, made)
        self._changed()
        return made

    def _run(self, one: Scheduled, progress: _Progress, now: float) -> None:
        try:
            assert progress.due_at is not None, "the caller has checked it"
            one.run(progress.due_at)
            self._advance(one, progress, now)
        except Exception as error:
            self._complain(f"thawd: --aws: a schedule failed inside thawd: {error!r}")
        finally:
            self._running.discard(id(one.owner))

    def _advance(self, one: Scheduled, progress: _Progress, now: float) -> None:
        progress.due_at = _next(one, progress, now)
        if progress.due_at is None:
            one.complete()
        self._changed()


def _next(one: Scheduled, progress: _Progress, after: float) -> float | None:
    found = one.expression.after(after, anchor=progress.anchor)
    return None if found is None or (one.ends_at is not None and found > one.ends_at) else found


# moto's rules and schedules


def find(targets: EventTargets) -> Iterator[Scheduled]:
    """Yield all enabled rules with schedules and all enabled schedules, in all accounts and regions."""
    for backend in _each("moto.events.models", "events_backends"):
        for bus in list(backend.event_buses.values()):
            for rule in list(bus.rules.values()):
                if rule.scheduled_expression and rule.state != "DISABLED":
                    yield from _of_rule(rule, targets)
    for backend in _each("moto.scheduler.models", "scheduler_backends"):
        for group in list(backend.schedule_groups.values()):
            for schedule in list(group.schedules.values()):
                if schedule.state != "DISABLED":
                    yield from _of_schedule(schedule, group, targets)


def _each(module: str, name: str) -> Iterator[Any]:
    """Yield the backends of a service. While its module is not imported, there are no backends and no resources."""
    for by_region in list(getattr(sys.modules.get(module), name, {}).values()):
        yield from list(by_region.values())


def _of_rule(rule: Any, targets: EventTargets) -> Iterator[Scheduled]:
    try:
        expression = schedule_expressions.parse(rule.scheduled_expression, zone=ZoneInfo("UTC"))
    except ScheduleError:
        return  # an older version of thawd did not check expressions

    def run(at: float) -> None:
        event = _event(rule, at, source="aws.events", detail={})
        for target in list(rule.targets):
            targets.send(
                target, partial(eventbridge_rules.text_for, target, event, rule), eventbridge_rules.sender_of(rule)
            )

    settings = (rule.scheduled_expression,)
    yield Scheduled(
        rule,
        settings,
        expression,
        starts_at=None,
        ends_at=None,
        is_once=False,
        is_immediate=False,
        run=run,
        complete=lambda: None,
    )


def _of_schedule(schedule: Any, group: Any, targets: EventTargets) -> Iterator[Scheduled]:
    try:
        expression = parse(schedule.schedule_expression, schedule.schedule_expression_timezone)
    except ScheduleError:
        return

    def run(at: float) -> None:
        targets.send(schedule.target, partial(input_of, schedule, at), Sender("schedule", schedule.name, schedule.arn))

    def complete() -> None:
        if schedule.action_after_completion == "DELETE":
            group.schedules.pop(schedule.name, None)

    starts_at, ends_at = _seconds(schedule.start_date), _seconds(schedule.end_date)
    settings = (schedule.schedule_expression, schedule.schedule_expression_timezone, starts_at, ends_at)
    yield Scheduled(
        schedule,
        settings,
        expression,
        starts_at,
        ends_at,
        is_once=schedule.schedule_expression.startswith("at("),
        is_immediate=schedule.schedule_expression.startswith("rate("),
        run=run,
        complete=complete,
    )


def parse(expression: str, zone: str | None) -> ScheduleExpression:
    """Parse the expression of a schedule of EventBridge Scheduler, which unlike rules accepts ``rate(5 minute)``.

    Source: about thirty of AWS's samples have such schedules.

    Raises:
        ScheduleError: the expression or the time zone is not valid.
    """
    try:
        place = ZoneInfo(zone or "UTC")
    except (ValueError, KeyError, OSError) as error:
        raise ScheduleError(f"there is no time zone {zone}") from error
    return schedule_expressions.parse(expression, zone=place, any_unit=True)


def _seconds(given: Any) -> float | None:
    if given is None or given == "":
        return None
    if isinstance(given, (int, float)):
        return float(given)
    return datetime.fromisoformat(str(given)).replace(tzinfo=UTC).timestamp()


def input_of(schedule: Any, at: float) -> str:
    """Return the text that a schedule's target gets: ``Input`` with context attributes, or AWS's event.

    Args:
        schedule: moto's schedule.
        at: the time for which the run was scheduled, seconds since the epoch.
    """
    text = schedule.target.get("Input")
    if not text:
        return json.dumps(_event(schedule, at, source="aws.scheduler", detail="{}"))
    attributes = {
        "schedule-arn": schedule.arn,
        "scheduled-time": utc_text(at),
        "execution-id": str(uuid.uuid4()),
        "attempt-number": "1",
    }
    for name, value in attributes.items():
        text = text.replace(f"<aws.scheduler.{name}>", value)
    return str(text)


def _event(owner: Any, at: float, *, source: str, detail: Any) -> dict[str, Any]:
    _, _, _, region, account, _ = owner.arn.split(":", 5)
    return {
        "version": "0",
        "id": str(uuid.uuid4()),
        "detail-type": "Scheduled Event",
        "source": source,
        "account": account,
        "time": utc_text(at),
        "region": region,
        "resources": [owner.arn],
        "detail": detail,
    }


# Checks of new rules and schedules


def check_rules() -> None:
    """Change ``moto.events.models``: refuse rules with invalid schedule expressions."""
    from moto.events.models import EventsBackend

    put_rule = EventsBackend.put_rule

    def put_valid_rule(backend: Any, *given: Any, **named: Any) -> Any:
        from moto.events.exceptions import ValidationException

        expression = named.get("scheduled_expression")
        if expression:
            try:
                schedule_expressions.parse(expression, zone=ZoneInfo("UTC"))
            except ScheduleError as error:
                raise ValidationException(_INVALID_RULE) from error
            if expression.startswith("at("):  # only EventBridge Scheduler has one-time schedules
                raise ValidationException(_INVALID_RULE)
        return put_rule(backend, *given, **named)

    setattr(EventsBackend, "put_rule", put_valid_rule)  # noqa: B010 - mypy forbids to assign to a method


def check_schedules() -> None:
    """Change ``moto.scheduler.models``: refuse invalid schedules, and keep a schedule's state if it is updated."""
    from moto.scheduler.models import EventBridgeSchedulerBackend, Schedule

    create, update = EventBridgeSchedulerBackend.create_schedule, Schedule.update

    def create_valid(backend: Any, *given: Any, **named: Any) -> Any:
        backend.get_schedule_group(named.get("group_name"))  # raises AWS's error if there is none
        _check(named)
        return create(backend, *given, **named)

    def update_valid(schedule: Any, *given: Any, **named: Any) -> None:
        _check(named)
        update(schedule, *given, **named)
        schedule.state = schedule.state or "ENABLED"

    setattr(EventBridgeSchedulerBackend, "create_schedule", create_valid)  # noqa: B010
    setattr(Schedule, "update", update_valid)  # noqa: B010


def _check(given: dict[str, Any]) -> None:
    """Refuse the parameters of a schedule if they are not valid."""
    from moto.scheduler.exceptions import ValidationException

    expression, zone = given.get("schedule_expression") or "", given.get("schedule_expression_timezone")
    target = given.get("target") or {}
    try:
        ZoneInfo(zone or "UTC")
    except (ValueError, KeyError, OSError) as error:
        raise ValidationException(f"Invalid ScheduleExpressionTimezone {zone}.") from error
    try:
        parse(expression, zone)
    except ScheduleError as error:
        raise ValidationException(f"Invalid Schedule Expression {expression}.") from error
    text = target.get("Input")
    if text and ":lambda:" in target.get("Arn", ""):
        try:
            json.loads(text)
        except ValueError as error:
            raise ValidationException("Input is not valid JSON.") from error
