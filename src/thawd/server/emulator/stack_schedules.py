"""Makes the schedules of an emulated CloudFormation stack: resources of AWS::Scheduler. In the emulator's own process.

moto, the emulator, has EventBridge Scheduler, but its stacks do not know it.

Source: CloudFormation template reference, "AWS::Scheduler::Schedule" and "AWS::Scheduler::ScheduleGroup", for the
properties, and for what Ref and GetAtt return.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from thawd.server.emulator import template_values
from thawd.server.emulator.stack_resources import Behaviour, Made, StackResource

_connect: Callable[[str], Any]

Properties = dict[str, Any]


def connect(client: Callable[[str], Any]) -> None:
    """Make resources with the boto3 clients that `client` returns, by the name of the service."""
    global _connect  # noqa: PLW0603 - moto makes and pickles the resources, so they cannot hold a client
    _connect = client


def _call(method: str, given: Properties) -> Properties:
    client = _connect("scheduler")
    operation = client.meta.service_model.operation_model(client.meta.method_to_api_mapping[method])
    values = {name: value for name, value in given.items() if name in operation.input_shape.members}
    answer: Properties = getattr(client, method)(**template_values.fitted(operation.input_shape, values))
    return answer


def _given(properties: Properties) -> Properties:
    given = dict(properties)
    for name in ("StartDate", "EndDate"):
        if isinstance(given.get(name), str):
            given[name] = datetime.fromisoformat(given[name])
    return given


def _schedule(name: str, properties: Properties) -> Made:
    given = {"Name": name[:64], **_given(properties)}
    arn = _call("create_schedule", given)["ScheduleArn"]
    facts = {"Name": given["Name"], "GroupName": given.get("GroupName", "default")}
    return Made(given["Name"], {"Arn": arn}, facts)


def _change_schedule(resource: StackResource, properties: Properties) -> None:
    _call("update_schedule", {**_given(properties), **resource.facts})


def _group(name: str, properties: Properties) -> Made:
    given = {"Name": name[:64], **properties}
    arn = _call("create_schedule_group", given)["ScheduleGroupArn"]
    return Made(given["Name"], {"Arn": arn, "State": "ACTIVE"}, {"Name": given["Name"]})


KINDS: dict[str, Behaviour] = {
    "AWS::Scheduler::Schedule": Behaviour(
        _schedule, _change_schedule, lambda client, made: _call("delete_schedule", made.facts)
    ),
    "AWS::Scheduler::ScheduleGroup": Behaviour(
        _group, None, lambda client, made: _call("delete_schedule_group", made.facts)
    ),
}
"""How the resources of AWS::Scheduler are made, changed and deleted, by type."""
