"""Makes the roles and policies of stacks through IAM's API. They are recorded; thawd does not enforce them.

Source: CloudFormation template reference, "AWS Identity and Access Management", for the properties, and for what Ref
and GetAtt return.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from thawd.server.emulator.cloudformation.providers.aws_clients import Aws, is_gone, tags_of
from thawd.server.emulator.cloudformation.providers.resource_kind import Kind, Made, Wanted, or_else
from thawd.server.emulator.cloudformation.stack_records import Resource

Properties = dict[str, Any]

# The kinds of principals to which policies belong: the property, IAM's word, and the parameter with the name.
_PRINCIPALS = (("Roles", "role", "RoleName"), ("Users", "user", "UserName"), ("Groups", "group", "GroupName"))


def _document(value: Any) -> str:
    """Return a policy as a text.

    Without a version, as in SAM's policies, IAM takes an old one, which moto does not accept.
    """
    if isinstance(value, dict):
        value = {"Version": "2012-10-17"} | value
        if value["Version"] == "2008-10-17":
            value["Version"] = "2012-10-17"
    return value if isinstance(value, str) else json.dumps(value)


def _make_role(aws: Aws, wanted: Wanted) -> Made:
    properties, name = wanted.properties, wanted.name
    tags = tags_of(properties)
    given = {
        "RoleName": name,
        "AssumeRolePolicyDocument": _document(properties["AssumeRolePolicyDocument"]),
        "Path": properties.get("Path"),
        "PermissionsBoundary": properties.get("PermissionsBoundary"),
        "Description": properties.get("Description"),
        "MaxSessionDuration": properties.get("MaxSessionDuration"),
        "Tags": [{"Key": key, "Value": value} for key, value in tags.items()] if tags else None,
    }
    role = aws.call("iam", "create_role", given)["Role"]
    with or_else(lambda: _delete_role(aws, name)):
        _role_policies(aws, name, {}, properties)
    return Made(name, {"Arn": role["Arn"], "RoleId": role["RoleId"]}, {"RoleName": name})


def _role_policies(aws: Aws, name: str, before: Properties, after: Properties) -> None:
    role = {"RoleName": name}
    old = {policy["PolicyName"]: policy["PolicyDocument"] for policy in before.get("Policies") or []}
    new = {policy["PolicyName"]: policy["PolicyDocument"] for policy in after.get("Policies") or []}
    for policy in sorted(old.keys() - new.keys()):
        aws.remove("iam", "delete_role_policy", {**role, "PolicyName": policy})
    for policy, document in new.items():
        aws.call("iam", "put_role_policy", {**role, "PolicyName": policy, "PolicyDocument": _document(document)})
    attached, wanted = before.get("ManagedPolicyArns") or [], after.get("ManagedPolicyArns") or []
    for arn in [arn for arn in attached if arn not in wanted]:
        aws.remove("iam", "detach_role_policy", {**role, "PolicyArn": arn})
    for arn in [arn for arn in wanted if arn not in attached]:
        _attach(aws, "role", {**role, "PolicyArn": arn})


def _attach(aws: Aws, principal: str, given: Properties) -> None:
    """Attach a managed policy. The emulator does not have AWS's own policies, so those are not attached."""
    from botocore.exceptions import ClientError

    try:
        aws.call("iam", f"attach_{principal}_policy", given)
    except ClientError as error:
        if not (is_gone(error) and str(given["PolicyArn"]).startswith("arn:aws:iam::aws:policy/")):
            raise


def _change_role(aws: Aws, resource: Resource, wanted: Wanted) -> None:
    before, after, role = resource.properties, wanted.properties, {"RoleName": resource.physical_id}
    policy = _document(after["AssumeRolePolicyDocument"])
    aws.call("iam", "update_assume_role_policy", {**role, "PolicyDocument": policy})
    duration = after.get("MaxSessionDuration", 3600)
    settings = {"Description": after.get("Description", ""), "MaxSessionDuration": duration}
    aws.call("iam", "update_role", {**role, **settings})
    _role_policies(aws, resource.physical_id, before, after)
    old, new = tags_of(before) or {}, tags_of(after) or {}
    if gone := sorted(old.keys() - new.keys()):
        aws.call("iam", "untag_role", {**role, "TagKeys": gone})
    if new:
        aws.call("iam", "tag_role", {**role, "Tags": [{"Key": key, "Value": value} for key, value in new.items()]})


def _delete_role(aws: Aws, name: str) -> None:
    role = {"RoleName": name}
    if not aws.is_there("iam", "get_role", role):
        return
    for policy in aws.call("iam", "list_role_policies", role)["PolicyNames"]:
        aws.remove("iam", "delete_role_policy", {**role, "PolicyName": policy})
    for attached in aws.call("iam", "list_attached_role_policies", role)["AttachedPolicies"]:
        aws.remove("iam", "detach_role_policy", {**role, "PolicyArn": attached["PolicyArn"]})
    for profile in aws.call("iam", "list_instance_profiles_for_role", role)["InstanceProfiles"]:
        given = {**role, "InstanceProfileName": profile["InstanceProfileName"]}
        aws.remove("iam", "remove_role_from_instance_profile", given)
    aws.remove("iam", "delete_role", role)


# Policies


def _principals(properties: Properties) -> list[tuple[str, str, str]]:
    return [(word, field, name) for key, word, field in _PRINCIPALS for name in properties.get(key) or []]


def _put_inline(aws: Aws, wanted: Wanted) -> Made:
    properties = wanted.properties
    policy = {"PolicyName": properties["PolicyName"], "PolicyDocument": _document(properties["PolicyDocument"])}
    for word, field, name in _principals(properties):
        aws.call("iam", f"put_{word}_policy", {field: name, **policy})
    return Made(wanted.name, {"Id": wanted.name}, {"PolicyName": properties["PolicyName"]})


def _inline_is_taken(aws: Aws, wanted: Wanted, before: Properties) -> str | None:
    """Return which principal has another inline policy of this name.

    Source: AWS's notice to accounts, effective 2026-01-30: CloudFormation blocks operations on a policy of the type
    AWS::IAM::Policy that several stacks share. Before, the last one overwrote the others.
    """
    policy = wanted.properties["PolicyName"]
    own = _principals(before) if before.get("PolicyName") == policy else []
    for word, field, name in _principals(wanted.properties):
        place = {field: name, "PolicyName": policy}
        if (word, field, name) not in own and aws.is_there("iam", f"get_{word}_policy", place):
            return (
                f"The {word} {name} already has an inline policy {policy}, which this resource would overwrite: give "
                "one of the two another PolicyName"
            )
    return None


def _change_inline(aws: Aws, resource: Resource, wanted: Wanted) -> Made:
    kept = _principals(wanted.properties)
    has_new_name = resource.properties["PolicyName"] != wanted.properties["PolicyName"]
    made = _put_inline(aws, wanted)
    _remove_inline(aws, resource, [one for one in _principals(resource.properties) if has_new_name or one not in kept])
    return Made(resource.physical_id, resource.attributes, made.facts)


def _remove_inline(aws: Aws, resource: Resource, principals: Iterable[tuple[str, str, str]]) -> None:
    for word, field, name in principals:
        given = {field: name, "PolicyName": resource.properties["PolicyName"]}
        aws.remove("iam", f"delete_{word}_policy", given)


def _make_managed(aws: Aws, wanted: Wanted) -> Made:
    properties = wanted.properties
    tags = tags_of(properties)
    given = {
        "PolicyName": wanted.name,
        "Path": properties.get("Path"),
        "Description": properties.get("Description"),
        "PolicyDocument": _document(properties["PolicyDocument"]),
        "Tags": [{"Key": key, "Value": value} for key, value in tags.items()] if tags else None,
    }
    made = aws.call("iam", "create_policy", given)["Policy"]
    arn = made["Arn"]
    with or_else(lambda: _delete_managed(aws, arn)):
        for word, field, name in _principals(properties):
            _attach(aws, word, {field: name, "PolicyArn": arn})
    return Made(arn, {"PolicyArn": arn, "PolicyId": made["PolicyId"]}, {"PolicyArn": arn})


def _change_managed(aws: Aws, resource: Resource, wanted: Wanted) -> None:
    arn, before, after = resource.physical_id, resource.properties, wanted.properties
    if before.get("PolicyDocument") != after.get("PolicyDocument"):
        _delete_old_versions(aws, arn)
        document = _document(after["PolicyDocument"])
        aws.call("iam", "create_policy_version", {"PolicyArn": arn, "PolicyDocument": document, "SetAsDefault": True})
    old, new = _principals(before), _principals(after)
    for word, field, name in [one for one in old if one not in new]:
        aws.remove("iam", f"detach_{word}_policy", {field: name, "PolicyArn": arn})
    for word, field, name in [one for one in new if one not in old]:
        _attach(aws, word, {field: name, "PolicyArn": arn})


def _delete_old_versions(aws: Aws, arn: str) -> None:
    for version in aws.call("iam", "list_policy_versions", {"PolicyArn": arn})["Versions"]:
        if not version["IsDefaultVersion"]:
            aws.remove("iam", "delete_policy_version", {"PolicyArn": arn, "VersionId": version["VersionId"]})


def _delete_managed(aws: Aws, arn: str) -> None:
    policy = {"PolicyArn": arn}
    if not aws.is_there("iam", "get_policy", policy):
        return
    attached = aws.call("iam", "list_entities_for_policy", policy)
    for _, word, field in _PRINCIPALS:
        for one in attached.get(f"Policy{word.capitalize()}s", []):
            aws.remove("iam", f"detach_{word}_policy", {field: one[field], **policy})
    _delete_old_versions(aws, arn)
    aws.remove("iam", "delete_policy", policy)


def _managed_facts(wanted: Wanted) -> Properties:
    path = wanted.properties.get("Path", "/")
    return {"PolicyArn": f"arn:aws:iam::{wanted.stack.account}:policy{path}{wanted.name}"}


KINDS: dict[str, Kind] = {
    "AWS::IAM::Role": Kind(
        _make_role,
        lambda aws, resource: _delete_role(aws, resource.facts["RoleName"]),
        _change_role,
        fixed=frozenset({"RoleName", "Path"}),
        named="RoleName",
        expected=lambda wanted: {"RoleName": wanted.name},
        exists=lambda aws, facts: aws.is_there("iam", "get_role", facts),
    ),
    "AWS::IAM::Policy": Kind(
        _put_inline,
        lambda aws, resource: _remove_inline(aws, resource, _principals(resource.properties)),
        _change_inline,
        expected=lambda wanted: {"PolicyName": wanted.properties["PolicyName"]},
        occupied=_inline_is_taken,
    ),
    "AWS::IAM::ManagedPolicy": Kind(
        _make_managed,
        lambda aws, resource: _delete_managed(aws, resource.facts["PolicyArn"]),
        _change_managed,
        fixed=frozenset({"ManagedPolicyName", "Path", "Description"}),
        named="ManagedPolicyName",
        expected=_managed_facts,
        exists=lambda aws, facts: aws.is_there("iam", "get_policy", facts),
    ),
}
"""The kinds of AWS::IAM whose changes moto's classes would lose, by type."""
