"""Makes the schedules of stacks: resources of AWS::Scheduler.

Source: CloudFormation template reference, "AWS::Scheduler::Schedule" and "AWS::Scheduler::ScheduleGroup", for the
properties, and for what Ref and GetAtt return.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from thawd.server.emulator.cloudformation.providers.aws_clients import Aws
from thawd.server.emulator.cloudformation.providers.resource_kind import Kind, Made, Wanted
from thawd.server.emulator.cloudformation.stack_records import Resource

Properties = dict[str, Any]


def _given(properties: Properties) -> Properties:
    given = dict(properties)
    for name in ("StartDate", "EndDate"):
        if isinstance(given.get(name), str):
            given[name] = datetime.fromisoformat(given[name])
    return given


def _schedule_facts(wanted: Wanted) -> Properties:
    return {"Name": wanted.name, "GroupName": wanted.properties.get("GroupName", "default")}


def _make_schedule(aws: Aws, wanted: Wanted) -> Made:
    facts = _schedule_facts(wanted)
    arn = aws.call("scheduler", "create_schedule", {**_given(wanted.properties), **facts})["ScheduleArn"]
    return Made(wanted.name, {"Arn": arn}, facts)


def _change_schedule(aws: Aws, resource: Resource, wanted: Wanted) -> None:
    aws.call("scheduler", "update_schedule", {**_given(wanted.properties), **resource.facts})


def _make_group(aws: Aws, wanted: Wanted) -> Made:
    arn = aws.call("scheduler", "create_schedule_group", {**wanted.properties, "Name": wanted.name})["ScheduleGroupArn"]
    return Made(wanted.name, {"Arn": arn, "State": "ACTIVE"}, {"Name": wanted.name})


KINDS: dict[str, Kind] = {
    "AWS::Scheduler::Schedule": Kind(
        _make_schedule,
        lambda aws, resource: aws.remove("scheduler", "delete_schedule", resource.facts),
        _change_schedule,
        fixed=frozenset({"Name", "GroupName"}),
        named="Name",
        expected=_schedule_facts,
    ),
    "AWS::Scheduler::ScheduleGroup": Kind(
        _make_group,
        lambda aws, resource: aws.remove("scheduler", "delete_schedule_group", resource.facts),
        named="Name",
        expected=lambda wanted: {"Name": wanted.name},
    ),
}
"""The kinds of AWS::Scheduler, by type."""
