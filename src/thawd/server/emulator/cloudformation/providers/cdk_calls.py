"""Does the work of CDK's custom resource that calls one operation of AWS's API (`AwsCustomResource`).

Source: AWS CDK API reference, `custom_resources.AwsCustomResource` and `AwsSdkCall`.
"""

from __future__ import annotations

import json
import re
from typing import Any

from thawd.server.emulator.cloudformation.errors import ResourceError
from thawd.server.emulator.cloudformation.providers.aws_clients import Aws

# Names of services in AWS's SDK for JavaScript that boto3 names differently, without hyphens.
_SERVICES = {
    "cloudwatchlogs": "logs",
    "cognitoidentityprovider": "cognito-idp",
    "cognitoidentity": "cognito-identity",
    "cloudwatchevents": "events",
    "eventbridge": "events",
    "sfn": "stepfunctions",
    "ses": "ses",
    "elasticloadbalancingv2": "elbv2",
}
_PACKAGE = "@aws-sdk/client-"
_OWN_ID = "PHYSICAL:RESOURCEID:"

Properties = dict[str, Any]


def call(aws: Aws, request: str, properties: Properties, more: Properties) -> Properties:
    """Make the call that the resource declares for this kind of request, if it declares one.

    Raises:
        ResourceError: the service is unknown, or refuses.
    """
    identity = {"PhysicalResourceId": more.get("PhysicalResourceId") or ""}
    text = properties.get(request) or (properties.get("Create") if request == "Update" else None)
    if not properties.get(request):
        return _named(properties, text, identity, {}) if request != "Delete" else identity
    wanted = json.loads(properties[request])
    parameters = _with_id(wanted.get("parameters") or {}, identity["PhysicalResourceId"])
    found: Properties = {}
    try:
        found = _flat(_answer(aws, wanted, parameters))
    except Exception as error:
        code = getattr(error, "response", {}).get("Error", {}).get("Code", type(error).__name__)
        ignored = wanted.get("ignoreErrorCodesMatching")
        if not ignored or not re.search(ignored, code):
            raise ResourceError(f"{wanted['service']} {wanted['action']}: {error}") from error
    paths = wanted.get("outputPaths") or ([wanted["outputPath"]] if wanted.get("outputPath") else None)
    if paths is not None:
        data = {name: value for name, value in found.items() if any(name.startswith(path) for path in paths)}
    else:
        data = found
    return {**_named(properties, properties[request], identity, found), "Data": data}


def _answer(aws: Aws, wanted: Properties, parameters: Properties) -> Properties:
    from botocore import xform_name

    service = str(wanted["service"]).removeprefix(_PACKAGE).replace("-", "").lower()
    action = str(wanted["action"]).removesuffix("Command")
    return aws.call(_SERVICES.get(service, service), xform_name(action[:1].upper() + action[1:]), parameters)


def _named(properties: Properties, text: Any, identity: Properties, found: Properties) -> Properties:
    """Return the physical id that the call gives the resource. If it gives none, return the present one."""
    rule = json.loads(text).get("physicalResourceId") or {} if text else {}
    identifier = rule.get("id") or found.get(rule.get("responsePath", "")) or identity["PhysicalResourceId"]
    if not identifier:
        raise ResourceError("the call names no physical id")
    return {"PhysicalResourceId": str(identifier)}


def _with_id(value: Any, identifier: str) -> Any:
    """Return parameters with the placeholder of the physical id replaced by the id."""
    if isinstance(value, dict):
        return {name: _with_id(each, identifier) for name, each in value.items()}
    if isinstance(value, list):
        return [_with_id(each, identifier) for each in value]
    return identifier if value == _OWN_ID else value


def _flat(value: Any, path: str = "") -> Properties:
    """Return the single values of an answer, by their paths: ``Parameter.Value``, ``Buckets.0.Name``."""
    if isinstance(value, dict):
        pairs = [(str(name), each) for name, each in value.items() if name != "ResponseMetadata"]
    elif isinstance(value, list):
        pairs = [(str(number), each) for number, each in enumerate(value)]
    elif hasattr(value, "read"):
        return {path: value.read().decode(errors="replace")}
    else:
        return {path: value if isinstance(value, str | int | float | bool) else str(value)}
    flat: Properties = {}
    for name, each in pairs:
        flat |= _flat(each, f"{path}.{name}" if path else name)
    return flat
