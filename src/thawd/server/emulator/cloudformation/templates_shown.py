"""Summarises a template for GetTemplateSummary and ValidateTemplate: parameters, types, capabilities."""

from __future__ import annotations

import json
from typing import Any

from thawd.deploy.templates import template_parsing
from thawd.deploy.templates.preparation import transforms_of
from thawd.deploy.templates.refusals import TemplateError
from thawd.server.emulator.cloudformation import capabilities
from thawd.server.emulator.cloudformation.errors import StackError

_CONSTRAINTS = (
    "AllowedValues",
    "AllowedPattern",
    "ConstraintDescription",
    "MinLength",
    "MaxLength",
    "MinValue",
    "MaxValue",
)
View = dict[str, Any]


def parsed(template: str) -> View:
    """The document of a template.

    Raises:
        StackError: it cannot be parsed.
    """
    try:
        return template_parsing.parse(template)
    except TemplateError as error:
        raise StackError(error.message) from error


def summary_of(template: str) -> View:
    """The answer of GetTemplateSummary.

    Raises:
        StackError: the template cannot be parsed.
    """
    document = parsed(template)
    resources = _map(document, "Resources")
    needs, reason = _capabilities(document, resources)
    found: View = {
        "Parameters": [_parameter(name, declared) for name, declared in _map(document, "Parameters").items()],
        "Description": document.get("Description"),
        "Capabilities": needs or None,
        "CapabilitiesReason": reason,
        "ResourceTypes": list(dict.fromkeys(str(each.get("Type")) for each in resources.values())),
        "Version": document.get("AWSTemplateFormatVersion"),
        "Metadata": json.dumps(document["Metadata"]) if "Metadata" in document else None,
        "DeclaredTransforms": _transforms(document),
        "ResourceIdentifierSummaries": [],
    }
    return {name: value for name, value in found.items() if value is not None}


def validation_of(template: str) -> View:
    """The answer of ValidateTemplate.

    Raises:
        StackError: the template is wrong.
    """
    document = parsed(template)
    if not _map(document, "Resources"):
        raise StackError("Template format error: At least one Resources member must be defined.")
    summary = summary_of(template)
    parameters = [
        {name: value for name, value in one.items() if name not in ("ParameterType", "ParameterConstraints")}
        for one in summary["Parameters"]
    ]
    names = ("Capabilities", "CapabilitiesReason", "DeclaredTransforms")
    kept = {name: summary[name] for name in names if name in summary}
    return {"Parameters": parameters, "Description": summary.get("Description", ""), **kept}


def _map(document: View, name: str) -> View:
    found = document.get(name) or {}
    if not isinstance(found, dict) or not all(isinstance(each, dict) for each in found.values()):
        raise StackError(f"Template format error: Every {name} member must be an object.")
    return found


def capabilities_of(template: str) -> list[str]:
    """The capabilities that the resources of a template need, as it is written.

    Raises:
        StackError: the template cannot be parsed.
    """
    resources = _map(parsed(template), "Resources").values()
    declared = [(str(each.get("Type")), each.get("Properties") or {}) for each in resources]
    return capabilities.needed(declared, ())


def transforms_in(template: str) -> list[str]:
    """The names of a template's transforms.

    Raises:
        StackError: the template cannot be parsed.
    """
    return _transforms(parsed(template))


def _transforms(document: View) -> list[str]:
    try:
        return transforms_of(document)
    except TemplateError as error:
        raise StackError(error.message) from error


def _parameter(name: str, declared: View) -> View:
    default = declared.get("Default")
    found = {
        "ParameterKey": name,
        "DefaultValue": None if default is None else str(default),
        "ParameterType": declared.get("Type", "String"),
        "NoEcho": str(declared.get("NoEcho", False)).lower() == "true",
        "Description": declared.get("Description"),
        "ParameterConstraints": {
            key: [str(each) for each in declared[key]] if key == "AllowedValues" else str(declared[key])
            for key in _CONSTRAINTS
            if key in declared
        },
    }
    return {key: value for key, value in found.items() if value is not None}


def _capabilities(document: View, resources: View) -> tuple[list[str], str | None]:
    declared = [(str(each.get("Type")), each.get("Properties") or {}) for each in resources.values()]
    iam = sorted({kind for kind, _ in declared if kind in capabilities.TYPES})
    reason = f"The following resource(s) require capabilities: [{', '.join(iam)}]" if iam else None
    return capabilities.needed(declared, _transforms(document)), reason
