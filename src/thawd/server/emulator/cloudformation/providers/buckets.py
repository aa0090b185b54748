"""Makes the buckets of stacks through S3's API, with the notifications that thawd delivers.

Source: CloudFormation template reference, "AWS::S3::Bucket" and "AWS::S3::BucketPolicy", for the properties, and for
what Ref and GetAtt return.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from thawd.server.emulator.cloudformation.providers.aws_clients import Aws, tags_of
from thawd.server.emulator.cloudformation.providers.resource_kind import Kind, Made, Wanted, or_else
from thawd.server.emulator.cloudformation.stack_records import Resource

Properties = dict[str, Any]

_CONFIGURATIONS = {
    "LambdaConfigurations": ("LambdaFunctionConfigurations", "Function", "LambdaFunctionArn"),
    "QueueConfigurations": ("QueueConfigurations", "Queue", "QueueArn"),
    "TopicConfigurations": ("TopicConfigurations", "Topic", "TopicArn"),
}


def notifications_of(properties: Properties) -> Properties:
    """Return the notifications in a template's bucket, as the parameter of S3's PutBucketNotificationConfiguration."""
    given = properties.get("NotificationConfiguration") or {}
    made: Properties = {}
    for name, (api_name, target, api_target) in _CONFIGURATIONS.items():
        for each in given.get(name) or []:
            one = {"Events": [each["Event"]], api_target: each[target]}
            rules = each.get("Filter", {}).get("S3Key", {}).get("Rules", [])
            if rules:
                one["Filter"] = {"Key": {"FilterRules": [{"Name": r["Name"], "Value": r["Value"]} for r in rules]}}
            made.setdefault(api_name, []).append(one)
    bridge = given.get("EventBridgeConfiguration")
    if bridge is not None and str((bridge or {}).get("EventBridgeEnabled", True)).lower() == "true":
        made["EventBridgeConfiguration"] = {}
    return made


def _renamed(value: Properties, names: dict[str, str]) -> Properties:
    return {names.get(name, name): each for name, each in value.items()}


def _cors(given: Properties) -> Properties:
    names = {"ExposedHeaders": "ExposeHeaders", "Id": "ID", "MaxAge": "MaxAgeSeconds"}
    return {"CORSRules": [_renamed(rule, names) for rule in given.get("CorsRules") or []]}


def _encryption(given: Properties) -> Properties:
    names = {"ServerSideEncryptionByDefault": "ApplyServerSideEncryptionByDefault"}
    return {"Rules": [_renamed(rule, names) for rule in given.get("ServerSideEncryptionConfiguration") or []]}


def _website(given: Properties) -> Properties:
    made = {name: given[name] for name in ("RedirectAllRequestsTo",) if name in given}
    if "IndexDocument" in given:
        made["IndexDocument"] = {"Suffix": given["IndexDocument"]}
    if "ErrorDocument" in given:
        made["ErrorDocument"] = {"Key": given["ErrorDocument"]}
    if given.get("RoutingRules"):
        names = {"RedirectRule": "Redirect", "RoutingRuleCondition": "Condition"}
        made["RoutingRules"] = [_renamed(rule, names) for rule in given["RoutingRules"]]
    return made


def _lifecycle(given: Properties) -> Properties:
    return {"Rules": [_lifecycle_rule(rule) for rule in given.get("Rules") or []]}


def _lifecycle_rule(rule: Properties) -> Properties:
    made: Properties = {"Status": rule["Status"], "Filter": {"Prefix": rule.get("Prefix", "")}}
    if "Id" in rule:
        made["ID"] = rule["Id"]
    if "ExpirationInDays" in rule:
        made["Expiration"] = {"Days": rule["ExpirationInDays"]}
    elif "ExpiredObjectDeleteMarker" in rule:
        made["Expiration"] = {"ExpiredObjectDeleteMarker": rule["ExpiredObjectDeleteMarker"]}
    names = {"TransitionInDays": "Days", "TransitionDate": "Date"}
    transitions = rule.get("Transitions") or ([rule["Transition"]] if "Transition" in rule else [])
    if transitions:
        made["Transitions"] = [_renamed(each, names) for each in transitions]
    if "NoncurrentVersionExpiration" in rule:
        made["NoncurrentVersionExpiration"] = rule["NoncurrentVersionExpiration"]
    elif "NoncurrentVersionExpirationInDays" in rule:
        made["NoncurrentVersionExpiration"] = {"NoncurrentDays": rule["NoncurrentVersionExpirationInDays"]}
    if "AbortIncompleteMultipartUpload" in rule:
        made["AbortIncompleteMultipartUpload"] = rule["AbortIncompleteMultipartUpload"]
    return made


def _as_it_is(given: Properties) -> Properties:
    return given


# The property; the operations that set and that remove it; their parameter; how the value is translated.
_SETTINGS: tuple[tuple[str, str, str, str, Callable[[Properties], Properties]], ...] = (
    ("VersioningConfiguration", "put_bucket_versioning", "", "VersioningConfiguration", _as_it_is),
    ("CorsConfiguration", "put_bucket_cors", "delete_bucket_cors", "CORSConfiguration", _cors),
    (
        "BucketEncryption",
        "put_bucket_encryption",
        "delete_bucket_encryption",
        "ServerSideEncryptionConfiguration",
        _encryption,
    ),
    ("WebsiteConfiguration", "put_bucket_website", "delete_bucket_website", "WebsiteConfiguration", _website),
    (
        "LifecycleConfiguration",
        "put_bucket_lifecycle_configuration",
        "delete_bucket_lifecycle",
        "LifecycleConfiguration",
        _lifecycle,
    ),
    (
        "PublicAccessBlockConfiguration",
        "put_public_access_block",
        "delete_public_access_block",
        "PublicAccessBlockConfiguration",
        _as_it_is,
    ),
    (
        "OwnershipControls",
        "put_bucket_ownership_controls",
        "delete_bucket_ownership_controls",
        "OwnershipControls",
        _as_it_is,
    ),
)


def _make(aws: Aws, wanted: Wanted) -> Made:
    properties, name = wanted.properties, wanted.name
    given: Properties = {"Bucket": name, "ObjectLockEnabledForBucket": properties.get("ObjectLockEnabled")}
    if wanted.stack.region != "us-east-1":
        given["CreateBucketConfiguration"] = {"LocationConstraint": wanted.stack.region}
    aws.call("s3", "create_bucket", given)
    with or_else(lambda: aws.remove("s3", "delete_bucket", {"Bucket": name})):
        _settings(aws, name, {}, properties)
    region = wanted.stack.region
    attributes = {
        "Arn": f"arn:aws:s3:::{name}",
        "DomainName": f"{name}.s3.amazonaws.com",
        "DualStackDomainName": f"{name}.s3.dualstack.{region}.amazonaws.com",
        "RegionalDomainName": f"{name}.s3.{region}.amazonaws.com",
        "WebsiteURL": f"http://{name}.s3-website-{region}.amazonaws.com",
    }
    return Made(name, attributes, {"Bucket": name})


def _settings(aws: Aws, name: str, before: Properties, after: Properties) -> None:
    for setting, put, remove, parameter, translated in _SETTINGS:
        if before.get(setting) == after.get(setting):
            continue
        if after.get(setting):
            aws.call("s3", put, {"Bucket": name, parameter: translated(after[setting])})
        elif remove:
            aws.remove("s3", remove, {"Bucket": name})
        else:  # versioning cannot be removed
            aws.call("s3", put, {"Bucket": name, parameter: {"Status": "Suspended"}})
    if before.get("Tags") != after.get("Tags"):
        tags = [{"Key": key, "Value": value} for key, value in (tags_of(after) or {}).items()]
        if tags:
            aws.call("s3", "put_bucket_tagging", {"Bucket": name, "Tagging": {"TagSet": tags}})
        else:
            aws.remove("s3", "delete_bucket_tagging", {"Bucket": name})
    old, new = notifications_of(before), notifications_of(after)
    if old != new:
        given = {"Bucket": name, "NotificationConfiguration": new}
        aws.call("s3", "put_bucket_notification_configuration", given)


def _change(aws: Aws, resource: Resource, wanted: Wanted) -> None:
    _settings(aws, resource.physical_id, resource.properties, wanted.properties)


def _delete(aws: Aws, resource: Resource) -> None:
    if notifications_of(resource.properties) and aws.is_there("s3", "head_bucket", resource.facts):
        given = {**resource.facts, "NotificationConfiguration": {}}
        aws.call("s3", "put_bucket_notification_configuration", given)
    aws.remove("s3", "delete_bucket", resource.facts)


def _put_policy(aws: Aws, wanted: Wanted) -> Made:
    bucket, policy = wanted.properties["Bucket"], wanted.properties["PolicyDocument"]
    text = policy if isinstance(policy, str) else json.dumps(policy)
    aws.call("s3", "put_bucket_policy", {"Bucket": bucket, "Policy": text})
    return Made(bucket, {}, {"Bucket": bucket})


def _has_policy(aws: Aws, wanted: Wanted, before: Properties) -> str | None:
    bucket = wanted.properties["Bucket"]
    if before or not aws.is_there("s3", "get_bucket_policy", {"Bucket": bucket}):
        return None
    return f"The bucket policy already exists on bucket {bucket}."


KINDS: dict[str, Kind] = {
    "AWS::S3::Bucket": Kind(
        _make,
        _delete,
        _change,
        fixed=frozenset({"BucketName", "ObjectLockEnabled"}),
        named="BucketName",
        expected=lambda wanted: {"Bucket": wanted.name},
        exists=lambda aws, facts: aws.is_there("s3", "head_bucket", facts),
    ),
    "AWS::S3::BucketPolicy": Kind(
        _put_policy,
        lambda aws, resource: aws.remove("s3", "delete_bucket_policy", resource.facts),
        lambda aws, resource, wanted: _put_policy(aws, wanted),
        fixed=frozenset({"Bucket"}),
        occupied=_has_policy,
    ),
}
"""The kinds of AWS::S3, by type."""
