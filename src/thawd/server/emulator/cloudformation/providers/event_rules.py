"""Makes the event buses and rules of stacks through EventBridge's API.

Source: CloudFormation template reference, "Amazon EventBridge", for the properties, and for what Ref and GetAtt return.
"""

from __future__ import annotations

import json
from typing import Any

from thawd.server.emulator.cloudformation.errors import ResourceError
from thawd.server.emulator.cloudformation.providers.aws_clients import Aws
from thawd.server.emulator.cloudformation.providers.resource_kind import Kind, Made, Wanted, or_else
from thawd.server.emulator.cloudformation.stack_records import Resource

Properties = dict[str, Any]

_AT_ONCE = 10
_DEFAULT_BUS = "default"


def _facts(wanted: Wanted) -> Properties:
    bus = str(wanted.properties.get("EventBusName") or _DEFAULT_BUS)
    return {"Name": wanted.name, "EventBusName": bus.rpartition("/")[2] if bus.startswith("arn:") else bus}


def _make_rule(aws: Aws, wanted: Wanted) -> Made:
    facts = _facts(wanted)
    arn = _put_rule(aws, facts, wanted.properties)
    with or_else(lambda: _remove_rule(aws, facts)):
        _put_targets(aws, facts, wanted.properties.get("Targets") or [])
    bus = facts["EventBusName"]
    return Made(wanted.name if bus == _DEFAULT_BUS else f"{bus}|{wanted.name}", {"Arn": arn}, facts)


def _put_rule(aws: Aws, facts: Properties, properties: Properties) -> str:
    pattern = properties.get("EventPattern")
    given = {
        **facts,
        "EventPattern": json.dumps(pattern) if isinstance(pattern, dict) else pattern,
        "ScheduleExpression": properties.get("ScheduleExpression"),
        "State": properties.get("State"),
        "Description": properties.get("Description"),
        "RoleArn": properties.get("RoleArn"),
    }
    arn: str = aws.call("events", "put_rule", given)["RuleArn"]
    return arn


def _put_targets(aws: Aws, facts: Properties, targets: list[Any]) -> None:
    at = {"Rule": facts["Name"], "EventBusName": facts["EventBusName"]}
    for start in range(0, len(targets), _AT_ONCE):
        answer = aws.call("events", "put_targets", {**at, "Targets": targets[start : start + _AT_ONCE]})
        for entry in answer.get("FailedEntries", []):
            raise ResourceError(f"the target {entry.get('TargetId')} is refused: {entry.get('ErrorMessage')}")


def _remove_targets(aws: Aws, facts: Properties, names: list[str]) -> None:
    if names:
        at = {"Rule": facts["Name"], "EventBusName": facts["EventBusName"]}
        aws.remove("events", "remove_targets", {**at, "Ids": names})


def _change_rule(aws: Aws, resource: Resource, wanted: Wanted) -> None:
    facts, before, after = resource.facts, resource.properties, wanted.properties
    _put_rule(aws, facts, after)
    targets = after.get("Targets") or []
    kept = {str(target["Id"]) for target in targets}
    _remove_targets(aws, facts, [t["Id"] for t in before.get("Targets") or [] if str(t["Id"]) not in kept])
    _put_targets(aws, facts, targets)


def _remove_rule(aws: Aws, facts: Properties) -> None:
    at = {"Rule": facts["Name"], "EventBusName": facts["EventBusName"]}
    if not aws.is_there("events", "describe_rule", facts):
        return
    targets = aws.call("events", "list_targets_by_rule", at)["Targets"]
    _remove_targets(aws, facts, [target["Id"] for target in targets])
    aws.remove("events", "delete_rule", facts)


def _make_bus(aws: Aws, wanted: Wanted) -> Made:
    arn = aws.call("events", "create_event_bus", {**wanted.properties, "Name": wanted.name})["EventBusArn"]
    return Made(wanted.name, {"Arn": arn, "Name": wanted.name}, {"Name": wanted.name})


def _put_bus_policy(aws: Aws, wanted: Wanted) -> Made:
    properties = wanted.properties
    bus = properties.get("EventBusName") or _DEFAULT_BUS
    facts = {"EventBusName": bus, "StatementId": properties["StatementId"]}
    given: Properties = {**properties, **facts}
    if "Statement" in properties:
        statement = {"Sid": properties["StatementId"], **properties["Statement"]}
        policy = {"Version": "2012-10-17", "Statement": [statement]}
        given = {"EventBusName": bus, "Policy": json.dumps(policy)}
    aws.call("events", "put_permission", given)
    return Made(f"{bus}|{properties['StatementId']}", {}, facts)


KINDS: dict[str, Kind] = {
    "AWS::Events::Rule": Kind(
        _make_rule,
        lambda aws, resource: _remove_rule(aws, resource.facts),
        _change_rule,
        fixed=frozenset({"Name", "EventBusName"}),
        named="Name",
        expected=_facts,
        exists=lambda aws, facts: aws.is_there("events", "describe_rule", facts),
    ),
    "AWS::Events::EventBus": Kind(
        _make_bus,
        lambda aws, resource: aws.remove("events", "delete_event_bus", resource.facts),
        lambda aws, resource, wanted: None,
        fixed=frozenset({"Name", "EventSourceName"}),
        named="Name",
        expected=lambda wanted: {"Name": wanted.name},
        exists=lambda aws, facts: aws.is_there("events", "describe_event_bus", facts),
    ),
    "AWS::Events::EventBusPolicy": Kind(
        _put_bus_policy,
        lambda aws, resource: aws.remove("events", "remove_permission", resource.facts),
        lambda aws, resource, wanted: _put_bus_policy(aws, wanted),
        fixed=frozenset({"EventBusName", "StatementId"}),
    ),
}
"""The kinds of AWS::Events, by type."""
