"""Reads serverless.yml, and turns it into a template of SAM with Serverless's logical ids.

Source: Serverless Framework documentation, "Serverless.yml Reference", version 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from thawd.deploy.projects.serverless_events import HTTP_API, REST_API, Generated, capitalised, event_of
from thawd.deploy.projects.serverless_variables import VariableSources, resolved
from thawd.deploy.projects.stacks import Project, ProjectError, ProjectOptions, ProjectStack
from thawd.deploy.projects.template_files import parsed, stack_name
from thawd.deploy.templates.sam_transform import TRANSFORM
from thawd.resources import REGION

_ROLE = "IamRoleLambdaExecution"
_TIMEOUT_S, _MEMORY_MB = 6, 1024
# Plugins whose work thawd does, or that change nothing of what runs.
_DONE = {"serverless-python-requirements", "serverless-offline", "serverless-localstack", "serverless-dotenv-plugin"}
_BASIC = "arn:aws:iam::aws:policy/service-role/AWSLambdaBasicExecutionRole"


def read_serverless(path: Path, options: ProjectOptions) -> Project:
    """Read serverless.yml.

    Args:
        path: the file.
        options: `env` is the stage; `parameters` are values for ``${param:...}`` and for CloudFormation's parameters.

    Raises:
        ProjectError: the file is malformed, or needs what thawd does not read.
    """
    document = parsed(path)
    provider = _map(document, "provider") if isinstance(document.get("provider"), dict) else {}
    variables = {**_dotenv(path.parent, document), **options.variables}
    sources = VariableSources(
        document=document,
        folder=path.parent.resolve(),
        stage=options.env or "dev",
        region=REGION,
        parameters=options.parameters,
        variables=variables,
    )
    if options.env is None and isinstance(provider.get("stage"), str):
        stage = resolved(provider["stage"], sources)
        sources = VariableSources(
            document=document,
            folder=sources.folder,
            stage=str(stage),
            region=REGION,
            parameters=options.parameters,
            variables=variables,
        )
    read = _Service(resolved(document, sources), sources.stage)
    template = read.template()
    declared = template.get("Parameters", {})
    stack = ProjectStack(
        name=options.stack or read.stack_name,
        document=template,
        folder=sources.folder,
        parameters={name: text for name, text in options.parameters.items() if name in declared},
        tags=read.tags(),
    )
    notes = tuple(read.notes)
    return Project(path=path, stacks=(stack,), sources=frozenset({path}), notes=notes)


def _dotenv(folder: Path, document: Mapping[str, Any]) -> dict[str, str]:
    """The variables in ``.env``, if serverless.yml says ``useDotenv: true``."""
    file = folder / ".env"
    if document.get("useDotenv") is not True or not file.is_file():
        return {}
    lines = (line.strip() for line in file.read_text().splitlines())
    pairs = (line.partition("=")[::2] for line in lines if "=" in line and not line.startswith("#"))
    return {name.strip(): value.strip().strip("'\"") for name, value in pairs}


def _map(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A section that is a map, or a list of maps that count together."""
    section = document.get(name) or {}
    if isinstance(section, list):
        parts = [each for each in section if isinstance(each, dict)]
        if len(parts) < len(section):
            raise ProjectError(f"serverless.yml: {name} must be a map, or a list of maps")
        return {key: value for part in parts for key, value in part.items()}
    if not isinstance(section, dict):
        raise ProjectError(f"serverless.yml: {name} must be a map")
    return section


class _Service:
    """One service: serverless.yml with its variables replaced.

    Args:
        document: the file.
        stage: the stage.
    """

    def __init__(self, document: dict[str, Any], stage: str) -> None:
        service = document.get("service")
        name = service.get("name") if isinstance(service, dict) else service
        if not isinstance(name, str) or not name:
            raise ProjectError("serverless.yml: service has no name")
        self._name, self._stage, self._document = name, stage, document
        self._provider = _map(document, "provider")
        if self._provider.get("name", "aws") != "aws":
            raise ProjectError(f"serverless.yml: provider.name is {self._provider['name']}; thawd reads aws")
        self._layers = _map(document, "layers")
        self.notes: list[str] = []
        for plugin in document.get("plugins") or ():
            if isinstance(plugin, str) and plugin not in _DONE:
                self.notes.append(f"the plugin {plugin} is not run")

    @property
    def stack_name(self) -> str:
        """The stack's name."""
        return str(self._provider.get("stackName") or stack_name(f"{self._name}-{self._stage}"))

    def tags(self) -> dict[str, str]:
        """The stack's tags."""
        return {name: str(value) for name, value in _map(self._provider, "stackTags").items()}

    def template(self) -> dict[str, Any]:
        """The template. Adds what was left out to `notes`."""
        template = self._own_template()
        generated = Generated(template["Resources"])
        for name, layer in self._layers.items():
            generated.resources[f"{capitalised(name)}LambdaLayer"] = _layer(name, layer)
        functions = _map(self._document, "functions")
        for name, function in functions.items():
            if not isinstance(function, dict):
                raise ProjectError(f"serverless.yml: functions.{name} must be a map")
            generated.resources[f"{_normalised(name)}LambdaFunction"] = self._function(name, function, generated)
        if functions:
            generated.resources.setdefault(_ROLE, self._role())
        self._finish_apis(template, generated)
        self.notes += generated.notes
        return template

    def _own_template(self) -> dict[str, Any]:
        """The user's own part of the template: the section ``resources``."""
        section = self._document.get("resources") or {}
        parts = section if isinstance(section, list) else [section]
        template: dict[str, Any] = {"Resources": {}}
        for part in parts:
            if not isinstance(part, dict):
                raise ProjectError("serverless.yml: resources must be a map, or a list of maps")
            if "extensions" in part:
                self.notes.append("resources.extensions is left out: thawd does not read it")
            for name, value in part.items():
                if name == "extensions":
                    continue
                own = isinstance(value, dict) and isinstance(template.get(name, {}), dict)
                template[name] = {**template.get(name, {}), **value} if own else value
        declared = template.get("Transform", [])
        template["Transform"] = [*([declared] if isinstance(declared, str) else declared), TRANSFORM]
        return template

    def _function(self, name: str, function: Mapping[str, Any], generated: Generated) -> dict[str, Any]:
        provider = self._provider
        properties: dict[str, Any] = {
            "FunctionName": function.get("name", f"{self._name}-{self._stage}-{name}"),
            "Timeout": function.get("timeout", provider.get("timeout", _TIMEOUT_S)),
            "MemorySize": function.get("memorySize", provider.get("memorySize", _MEMORY_MB)),
            "Role": _role_of(function.get("role", _provider_role(provider))),
            "Environment": {"Variables": {**_map(provider, "environment"), **_map(function, "environment")}},
            "Tags": {**_map(provider, "tags"), **_map(function, "tags")},
            "Layers": list(function.get("layers", provider.get("layers", ()))),
        }
        metadata: dict[str, Any] = {}
        if "image" in function:
            uri, metadata = _image(name, function["image"], _map(_map(provider, "ecr"), "images"))
            properties |= {"PackageType": "Image", "ImageUri": uri}
        elif "handler" in function:
            runtime = function.get("runtime", provider.get("runtime", "nodejs20.x"))
            properties |= {"Handler": function["handler"], "Runtime": runtime, "CodeUri": self._code(function)}
        else:
            raise ProjectError(f"serverless.yml: functions.{name} has neither handler nor image")
        for theirs, ours in _SIMPLE.items():
            if (value := function.get(theirs, provider.get(theirs))) is not None:
                properties[ours] = value
        if (architecture := function.get("architecture", provider.get("architecture"))) is not None:
            properties["Architectures"] = [architecture]
        if (size := function.get("ephemeralStorageSize")) is not None:
            properties["EphemeralStorage"] = {"Size": size}
        if function.get("url"):
            properties["FunctionUrlConfig"] = _url(function["url"])
        if destinations := function.get("destinations"):
            properties["EventInvokeConfig"] = {"DestinationConfig": self._destinations(destinations)}
        events = [event_of(name, each, generated) for each in function.get("events") or ()]
        properties["Events"] = {f"Event{index}": each for index, each in enumerate(events) if each is not None}
        present = {key: each for key, each in properties.items() if each not in (None, {}, [])}
        return {"Type": "AWS::Serverless::Function", "Properties": present, "Metadata": metadata}

    def _code(self, function: Mapping[str, Any]) -> str:
        for section in (_map(function, "package"), _map(self._document, "package")):
            if section.get("artifact"):
                return str(section["artifact"])
        return "."

    def _destinations(self, given: Mapping[str, Any]) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for theirs, ours in (("onSuccess", "OnSuccess"), ("onFailure", "OnFailure")):
            target = given.get(theirs)
            if isinstance(target, dict) and "arn" in target:
                kinds = {"sns": "SNS", "sqs": "SQS", "eventBus": "EventBridge", "function": "Lambda"}
                made[ours] = {"Type": kinds.get(str(target.get("type")), "SQS"), "Destination": target["arn"]}
            elif isinstance(target, str):
                is_arn = target.startswith("arn:")
                arn = target if is_arn else {"Fn::GetAtt": [f"{_normalised(target)}LambdaFunction", "Arn"]}
                made[ours] = {"Type": "Lambda", "Destination": arn}
        return made

    def _role(self) -> dict[str, Any]:
        """The role that all functions share."""
        role = _map(_map(self._provider, "iam"), "role")
        statements = role.get("statements", self._provider.get("iamRoleStatements")) or []
        trust = {"Effect": "Allow", "Principal": {"Service": ["lambda.amazonaws.com"]}, "Action": ["sts:AssumeRole"]}
        properties: dict[str, Any] = {
            "AssumeRolePolicyDocument": {"Version": "2012-10-17", "Statement": [trust]},
            "ManagedPolicyArns": [_BASIC, *role.get("managedPolicies", ())],
        }
        if statements:
            document = {"Version": "2012-10-17", "Statement": statements}
            properties["Policies"] = [{"PolicyName": f"{self._stage}-{self._name}-lambda", "PolicyDocument": document}]
        return {"Type": "AWS::IAM::Role", "Properties": properties}

    def _finish_apis(self, template: dict[str, Any], generated: Generated) -> None:
        """Name the APIs, and add the outputs that Serverless adds."""
        outputs = template.setdefault("Outputs", {})
        host = "execute-api.${AWS::Region}.${AWS::URLSuffix}"
        if REST_API in generated.resources:
            properties = generated.resources[REST_API].setdefault("Properties", {})
            properties |= {"Name": f"{self._stage}-{self._name}", "StageName": self._stage}
            if generated.has_cors:
                headers = "'Content-Type,X-Amz-Date,Authorization,X-Api-Key,X-Amz-Security-Token,X-Amz-User-Agent'"
                properties["Cors"] = {"AllowOrigin": "'*'", "AllowHeaders": headers}
            url = f"https://${{{REST_API}}}.{host}/{self._stage}"
            outputs.setdefault("ServiceEndpoint", {"Value": {"Fn::Sub": url}})
        if HTTP_API in generated.resources:
            properties = generated.resources[HTTP_API].setdefault("Properties", {})
            settings = _map(self._provider, "httpApi")
            properties["Name"] = settings.get("name", f"{self._stage}-{self._name}")
            if settings.get("cors") is True:
                properties["CorsConfiguration"] = {"AllowOrigins": ["*"], "AllowHeaders": ["*"], "AllowMethods": ["*"]}
            if settings.get("authorizers"):
                self.notes.append("provider.httpApi.authorizers is left out: everyone may call the HTTP API")
            outputs.setdefault("HttpApiUrl", {"Value": {"Fn::Sub": f"https://${{{HTTP_API}}}.{host}"}})


_SIMPLE = {
    "description": "Description",
    "reservedConcurrency": "ReservedConcurrentExecutions",
    "kmsKeyArn": "KmsKeyArn",
}


def _normalised(name: str) -> str:
    """A function's name as Serverless writes it into logical ids: ``my-fn_a`` becomes ``MyDashfnUnderscorea``."""
    text = name.replace("-", "Dash").replace("_", "Underscore")
    return text[:1].upper() + text[1:]


def _layer(name: str, layer: Any) -> dict[str, Any]:
    if not isinstance(layer, dict) or "path" not in layer:
        raise ProjectError(f"serverless.yml: layers.{name} has no path")
    properties = {"ContentUri": layer["path"], "LayerName": layer.get("name", name)}
    if "compatibleRuntimes" in layer:
        properties["CompatibleRuntimes"] = layer["compatibleRuntimes"]
    return {"Type": "AWS::Serverless::LayerVersion", "Properties": properties}


def _image(name: str, image: Any, built: Mapping[str, Any]) -> tuple[str | None, dict[str, Any]]:
    """The address of a function's image, or the metadata by which SAM builds it.

    Args:
        name: the function's name.
        image: the function's ``image``: an address, the name of an image that is built, or a map with one of them.
        built: ``provider.ecr.images``, by name.
    """
    uri = image.get("uri") if isinstance(image, dict) else image
    source = built.get(image.get("name", "") if isinstance(image, dict) else str(image))
    if isinstance(source, str):
        return None, {"DockerContext": source, "Dockerfile": "Dockerfile"}
    if isinstance(source, dict) and "path" in source:
        metadata = {"DockerContext": source["path"], "Dockerfile": source.get("file", "Dockerfile")}
        return None, {**metadata, "DockerBuildArgs": source.get("buildArgs", {})}
    if isinstance(source, dict):
        uri = source.get("uri")
    if not isinstance(uri, str):
        raise ProjectError(f"serverless.yml: functions.{name}.image has no uri, and is not in provider.ecr.images")
    return uri, {}


def _provider_role(provider: Mapping[str, Any]) -> Any:
    role = _map(provider, "iam").get("role")
    return provider.get("role") or (role if isinstance(role, str) else None)


def _role_of(given: Any) -> Any:
    """A function's role: an ARN, the logical id of a role, a function that makes an ARN; None: the shared role."""
    if given is None:
        return {"Fn::GetAtt": [_ROLE, "Arn"]}
    if isinstance(given, str) and not given.startswith("arn:"):
        return {"Fn::GetAtt": [given, "Arn"]}
    return given


def _url(given: Any) -> dict[str, Any]:
    options = given if isinstance(given, dict) else {}
    kind = "AWS_IAM" if options.get("authorizer") == "aws_iam" else "NONE"
    url: dict[str, Any] = {"AuthType": kind}
    if options.get("invokeMode") == "RESPONSE_STREAM":
        url["InvokeMode"] = "RESPONSE_STREAM"
    if options.get("cors"):
        url["Cors"] = {"AllowOrigins": ["*"], "AllowHeaders": ["*"], "AllowMethods": ["*"]}
    return url
