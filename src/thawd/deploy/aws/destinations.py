"""Destinations of asynchronous invocations, their retries, and dead-letter queues."""

from __future__ import annotations

from typing import Any

from thawd.deploy.aws import naming
from thawd.deploy.aws.buckets_and_tables import bucket_place
from thawd.deploy.aws.stack import Stack, ref, statement, sub
from thawd.grammar.destination_names import function_of
from thawd.resources import Destination, Function

_ACTIONS = {
    "sqs": ("sqs:SendMessage",),
    "sns": ("sns:Publish",),
    "events": ("events:PutEvents",),
    "function": ("lambda:InvokeFunction",),
    # Source: Lambda developer guide, "Capturing records of Lambda asynchronous invocations".
    "bucket": ("s3:PutObject",),
}
_OPTIONS = {"on_success": "OnSuccess", "on_failure": "OnFailure"}


def add_destinations(stack: Stack, function: Function) -> None:
    """Add the configuration of a function's asynchronous invocations."""
    properties = {
        "FunctionName": ref(stack.function_id(function.name)),
        "Qualifier": naming.ALIAS,
        "MaximumEventAgeInSeconds": function.maximum_event_age_s,
        "MaximumRetryAttempts": function.maximum_retry_attempts,
        "DestinationConfig": {
            _OPTIONS[option]: {"Destination": arn} for option, (arn, _) in _targets(stack, function).items()
        }
        or None,
    }
    logical_id = naming.logical_id(function.name, "Events")
    alias = naming.logical_id(function.name, "Alias")
    stack.add(logical_id, "AWS::Lambda::EventInvokeConfig", properties, DependsOn=[alias])


def delivery_statements(stack: Stack, function: Function) -> list[dict[str, Any]]:
    """Return the statements that a function's role needs to deliver outcomes and dead letters."""
    statements = [allowed for _, needed in _targets(stack, function).values() for allowed in needed]
    if function.dead_letter is not None:
        place = stack.arn_of(function.dead_letter.name)
        statements.append(statement(_ACTIONS[function.dead_letter.kind], place))
    return statements


def _targets(stack: Stack, function: Function) -> dict[str, tuple[Any, list[dict[str, Any]]]]:
    """Return the ARN of each option's destination, and the statements that allow the delivery.

    A destination that AWS does not have is left out, and recorded as missing.
    """
    found = {}
    for option in _OPTIONS:
        destination = getattr(function, option)
        target = None if destination is None else _target(stack, function, option, destination)
        if target is not None:
            found[option] = target
    return found


def _target(
    stack: Stack, function: Function, option: str, destination: Destination
) -> tuple[Any, list[dict[str, Any]]] | None:
    """Return a destination's ARN, and statements that allow the delivery; None: AWS has no such destination."""
    where = f"functions.{function.name}.{option}"
    if destination.kind == "function":
        name, qualifier = function_of(destination)
        if name not in stack.settings.functions:
            stack.add_missing(where, f"{destination} is not delivered: the stack has no function {name}")
            return None
        if qualifier not in (None, naming.ALIAS):
            stack.add_missing(where, f"outcomes go to the alias {naming.ALIAS} of {name}, not to {qualifier}")
        arn = stack.function_arn(name)
        return stack.alias(name), [statement(_ACTIONS["function"], [sub(arn), sub(f"{arn}:*")])]
    if destination.kind in ("sqs", "sns", "events"):
        place = stack.arn_of(destination.name)
        return place, [statement(_ACTIONS[destination.kind], place)]
    if destination.kind in ("bucket", "s3") and option == "on_failure":
        found = (destination.name, "") if destination.kind == "s3" else bucket_place(stack, destination.name)
        if found is not None:
            if destination.kind == "bucket":
                stack.add_missing(where, "outcomes get Lambda's keys, aws/lambda/async/...")
            arn = f"arn:${{AWS::Partition}}:s3:::{found[0]}"
            allowed = [statement(_ACTIONS["bucket"], sub(f"{arn}/*")), statement(["s3:ListBucket"], sub(arn))]
            return sub(arn), allowed
    reasons = {
        "http": "Lambda has no webhooks as destinations",
        "table": "Lambda has no tables as destinations",
    }
    reason = reasons.get(destination.kind, "Lambda sends only failures to buckets")
    stack.add_missing(where, f"{destination} gets no outcomes: {reason}")
    return None
