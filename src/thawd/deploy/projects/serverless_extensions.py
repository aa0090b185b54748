"""The section ``resources.extensions`` of serverless.yml: changes of the resources that Serverless makes.

Serverless makes resources of CloudFormation, and thawd makes some of them by resources of SAM, which have the same
logical ids. So some properties get another form here. What thawd has no place for is named.

Source: Serverless Framework documentation, "AWS Infrastructure Resources", "Override AWS CloudFormation Resource".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from thawd.deploy.projects.stacks import ProjectError

_REPLACED = ("Condition", "CreationPolicy", "DeletionPolicy", "UpdatePolicy", "UpdateReplacePolicy")
_MERGED = ("Properties", "Metadata")
_FUNCTION = "AWS::Serverless::Function"
# Properties of AWS::Lambda::Function, of a REST API and of an HTTP API that SAM takes as they are.
_AS_THEY_ARE: Mapping[str, tuple[str, ...]] = {
    _FUNCTION: (
        *("Architectures", "Description", "Environment", "EphemeralStorage", "FileSystemConfigs", "FunctionName"),
        *("Handler", "ImageConfig", "KmsKeyArn", "Layers", "LoggingConfig", "MemorySize", "PackageType"),
        *("RecursiveLoop", "ReservedConcurrentExecutions", "Role", "Runtime", "RuntimeManagementConfig", "SnapStart"),
        *("Timeout", "VpcConfig"),
    ),
    "AWS::Serverless::Api": ("BinaryMediaTypes", "Description", "MinimumCompressionSize", "Mode", "Name"),
    "AWS::Serverless::HttpApi": ("CorsConfiguration", "Description", "DisableExecuteApiEndpoint", "Name"),
}


def _tags(value: Any) -> Any:
    return {each["Key"]: each["Value"] for each in value}


def _dead_letters(value: Any) -> Any:
    target = value["TargetArn"]
    return {"Type": "SNS" if isinstance(target, str) and ":sns:" in target else "SQS", "TargetArn": target}


_CONVERTED: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "DeadLetterConfig": ("DeadLetterQueue", _dead_letters),
    "Tags": ("Tags", _tags),
    "TracingConfig": ("Tracing", lambda value: value["Mode"]),
}
"""Properties of functions with SAM's name of them, and what makes SAM's form."""


def extend(resources: dict[str, Any], extensions: Any, notes: list[str]) -> None:
    """Change resources as extensions say.

    Args:
        resources: the template's resources, by logical id.
        extensions: the section.
        notes: gets a line for each part that is left out.

    Raises:
        ProjectError: the section is malformed, or has an attribute that Serverless does not know.
    """
    where = "resources.extensions"
    if not isinstance(extensions, dict) or not all(isinstance(each, dict) for each in extensions.values()):
        raise ProjectError(f"serverless.yml: {where} must be a map of maps")
    for name, extension in extensions.items():
        resource = resources.get(name)
        if resource is None:
            notes.append(f"{where}.{name} is left out: thawd makes no resource {name}")
            continue
        for attribute, value in extension.items():
            if attribute in _REPLACED:
                resource[attribute] = value
            elif attribute == "DependsOn":
                before = resource.get("DependsOn") or []
                both = [each if isinstance(each, list) else [each] for each in (before, value)]
                resource["DependsOn"] = [*both[0], *both[1]]
            elif attribute in _MERGED:
                given = value if attribute == "Metadata" else _properties(name, resource["Type"], value, notes)
                resource[attribute] = {**(resource.get(attribute) or {}), **given}
            else:
                raise ProjectError(f"serverless.yml: {where}.{name}: {attribute} cannot be extended")


def _properties(name: str, kind: str, given: Any, notes: list[str]) -> dict[str, Any]:
    """Return the properties of an extension in the form that the resource has."""
    known = _AS_THEY_ARE.get(kind)
    if not isinstance(given, dict):
        raise ProjectError(f"serverless.yml: resources.extensions.{name}.Properties must be a map")
    if known is None:
        return dict(given)
    made: dict[str, Any] = {}
    for key, value in given.items():
        where = f"resources.extensions.{name}.Properties.{key}"
        if key in known:
            made[key] = value
        elif kind == _FUNCTION and key in _CONVERTED:
            ours, convert = _CONVERTED[key]
            try:
                made[ours] = convert(value)
            except (KeyError, TypeError) as error:
                raise ProjectError(f"serverless.yml: {where} is malformed") from error
        else:
            notes.append(f"{where} is left out: thawd has no place for it")
    return made
