"""Functions of the stack: their settings, layers and log groups. `roles` and `versions_and_aliases` add the rest."""

from __future__ import annotations

import json
import re
from typing import Any

from thawd.deploy.aws import naming
from thawd.deploy.aws.buckets_and_tables import store_variables
from thawd.deploy.aws.destinations import add_destinations
from thawd.deploy.aws.roles import add_role
from thawd.deploy.aws.stack import DeploymentError, LayerCode, Stack, attribute, ref, sub
from thawd.deploy.aws.used_stores import Uses
from thawd.deploy.aws.versions_and_aliases import add_alias
from thawd.deploy.aws.web_applications import HANDLER as APPLICATION_HANDLER
from thawd.deploy.aws.web_applications import VARIABLE as WEB_APPLICATION
from thawd.deploy.aws.web_applications import application_of
from thawd.resources import ACTIVE, Function

LAYER = "ThawdLayer"
_OLDEST_SNAPSTART_PYTHON = (3, 12)
_FREE_STORAGE_MB = 512
_INIT_LIMIT_S, _SNAPSTART_INIT_LIMIT_S = 10, 130
# Source: CloudFormation user guide, AWS::Lambda::Function: changes of these do not concern a version.
_NOT_OF_VERSIONS = ("ReservedConcurrentExecutions",)
_DEFAULTS = Function(name="", handler="", code=None)  # type: ignore[arg-type]
# Options that only thawd has, with the message if one of them does not have its default value.
_ONLY_HERE = {
    "concurrency": "Lambda runs one invocation at a time in an environment",
    "idle_timeout_s": "Lambda decides how long it keeps idle environments",
    "keep_alive": "Lambda decides how long it keeps idle environments",
    "freeze_idle": "Lambda always freezes environments between invocations",
    "prime": "Lambda takes its snapshot after init; run the priming event's work at the top level of the module",
    "snapshot_listeners": "Lambda's snapshots have rules of their own for sockets",
    "snapshot_clocks": "Lambda's snapshots have rules of their own for clocks",
    "snapshot_connections": "Lambda's snapshots have rules of their own for connections",
}


def add_function(stack: Stack, function: Function) -> None:
    """Add a function, with its role, log group, layers, version, alias and destinations.

    Raises:
        DeploymentError: its handler cannot work on Lambda.
    """
    code = stack.order.code[function.name]
    uses = code.uses or Uses()
    _refuse(stack, function, uses)
    for option, what in _ONLY_HERE.items():
        if getattr(function, option) != getattr(_DEFAULTS, option):
            stack.add_missing(f"functions.{function.name}.{option}", what)
    if stack.settings.environment_files.get(function.name):
        stack.add_missing(
            f"functions.{function.name}.environment_file",
            "its variables become plain values in the template and the stack, readable for everyone who may read "
            "these; put secrets into Secrets Manager",
        )
    log_group = _add_log_group(stack, function)
    role = add_role(stack, function, uses, log_group=log_group)
    add_destinations(stack, function)
    properties = _properties(stack, function, uses, role=role, log_group=log_group)
    logical_id = stack.add(
        stack.function_id(function.name),
        "AWS::Lambda::Function",
        {**properties, "ReservedConcurrentExecutions": function.reserved_concurrency},
    )
    published = json.dumps(properties, sort_keys=True)
    version = {
        "Type": "AWS::Lambda::Version",
        "Properties": {"FunctionName": ref(logical_id)},
    }
    add_alias(stack, function, f"{logical_id}Version{naming.digest(published, length=10)}", version)


def _refuse(stack: Stack, function: Function, uses: Uses) -> None:
    where = f"functions.{function.name}"
    if function.batch is not None:
        raise DeploymentError(
            f"{where}.batch: the handler takes a list of events, which Lambda does not send; write a second handler "
            "that takes one event, for a configuration of its own"
        )
    if set(function.environment) == {"Ref"}:
        raise DeploymentError(
            f"{where}.environment: CloudFormation takes a single variable with the name Ref for a reference; rename it"
        )
    if function.image is not None:
        stack.add_missing(
            f"{where}.image",
            "the code in an image is not read: thawd.bucket and thawd.table are missing in it, and its role allows "
            "only what thawd.toml shows; add [[deploy.aws.statements]]",
        )
    application, code = application_of(function), stack.order.code[function.name]
    if application is not None and (code.image is not None or code.part is not None):
        raise DeploymentError(
            f"{where}.handler: {function.handler} is an {application}, and its package is too large for a zip file and "
            "layers; thawd makes applications callable only there. Write a second handler that wraps it, with Mangum "
            "for ASGI or apig-wsgi for WSGI, and name that"
        )
    if uses.is_coroutine and application is None:
        raise DeploymentError(
            f"{where}.handler: {function.handler} is async def, which Lambda's Python runtimes do not run; write a "
            "second handler that calls it with asyncio.run"
        )
    if uses.has_generator and application is None:
        raise DeploymentError(
            f"{where}.handler: {function.handler} streams its answer by yield, which Lambda's Python runtimes do not; "
            "return the whole answer, or use a custom runtime"
        )
    if uses.other_names:
        raise DeploymentError(
            f"{where}.code: it uses thawd.{', thawd.'.join(uses.other_names)}; on AWS, the package thawd has only "
            "bucket and table"
        )


def python_version(runtime: str) -> tuple[int, int] | None:
    """Return the Python version of a runtime; None: it is not a Python runtime."""
    found = re.fullmatch(r"python(\d+)\.(\d+)", runtime)
    return None if found is None else (int(found[1]), int(found[2]))


def _properties(stack: Stack, function: Function, uses: Uses, *, role: str, log_group: str) -> dict[str, Any]:
    code = stack.order.code[function.name]
    storage_mb = code.ephemeral_storage_mb or function.ephemeral_storage_mb
    has_snapstart = _has_snapstart(stack, function, code.runtime, storage_mb=storage_mb)
    init_limit_s = _SNAPSTART_INIT_LIMIT_S if has_snapstart else _INIT_LIMIT_S
    if function.init_timeout_s not in (_DEFAULTS.init_timeout_s, init_limit_s):
        stack.add_missing(f"functions.{function.name}.init_timeout_s", f"Lambda's limit of init is {init_limit_s} s")
    variables: dict[str, Any] = {**function.environment, **store_variables(stack, function.name, uses)}
    if code.part is not None:
        variables.setdefault("PACKAGE_PARTS_URL", sub(f"s3://{naming.ASSETS_BUCKET}/{stack.name}"))
    has_application = application_of(function) is not None
    if has_application:
        variables[WEB_APPLICATION] = code.handler or function.handler
    layers = [_add_layer(stack)] if uses.has_stores or has_application else []
    layers += [_add_package_layer(stack, layer, code.runtime) for layer in code.layers]
    is_json = function.log_format == "JSON"
    properties = {
        "FunctionName": naming.function_name(stack.name, function.name),
        **_code_properties(stack, function),
        "Role": attribute(role, "Arn"),
        "Architectures": [stack.aws.architecture],
        "MemorySize": function.memory_mb,
        "Timeout": function.timeout_s,
        "EphemeralStorage": {"Size": storage_mb},
        "Environment": {"Variables": variables} if variables else None,
        "Layers": [ref(layer) for layer in layers] or None,
        "TracingConfig": {"Mode": ACTIVE} if stack.traces(function) else None,
        "SnapStart": {"ApplyOn": "PublishedVersions"} if has_snapstart else None,
        "TenancyConfig": {"TenantIsolationMode": "PER_TENANT"} if function.tenants else None,
        "LoggingConfig": {
            "LogFormat": function.log_format,
            **({"ApplicationLogLevel": function.application_log_level or "INFO"} if is_json else {}),
            **({"SystemLogLevel": function.system_log_level or "INFO"} if is_json else {}),
            "LogGroup": ref(_log_group_id(log_group)),
        },
        "DeadLetterConfig": (
            {"TargetArn": stack.arn_of(function.dead_letter.name)} if function.dead_letter is not None else None
        ),
    }
    return {name: value for name, value in properties.items() if value is not None}


def _code_properties(stack: Stack, function: Function) -> dict[str, Any]:
    code = stack.order.code[function.name]
    if code.image is None:
        return {
            "Runtime": code.runtime,
            "Handler": APPLICATION_HANDLER if application_of(function) else code.handler or function.handler,
            "Code": {"S3Bucket": sub(naming.ASSETS_BUCKET), "S3Key": code.key},
        }
    given = function.image_config
    config = {
        "EntryPoint": None if given.entry_point is None else list(given.entry_point),
        "Command": None if given.command is None else list(given.command),
        "WorkingDirectory": given.working_directory,
    }
    return {
        "PackageType": "Image",
        "Code": {"ImageUri": sub(naming.image_name(stack.name, code.image))},
        "ImageConfig": {name: value for name, value in config.items() if value is not None} or None,
    }


def _has_snapstart(stack: Stack, function: Function, runtime: str, *, storage_mb: int) -> bool:
    """Return whether Lambda can take snapshots of the function. If not, record why.

    Source: developer guide, "Improving startup performance with Lambda SnapStart" and "Implementing SnapStart hooks for
    container images".
    """
    if not function.snapshot:
        return False
    version = python_version(runtime)
    is_image = stack.order.code[function.name].image is not None
    if version is None and not is_image:
        reason = f"Lambda has no snapshots for {runtime}, only for Python 3.12 and later"
    elif version is not None and version < _OLDEST_SNAPSTART_PYTHON:
        reason = f'Lambda has no snapshots for {runtime}; python = "3.12" in [deploy.aws] has them'
    elif stack.settings.most_provisioned(function.name):
        reason = "Lambda has no snapshots of functions with provisioned concurrency"
    elif storage_mb > _FREE_STORAGE_MB:
        reason = "Lambda has no snapshots of functions with more than 512 MB in /tmp"
    elif function.tenants:
        reason = "Lambda has no snapshots of functions with tenants"
    else:
        return True
    stack.add_missing(f"functions.{function.name}.snapshot", f"{reason}; environments start cold")
    return False


def _add_layer(stack: Stack) -> str:
    key = stack.order.layer_key
    if key is None:
        raise AssertionError("a function needs the layer, and it was not made")
    properties = {
        "LayerName": f"{stack.name}-thawd",
        "Description": "thawd.bucket and thawd.table over S3 and DynamoDB, and web applications",
        "Content": {"S3Bucket": sub(naming.ASSETS_BUCKET), "S3Key": key},
    }
    # A new layer version is a new resource, so that functions refer to it by another id and get a new version.
    return stack.add(f"{LAYER}{naming.digest(key, length=10)}", "AWS::Lambda::LayerVersion", properties)


def _add_package_layer(stack: Stack, layer: LayerCode, runtime: str) -> str:
    properties = {
        "LayerName": f"{stack.name}-{layer.name}",
        "CompatibleRuntimes": [runtime],
        "CompatibleArchitectures": [stack.aws.architecture],
        "Content": {"S3Bucket": sub(naming.ASSETS_BUCKET), "S3Key": layer.key},
    }
    logical_id = f"{naming.logical_id(layer.name, 'Packages')}{naming.digest(layer.key, length=10)}"
    return stack.add(logical_id, "AWS::Lambda::LayerVersion", properties)


def _log_group_id(log_group: str) -> str:
    return naming.logical_id(log_group, "LogGroup")


def _add_log_group(stack: Stack, function: Function) -> str:
    """Add a function's log group, which functions may share, and return its name."""
    name = function.log_group or f"/aws/lambda/{naming.function_name(stack.name, function.name)}"
    properties = {"LogGroupName": name, "RetentionInDays": stack.aws.log_retention_days}
    stack.add(_log_group_id(name), "AWS::Logs::LogGroup", properties)
    return name
