"""Reads serverless.yml, and turns it into a template of SAM with Serverless's logical ids.

Source: Serverless Framework documentation, "Serverless.yml Reference", version 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from thawd.deploy.projects import serverless_packages
from thawd.deploy.projects import serverless_properties as known
from thawd.deploy.projects.serverless_apis import Generated, finish_apis
from thawd.deploy.projects.serverless_events import events_of
from thawd.deploy.projects.serverless_extensions import extend
from thawd.deploy.projects.serverless_functions import (
    SHARED_ROLE,
    function_of,
    layer_of,
    logical_id,
    section,
    shared_role,
)
from thawd.deploy.projects.serverless_variables import VariableSources, resolved
from thawd.deploy.projects.stacks import CodePackage, Project, ProjectError, ProjectOptions, ProjectStack
from thawd.deploy.projects.template_files import parsed, stack_name
from thawd.deploy.templates.sam_transform import TRANSFORM
from thawd.resources import REGION


def read_serverless(path: Path, options: ProjectOptions) -> Project:
    """Read serverless.yml.

    Args:
        path: the file.
        options: `env` is the stage; `parameters` are values for ``${param:...}`` and for CloudFormation's parameters.

    Raises:
        ProjectError: the file is malformed, or needs what thawd does not read.
    """
    document = parsed(path)
    provider = section(document, "provider") if isinstance(document.get("provider"), dict) else {}
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
    given = {**read.parameters(), **options.parameters}
    stack = ProjectStack(
        name=options.stack or read.stack_name,
        document=template,
        folder=sources.folder,
        parameters={name: text for name, text in given.items() if name in declared},
        tags=read.tags(),
        packages=read.packages,
    )
    notes = tuple(dict.fromkeys(read.notes))
    return Project(path=path, stacks=(stack,), sources=frozenset({path}), notes=notes)


def _dotenv(folder: Path, document: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables in ``.env``, if serverless.yml says ``useDotenv: true``."""
    file = folder / ".env"
    if document.get("useDotenv") is not True or not file.is_file():
        return {}
    lines = (line.strip() for line in file.read_text().splitlines())
    pairs = (line.partition("=")[::2] for line in lines if "=" in line and not line.startswith("#"))
    return {name.strip(): value.strip().strip("'\"") for name, value in pairs}


class _Service:
    """One service: serverless.yml with its variables replaced.

    Args:
        document: the file.
        stage: the stage.

    Attributes:
        notes: a line for each property that is left out.
        packages: how the code of functions is packaged, by logical id.
    """

    def __init__(self, document: dict[str, Any], stage: str) -> None:
        service = document.get("service")
        name = service.get("name") if isinstance(service, dict) else service
        if not isinstance(name, str) or not name:
            raise ProjectError("serverless.yml: service has no name")
        self._name, self._stage, self._document = name, stage, document
        self._provider = section(document, "provider")
        if self._provider.get("name", "aws") != "aws":
            raise ProjectError(f"serverless.yml: provider.name is {self._provider['name']}; thawd reads aws")
        package = section(document, "package")
        self.packages: dict[str, CodePackage] = {}
        self._extensions: list[Any] = []
        self.notes: list[str] = [
            *serverless_packages.plugin_notes(document),
            *known.unread(known.SERVICE, "", document),
            *known.unread(known.PROVIDER, "provider.", self._provider),
            *known.unread(known.PACKAGE, "package.", package),
        ]
        if (region := self._provider.get("region", REGION)) != REGION:
            self.notes.append(f"provider.region is {region}, and thawd serves {REGION}")

    @property
    def stack_name(self) -> str:
        """The stack's name."""
        return str(self._provider.get("stackName") or stack_name(f"{self._name}-{self._stage}"))

    def tags(self) -> dict[str, str]:
        """Return the stack's tags."""
        return {name: str(value) for name, value in section(self._provider, "stackTags").items()}

    def parameters(self) -> dict[str, str]:
        """Values of the template's parameters: ``provider.stackParameters``."""
        given = [each for each in self._provider.get("stackParameters") or () if isinstance(each, dict)]
        return {str(each.get("ParameterKey")): str(each.get("ParameterValue")) for each in given}

    def template(self) -> dict[str, Any]:
        """Make the template. Adds a line for each property that was left out to `notes`."""
        template = self._own_template()
        functions = section(self._document, "functions")
        ids = {name: logical_id(name) for name in functions}
        generated = Generated(template["Resources"], self._provider, ids)
        for name, layer in section(self._document, "layers").items():
            self._add_layer(name, layer, generated)
        for name, function in functions.items():
            if not isinstance(function, dict):
                raise ProjectError(f"serverless.yml: functions.{name} must be a map")
            generated.resources[ids[name]] = self._function(name, function, generated)
        if functions:
            role = shared_role(self._provider, prefix=(self._stage, self._name), notes=self.notes)
            generated.resources.setdefault(SHARED_ROLE, role)
        finish_apis(template, generated, service=self._name, stage=self._stage)
        for extensions in self._extensions:
            extend(template["Resources"], extensions, generated.notes)
        self.notes += generated.notes
        return template

    def _own_template(self) -> dict[str, Any]:
        """Return the user's own part of the template: the section ``resources``."""
        declared = self._document.get("resources") or {}
        parts = declared if isinstance(declared, list) else [declared]
        template: dict[str, Any] = {"Resources": {}}
        for part in parts:
            if not isinstance(part, dict):
                raise ProjectError("serverless.yml: resources must be a map, or a list of maps")
            for name, value in part.items():
                if name == "extensions":
                    self._extensions.append(value)
                    continue
                own = isinstance(value, dict) and isinstance(template.get(name, {}), dict)
                template[name] = {**template.get(name, {}), **value} if own else value
        transforms = template.get("Transform", [])
        template["Transform"] = [*([transforms] if isinstance(transforms, str) else transforms), TRANSFORM]
        return template

    def _add_layer(self, name: str, layer: Any, generated: Generated) -> None:
        identifier = logical_id(name).removesuffix("Function") + "Layer"
        generated.resources[identifier] = layer_of(name, layer, self.notes)
        package = {**section(layer, "package"), "individually": True}
        self.packages[identifier] = serverless_packages.package_of({}, package, requirements=None)

    def _function(self, name: str, function: Mapping[str, Any], generated: Generated) -> dict[str, Any]:
        prefix = f"{self._name}-{self._stage}"
        resource = function_of(name, function, self._provider, prefix=prefix, notes=self.notes)
        properties = resource["Properties"]
        if "Handler" in properties:
            properties["CodeUri"] = self._code(name, function)
        events = [made for each in function.get("events") or () for made in events_of(name, each, generated)]
        properties["Events"] = {f"Event{index}": each for index, each in enumerate(events)}
        resource["Properties"] = {key: each for key, each in properties.items() if each not in (None, {}, [])}
        return resource

    def _code(self, name: str, function: Mapping[str, Any]) -> str:
        """Return the folder or file of a function's code. Notes how it is packaged."""
        own, shared = section(function, "package"), section(self._document, "package")
        self.notes += known.unread(known.PACKAGE, f"functions.{name}.package.", own)
        artifact = own.get("artifact") or shared.get("artifact")
        if artifact:
            return str(artifact)
        if not (own.get("individually") or shared.get("individually")):
            for each in ("patterns", "include", "exclude"):
                if own.get(each):
                    self.notes.append(
                        f"functions.{name}.package.{each} has no effect, as with Serverless: functions share one "
                        "package without package.individually"
                    )
        requirements = serverless_packages.requirements_file(self._document)
        package = serverless_packages.package_of(self._document, own, requirements=requirements)
        module = str(function.get("module") or ".")
        self.packages[logical_id(name)] = replace(package, folder="" if module == "." else module)
        return module
