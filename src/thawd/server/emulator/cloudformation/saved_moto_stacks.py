"""Takes over stacks that an earlier version of thawd has saved, as objects of moto, in the emulator's state."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from thawd.server.emulator.cloudformation.providers import moto_models
from thawd.server.emulator.cloudformation.stack_files import StackStore
from thawd.server.emulator.cloudformation.stack_records import Event, Output, Resource, Settings, Stack
from thawd.server.emulator.cloudformation.template_plans import Planner, shown_parameters

Properties = dict[str, Any]


class StackResource:
    """A resource of thawd's API, as earlier versions saved it."""

    kind: str
    physical_resource_id: str
    attributes: Properties
    facts: Properties


class CustomResource(StackResource):
    """A custom resource, as earlier versions saved it."""

    identity: dict[str, str]


class LogResource(StackResource):
    """A log group, stream or filter, as earlier versions saved it."""

    group: str


RENAMED: Mapping[tuple[str, str], type] = {
    ("thawd.server.emulator.stack_resources", "StackResource"): StackResource,
    ("thawd.server.emulator.custom_resources", "CustomResource"): CustomResource,
    ("thawd.server.emulator.log_resources", "LogResource"): LogResource,
}
"""The classes of saved objects, by their former module and name."""

# For types whose resources moto's class has made: the name of the fact that contains the physical id.
_FACTS = {
    "AWS::SQS::Queue": "QueueUrl",
    "AWS::SNS::Topic": "TopicArn",
    "AWS::SNS::Subscription": "SubscriptionArn",
    "AWS::DynamoDB::Table": "TableName",
    "AWS::S3::Bucket": "Bucket",
    "AWS::SSM::Parameter": "Name",
    "AWS::Events::Rule": "Name",
    "AWS::Events::EventBus": "Name",
    "AWS::IAM::Role": "RoleName",
    "AWS::IAM::ManagedPolicy": "PolicyArn",
    "AWS::IAM::Policy": "PolicyName",
}
_LOGS = {
    "AWS::Logs::LogStream": "logStreamName",
    "AWS::Logs::SubscriptionFilter": "filterName",
    "AWS::Logs::MetricFilter": "filterName",
}
_ATTRIBUTES = (
    "Arn",
    "DomainName",
    "Id",
    "Name",
    "PolicyArn",
    "QueueName",
    "QueueUrl",
    "RegionalDomainName",
    "RoleId",
    "StreamArn",
    "TopicArn",
    "TopicName",
    "Type",
    "Value",
    "WebsiteURL",
)
# A former update that failed stayed as it was.
_STATUSES = {"UPDATE_ROLLBACK_FAILED": "UPDATE_FAILED"}


def take_over(store: StackStore, planner: Planner, complain: Callable[[str], None]) -> None:
    """Make records of the stacks in moto's backends, and remove them there."""
    from moto.cloudformation.models import cloudformation_backends

    for by_region in list(cloudformation_backends.values()):
        for backend in list(by_region.values()):
            for old in list(backend.stacks.values()):
                if old.status != "REVIEW_IN_PROGRESS":
                    try:
                        store.save(_stack(old, planner))
                    except Exception as error:  # moto's objects may be anything
                        complain(
                            f"thawd: --aws: the stack {old.name}, which an earlier version of thawd has made, cannot "
                            f"be taken over: {error!r}; its resources stay, and must be deleted one by one"
                        )
            backend.stacks.clear()
            backend.change_sets.clear()


def _stack(old: Any, planner: Planner) -> Stack:
    template = old.template if isinstance(old.template, str) else json.dumps(old.template)
    stack = Stack(
        id=old.stack_id,
        name=old.name,
        account=old.account_id,
        region=old.region_name,
        settings=Settings(
            template=template,
            parameters={name: _text(value) for name, value in (old.parameters or {}).items()},
            tags={name: str(value) for name, value in (old.tags or {}).items()},
            notification_arns=list(old.notification_arns or []),
            role_arn=old.role_arn,
        ),
        created_s=old.creation_time.timestamp(),
        status=_STATUSES.get(old.status, old.status),
        is_protected=str(getattr(old, "enable_termination_protection", False)).lower() == "true",
        policy=getattr(old, "policy", None) or None,
        events=[_event(event) for event in old.events],
    )
    objects = old.resource_map._parsed_resources
    for logical_id, declared in old.resource_map._resource_json_map.items():
        found = objects.get(logical_id)
        if found is not None and not isinstance(found, str):
            stack.resources[logical_id] = _resource(stack, logical_id, declared, found)
    plan = planner.plan(stack, stack.settings)
    made = planner.made(stack)
    for logical_id, resource in stack.resources.items():
        if logical_id in plan.resources:
            resource.needs = sorted(plan.needs(logical_id))
            resource.properties = plan.properties(logical_id, made)
            shown = plan.properties(logical_id, made, dynamic=False)
            resource.shown = None if shown == resource.properties else shown
    if stack.status.endswith("_COMPLETE") and not stack.status.startswith("ROLLBACK"):
        stack.parameters, stack.description = shown_parameters(plan), plan.document.get("Description")
        stack.processed, stack.imports = json.dumps(plan.document), sorted(plan.imports())
        stack.outputs = [
            Output(key=one.key, value=str(one.value), description=one.description, export=one.export_name)
            for one in plan.outputs(made)
        ]
    return stack


def _resource(stack: Stack, logical_id: str, declared: Properties, found: Any) -> Resource:
    kind, identifier = declared["Type"], str(found.physical_resource_id)
    resource = Resource(
        logical_id=logical_id,
        kind=kind,
        name=identifier,
        physical_id=identifier,
        status="CREATE_COMPLETE",
        changed_s=stack.created_s,
        deletion_policy=declared.get("DeletionPolicy", "Delete"),
        replacement_policy=declared.get("UpdateReplacePolicy", "Delete"),
        metadata=declared.get("Metadata") or None,
        was_begun=True,
    )
    if isinstance(found, CustomResource):
        resource.attributes, resource.facts = found.attributes, {"identity": found.identity}
    elif isinstance(found, LogResource):
        resource.facts = {"logGroupName": found.group}
        if kind in _LOGS:
            resource.facts[_LOGS[kind]] = identifier
        else:
            arn = f"arn:aws:logs:{stack.region}:{stack.account}:log-group:{found.group}:*"
            resource.attributes = {"Arn": arn}
    elif isinstance(found, StackResource):
        resource.attributes, resource.facts = found.attributes, found.facts
    else:
        resource.attributes = _attributes(found)
    if kind in _FACTS:
        resource.facts = {_FACTS[kind]: identifier}
        if kind == "AWS::Events::Rule":
            resource.facts["EventBusName"] = getattr(found, "event_bus_name", None) or "default"
    elif not isinstance(found, StackResource):
        resource.facts = moto_models.kept(stack, logical_id, identifier, found)
    return resource


def _attributes(found: Any) -> Properties:
    attributes: Properties = {}
    for name in _ATTRIBUTES:
        with contextlib.suppress(Exception):  # most resources have few of them
            attributes[name] = found.get_cfn_attribute(name)
    return attributes


def _event(event: Any) -> Event:
    return Event(
        id=event.event_id,
        time_s=event.timestamp.timestamp(),
        logical_id=event.logical_resource_id,
        physical_id=event.physical_resource_id,
        kind=event.resource_type,
        status=event.resource_status,
        reason=event.resource_status_reason,
    )


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
