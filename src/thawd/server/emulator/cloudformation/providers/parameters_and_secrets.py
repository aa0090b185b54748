"""Makes the parameters and secrets of stacks through the APIs of Systems Manager and Secrets Manager.

Source: CloudFormation template reference, "AWS::SSM::Parameter" and "AWS Secrets Manager", for the properties, and for
what Ref and GetAtt return.
"""

from __future__ import annotations

import json
from typing import Any

from thawd.server.emulator.cloudformation.errors import ResourceError
from thawd.server.emulator.cloudformation.providers.aws_clients import Aws, tags_of
from thawd.server.emulator.cloudformation.providers.resource_kind import Kind, Made, Wanted
from thawd.server.emulator.cloudformation.stack_records import Resource

Properties = dict[str, Any]


def _put_parameter(aws: Aws, name: str, properties: Properties, *, overwrite: bool) -> Made:
    value = properties.get("Value")
    text = ",".join(value) if isinstance(value, list) else value
    given = {**properties, "Name": name, "Value": text, "Overwrite": overwrite, "Tags": None}
    tags = tags_of(properties)
    if tags and not overwrite:
        given["Tags"] = [{"Key": key, "Value": each} for key, each in tags.items()]
    aws.call("ssm", "put_parameter", given)
    return Made(name, {"Type": properties.get("Type", "String"), "Value": text}, {"Name": name})


def _make_secret(aws: Aws, wanted: Wanted) -> Made:
    properties = wanted.properties
    tags = tags_of(properties)
    given = {
        "Name": wanted.name,
        "Description": properties.get("Description"),
        "KmsKeyId": properties.get("KmsKeyId"),
        "SecretString": properties.get("SecretString", _generated(aws, properties)),
        "Tags": [{"Key": key, "Value": value} for key, value in tags.items()] if tags else None,
    }
    arn = aws.call("secretsmanager", "create_secret", given)["ARN"]
    return Made(arn, {"Id": arn}, {"SecretId": arn})


def _generated(aws: Aws, properties: Properties) -> str | None:
    rule = properties.get("GenerateSecretString")
    if rule is None:
        return None
    password: str = aws.call("secretsmanager", "get_random_password", rule)["RandomPassword"]
    if "GenerateStringKey" not in rule:
        return password
    try:
        template = json.loads(rule.get("SecretStringTemplate", "{}"))
    except ValueError as error:
        raise ResourceError(f"SecretStringTemplate is not JSON: {error}") from error
    return json.dumps({**template, rule["GenerateStringKey"]: password})


def _change_secret(aws: Aws, resource: Resource, wanted: Wanted) -> None:
    before, after = resource.properties, wanted.properties
    given = {"SecretId": resource.physical_id, "Description": after.get("Description", "")}
    if after.get("SecretString") != before.get("SecretString") and "SecretString" in after:
        given["SecretString"] = after["SecretString"]
    elif after.get("GenerateSecretString") != before.get("GenerateSecretString"):
        given["SecretString"] = _generated(aws, after)
    aws.call("secretsmanager", "update_secret", given)
    old, new = tags_of(before) or {}, tags_of(after) or {}
    at = {"SecretId": resource.physical_id}
    if gone := sorted(old.keys() - new.keys()):
        aws.call("secretsmanager", "untag_resource", {**at, "TagKeys": gone})
    if new:
        tags = [{"Key": key, "Value": value} for key, value in new.items()]
        aws.call("secretsmanager", "tag_resource", {**at, "Tags": tags})


def _delete_secret(aws: Aws, resource: Resource) -> None:
    aws.remove("secretsmanager", "delete_secret", {**resource.facts, "ForceDeleteWithoutRecovery": True})


def _put_secret_policy(aws: Aws, wanted: Wanted) -> Made:
    properties = wanted.properties
    policy = json.dumps(properties["ResourcePolicy"])
    secret = {"SecretId": properties["SecretId"]}
    aws.call("secretsmanager", "put_resource_policy", {**secret, "ResourcePolicy": policy})
    return Made(properties["SecretId"], {"Id": properties["SecretId"]}, secret)


def _rotate(aws: Aws, wanted: Wanted) -> Made:
    properties = wanted.properties
    if "HostedRotationLambda" in properties:
        raise ResourceError("thawd has no rotation functions of AWS; give a function with RotationLambdaARN")
    secret = {"SecretId": properties["SecretId"]}
    given = {
        **secret,
        "RotationLambdaARN": properties.get("RotationLambdaARN"),
        "RotationRules": properties.get("RotationRules"),
        "RotateImmediately": properties.get("RotateImmediatelyOnUpdate"),
    }
    aws.call("secretsmanager", "rotate_secret", given)
    return Made(properties["SecretId"], {"Id": properties["SecretId"]}, secret)


KINDS: dict[str, Kind] = {
    "AWS::SSM::Parameter": Kind(
        lambda aws, wanted: _put_parameter(aws, wanted.name, wanted.properties, overwrite=False),
        lambda aws, resource: aws.remove("ssm", "delete_parameter", resource.facts),
        lambda aws, resource, wanted: _put_parameter(aws, resource.physical_id, wanted.properties, overwrite=True),
        fixed=frozenset({"Name"}),
        named="Name",
        expected=lambda wanted: {"Name": wanted.name},
        exists=lambda aws, facts: aws.is_there("ssm", "get_parameter", facts),
    ),
    "AWS::SecretsManager::Secret": Kind(
        _make_secret,
        _delete_secret,
        _change_secret,
        fixed=frozenset({"Name"}),
        named="Name",
        expected=lambda wanted: {"SecretId": wanted.name},
        exists=lambda aws, facts: aws.is_there("secretsmanager", "describe_secret", facts),
    ),
    "AWS::SecretsManager::ResourcePolicy": Kind(
        _put_secret_policy,
        lambda aws, resource: aws.remove("secretsmanager", "delete_resource_policy", resource.facts),
        lambda aws, resource, wanted: _put_secret_policy(aws, wanted),
        fixed=frozenset({"SecretId"}),
    ),
    "AWS::SecretsManager::RotationSchedule": Kind(
        _rotate,
        lambda aws, resource: aws.remove("secretsmanager", "cancel_rotate_secret", resource.facts),
        lambda aws, resource, wanted: _rotate(aws, wanted),
        fixed=frozenset({"SecretId"}),
    ),
}
"""The kinds of parameters and secrets, by type."""
