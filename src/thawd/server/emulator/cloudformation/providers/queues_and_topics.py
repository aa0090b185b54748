"""Makes the queues, topics and subscriptions of stacks, with their policies, through the APIs of SQS and SNS.

Source: CloudFormation template reference, "Amazon SQS" and "Amazon SNS", for the properties, and for what Ref and
GetAtt return.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from thawd.server.emulator.cloudformation.errors import ResourceError
from thawd.server.emulator.cloudformation.providers.aws_clients import Aws, tags_of
from thawd.server.emulator.cloudformation.providers.resource_kind import Kind, Made, Wanted, or_else
from thawd.server.emulator.cloudformation.stack_records import Resource

Properties = dict[str, Any]

# The values that attributes of a queue get when the template no longer has them.
_QUEUE_DEFAULTS = {
    "DelaySeconds": "0",
    "MaximumMessageSize": "1048576",
    "MessageRetentionPeriod": "345600",
    "ReceiveMessageWaitTimeSeconds": "0",
    "VisibilityTimeout": "30",
    "RedrivePolicy": "",
    "RedriveAllowPolicy": "",
    "KmsMasterKeyId": "",
    "ContentBasedDeduplication": "false",
}
_QUEUE_OTHERS = (
    "FifoQueue",
    "DeduplicationScope",
    "FifoThroughputLimit",
    "KmsDataKeyReusePeriodSeconds",
    "SqsManagedSseEnabled",
)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str) else json.dumps(value)


def _queue_attributes(properties: Properties) -> dict[str, str]:
    names = (*_QUEUE_DEFAULTS, *_QUEUE_OTHERS)
    found = {name: _text(properties[name]) for name in names if name in properties}
    if found.get("FifoQueue") == "false":
        del found["FifoQueue"]
    return found


def _make_queue(aws: Aws, wanted: Wanted) -> Made:
    properties, name = wanted.properties, wanted.name
    given = {"QueueName": name, "Attributes": _queue_attributes(properties), "tags": tags_of(properties)}
    url = aws.call("sqs", "create_queue", given)["QueueUrl"]
    arn = aws.call("sqs", "get_queue_attributes", {"QueueUrl": url, "AttributeNames": ["QueueArn"]})
    attributes = {"Arn": arn["Attributes"]["QueueArn"], "QueueName": name, "QueueUrl": url}
    return Made(url, attributes, {"QueueUrl": url})


def _change_queue(aws: Aws, resource: Resource, wanted: Wanted) -> None:
    old, new = _queue_attributes(resource.properties), _queue_attributes(wanted.properties)
    attributes = {**{name: _QUEUE_DEFAULTS[name] for name in old if name in _QUEUE_DEFAULTS}, **new}
    attributes.pop("FifoQueue", None)
    at = {"QueueUrl": resource.physical_id}
    if attributes:
        aws.call("sqs", "set_queue_attributes", {**at, "Attributes": attributes})
    before, after = tags_of(resource.properties) or {}, tags_of(wanted.properties) or {}
    if gone := sorted(before.keys() - after.keys()):
        aws.call("sqs", "untag_queue", {**at, "TagKeys": gone})
    if after:
        aws.call("sqs", "tag_queue", {**at, "Tags": after})


def _delete_queue(aws: Aws, resource: Resource) -> None:
    facts = resource.facts
    if "QueueUrl" not in facts:
        if not aws.is_there("sqs", "get_queue_url", facts):
            return
        facts = {"QueueUrl": aws.call("sqs", "get_queue_url", facts)["QueueUrl"]}
    aws.remove("sqs", "delete_queue", facts)


def _queue_exists(aws: Aws, facts: Properties) -> bool:
    return aws.is_there("sqs", "get_queue_url", facts)


def _put_queue_policy(aws: Aws, wanted: Wanted) -> Made:
    policy, queues = _text(wanted.properties["PolicyDocument"]), wanted.properties["Queues"]
    for url in queues:
        aws.call("sqs", "set_queue_attributes", {"QueueUrl": url, "Attributes": {"Policy": policy}})
    return Made(wanted.name, {"Id": wanted.name}, {"Queues": queues})


def _change_queue_policy(aws: Aws, resource: Resource, wanted: Wanted) -> Made:
    made = _put_queue_policy(aws, wanted)
    _empty_queue_policies(aws, [url for url in resource.facts["Queues"] if url not in made.facts["Queues"]])
    return Made(resource.physical_id, resource.attributes, made.facts)


def _empty_queue_policies(aws: Aws, urls: Iterable[str]) -> None:
    for url in urls:
        aws.remove("sqs", "set_queue_attributes", {"QueueUrl": url, "Attributes": {"Policy": ""}})


# Topics

_TOPIC_ATTRIBUTES = (
    "DisplayName",
    "KmsMasterKeyId",
    "ContentBasedDeduplication",
    "SignatureVersion",
    "TracingConfig",
    "ArchivePolicy",
    "FifoThroughputScope",
)
_SUBSCRIPTION_ATTRIBUTES = (
    "FilterPolicyScope",  # this comes first, because it determines how a filter policy is read
    "FilterPolicy",
    "RawMessageDelivery",
    "DeliveryPolicy",
    "RedrivePolicy",
)


def _topic_attributes(properties: Properties) -> dict[str, str]:
    found = {name: _text(properties[name]) for name in _TOPIC_ATTRIBUTES if name in properties}
    if str(properties.get("FifoTopic")).lower() == "true":
        found["FifoTopic"] = "true"
    return found


def _make_topic(aws: Aws, wanted: Wanted) -> Made:
    properties, name = wanted.properties, wanted.name
    given = {"Name": name, "Attributes": _topic_attributes(properties), "Tags": properties.get("Tags")}
    arn = aws.call("sns", "create_topic", given)["TopicArn"]
    with or_else(lambda: aws.remove("sns", "delete_topic", {"TopicArn": arn})):
        subscribed = [_subscribe(aws, {"TopicArn": arn, **each}) for each in properties.get("Subscription") or []]
    facts = {"TopicArn": arn, "Subscriptions": subscribed}
    return Made(arn, {"TopicArn": arn, "TopicName": name}, facts)


def _change_topic(aws: Aws, resource: Resource, wanted: Wanted) -> Made:
    arn, before, after = resource.physical_id, resource.properties, wanted.properties
    old, new = _topic_attributes(before), _topic_attributes(after)
    for name in [*old, *(name for name in new if name not in old)]:
        if old.get(name) != new.get(name):
            default = "false" if name == "ContentBasedDeduplication" else ""
            given = {"TopicArn": arn, "AttributeName": name, "AttributeValue": new.get(name, default)}
            aws.call("sns", "set_topic_attributes", given)
    subscribed = list(resource.facts.get("Subscriptions", []))
    if before.get("Subscription") != after.get("Subscription"):
        kept = [_subscribe(aws, {"TopicArn": arn, **each}) for each in after.get("Subscription") or []]
        for gone in [one for one in subscribed if one not in kept]:
            aws.remove("sns", "unsubscribe", {"SubscriptionArn": gone})
        subscribed = kept
    return Made(arn, resource.attributes, {**resource.facts, "Subscriptions": subscribed})


def _delete_topic(aws: Aws, resource: Resource) -> None:
    arn = resource.facts["TopicArn"]
    for subscription in resource.facts.get("Subscriptions", []):
        aws.remove("sns", "unsubscribe", {"SubscriptionArn": subscription})
    aws.remove("sns", "delete_topic", {"TopicArn": arn})


def _topic_facts(wanted: Wanted) -> Properties:
    return {"TopicArn": f"arn:aws:sns:{wanted.stack.region}:{wanted.stack.account}:{wanted.name}"}


def _put_topic_policy(aws: Aws, wanted: Wanted) -> Made:
    topics = wanted.properties["Topics"]
    policy = _text(wanted.properties["PolicyDocument"])
    for arn in topics:
        given = {"TopicArn": arn, "AttributeName": "Policy", "AttributeValue": policy}
        aws.call("sns", "set_topic_attributes", given)
    return Made(wanted.name, {"Id": wanted.name}, {"Topics": topics})


def _subscribe(aws: Aws, properties: Properties) -> str:
    given = {name: properties.get(name) for name in ("TopicArn", "Protocol", "Endpoint")}
    given["ReturnSubscriptionArn"] = True
    if given["Protocol"] is None:
        raise ResourceError("the property Protocol is missing")
    listed = aws.call("sns", "list_subscriptions_by_topic", {"TopicArn": given["TopicArn"]})["Subscriptions"]
    arn: str = aws.call("sns", "subscribe", given)["SubscriptionArn"]

    def undo() -> None:
        if arn not in {one["SubscriptionArn"] for one in listed}:  # SNS returns an equal subscription that exists
            aws.remove("sns", "unsubscribe", {"SubscriptionArn": arn})

    with or_else(undo):
        for name in _SUBSCRIPTION_ATTRIBUTES:
            if name in properties:
                _set_attribute(aws, arn, name, _text(properties[name]))
    return arn


def _set_attribute(aws: Aws, arn: str, name: str, value: str) -> None:
    given = {"SubscriptionArn": arn, "AttributeName": name, "AttributeValue": value}
    aws.call("sns", "set_subscription_attributes", given)


def _make_subscription(aws: Aws, wanted: Wanted) -> Made:
    arn = _subscribe(aws, wanted.properties)
    return Made(arn, {"Arn": arn}, {"SubscriptionArn": arn})


def _change_subscription(aws: Aws, resource: Resource, wanted: Wanted) -> None:
    before, after = resource.properties, wanted.properties
    for name in _SUBSCRIPTION_ATTRIBUTES:
        if before.get(name) != after.get(name):
            empty = "false" if name == "RawMessageDelivery" else "{}" if name == "FilterPolicy" else ""
            if name in after or name != "FilterPolicyScope":
                _set_attribute(aws, resource.physical_id, name, _text(after.get(name, empty)))


KINDS: dict[str, Kind] = {
    "AWS::SQS::Queue": Kind(
        _make_queue,
        _delete_queue,
        _change_queue,
        fixed=frozenset({"QueueName", "FifoQueue"}),
        named="QueueName",
        expected=lambda wanted: {"QueueName": wanted.name},
        exists=_queue_exists,
    ),
    "AWS::SQS::QueuePolicy": Kind(
        _put_queue_policy,
        lambda aws, resource: _empty_queue_policies(aws, resource.facts["Queues"]),
        _change_queue_policy,
    ),
    "AWS::SNS::Topic": Kind(
        _make_topic,
        _delete_topic,
        _change_topic,
        fixed=frozenset({"TopicName", "FifoTopic"}),
        named="TopicName",
        expected=_topic_facts,
        exists=lambda aws, facts: aws.is_there("sns", "get_topic_attributes", facts),
    ),
    "AWS::SNS::TopicPolicy": Kind(
        _put_topic_policy,
        lambda aws, resource: None,  # the policy is deleted with the topic
        lambda aws, resource, wanted: _put_topic_policy(aws, wanted),
    ),
    "AWS::SNS::Subscription": Kind(
        _make_subscription,
        lambda aws, resource: aws.remove("sns", "unsubscribe", resource.facts),
        _change_subscription,
        fixed=frozenset({"TopicArn", "Protocol", "Endpoint"}),
    ),
}
"""The kinds of AWS::SQS and AWS::SNS, by type."""
