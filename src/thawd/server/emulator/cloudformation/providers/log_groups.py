"""Makes the log groups, streams and filters of stacks through thawd's Logs API.

Source: CloudFormation template reference, "AWS::Logs", for the properties, and for what Ref and GetAtt return.
"""

from __future__ import annotations

from typing import Any

from thawd.resources import ACCOUNT_ID, REGION
from thawd.server.emulator import template_values
from thawd.server.emulator.cloudformation.providers.aws_clients import Aws, tags_of
from thawd.server.emulator.cloudformation.providers.resource_kind import Kind, Made, Wanted, or_else
from thawd.server.emulator.cloudformation.stack_records import Resource

Properties = dict[str, Any]

_OF_FUNCTION = "/aws/lambda/"


def _make_group(aws: Aws, wanted: Wanted) -> Made:
    properties, name = wanted.properties, wanted.name
    given = {
        "logGroupName": name,
        "logGroupClass": properties.get("LogGroupClass"),
        "tags": tags_of(properties) or None,
    }
    aws.call("logs", "create_log_group", given)
    with or_else(lambda: aws.remove("logs", "delete_log_group", {"logGroupName": name})):
        _retain(aws, name, {}, properties)
    return Made(name, {"Arn": f"arn:aws:logs:{REGION}:{ACCOUNT_ID}:log-group:{name}:*"}, {"logGroupName": name})


def _change_group(aws: Aws, resource: Resource, wanted: Wanted) -> None:
    name, before, after = resource.physical_id, resource.properties, wanted.properties
    _retain(aws, name, before, after)
    old, new = tags_of(before) or {}, tags_of(after) or {}
    if gone := sorted(old.keys() - new.keys()):
        aws.call("logs", "untag_log_group", {"logGroupName": name, "tags": gone})
    if new:
        aws.call("logs", "tag_log_group", {"logGroupName": name, "tags": new})


def _retain(aws: Aws, name: str, before: Properties, after: Properties) -> None:
    if "RetentionInDays" in after:
        given = {"logGroupName": name, "retentionInDays": after["RetentionInDays"]}
        aws.call("logs", "put_retention_policy", given)
    elif "RetentionInDays" in before:
        aws.remove("logs", "delete_retention_policy", {"logGroupName": name})


def _is_group(aws: Aws, facts: Properties) -> bool:
    name = facts["logGroupName"]
    if name.startswith(_OF_FUNCTION):
        # The init phase, which has run already, may have logged. CreateLogGroup itself refuses a group of invocations.
        return False
    found = aws.call("logs", "describe_log_groups", {"logGroupNamePrefix": name})["logGroups"]
    return any(group["logGroupName"] == name for group in found)


def _stream_facts(wanted: Wanted) -> Properties:
    return {"logGroupName": wanted.properties["LogGroupName"], "logStreamName": wanted.name}


def _make_stream(aws: Aws, wanted: Wanted) -> Made:
    facts = _stream_facts(wanted)
    aws.call("logs", "create_log_stream", facts)
    return Made(wanted.name, {}, facts)


def _filter_facts(wanted: Wanted) -> Properties:
    return {"logGroupName": wanted.properties["LogGroupName"], "filterName": wanted.name}


def _put_filter(method: str) -> Any:
    def put(aws: Aws, wanted: Wanted) -> Made:
        client = aws.client("logs")
        shape = client.meta.service_model.operation_model(client.meta.method_to_api_mapping[method]).input_shape
        given = {**_lower(wanted.properties), "filterName": wanted.name}
        for transformation in given.get("metricTransformations", []):
            pairs = transformation.get("dimensions")
            if isinstance(pairs, list):
                transformation["dimensions"] = {pair["key"]: pair["value"] for pair in pairs}
        known = {key: value for key, value in given.items() if key in shape.members}
        getattr(client, method)(**template_values.fitted(shape, known))
        return Made(wanted.name, {}, _filter_facts(wanted))

    return put


def _lower(value: Any) -> Any:
    if isinstance(value, dict):
        return {key[:1].lower() + key[1:]: _lower(item) for key, item in value.items()}
    return [_lower(item) for item in value] if isinstance(value, list) else value


def _filter(kind: str) -> Kind:
    put = _put_filter(f"put_{kind}_filter")
    return Kind(
        put,
        lambda aws, resource: aws.remove("logs", f"delete_{kind}_filter", resource.facts),
        lambda aws, resource, wanted: put(aws, wanted),
        fixed=frozenset({"FilterName", "LogGroupName"}),
        named="FilterName",
        expected=_filter_facts,
    )


KINDS: dict[str, Kind] = {
    "AWS::Logs::LogGroup": Kind(
        _make_group,
        lambda aws, resource: aws.remove("logs", "delete_log_group", resource.facts),
        _change_group,
        fixed=frozenset({"LogGroupName"}),
        named="LogGroupName",
        expected=lambda wanted: {"logGroupName": wanted.name},
        exists=_is_group,
    ),
    "AWS::Logs::LogStream": Kind(
        _make_stream,
        lambda aws, resource: aws.remove("logs", "delete_log_stream", resource.facts),
        named="LogStreamName",
        expected=_stream_facts,
    ),
    "AWS::Logs::SubscriptionFilter": _filter("subscription"),
    "AWS::Logs::MetricFilter": _filter("metric"),
}
"""The kinds of AWS::Logs, by type."""
