"""Event source mappings of SQS queues, and schedules of EventBridge Scheduler."""

from __future__ import annotations

import json

from thawd.deploy.aws import naming
from thawd.deploy.aws.stack import Stack, attribute, statement, sub, trust
from thawd.resources import Function, Schedule, SqsSource

_SCHEDULER_ROLE = "StackSchedulerRole"
# The event of EventBridge's rules. EventBridge Scheduler replaces the parts in angle brackets.
# Source: EventBridge Scheduler user guide, "Adding context attributes".
_SCHEDULED_EVENT = {
    "version": "0",
    "id": "<aws.scheduler.execution-id>",
    "detail-type": "Scheduled Event",
    "source": "aws.events",
    "account": "${AWS::AccountId}",
    "time": "<aws.scheduler.scheduled-time>",
    "region": "${AWS::Region}",
    "resources": ["<aws.scheduler.schedule-arn>"],
    "detail": {},
}


def add_sources(stack: Stack, function: Function) -> None:
    """Add the event source mappings of the queues that a function reads."""
    for source in stack.settings.sources.get(function.name, ()):
        _add_mapping(stack, function, source)


def _add_mapping(stack: Stack, function: Function, source: SqsSource) -> None:
    queue = source.sqs.rpartition(":")[2].rpartition("/")[2]
    scaling = None
    if source.maximum_concurrency is not None:
        scaling = {"MaximumConcurrency": source.maximum_concurrency}
    is_reporting = source.report_batch_item_failures
    properties = {
        "FunctionName": stack.alias(function.name),
        "EventSourceArn": stack.arn_of(source.sqs),
        "BatchSize": source.batch_size,
        "MaximumBatchingWindowInSeconds": source.window_s or None,
        "ScalingConfig": scaling,
        "FilterCriteria": {"Filters": [{"Pattern": text} for text in source.filters]} if source.filters else None,
        "FunctionResponseTypes": ["ReportBatchItemFailures"] if is_reporting else None,
        "Enabled": source.enabled,
    }
    stack.add(
        naming.logical_id(function.name, "") + naming.logical_id(queue, "Source"),
        "AWS::Lambda::EventSourceMapping",
        properties,
    )


def add_schedule(stack: Stack, schedule: Schedule) -> None:
    """Add a schedule of EventBridge Scheduler."""
    if schedule.missed == "all":
        stack.add_missing(
            f"schedules.{schedule.name}.missed", "EventBridge Scheduler makes up for at most the last run"
        )
    payload = sub(json.dumps(_SCHEDULED_EVENT)) if schedule.input is None else schedule.input.decode()
    is_rate = schedule.schedule.startswith("rate(")
    properties = {
        "Name": naming.shortened(f"{stack.name}-{schedule.name}", longest=64),
        "ScheduleExpression": schedule.schedule,
        "ScheduleExpressionTimezone": None if is_rate else schedule.timezone,
        "FlexibleTimeWindow": {"Mode": "OFF"},
        "State": "ENABLED" if schedule.enabled else "DISABLED",
        "Target": {
            "Arn": stack.alias(schedule.function),
            "RoleArn": attribute(_SCHEDULER_ROLE, "Arn"),
            "Input": payload,
        },
    }
    stack.add(naming.logical_id(schedule.name, "Schedule"), "AWS::Scheduler::Schedule", properties)


def add_scheduler_role(stack: Stack) -> None:
    """Add the role with which EventBridge Scheduler invokes functions, if there are schedules."""
    functions = sorted({schedule.function for schedule in stack.settings.schedules.values()})
    if not functions:
        return
    arns = [sub(f"{stack.function_arn(name)}:{naming.ALIAS}") for name in functions]
    document = {"Version": "2012-10-17", "Statement": [statement(["lambda:InvokeFunction"], arns)]}
    properties = {
        "AssumeRolePolicyDocument": trust("scheduler.amazonaws.com"),
        "Policies": [{"PolicyName": "invokes", "PolicyDocument": document}],
    }
    stack.add(_SCHEDULER_ROLE, "AWS::IAM::Role", properties)
