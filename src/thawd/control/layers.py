"""Layers: published versions of shared code.

Source: AWS Lambda API reference, the operations that the docstrings name; developer guide, "Layer paths for each
Lambda runtime".
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from thawd.control import paging
from thawd.control.function_records import Parameters, new_revision, now_text
from thawd.control.functions import no_such_object
from thawd.control.names import layer_arn, parse_layer
from thawd.control.permissions import policy_document, statement_of
from thawd.control.registry import Layer, LayerVersion, Registry, check_revision
from thawd.errors import InvalidParameterValueException, ResourceConflictException, ResourceNotFoundException
from thawd.stores.uploaded_code import CodeStore

# Errors for a layer version that does not exist; {} is its ARN.
_MISSING = "The resource you requested does not exist."
_MISSING_FOR_POLICY = "Layer version {} does not exist."


class Layers:
    """The operations on layers.

    Args:
        registry: all layers.
        code: uploaded code.
        read_object: reads code that is in a bucket.

    Attributes:
        locate: makes a link to a package's zip file.
    """

    def __init__(
        self, registry: Registry, code: CodeStore, *, read_object: Callable[[str, str], Awaitable[bytes]]
    ) -> None:
        self._registry = registry
        self._code = code
        self._read_object = read_object
        self.locate: Callable[[str], str] = lambda package: f"/_thawd/code/{package}.zip"

    async def publish(self, parameters: Parameters) -> dict[str, Any]:
        """PublishLayerVersion."""
        name, number = parse_layer(parameters["LayerName"])
        if number is not None:
            raise InvalidParameterValueException("LayerName must not contain a version number")
        content = parameters["Content"]
        if "ZipFile" in content:
            data = content["ZipFile"]
        elif "S3Bucket" in content and "S3Key" in content:
            try:
                data = await self._read_object(content["S3Bucket"], content["S3Key"])
            except ResourceNotFoundException as error:
                raise no_such_object(error) from None
        else:
            raise InvalidParameterValueException("Please provide a source for the layer's content.")
        code = await self._code.add(data)
        layer = self._registry.layers.get(name) or Layer(name)
        version = LayerVersion(
            name=name,
            version=layer.last_version + 1,
            code_sha256=code.sha256,
            code_size=code.size_bytes,
            unzipped_bytes=code.unzipped_bytes,
            package=code.name,
            created=now_text(),
            description=parameters.get("Description", ""),
            runtimes=parameters.get("CompatibleRuntimes", []),
            has_runtimes="CompatibleRuntimes" in parameters,
            architectures=parameters.get("CompatibleArchitectures", []),
            has_architectures="CompatibleArchitectures" in parameters,
            license=parameters.get("LicenseInfo", ""),
        )
        versions = {**layer.versions, version.version: version}
        changed = Layer(name, versions, version.version)
        await self._registry.save_layer(changed)
        self._registry.layers[name] = changed
        return self._document(version, content=True)

    def get(self, parameters: Parameters) -> dict[str, Any]:
        """GetLayerVersion."""
        return self._document(self._find(parameters), content=True)

    def get_by_arn(self, parameters: Parameters) -> dict[str, Any]:
        """GetLayerVersionByArn."""
        name, number = parse_layer(parameters["Arn"])
        return self._document(self._find({"LayerName": name, "VersionNumber": number}), content=True)

    def list(self, parameters: Parameters) -> dict[str, Any]:
        """ListLayers."""
        items = []
        for name, layer in sorted(self._registry.layers.items()):
            fitting = [version for version in layer.versions.values() if _fits(version, parameters)]
            if fitting:
                items.append((name, max(fitting, key=lambda version: version.version)))
        chosen, marker = paging.page(items, parameters)
        layers = [
            {"LayerName": one.name, "LayerArn": layer_arn(one.name), "LatestMatchingVersion": self._document(one)}
            for one in chosen
        ]
        return paging.with_marker({"Layers": layers}, marker)

    def list_versions(self, parameters: Parameters) -> dict[str, Any]:
        """ListLayerVersions: the newest first; an empty list for a layer that does not exist."""
        name, _ = parse_layer(parameters["LayerName"])
        layer = self._registry.layers.get(name) or Layer(name)
        newest_first = sorted(layer.versions.values(), key=lambda version: -version.version)
        items = [(str(10**10 - one.version), one) for one in newest_first if _fits(one, parameters)]
        chosen, marker = paging.page(items, parameters)
        return paging.with_marker({"LayerVersions": [self._document(one) for one in chosen]}, marker)

    async def delete(self, parameters: Parameters) -> None:
        """DeleteLayerVersion: functions that use the version keep it; deleting a missing version succeeds."""
        name, _ = parse_layer(parameters["LayerName"])
        _check_number(parameters["VersionNumber"])
        layer = self._registry.layers.get(name)
        if layer is None or parameters["VersionNumber"] not in layer.versions:
            return
        remaining = {number: one for number, one in layer.versions.items() if number != parameters["VersionNumber"]}
        changed = Layer(name, remaining, layer.last_version)
        await self._registry.save_layer(changed)
        self._registry.layers[name] = changed

    async def add_permission(self, parameters: Parameters) -> dict[str, Any]:
        """AddLayerVersionPermission."""
        version = self._find(parameters, _MISSING_FOR_POLICY)
        check_revision(parameters.get("RevisionId"), version.revision, what="GetLayerPolicy")
        if any(statement["Sid"] == parameters["StatementId"] for statement in version.statements):
            raise ResourceConflictException(
                f"The statement id ({parameters['StatementId']}) provided already exists. Please provide a new "
                "statement id, or remove the existing statement."
            )
        made = statement_of(parameters, layer_arn(version.name, version.version))
        changed = await self._with_statements(version, [*version.statements, made])
        return {"Statement": json.dumps(made, separators=(",", ":")), "RevisionId": changed.revision}

    async def remove_permission(self, parameters: Parameters) -> None:
        """RemoveLayerVersionPermission."""
        version = self._find(parameters, _MISSING_FOR_POLICY)
        check_revision(parameters.get("RevisionId"), version.revision, what="GetLayerPolicy")
        remaining = [statement for statement in version.statements if statement["Sid"] != parameters["StatementId"]]
        if len(remaining) == len(version.statements):
            raise ResourceNotFoundException(f"Statement {parameters['StatementId']} is not found in resource policy.")
        await self._with_statements(version, remaining)

    async def _with_statements(self, version: LayerVersion, statements: Any) -> LayerVersion:
        """Store `statements` as the version's policy, and return the changed version."""
        changed = msgspec.structs.replace(version, statements=statements, revision=new_revision())
        layer = self._registry.layers[version.name]
        renewed = Layer(layer.name, {**layer.versions, version.version: changed}, layer.last_version)
        await self._registry.save_layer(renewed)
        self._registry.layers[layer.name] = renewed
        return changed

    def get_policy(self, parameters: Parameters) -> dict[str, Any]:
        """GetLayerVersionPolicy."""
        version = self._find(parameters, _MISSING_FOR_POLICY)
        if not version.statements:
            raise ResourceNotFoundException("No policy is associated with the given resource.")
        return {"Policy": policy_document(version.statements), "RevisionId": version.revision}

    def _find(self, parameters: Parameters, missing: str = _MISSING) -> LayerVersion:
        name, _ = parse_layer(parameters["LayerName"])
        number = parameters["VersionNumber"]
        version = self._registry.layer_version(name, number)
        _check_number(number)
        if version is None:
            raise ResourceNotFoundException(missing.format(layer_arn(name, number)))
        return version

    def _document(self, version: LayerVersion, *, content: bool = False) -> dict[str, Any]:
        made: dict[str, Any] = {
            "LayerVersionArn": layer_arn(version.name, version.version),
            "Version": version.version,
            "Description": version.description,
            "CreatedDate": version.created,
        }
        if version.runtimes or version.has_runtimes:
            made["CompatibleRuntimes"] = version.runtimes
        if version.architectures or version.has_architectures:
            made["CompatibleArchitectures"] = version.architectures
        if version.license:
            made["LicenseInfo"] = version.license
        if content:
            made["LayerArn"] = layer_arn(version.name)
            made["Content"] = {
                "Location": self.locate(version.package),
                "CodeSha256": version.code_sha256,
                "CodeSize": version.code_size,
            }
        return made


def _check_number(number: int | None) -> None:
    if number is not None and number < 1:
        raise InvalidParameterValueException("Layer Version Cannot be less than 1")


def _fits(version: LayerVersion, parameters: Parameters) -> bool:
    runtime, architecture = parameters.get("CompatibleRuntime"), parameters.get("CompatibleArchitecture")
    return (runtime is None or runtime in version.runtimes) and (
        architecture is None or not version.architectures or architecture in version.architectures
    )
