"""Makes the log groups, streams and filters of an emulated CloudFormation stack through thawd's Logs API.

moto, the emulator, would keep them in a service of its own, which nothing writes to. This module runs in the emulator's
own process.

Source: CloudFormation template reference, "AWS::Logs", for the properties, and for what Ref and GetAtt return.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thawd.resources import ACCOUNT_ID, REGION
from thawd.server.emulator import template_values

_GROUP, _STREAM = "AWS::Logs::LogGroup", "AWS::Logs::LogStream"
_SUBSCRIPTION, _METRIC = "AWS::Logs::SubscriptionFilter", "AWS::Logs::MetricFilter"
_KINDS = (_GROUP, _STREAM, _SUBSCRIPTION, _METRIC)
_client: Callable[[], Any]

Properties = dict[str, Any]


def makes(kind: str) -> bool:
    """Whether this module makes the resources of this type."""
    return kind in _KINDS


def connect(client: Callable[[], Any]) -> None:
    """Make resources with the boto3 client for thawd's Logs API that `client` returns."""
    global _client  # noqa: PLW0603 - moto makes and pickles the resources, so they cannot hold a client
    _client = client


class LogResource:
    """A resource of a stack, in the form in which moto's stacks hold it.

    Attributes:
        kind: its type.
        group: the log group that it is, or belongs to.
        physical_resource_id: what Ref returns: its name.
    """

    def __init__(self, kind: str, group: str, name: str) -> None:
        self.kind = self.type = kind
        self.group = group
        self.physical_resource_id = name

    @classmethod
    def has_cfn_attr(cls, attr: str) -> bool:
        """Whether GetAtt may name this attribute."""
        return attr == "Arn"

    def get_cfn_attribute(self, attribute_name: str) -> str:
        """The value that GetAtt returns."""
        from moto.cloudformation.exceptions import UnformattedGetAttTemplateException

        if self.kind != _GROUP or attribute_name != "Arn":
            raise UnformattedGetAttTemplateException
        return f"arn:aws:logs:{REGION}:{ACCOUNT_ID}:log-group:{self.group}:*"

    @classmethod
    def create_from_cloudformation_json(
        cls, resource_name: str, cloudformation_json: Properties, account_id: str, region_name: str, **facts: Any
    ) -> LogResource:
        """Make the resource that a template describes."""
        kind, properties = facts["ResourceType"], cloudformation_json.get("Properties", {})
        return _made(kind, resource_name, properties, is_new=True)

    @classmethod
    def update_from_cloudformation_json(
        cls,
        original_resource: LogResource,
        new_resource_name: str,
        cloudformation_json: Properties,
        account_id: str,
        region_name: str,
    ) -> LogResource:
        """Change the resource; with another name, or in another group, it is replaced."""
        kind, properties = original_resource.kind, cloudformation_json.get("Properties", {})
        old = (original_resource.group, original_resource.physical_resource_id)
        name = _name(kind, old[1], properties)
        group = name if kind == _GROUP else properties.get("LogGroupName")
        is_new = (group, name) != old
        made = _made(kind, old[1], properties, is_new=is_new)
        if is_new:
            original_resource.delete(account_id, region_name)
        return made

    def is_created(self) -> bool:
        """Whether the resource is there; it is, once it is made."""
        return True

    def delete(self, account_id: str, region: str) -> None:
        """Delete the resource, unless it is gone already."""
        client, group, name = _client(), self.group, self.physical_resource_id
        try:
            if self.kind == _GROUP:
                client.delete_log_group(logGroupName=group)
            elif self.kind == _STREAM:
                client.delete_log_stream(logGroupName=group, logStreamName=name)
            elif self.kind == _SUBSCRIPTION:
                client.delete_subscription_filter(logGroupName=group, filterName=name)
            else:
                client.delete_metric_filter(logGroupName=group, filterName=name)
        except client.exceptions.ResourceNotFoundException:
            pass


def _name(kind: str, generated: str, properties: Properties) -> str:
    named = {_GROUP: "LogGroupName", _STREAM: "LogStreamName"}.get(kind, "FilterName")
    return str(properties.get(named) or generated)


def _made(kind: str, generated: str, properties: Properties, *, is_new: bool) -> LogResource:
    """Make or change a resource. If thawd refuses it, the stack's request fails with thawd's words."""
    from botocore.exceptions import BotoCoreError, ClientError
    from moto.cloudformation.exceptions import ValidationError

    name = _name(kind, generated, properties)
    try:
        group = name if kind == _GROUP else properties["LogGroupName"]
        if kind == _GROUP:
            _put_group(name, properties, is_new=is_new)
        elif kind == _STREAM:
            if is_new:
                _client().create_log_stream(logGroupName=group, logStreamName=name)
        elif kind == _SUBSCRIPTION:
            _put("put_subscription_filter", name, properties)
        else:
            _put("put_metric_filter", name, properties)
    except (BotoCoreError, ClientError, KeyError) as error:
        missing = f"the property {error} is missing" if isinstance(error, KeyError) else error
        refusal: Exception = ValidationError(message=f"The resource {name} could not be created or updated: {missing}")
        raise refusal from error
    return LogResource(kind, group, name)


def _put_group(name: str, properties: Properties, *, is_new: bool) -> None:
    client = _client()
    tags = {tag["Key"]: str(tag["Value"]) for tag in properties.get("Tags", [])}
    if is_new:
        given = {"logGroupClass": properties["LogGroupClass"]} if "LogGroupClass" in properties else {}
        client.create_log_group(logGroupName=name, **given, **({"tags": tags} if tags else {}))
    else:
        known = client.list_tags_log_group(logGroupName=name)["tags"]
        if gone := [key for key in known if key not in tags]:
            client.untag_log_group(logGroupName=name, tags=gone)
        if tags:
            client.tag_log_group(logGroupName=name, tags=tags)
    if "RetentionInDays" in properties:
        client.put_retention_policy(logGroupName=name, retentionInDays=int(properties["RetentionInDays"]))
    elif not is_new:
        client.delete_retention_policy(logGroupName=name)


def _put(method: str, name: str, properties: Properties) -> None:
    """Call a method of the Logs API with a template's properties, whose names begin with capital letters."""
    client = _client()
    shape = client.meta.service_model.operation_model(client.meta.method_to_api_mapping[method]).input_shape
    given = {**_lower(properties), "filterName": name}
    for transformation in given.get("metricTransformations", []):
        pairs = transformation.get("dimensions")
        if isinstance(pairs, list):
            transformation["dimensions"] = {pair["key"]: pair["value"] for pair in pairs}
    known = {key: value for key, value in given.items() if key in shape.members}
    getattr(client, method)(**template_values.fitted(shape, known))


def _lower(value: Any) -> Any:
    if isinstance(value, dict):
        return {key[:1].lower() + key[1:]: _lower(item) for key, item in value.items()}
    return [_lower(item) for item in value] if isinstance(value, list) else value
