"""Applies the parameters of CreateFunction and UpdateFunctionConfiguration to a version's record.

Some parameters change what runs; the others (Description, Role, VpcConfig and so on) are only stored and shown.

Source: AWS Lambda API reference, "CreateFunction"; developer guide, "Defined runtime environment variables", "Lambda
quotas".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from thawd.control.destinations import check_dead_letter
from thawd.control.function_records import SNAP_START_ON, LayerUse, VersionRecord
from thawd.control.image_functions import check_settings, image_config_of, is_of_image
from thawd.control.names import check_layer_region, parse_layer
from thawd.control.quotas import MOST_VARIABLE_BYTES, Quotas
from thawd.control.registry import LayerVersion
from thawd.errors import InvalidParameterValueException
from thawd.resources import PASS_THROUGH, PYTHON_RUNTIMES, RUNTIMES, Function, reserved_variables

MAX_MEMORY_MB = 10_240
MAX_TIMEOUT_S = 900
MAX_EPHEMERAL_MB = 10_240
MAX_LOG_GROUP = 200
"""Longest name of a log group, characters. AWS allows 512; thawd names a file after the log group and allows fewer."""
# Parameters that are stored so that the API can show them. Of these, only EphemeralStorage, LoggingConfig,
# TracingConfig and DeadLetterConfig have an effect.
_SHOWN = (
    "Description",
    "Role",
    "VpcConfig",
    "DeadLetterConfig",
    "KMSKeyArn",
    "TracingConfig",
    "FileSystemConfigs",
    "Architectures",
    "EphemeralStorage",
    "LoggingConfig",
)

# The runtimes for which AWS creates functions, in the order in which its errors list them. Observed on AWS in 2026-03.
AWS_RUNTIMES = (  # noqa: SIM905 - a list of quoted words reads worse
    "nodejs20.x python3.14 provided.al2023 python3.12 python3.13 nodejs24.x nodejs22.x java25 python3.10 python3.11 "
    "java21 ruby3.3 ruby3.4 ruby3.2 python3.8 python3.9 java17 nodejs16.x dotnet10 dotnet8 java11 dotnet6 "
    "nodejs18.x provided.al2 java8.al2"
).split()
# Source: AWS Lambda developer guide, "Deprecated runtimes".
_OLD_RUNTIMES = (  # noqa: SIM905 - a list of quoted words reads worse
    "nodejs nodejs4.3 nodejs4.3-edge nodejs6.10 nodejs8.10 nodejs10.x nodejs12.x nodejs14.x java8 python2.7 "
    "python3.6 python3.7 dotnetcore1.0 dotnetcore2.0 dotnetcore2.1 dotnetcore3.1 dotnet5.0 dotnet7 go1.x ruby2.5 "
    "ruby2.7 provided"
).split()

# Parameters that would change how a function runs, and that have no effect here.
_UNSUPPORTED = {
    "CapacityProviderConfig": "capacity providers",
    "DurableConfig": "durable functions",
    "PublishTo": "capacity providers, to which versions could be published",
    "RuntimeConfig": "runtimes that are chosen by ARN",
    "AcceleratorConfig": "accelerators",
}

FindLayer = Callable[[str, int | None], LayerVersion | None]


def refuse_unsupported(parameters: Mapping[str, Any]) -> None:
    """Refuse parameters for features and sizes that thawd does not support.

    Raises:
        InvalidParameterValueException: an architecture other than x86_64 and arm64, or a value that is too large (400).
    """
    if parameters.get("Architectures") not in (None, ["x86_64"], ["arm64"]):
        raise InvalidParameterValueException("Architectures must have exactly one value, x86_64 or arm64")
    for name, what in _UNSUPPORTED.items():
        if parameters.get(name):
            raise InvalidParameterValueException(f"thawd has no {what}; leave out {name}")
    for name, maximum in (("MemorySize", MAX_MEMORY_MB), ("Timeout", MAX_TIMEOUT_S)):
        if parameters.get(name, 0) > maximum:
            raise InvalidParameterValueException(
                f"'{name}' value failed to satisfy constraint: Member must have value less than or equal to {maximum}"
            )
    if parameters.get("EphemeralStorage", {}).get("Size", 0) > MAX_EPHEMERAL_MB:
        raise InvalidParameterValueException(
            "'EphemeralStorage.Size' value failed to satisfy constraint: Member must have value less than or equal to "
            f"{MAX_EPHEMERAL_MB}"
        )


def apply(record: VersionRecord, parameters: Mapping[str, Any], find_layer: FindLayer, quotas: Quotas) -> VersionRecord:
    """Check `parameters` and return a changed `record`; settings that `parameters` does not name stay as they are.

    Raises:
        InvalidParameterValueException: a parameter is not valid (400).
    """
    refuse_unsupported(parameters)
    check_dead_letter(parameters)
    if record.image_uri:
        check_settings(parameters)
    elif parameters.get("ImageConfig"):
        raise InvalidParameterValueException("ImageConfig is not supported for functions with PackageType Zip")
    function = record.function
    changes = _changes(parameters, quotas)
    runtime = parameters.get("Runtime", record.runtime)
    if "Runtime" in parameters:
        changes |= _interpreter(runtime)
    snap_start = parameters.get("SnapStart", {}).get("ApplyOn", record.snap_start)
    changes["snapshot"] = snap_start == SNAP_START_ON
    if "Layers" in parameters:
        layers = _layers(parameters["Layers"], find_layer, quotas, code_bytes=record.unzipped_bytes)
    else:
        layers = record.layers
    shown = {**record.shown, **{name: parameters[name] for name in _SHOWN if name in parameters}}
    if "LoggingConfig" in parameters:
        shown["LoggingConfig"] = logging = _logging(parameters["LoggingConfig"], function.name)
        changes |= _log_options(logging, function.name)
    if "VpcConfig" in parameters:
        shown["VpcConfig"] = {
            "SubnetIds": [],
            "SecurityGroupIds": [],
            "VpcId": "",
            "Ipv6AllowedForDualStack": False,
            **parameters["VpcConfig"],
        }
    changed = msgspec.structs.replace(function, **changes)
    if snap_start == SNAP_START_ON:
        _check_snap_start(runtime, changed, quotas)
    return msgspec.structs.replace(
        record,
        function=changed,
        runtime=runtime,
        has_environment=record.has_environment or "Environment" in parameters,
        snap_start=snap_start,
        layers=layers,
        shown=shown,
    )


def _changes(parameters: Mapping[str, Any], quotas: Quotas) -> dict[str, Any]:
    """The function's fields that parameters set one by one."""
    if any(ord(character) < 32 for character in parameters.get("Handler", "")):
        raise InvalidParameterValueException("Handler must not contain control characters")
    changes: dict[str, Any] = {}
    for name, field in (("Handler", "handler"), ("Timeout", "timeout_s"), ("MemorySize", "memory_mb")):
        if name in parameters:
            changes[field] = parameters[name]
    if "ImageConfig" in parameters:
        changes["image_config"] = image_config_of(parameters)
    if "EphemeralStorage" in parameters:
        changes["ephemeral_storage_mb"] = parameters["EphemeralStorage"]["Size"]
    if "TracingConfig" in parameters:
        changes["tracing"] = parameters["TracingConfig"].get("Mode", PASS_THROUGH)
    if "Environment" in parameters:
        changes["environment"] = _environment(parameters["Environment"].get("Variables", {}), quotas)
    return changes


def new_function(name: str, parameters: Mapping[str, Any], code: Any) -> Function:
    """Return a new function with AWS's defaults. `apply` then adds the other parameters of CreateFunction.

    Raises:
        InvalidParameterValueException: runtime or handler is missing (400).
    """
    if not is_of_image(parameters) and not (parameters.get("Runtime") and parameters.get("Handler")):
        raise InvalidParameterValueException(
            "Runtime and Handler are mandatory parameters for functions created with deployment packages."
        )
    # Source: API reference, CreateFunction: Timeout 3 s, MemorySize 128 MB.
    return Function(
        name=name,
        handler=parameters.get("Handler", ""),
        code=code,
        memory_mb=128,
        timeout_s=3,
        snapshot=False,
        tenants="TenancyConfig" in parameters,
    )


def _interpreter(runtime: str) -> dict[str, Any]:
    """The function's fields that select its interpreter or program."""
    if runtime in _OLD_RUNTIMES:
        raise InvalidParameterValueException(
            f"The runtime parameter of {runtime} is no longer supported for creating or updating AWS Lambda functions. "
            "We recommend you use a supported runtime while creating or updating functions."
        )
    if runtime not in RUNTIMES and runtime in AWS_RUNTIMES:
        raise InvalidParameterValueException(
            f"thawd does not run {runtime}; the supported runtimes are {', '.join(RUNTIMES)}"
        )
    if runtime not in RUNTIMES:
        raise InvalidParameterValueException(
            f"Value {runtime} at 'runtime' failed to satisfy constraint: Member must satisfy enum value set: "
            f"[{', '.join(AWS_RUNTIMES)}] or be a valid ARN"
        )
    return {"runtime": runtime, "python": None}


def _check_snap_start(runtime: str, function: Function, quotas: Quotas) -> None:
    """Refuse SnapStart for a function that AWS makes no snapshots of."""
    if quotas.is_aws and runtime not in PYTHON_RUNTIMES and function.image is None:
        raise InvalidParameterValueException(f"{runtime} is not supported for SnapStart enabled functions.")
    if quotas.snap_start_tmp_mb is not None and function.ephemeral_storage_mb > quotas.snap_start_tmp_mb:
        raise InvalidParameterValueException(
            f"SnapStart does not support ephemeral storage of more than {quotas.snap_start_tmp_mb} MB. With "
            'server.limits = "machine", thawd allows it'
        )


def _environment(variables: Mapping[str, str], quotas: Quotas) -> dict[str, str]:
    refusal = (
        "Lambda was unable to configure your environment variables because the environment variables you have provided"
    )
    reserved = reserved_variables(variables)
    if reserved:
        raise InvalidParameterValueException(
            f"{refusal} contains reserved keys that are currently not supported for modification. Reserved keys used "
            f"in this request: {', '.join(reserved)}"
        )
    measured = msgspec.json.encode(variables).decode()
    if len(measured.encode()) > quotas.environment_bytes and not quotas.is_aws:
        raise InvalidParameterValueException(f"{refusal} exceeded the limit of {quotas.environment_bytes} bytes.")
    if any(len(f"{name}={value}".encode()) > MOST_VARIABLE_BYTES for name, value in variables.items()):
        raise InvalidParameterValueException(f"{refusal} contain a value of more than {MOST_VARIABLE_BYTES} bytes")
    if len(measured.encode()) > quotas.environment_bytes:
        raise InvalidParameterValueException(f"{refusal} exceeded the 4KB limit. String measured: {measured}")
    if any("\0" in value for value in variables.values()):
        raise InvalidParameterValueException(f"{refusal} contain a NUL character")
    return dict(variables)


def _logging(parameters: Mapping[str, Any], name: str) -> dict[str, Any]:
    made = {"LogFormat": "Text", "LogGroup": f"/aws/lambda/{name}", **parameters}
    levels = {"ApplicationLogLevel", "SystemLogLevel"} & set(parameters)
    if levels and made["LogFormat"] != "JSON":
        raise InvalidParameterValueException(
            f"{' and '.join(sorted(levels))} can be set only when LogFormat is JSON, but it is {made['LogFormat']}"
        )
    if made["LogFormat"] == "JSON":
        made = {"ApplicationLogLevel": "INFO", "SystemLogLevel": "INFO", **made}
    return made


def _log_options(logging: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The function's fields for logging."""
    group = logging["LogGroup"]
    if len(group) > MAX_LOG_GROUP:
        raise InvalidParameterValueException(
            f"LoggingConfig: the log group's name has {len(group)} characters; at most {MAX_LOG_GROUP} are allowed"
        )
    return {
        "log_format": logging["LogFormat"],
        "application_log_level": logging.get("ApplicationLogLevel"),
        "system_log_level": logging.get("SystemLogLevel"),
        "log_group": None if group == f"/aws/lambda/{name}" else group,
    }


def _layers(arns: list[str], find: FindLayer, quotas: Quotas, *, code_bytes: int) -> tuple[LayerUse, ...]:
    """Look up and check the layer versions with these ARNs.

    Args:
        arns: ARNs of layer versions.
        find: looks up a layer version.
        quotas: how many layers are allowed, and how large they may be.
        code_bytes: size of the function's unpacked code.

    Raises:
        InvalidParameterValueException: a layer version does not exist, or there are too many, or they are too large
            together (400).
    """
    if quotas.layers is not None and len(arns) > quotas.layers:
        raise InvalidParameterValueException(f"Cannot reference more than {quotas.layers} layers.")
    names: dict[str, str] = {}
    found: list[LayerUse] = []
    total_bytes = 0
    for arn in arns:
        check_layer_region(arn)
        name, number = parse_layer(arn)
        version = find(name, number)
        if version is None:
            raise InvalidParameterValueException(f"Layer version {arn} does not exist.")
        if name in names:
            raise InvalidParameterValueException(
                "Two different versions of the same layer are not allowed to be referenced in the same function. "
                f"{names[name]} and {arn} are versions of the same layer."
            )
        names[name] = arn
        found.append(LayerUse(arn, version.package, version.code_size, version.unzipped_bytes))
        total_bytes += version.unzipped_bytes
    check_size(code_bytes, total_bytes, quotas)
    return tuple(found)


def check_size(code_bytes: int, layers_bytes: int, quotas: Quotas) -> None:
    """Check the size of a function's unpacked code and layers together.

    Raises:
        InvalidParameterValueException: they are too large (400).
    """
    most_bytes = quotas.unzipped_bytes()
    if layers_bytes > most_bytes:
        raise InvalidParameterValueException(f"Layers consume more than the available size of {most_bytes} bytes")
    if code_bytes + layers_bytes > most_bytes:
        raise InvalidParameterValueException(
            f"Function code combined with layers exceeds the maximum allowed size of {most_bytes} bytes. The actual "
            f"size is {code_bytes + layers_bytes} bytes."
        )
