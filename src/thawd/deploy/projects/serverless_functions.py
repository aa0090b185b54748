"""Functions of serverless.yml as functions of SAM.

Source: Serverless Framework documentation, "AWS - Functions"; SAM developer guide, "AWS::Serverless::Function".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from thawd.deploy.projects import serverless_properties as known
from thawd.deploy.projects.serverless_apis import cors_of
from thawd.deploy.projects.serverless_packages import without_requirements_layer
from thawd.deploy.projects.stacks import ProjectError

SHARED_ROLE = "IamRoleLambdaExecution"
_TIMEOUT_S, _MEMORY_MB = 6, 1024
# Properties of functions or of all of them, and what SAM calls them.
_SIMPLE = {
    "description": "Description",
    "reservedConcurrency": "ReservedConcurrentExecutions",
    "kmsKeyArn": "KmsKeyArn",
    "awsKmsKeyArn": "KmsKeyArn",
}
_ASYNCHRONOUS = {"maximumEventAge": "MaximumEventAgeInSeconds", "maximumRetryAttempts": "MaximumRetryAttempts"}
_DESTINATIONS = {"sns": "SNS", "sqs": "SQS", "eventBus": "EventBridge", "function": "Lambda"}


def section(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a section that is a map, or a list of maps that are merged.

    Raises:
        ProjectError: it is something else.
    """
    found = document.get(name) or {}
    if isinstance(found, list):
        parts = [each for each in found if isinstance(each, dict)]
        if len(parts) < len(found):
            raise ProjectError(f"serverless.yml: {name} must be a map, or a list of maps")
        return {key: value for part in parts for key, value in part.items()}
    if not isinstance(found, dict):
        raise ProjectError(f"serverless.yml: {name} must be a map")
    return found


def logical_id(function: str) -> str:
    """Return Serverless's logical id of a function: ``my-fn_a`` becomes ``MyDashfnUnderscoreaLambdaFunction``."""
    text = function.replace("-", "Dash").replace("_", "Underscore")
    return f"{text[:1].upper()}{text[1:]}LambdaFunction"


def function_of(
    name: str, function: Mapping[str, Any], provider: Mapping[str, Any], *, prefix: str, notes: list[str]
) -> dict[str, Any]:
    """Return a function's resource, without its code and its events.

    Args:
        name: its name in serverless.yml.
        function: its section.
        provider: the section ``provider``.
        prefix: begins the names of functions that have none.
        notes: gets what was left out.

    Raises:
        ProjectError: a property is malformed.
    """
    where = f"functions.{name}."
    notes += known.unread(known.FUNCTION, where, function)
    properties: dict[str, Any] = {
        "FunctionName": function.get("name", f"{prefix}-{name}"),
        "Timeout": function.get("timeout", provider.get("timeout", _TIMEOUT_S)),
        "MemorySize": function.get("memorySize", provider.get("memorySize", _MEMORY_MB)),
        "Role": _role_of(function.get("role", _provider_role(provider))),
        "Environment": {"Variables": {**section(provider, "environment"), **section(function, "environment")}},
        "Tags": {**section(provider, "tags"), **section(function, "tags")},
        "Layers": without_requirements_layer(function.get("layers", provider.get("layers")) or ()),
    }
    metadata: dict[str, Any] = {}
    if "image" in function:
        built = section(section(provider, "ecr"), "images")
        image, metadata = _image(name, function["image"], built, notes)
        properties |= {"PackageType": "Image", **image}
    elif "handler" in function:
        properties["Handler"] = function["handler"]
        properties["Runtime"] = function.get("runtime", provider.get("runtime", "nodejs20.x"))
    else:
        raise ProjectError(f"serverless.yml: functions.{name} has neither handler nor image")
    for theirs, ours in _SIMPLE.items():
        if (value := function.get(theirs, provider.get(theirs))) is not None:
            properties.setdefault(ours, value)
    properties |= _settings(function, provider)
    if function.get("url"):
        properties["FunctionUrlConfig"] = _url(where, function["url"], notes)
    if asynchronous := _asynchronous(function):
        properties["EventInvokeConfig"] = asynchronous
    resource: dict[str, Any] = {"Type": "AWS::Serverless::Function", "Properties": properties, "Metadata": metadata}
    if "condition" in function:
        resource["Condition"] = function["condition"]
    if depends := function.get("dependsOn"):
        resource["DependsOn"] = depends if isinstance(depends, list) else [depends]
    return resource


def _settings(function: Mapping[str, Any], provider: Mapping[str, Any]) -> dict[str, Any]:
    """Properties that need another form in SAM."""
    made: dict[str, Any] = {}
    if (architecture := function.get("architecture", provider.get("architecture"))) is not None:
        made["Architectures"] = [architecture]
    if (size := function.get("ephemeralStorageSize")) is not None:
        made["EphemeralStorage"] = {"Size": size}
    if (tracing := function.get("tracing", section(provider, "tracing").get("lambda"))) is not None:
        made["Tracing"] = ("Active" if tracing else "PassThrough") if isinstance(tracing, bool) else tracing
    if network := function.get("vpc", provider.get("vpc")):
        names = {"securityGroupIds": "SecurityGroupIds", "subnetIds": "SubnetIds"}
        made["VpcConfig"] = {names.get(key, key): value for key, value in network.items()}
    if mounted := function.get("fileSystemConfig"):
        made["FileSystemConfigs"] = [{"Arn": mounted.get("arn"), "LocalMountPath": mounted.get("localMountPath")}]
    if (management := function.get("runtimeManagement", provider.get("runtimeManagement"))) is not None:
        given = {"mode": management} if isinstance(management, str) else management
        modes = {"auto": "Auto", "onFunctionUpdate": "FunctionUpdate", "manual": "Manual"}
        made["RuntimeManagementConfig"] = {"UpdateRuntimeOn": modes.get(str(given.get("mode")), "Auto")}
        if "arn" in given:
            made["RuntimeManagementConfig"]["RuntimeVersionArn"] = given["arn"]
    if (target := function.get("onError")) is not None:
        kind = "SNS" if isinstance(target, str) and target.startswith("arn:aws:sns:") else "SQS"
        made["DeadLetterQueue"] = {"Type": kind, "TargetArn": target}
    # Serverless gives these versions an alias, which the events invoke.
    if count := function.get("provisionedConcurrency"):
        config = {"ProvisionedConcurrentExecutions": count}
        made |= {"AutoPublishAlias": "provisioned", "ProvisionedConcurrencyConfig": config}
    elif function.get("snapStart"):
        made |= {"AutoPublishAlias": "snapstart", "SnapStart": {"ApplyOn": "PublishedVersions"}}
    return made


def _asynchronous(function: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of asynchronous invocations: retries and destinations."""
    made: dict[str, Any] = {ours: function[theirs] for theirs, ours in _ASYNCHRONOUS.items() if theirs in function}
    destinations: dict[str, Any] = {}
    given = function.get("destinations") or {}
    for theirs, ours in (("onSuccess", "OnSuccess"), ("onFailure", "OnFailure")):
        target = given.get(theirs)
        if isinstance(target, dict) and "arn" in target:
            kind = _DESTINATIONS.get(str(target.get("type")), "SQS")
            destinations[ours] = {"Type": kind, "Destination": target["arn"]}
        elif isinstance(target, str):
            arn: Any = target if target.startswith("arn:") else {"Fn::GetAtt": [logical_id(target), "Arn"]}
            destinations[ours] = {"Type": "Lambda", "Destination": arn}
    return {**made, "DestinationConfig": destinations} if destinations else made


def _image(name: str, image: Any, built: Mapping[str, Any], notes: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a function's image: its properties, and the metadata by which SAM builds it.

    Args:
        name: the function's name.
        image: the function's ``image``: an address, the name of an image that is built, or a map with one of them.
        built: ``provider.ecr.images``, by name.
        notes: gets what was left out.
    """
    options = image if isinstance(image, dict) else {}
    notes += known.unread(known.IMAGE, f"functions.{name}.image.", options)
    names = {"command": "Command", "entryPoint": "EntryPoint", "workingDirectory": "WorkingDirectory"}
    config = {ours: options[theirs] for theirs, ours in names.items() if theirs in options}
    properties: dict[str, Any] = {"ImageConfig": config} if config else {}
    uri = options.get("uri") if options else image
    key = options.get("name", "") if options else str(image)
    source = built.get(key)
    notes += known.unread(known.BUILT_IMAGE, f"provider.ecr.images.{key}.", source)
    if isinstance(source, str):
        return properties, {"DockerContext": source, "Dockerfile": "Dockerfile"}
    if isinstance(source, dict) and "path" in source:
        metadata = {"DockerContext": source["path"], "Dockerfile": source.get("file", "Dockerfile")}
        return properties, {**metadata, "DockerBuildArgs": source.get("buildArgs", {})}
    if isinstance(source, dict):
        uri = source.get("uri")
    if not isinstance(uri, str):
        raise ProjectError(f"serverless.yml: functions.{name}.image has no uri, and is not in provider.ecr.images")
    return {**properties, "ImageUri": uri}, {}


def _url(where: str, given: Any, notes: list[str]) -> dict[str, Any]:
    options = given if isinstance(given, dict) else {}
    notes += known.unread(known.URL, f"{where}url.", options)
    url: dict[str, Any] = {"AuthType": "AWS_IAM" if options.get("authorizer") == "aws_iam" else "NONE"}
    if options.get("invokeMode") == "RESPONSE_STREAM":
        url["InvokeMode"] = "RESPONSE_STREAM"
    if options.get("cors"):
        url["Cors"] = cors_of(options["cors"], expose="ExposeHeaders")
    return url


def _provider_role(provider: Mapping[str, Any]) -> Any:
    role = section(provider, "iam").get("role")
    return provider.get("role") or (role if isinstance(role, str) else None)


def _role_of(given: Any) -> Any:
    """Return a function's role: an ARN, a role's logical id, or an intrinsic function; None: the shared role."""
    if given is None:
        return {"Fn::GetAtt": [SHARED_ROLE, "Arn"]}
    if isinstance(given, str) and not given.startswith("arn:"):
        return {"Fn::GetAtt": [given, "Arn"]}
    return given


def shared_role(provider: Mapping[str, Any], *, prefix: tuple[str, str], notes: list[str]) -> dict[str, Any]:
    """Return the role of the functions that have none of their own.

    Args:
        provider: the section ``provider``.
        prefix: stage and name of the service.
        notes: gets what was left out.
    """
    iam = section(provider, "iam")
    notes += known.unread(known.IAM, "provider.iam.", iam)
    role = iam["role"] if isinstance(iam.get("role"), dict) else {}
    notes += known.unread(known.ROLE, "provider.iam.role.", role)
    statements = _listed(role.get("statements", provider.get("iamRoleStatements")))
    trust = {"Effect": "Allow", "Principal": {"Service": ["lambda.amazonaws.com"]}, "Action": ["sts:AssumeRole"]}
    basic = "arn:aws:iam::aws:policy/service-role/AWSLambdaBasicExecutionRole"
    boundary = role.get("permissionsBoundary", role.get("permissionBoundary", provider.get("rolePermissionsBoundary")))
    properties: dict[str, Any] = {
        "AssumeRolePolicyDocument": {"Version": "2012-10-17", "Statement": [trust]},
        "ManagedPolicyArns": [
            basic, *_listed(role.get("managedPolicies", provider.get("iamManagedPolicies")))
        ],
        "RoleName": role.get("name"),
        "Path": role.get("path"),
        "PermissionsBoundary": boundary,
        "Tags": [{"Key": key, "Value": value} for key, value in (role.get("tags") or {}).items()],
    }  # fmt: skip
    if statements:
        document = {"Version": "2012-10-17", "Statement": statements}
        properties["Policies"] = [{"PolicyName": f"{prefix[0]}-{prefix[1]}-lambda", "PolicyDocument": document}]
    return {"Type": "AWS::IAM::Role", "Properties": {key: each for key, each in properties.items() if each}}


def _listed(given: Any) -> Sequence[Any]:
    return given if isinstance(given, list) else [] if given is None else [given]


def layer_of(name: str, layer: Any, notes: list[str]) -> dict[str, Any]:
    """Return a layer's resource.

    Raises:
        ProjectError: it has neither a path nor a package.
    """
    if not isinstance(layer, dict):
        raise ProjectError(f"serverless.yml: layers.{name} must be a map")
    notes += known.unread(known.LAYER, f"layers.{name}.", layer)
    package = section(layer, "package")
    notes += known.unread(known.PACKAGE, f"layers.{name}.package.", package)
    path = package.get("artifact") or layer.get("path")
    if path is None:
        raise ProjectError(f"serverless.yml: layers.{name} has no path")
    names = {
        "description": "Description", "compatibleRuntimes": "CompatibleRuntimes", "licenseInfo": "LicenseInfo",
        "compatibleArchitectures": "CompatibleArchitectures",
    }  # fmt: skip
    properties = {ours: layer[theirs] for theirs, ours in names.items() if theirs in layer}
    retains = "Retain" if layer.get("retain") else "Delete"
    properties |= {"ContentUri": path, "LayerName": layer.get("name", name), "RetentionPolicy": retains}
    return {"Type": "AWS::Serverless::LayerVersion", "Properties": properties}
