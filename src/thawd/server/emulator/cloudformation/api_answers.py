"""Stacks, resources, events and change sets in the form of CloudFormation's answers."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from thawd.server.emulator.cloudformation.stack_records import Change, ChangeSet, Event, Resource, Stack

View = dict[str, Any]


def moment(time_s: float | None) -> datetime | None:
    """Return a time as answers have it."""
    return None if time_s is None else datetime.fromtimestamp(time_s, UTC)


def _without_none(view: View) -> View:
    return {name: value for name, value in view.items() if value is not None}


def tags_view(tags: dict[str, str]) -> list[View]:
    """Tags as a list."""
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def parameters_view(parameters: list[tuple[str, str, str | None]]) -> list[View]:
    """Parameters with their values. Values that must not be shown are masked."""
    return [
        _without_none({"ParameterKey": name, "ParameterValue": value, "ResolvedValue": resolved})
        for name, value, resolved in parameters
    ]


def stack_view(stack: Stack) -> View:
    """Return a stack in the answer of DescribeStacks."""
    settings = stack.settings
    outputs = [
        _without_none(
            {
                "OutputKey": output.key,
                "OutputValue": output.value,
                "Description": output.description,
                "ExportName": output.export,
            }
        )
        for output in stack.outputs
    ]
    return _without_none(
        {
            "StackId": stack.id,
            "StackName": stack.name,
            "ChangeSetId": stack.change_set_id,
            "Description": stack.description,
            "Parameters": parameters_view(stack.parameters) or None,
            "CreationTime": moment(stack.created_s),
            "DeletionTime": moment(stack.deleted_s),
            "LastUpdatedTime": moment(stack.updated_s),
            "RollbackConfiguration": {"RollbackTriggers": []},
            "StackStatus": stack.status,
            "StackStatusReason": stack.reason,
            "DisableRollback": stack.on_failure == "DO_NOTHING",
            "NotificationARNs": settings.notification_arns,
            "TimeoutInMinutes": int(stack.timeout_s // 60) if stack.timeout_s else None,
            "Capabilities": settings.capabilities or None,
            "Outputs": outputs or None,
            "RoleARN": settings.role_arn,
            "Tags": tags_view(settings.tags),
            "EnableTerminationProtection": stack.is_protected,
            "ParentId": stack.parent_id,
            "RootId": stack.root_id,
            "DriftInformation": {"StackDriftStatus": "NOT_CHECKED"},
        }
    )


def summary_view(stack: Stack) -> View:
    """Return a stack in the answer of ListStacks."""
    view = stack_view(stack)
    names = (
        "StackId",
        "StackName",
        "CreationTime",
        "LastUpdatedTime",
        "DeletionTime",
        "StackStatus",
        "StackStatusReason",
        "ParentId",
        "RootId",
        "DriftInformation",
    )
    found = {name: view[name] for name in names if name in view}
    return _without_none({**found, "TemplateDescription": stack.description})


def event_view(stack: Stack, event: Event) -> View:
    """Return an event of a stack."""
    return _without_none(
        {
            "StackId": stack.id,
            "EventId": event.id,
            "StackName": stack.name,
            "LogicalResourceId": event.logical_id,
            "PhysicalResourceId": event.physical_id,
            "ResourceType": event.kind,
            "Timestamp": moment(event.time_s),
            "ResourceStatus": event.status,
            "ResourceStatusReason": event.reason,
            "ResourceProperties": event.properties,
            "ClientRequestToken": event.token,
        }
    )


def resource_view(stack: Stack, resource: Resource, *, time_name: str) -> View:
    """Return a resource of a stack.

    Args:
        stack: the stack.
        resource: the resource.
        time_name: the name that the answer has for the time of the last change.
    """
    metadata = json.dumps(resource.metadata) if resource.metadata and time_name != "Timestamp" else None
    return _without_none(
        {
            "StackName": stack.name,
            "StackId": stack.id,
            "LogicalResourceId": resource.logical_id,
            "PhysicalResourceId": resource.physical_id or None,
            "ResourceType": resource.kind,
            time_name: moment(resource.changed_s),
            "ResourceStatus": resource.status,
            "ResourceStatusReason": resource.reason,
            "DriftInformation": {"StackResourceDriftStatus": "NOT_CHECKED"},
            "Metadata": metadata,
        }
    )


def change_view(change: Change) -> View:
    """Return a change that a change set announces."""
    targets = [{"Attribute": "Properties", "Name": name} for name in change.properties]
    targets += [{"Attribute": part} for part in change.scope if part != "Properties"]
    always = "Always" if change.replacement == "True" else "Never"
    needs = {"True": "Always", "False": "Never", "Conditional": "Conditionally"}.get(change.replacement or "", always)
    details = [
        {
            "Target": {"RequiresRecreation": needs if "Name" in target else "Never", **target},
            "Evaluation": "Static",
            "ChangeSource": "DirectModification",
        }
        for target in targets
    ]
    found = {
        "PolicyAction": change.policy,
        "Action": change.action,
        "LogicalResourceId": change.logical_id,
        "PhysicalResourceId": change.physical_id or None,
        "ResourceType": change.kind,
        "Replacement": change.replacement,
        "Scope": change.scope,
        "Details": details,
        "BeforeContext": json.dumps({"Properties": change.before}) if change.before is not None else None,
        "AfterContext": json.dumps({"Properties": change.after}) if change.after is not None else None,
    }
    return {"Type": "Resource", "ResourceChange": _without_none(found)}


def change_set_view(stack: Stack, change_set: ChangeSet) -> View:
    """Return a change set in the answer of DescribeChangeSet, without its changes."""
    return _without_none(
        {
            **change_set_summary(stack, change_set),
            "Parameters": parameters_view(change_set.parameters),
            "NotificationARNs": change_set.settings.notification_arns,
            "RollbackConfiguration": {},
            "Capabilities": change_set.settings.capabilities,
            "Tags": tags_view(change_set.settings.tags),
            "OnStackFailure": change_set.on_failure,
        }
    )


def change_set_summary(stack: Stack, change_set: ChangeSet) -> View:
    """Return a change set in the answer of ListChangeSets."""
    execution = change_set.execution_status
    if execution == "EXECUTE_IN_PROGRESS" and not stack.is_busy:
        has_succeeded = stack.status in ("CREATE_COMPLETE", "UPDATE_COMPLETE")
        execution = "EXECUTE_COMPLETE" if has_succeeded else "EXECUTE_FAILED"
    return _without_none(
        {
            "StackId": stack.id,
            "StackName": stack.name,
            "ChangeSetId": change_set.id,
            "ChangeSetName": change_set.name,
            "ExecutionStatus": execution,
            "Status": change_set.status,
            "StatusReason": change_set.reason,
            "CreationTime": moment(change_set.created_s),
            "Description": change_set.description,
            "IncludeNestedStacks": change_set.include_nested,
        }
    )
