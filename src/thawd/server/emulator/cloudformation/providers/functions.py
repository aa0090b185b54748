"""Makes the functions of stacks, and what belongs to them, through thawd's Lambda API.

A type of AWS::Lambda that this module does not know is refused, and so is the stack.

Source: CloudFormation template reference, "AWS Lambda", for the properties, and for what Ref and GetAtt return.
"""

from __future__ import annotations

import io
import threading
import time
import zipfile
from typing import Any

from thawd.server.emulator import inline_modules
from thawd.server.emulator.cloudformation.errors import ResourceError
from thawd.server.emulator.cloudformation.providers import cdk_handlers, cdk_providers
from thawd.server.emulator.cloudformation.providers.aws_clients import Aws, is_gone, tags_of
from thawd.server.emulator.cloudformation.providers.resource_kind import Kind, Made, Wanted, or_else
from thawd.server.emulator.cloudformation.stack_records import Resource

PREFIX = "AWS::Lambda::"
# How long to wait for a function at most. Its state is polled every tenth of a second.
_LOOKS = 6000
_LOOK_S = 0.1
# The precision of the times of event source mappings.
_CLOCK_S = 1.0
_NOT_GIVEN = (
    "Code",
    "Tags",
    "ReservedConcurrentExecutions",
    "RecursiveLoop",
    "RuntimeManagementConfig",
    "KmsKeyArn",
    "FunctionScalingConfig",
    "PublishToLatestPublished",
)

Properties = dict[str, Any]
# Held while a version is published, so that of two resources one sees the version of the other.
_PUBLISHING = threading.Lock()


def _function_name(wanted: Wanted) -> Properties:
    return {"FunctionName": wanted.name}


def _make_function(aws: Aws, wanted: Wanted) -> Made:
    properties, name = wanted.properties, wanted.name
    record = cdk_handlers.recorded(aws, wanted) or cdk_providers.recorded(wanted)
    if record is not None:
        return record
    given = {**_configuration(properties), "FunctionName": name, "Code": _code(properties), "Tags": tags_of(properties)}
    arn = aws.call("lambda", "create_function", given)["FunctionArn"]
    with or_else(lambda: aws.remove("lambda", "delete_function", {"FunctionName": name})):
        _settings(aws, name, {}, properties)
        _wait(aws, name)
    return Made(name, {"Arn": arn}, {"FunctionName": name})


def _change_function(aws: Aws, resource: Resource, wanted: Wanted) -> Made | None:
    if resource.facts.get("is_recorded"):
        return None
    client, name, before, after = aws.client("lambda"), resource.physical_id, resource.properties, wanted.properties
    kept = ("Architectures", "PackageType")
    old, new = _configuration(before), _configuration(after)
    if old != new:
        # A property that is no longer in the template returns to its default.
        configuration = {**{name: _DEFAULTS[name] for name in old if name in _DEFAULTS}, **new}
        given = {key: value for key, value in configuration.items() if key not in kept}
        aws.call("lambda", "update_function_configuration", {**given, "FunctionName": name})
        _wait(aws, name)
    if before.get("Code") != after.get("Code") or before.get("Architectures") != after.get("Architectures"):
        architectures = {"Architectures": after["Architectures"]} if "Architectures" in after else {}
        aws.call("lambda", "update_function_code", {"FunctionName": name, **architectures, **_code(after)})
    _settings(aws, name, before, after)
    _wait(aws, name)
    if before.get("Tags") != after.get("Tags"):
        arn = resource.attributes["Arn"]
        old_tags, new_tags = tags_of(before) or {}, tags_of(after) or {}
        if gone := sorted(old_tags.keys() - new_tags.keys()):
            client.untag_resource(Resource=arn, TagKeys=gone)
        if new_tags:
            client.tag_resource(Resource=arn, Tags=new_tags)
    return None


_DEFAULTS: Properties = {
    "Description": "",
    "Timeout": 3,
    "MemorySize": 128,
    "Layers": [],
    "Environment": {"Variables": {}},
    "DeadLetterConfig": {"TargetArn": ""},
    "VpcConfig": {"SubnetIds": [], "SecurityGroupIds": []},
    "TracingConfig": {"Mode": "PassThrough"},
    "EphemeralStorage": {"Size": 512},
    "FileSystemConfigs": [],
    "SnapStart": {"ApplyOn": "None"},
    "LoggingConfig": {"LogFormat": "Text"},
    "KMSKeyArn": "",
}


def _configuration(properties: Properties) -> Properties:
    given = {key: value for key, value in properties.items() if key not in _NOT_GIVEN}
    if "KmsKeyArn" in properties:
        given["KMSKeyArn"] = properties["KmsKeyArn"]
    return given


def _code(properties: Properties) -> Properties:
    code = dict(properties["Code"])
    if "ZipFile" in code:  # in a template this is the source text of one file
        code["ZipFile"] = _zipped(code["ZipFile"], properties.get("Runtime", ""))
    return code


def _zipped(source: str, runtime: str) -> bytes:
    is_node = runtime.startswith("nodejs")
    files = {"index.js" if is_node else "index.py": source, **inline_modules.needed_by(source, is_node=is_node)}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, text in files.items():
            entry = zipfile.ZipInfo(name)
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, text)
    return buffer.getvalue()


def _settings(aws: Aws, name: str, before: Properties, after: Properties) -> None:
    """The settings that have operations of their own."""
    count, loop = "ReservedConcurrentExecutions", "RecursiveLoop"
    if count in after:
        aws.call("lambda", "put_function_concurrency", {"FunctionName": name, count: after[count]})
    elif count in before:
        aws.remove("lambda", "delete_function_concurrency", {"FunctionName": name})
    if loop in after or loop in before:
        setting = {"FunctionName": name, loop: after.get(loop, "Terminate")}
        aws.call("lambda", "put_function_recursion_config", setting)


def _wait(aws: Aws, name: str) -> None:
    """Wait until the function is active and updated.

    Raises:
        ResourceError: the function cannot be published; the message says why.
    """
    from botocore.exceptions import WaiterError

    client = aws.client("lambda")
    for waiter in ("function_active_v2", "function_updated_v2"):
        try:
            client.get_waiter(waiter).wait(FunctionName=name, WaiterConfig={"Delay": _LOOK_S, "MaxAttempts": _LOOKS})
        except WaiterError as error:
            found = client.get_function_configuration(FunctionName=name)
            reason = found.get("StateReason") or found.get("LastUpdateStatusReason") or str(error)
            raise ResourceError(reason) from error


def _delete_function(aws: Aws, resource: Resource) -> None:
    if not resource.facts.get("is_recorded"):
        aws.remove("lambda", "delete_function", resource.facts)


# Versions and aliases


def _make_version(aws: Aws, wanted: Wanted) -> Made:
    """Publish a version. A version belongs to one resource only, because deleting the resource deletes the version.

    Source: Lambda API reference, PublishVersion: if nothing has changed since the last version, it publishes none and
    returns that one. The resource fails then; AWS gives the message.
    """
    properties = wanted.properties
    names = ("FunctionName", "Description", "CodeSha256")
    with _PUBLISHING:
        before = _versions(aws, properties["FunctionName"])
        made = aws.call("lambda", "publish_version", {key: properties.get(key) for key in names})
    function, number, arn = made["FunctionName"], made["Version"], made["FunctionArn"]
    if number in before:
        raise ResourceError(
            f"A version for this Lambda function exists ( {number} ). Modify the function to create a new version."
        )
    waiter = aws.client("lambda").get_waiter("published_version_active")
    waiter.wait(FunctionName=function, Qualifier=number, WaiterConfig={"Delay": _LOOK_S, "MaxAttempts": _LOOKS})
    _provision(aws, function, number, {}, properties)
    return Made(arn, {"Version": number, "FunctionArn": arn}, {"FunctionName": function, "Qualifier": number})


def _versions(aws: Aws, function: str) -> set[str]:
    pages = aws.client("lambda").get_paginator("list_versions_by_function").paginate(FunctionName=function)
    return {each["Version"] for page in pages for each in page["Versions"]}


def _change_version(aws: Aws, resource: Resource, wanted: Wanted) -> None:
    facts = resource.facts
    _provision(aws, facts["FunctionName"], facts["Qualifier"], resource.properties, wanted.properties)


def _provision(aws: Aws, function: str, qualifier: str, before: Properties, after: Properties) -> None:
    name, at = "ProvisionedConcurrencyConfig", {"FunctionName": function, "Qualifier": qualifier}
    if after.get(name):
        aws.call("lambda", "put_provisioned_concurrency_config", {**at, **after[name]})
    elif before.get(name):
        aws.remove("lambda", "delete_provisioned_concurrency_config", at)


def _alias_given(properties: Properties) -> Properties:
    names = ("FunctionName", "Name", "FunctionVersion", "Description")
    given = {key: properties[key] for key in names if key in properties}
    weights = (properties.get("RoutingConfig") or {}).get("AdditionalVersionWeights") or []
    shares = {str(weight["FunctionVersion"]): float(weight["FunctionWeight"]) for weight in weights}
    return {**given, "RoutingConfig": {"AdditionalVersionWeights": shares}}


def _make_alias(aws: Aws, wanted: Wanted) -> Made:
    given = _alias_given(wanted.properties)
    arn = aws.call("lambda", "create_alias", given)["AliasArn"]
    facts = {"FunctionName": given["FunctionName"], "Name": given["Name"]}
    with or_else(lambda: aws.remove("lambda", "delete_alias", facts)):
        _provision(aws, given["FunctionName"], given["Name"], {}, wanted.properties)
    return Made(arn, {"AliasArn": arn}, {"FunctionName": given["FunctionName"], "Name": given["Name"]})


def _change_alias(aws: Aws, resource: Resource, wanted: Wanted) -> None:
    given = _alias_given(wanted.properties)
    aws.call("lambda", "update_alias", {"Description": "", **given})
    _provision(aws, given["FunctionName"], given["Name"], resource.properties, wanted.properties)


# Permissions, mappings, layers, URLs and asynchronous invocations


def _permission_facts(wanted: Wanted) -> Properties:
    return {"FunctionName": wanted.properties["FunctionName"], "StatementId": wanted.name[:100]}


def _make_permission(aws: Aws, wanted: Wanted) -> Made:
    facts = _permission_facts(wanted)
    aws.call("lambda", "add_permission", {**wanted.properties, **facts})
    return Made(facts["StatementId"], {"Id": facts["StatementId"]}, facts)


def _make_mapping(aws: Aws, wanted: Wanted) -> Made:
    given = {**wanted.properties, "Tags": tags_of(wanted.properties)}
    made = aws.call("lambda", "create_event_source_mapping", given)
    return Made(
        made["UUID"],
        {"Id": made["UUID"], "EventSourceMappingArn": made.get("EventSourceMappingArn", "")},
        {"UUID": made["UUID"]},
    )


def _change_mapping(aws: Aws, resource: Resource, wanted: Wanted) -> None:
    kept = ("EventSourceArn", "StartingPosition", "StartingPositionTimestamp", "Tags")
    given = {key: value for key, value in wanted.properties.items() if key not in kept}
    # What the template no longer has, returns to its default.
    is_queue = ":sqs:" in str(wanted.properties.get("EventSourceArn"))
    defaults = {**_MAPPING_DEFAULTS, "BatchSize": 10 if is_queue else 100}
    removed = {key: defaults[key] for key in resource.properties if key in defaults and key not in given}
    aws.call("lambda", "update_event_source_mapping", {**given, **removed, "UUID": resource.physical_id})


# Source: AWS Lambda API reference, "CreateEventSourceMapping".
_MAPPING_DEFAULTS: Properties = {
    "BisectBatchOnFunctionError": False,
    "DestinationConfig": {"OnFailure": {}},
    "Enabled": True,
    "FilterCriteria": {"Filters": []},
    "FunctionResponseTypes": [],
    "MaximumBatchingWindowInSeconds": 0,
    "MaximumRecordAgeInSeconds": -1,
    "MaximumRetryAttempts": -1,
    "MetricsConfig": {"Metrics": []},
    "ParallelizationFactor": 1,
    "ScalingConfig": {},
    "TumblingWindowInSeconds": 0,
}


def _delete_mapping(aws: Aws, resource: Resource) -> None:
    if "UUID" in resource.facts:
        aws.remove("lambda", "delete_event_source_mapping", resource.facts)
        return
    wanted = resource.properties  # the work was interrupted, so the id is not known
    at = {"FunctionName": wanted["FunctionName"], "EventSourceArn": wanted.get("EventSourceArn")}
    try:
        found = aws.call("lambda", "list_event_source_mappings", at)["EventSourceMappings"]
    except Exception as error:
        if hasattr(error, "response") and is_gone(error):
            return
        raise
    since_s = resource.facts.get("begun_s", 0.0) - _CLOCK_S
    for mapping in found:
        if mapping["LastModified"].timestamp() >= since_s:  # an older one belongs to somebody else
            aws.remove("lambda", "delete_event_source_mapping", {"UUID": mapping["UUID"]})


def _make_layer(aws: Aws, wanted: Wanted) -> Made:
    made = aws.call("lambda", "publish_layer_version", {"LayerName": wanted.name, **wanted.properties})
    arn, name = made["LayerVersionArn"], wanted.properties.get("LayerName") or wanted.name
    return Made(arn, {"LayerVersionArn": arn}, {"LayerName": name, "VersionNumber": made["Version"]})


def _delete_layer(aws: Aws, resource: Resource) -> None:
    if "VersionNumber" in resource.facts:
        aws.remove("lambda", "delete_layer_version", resource.facts)
    elif "LayerName" not in resource.properties:  # interrupted; the generated name belongs to this resource alone
        for version in aws.call("lambda", "list_layer_versions", {"LayerName": resource.name})["LayerVersions"]:
            given = {"LayerName": resource.name, "VersionNumber": version["Version"]}
            aws.remove("lambda", "delete_layer_version", given)


def _make_layer_permission(aws: Aws, wanted: Wanted) -> Made:
    arn = str(wanted.properties["LayerVersionArn"])
    layer, _, number = arn.rpartition(":")
    facts = {"LayerName": layer, "VersionNumber": number, "StatementId": wanted.name[:100]}
    aws.call("lambda", "add_layer_version_permission", {**wanted.properties, **facts})
    return Made(f"{arn}#{facts['StatementId']}", {"Id": f"{arn}#{facts['StatementId']}"}, facts)


def _url_given(properties: Properties) -> Properties:
    return {**properties, "FunctionName": properties["TargetFunctionArn"]}


def _url_facts(properties: Properties) -> Properties:
    return {"FunctionName": properties["TargetFunctionArn"], "Qualifier": properties.get("Qualifier")}


def _make_url(aws: Aws, wanted: Wanted) -> Made:
    made = aws.call("lambda", "create_function_url_config", _url_given(wanted.properties))
    arn = made["FunctionArn"]
    return Made(arn, {"FunctionArn": arn, "FunctionUrl": made["FunctionUrl"]}, _url_facts(wanted.properties))


def _change_url(aws: Aws, resource: Resource, wanted: Wanted) -> None:
    aws.call("lambda", "update_function_url_config", {**_URL_DEFAULTS, **_url_given(wanted.properties)})


_URL_DEFAULTS: Properties = {"Cors": {}, "InvokeMode": "BUFFERED"}


def _at_function(wanted: Wanted) -> Properties:
    return {key: wanted.properties[key] for key in ("FunctionName", "Qualifier") if key in wanted.properties}


def _make_invoke_config(aws: Aws, wanted: Wanted) -> Made:
    aws.call("lambda", "put_function_event_invoke_config", wanted.properties)
    return Made(wanted.name, {}, _at_function(wanted))


def _has_invoke_config(aws: Aws, wanted: Wanted, before: Properties) -> str | None:
    """Source: CloudFormation CLI user guide, "Resource type handler contract": create fails if the resource exists."""
    place = _at_function(wanted)
    if before or not aws.is_there("lambda", "get_function_event_invoke_config", place):
        return None
    identifier = f"{place['FunctionName']}|{place.get('Qualifier', '$LATEST')}"
    return f"Resource of type '{wanted.kind}' with identifier '{identifier}' already exists."


def _change_invoke_config(aws: Aws, resource: Resource, wanted: Wanted) -> None:
    aws.call("lambda", "put_function_event_invoke_config", wanted.properties)


def _make_signing(aws: Aws, wanted: Wanted) -> Made:
    arn = aws.call("lambda", "create_code_signing_config", wanted.properties)["CodeSigningConfig"][
        "CodeSigningConfigArn"
    ]
    return Made(
        arn, {"CodeSigningConfigArn": arn, "CodeSigningConfigId": arn.rpartition(":")[2]}, {"CodeSigningConfigArn": arn}
    )


def _change_signing(aws: Aws, resource: Resource, wanted: Wanted) -> None:
    aws.call("lambda", "update_code_signing_config", {**wanted.properties, **resource.facts})


def _fixed(*names: str) -> frozenset[str]:
    return frozenset(names)


KINDS: dict[str, Kind] = {
    f"{PREFIX}Function": Kind(
        _make_function,
        _delete_function,
        _change_function,
        fixed=_fixed("FunctionName", "PackageType", "TenancyConfig"),
        named="FunctionName",
        expected=_function_name,
        exists=lambda aws, facts: aws.is_there("lambda", "get_function_configuration", facts),
    ),
    f"{PREFIX}Version": Kind(
        _make_version, _delete_function, _change_version, fixed=_fixed("FunctionName", "Description", "CodeSha256")
    ),
    f"{PREFIX}Alias": Kind(
        _make_alias,
        lambda aws, resource: aws.remove("lambda", "delete_alias", resource.facts),
        _change_alias,
        fixed=_fixed("FunctionName", "Name"),
        expected=lambda wanted: {key: wanted.properties[key] for key in ("FunctionName", "Name")},
        exists=lambda aws, facts: aws.is_there("lambda", "get_alias", facts),
    ),
    f"{PREFIX}Permission": Kind(
        _make_permission,
        lambda aws, resource: aws.remove("lambda", "remove_permission", resource.facts),
        expected=_permission_facts,
    ),
    f"{PREFIX}EventSourceMapping": Kind(
        _make_mapping,
        _delete_mapping,
        _change_mapping,
        fixed=_fixed("EventSourceArn", "StartingPosition", "StartingPositionTimestamp", "SelfManagedEventSource"),
        expected=lambda wanted: {"begun_s": time.time()},
    ),
    f"{PREFIX}LayerVersion": Kind(_make_layer, _delete_layer, expected=lambda wanted: {}),
    f"{PREFIX}LayerVersionPermission": Kind(
        _make_layer_permission,
        lambda aws, resource: aws.remove("lambda", "remove_layer_version_permission", resource.facts),
    ),
    f"{PREFIX}Url": Kind(
        _make_url,
        lambda aws, resource: aws.remove("lambda", "delete_function_url_config", resource.facts),
        _change_url,
        fixed=_fixed("TargetFunctionArn", "Qualifier"),
        expected=lambda wanted: _url_facts(wanted.properties),
    ),
    f"{PREFIX}EventInvokeConfig": Kind(
        _make_invoke_config,
        lambda aws, resource: aws.remove("lambda", "delete_function_event_invoke_config", resource.facts),
        _change_invoke_config,
        fixed=_fixed("FunctionName", "Qualifier"),
        expected=_at_function,
        occupied=_has_invoke_config,
    ),
    f"{PREFIX}CodeSigningConfig": Kind(
        _make_signing,
        lambda aws, resource: aws.remove("lambda", "delete_code_signing_config", resource.facts),
        _change_signing,
    ),
}
"""The kinds of AWS::Lambda, by type."""
