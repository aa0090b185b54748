"""The stack's alarms on errors, throttles and dead letters, and its dashboard."""

from __future__ import annotations

import json
from typing import Any

from thawd.deploy.aws import naming
from thawd.deploy.aws.stack import Stack, sub

_PERIOD_S = 300
_METRICS = {"errors": "Errors", "throttles": "Throttles"}


def add_watching(stack: Stack) -> None:
    """Add alarms for each function and each dead-letter queue of the stack, and one dashboard."""
    if not stack.aws.alarms or not stack.settings.functions:
        return
    for name in stack.settings.functions:
        own = naming.function_name(stack.name, name)
        dimensions = {"FunctionName": own, "Resource": f"{own}:{naming.ALIAS}"}
        for what, counted in _METRICS.items():
            _add_alarm(stack, name, what, metric=("AWS/Lambda", counted, "Sum"), dimensions=dimensions)
    for function in stack.settings.functions.values():
        letters = function.dead_letter
        if letters is None or letters.kind != "sqs":
            continue
        queue = letters.name.rpartition(":")[2]
        if naming.logical_id(queue, "Queue") in stack.resources:
            metric = ("AWS/SQS", "ApproximateNumberOfMessagesVisible", "Maximum")
            _add_alarm(
                stack, function.name, "dead-letters", metric=metric, dimensions={"QueueName": stack.queue(queue)}
            )
    properties = {"DashboardName": stack.name, "DashboardBody": sub(json.dumps(_dashboard(stack), sort_keys=True))}
    stack.add("Dashboard", "AWS::CloudWatch::Dashboard", properties)


def _add_alarm(
    stack: Stack, function: str, what: str, *, metric: tuple[str, str, str], dimensions: dict[str, str]
) -> None:
    namespace, name, statistic = metric
    properties = {
        "AlarmName": naming.alarm_name(stack.name, function, what),
        "AlarmDescription": f"{what} of the function {function}, in {_PERIOD_S // 60} minutes",
        "Namespace": namespace,
        "MetricName": name,
        "Dimensions": [{"Name": key, "Value": value} for key, value in sorted(dimensions.items())],
        "Statistic": statistic,
        "Period": _PERIOD_S,
        "EvaluationPeriods": 1,
        "Threshold": 1,
        "ComparisonOperator": "GreaterThanOrEqualToThreshold",
        "TreatMissingData": "notBreaching",
        "AlarmActions": None if stack.aws.alarm_topic is None else [stack.aws.alarm_topic],
    }
    logical_id = naming.logical_id(function, "") + naming.logical_id(what, "Alarm")
    stack.add(logical_id, "AWS::CloudWatch::Alarm", properties)


def _dashboard(stack: Stack) -> dict[str, Any]:
    names = [naming.function_name(stack.name, name) for name in stack.settings.functions]
    charts = (
        ("invocations", "Invocations", "Sum"),
        ("errors", "Errors", "Sum"),
        ("throttles", "Throttles", "Sum"),
        ("duration, 99th percentile, ms", "Duration", "p99"),
        ("concurrent executions", "ConcurrentExecutions", "Maximum"),
    )
    widgets = [
        {
            "type": "metric",
            "x": 12 * (index % 2),
            "y": 6 * (index // 2),
            "width": 12,
            "height": 6,
            "properties": {
                "title": title,
                "region": "${AWS::Region}",
                "stat": statistic,
                "period": _PERIOD_S,
                "metrics": [["AWS/Lambda", metric, "FunctionName", name] for name in names],
            },
        }
        for index, (title, metric, statistic) in enumerate(charts)
    ]
    return {"widgets": widgets}
