"""Calls the method in `thawd.control` that carries out an operation of the control plane, by the operation's name."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from thawd.control.aliases import Aliases
from thawd.control.code_signing import CodeSigning
from thawd.control.concurrency import Concurrency
from thawd.control.deployments import Deployments
from thawd.control.event_configs import EventConfigs
from thawd.control.event_source_mappings import Mappings
from thawd.control.functions import FindNetwork, Functions
from thawd.control.layers import Layers
from thawd.control.names import name_in, parse_layer
from thawd.control.permissions import Permissions
from thawd.control.quotas import Quotas
from thawd.control.registry import Registry
from thawd.control.tags import Tags
from thawd.control.urls import Switches, Urls
from thawd.stores.uploaded_code import CodeStore

Operation = Callable[[Mapping[str, Any]], Any]
ReadObject = Callable[[str, str], Awaitable[bytes]]
ServeUrl = Callable[[str, str | None, Mapping[str, Any] | None], str]


@dataclass(frozen=True, slots=True)
class ControlParts:
    """The stores and callbacks that the control plane is built from.

    Attributes:
        registry: all functions and layers.
        code: uploaded code.
        deployments: publishes versions and retires them.
        read_object: reads the contents of an object, by bucket and key.
        serve_url: starts to serve a function URL, or stops serving it if the configuration is None; returns the URL.
            The arguments are the function, the qualifier or None, and the configuration.
        declared_url: returns the configuration of the URL that thawd.toml declares for a function, or None.
        in_background: runs a coroutine as a background task.
        locate: makes a link to the zip file of a function's or layer's code.
        quotas: the sizes and combinations that are accepted.
        find_network: finds the network of subnets and security groups.
    """

    registry: Registry
    code: CodeStore
    deployments: Deployments
    read_object: ReadObject
    serve_url: ServeUrl
    declared_url: Callable[[str], Mapping[str, Any] | None]
    in_background: Callable[[Any], object]
    locate: Callable[[str], str]
    quotas: Quotas
    find_network: FindNetwork


def assemble(parts: ControlParts) -> ControlPlane:
    """Build the control plane from its parts."""
    registry, deployments = parts.registry, parts.deployments
    functions = Functions(
        registry,
        parts.code,
        deployments,
        read_object=parts.read_object,
        in_background=parts.in_background,
        quotas=parts.quotas,
        find_network=parts.find_network,
    )
    layers = Layers(registry, parts.code, read_object=parts.read_object)
    functions.locate = layers.locate = parts.locate
    urls = Urls(registry, serve=parts.serve_url, declared=parts.declared_url)
    functions.on_delete = urls.forget
    aliases = Aliases(registry, deployments)
    aliases.on_url_end = urls.end
    return ControlPlane(
        functions=functions,
        aliases=aliases,
        layers=layers,
        concurrency=Concurrency(registry, deployments, parts.quotas),
        event_configs=EventConfigs(registry, deployments),
        permissions=Permissions(registry),
        tags=Tags(registry),
        urls=urls,
        mappings=Mappings(registry),
        switches=Switches(registry),
        signing=CodeSigning(registry),
        registry=registry,
    )


def _changed(parameters: Mapping[str, Any]) -> str | None:
    """The name by which `Registry.changing` locks the function or layer that an operation changes; None if it has none.

    Args:
        parameters: the operation's input.
    """
    if "LayerName" in parameters:
        return f"layer:{parse_layer(parameters['LayerName'])[0]}"
    named = parameters.get("FunctionName") or parameters.get("Resource")
    return name_in(named) if named and (":function:" in named or "FunctionName" in parameters) else None


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """Carries out the operations of the control plane."""

    functions: Functions
    aliases: Aliases
    layers: Layers
    concurrency: Concurrency
    event_configs: EventConfigs
    permissions: Permissions
    tags: Tags
    urls: Urls
    mappings: Mappings
    switches: Switches
    signing: CodeSigning

    registry: Registry

    async def carry_out(self, name: str, parameters: Mapping[str, Any], *, changes: bool) -> Any:
        """Carry out one operation; returns the document of its answer, or None.

        Args:
            name: name of the operation.
            parameters: its checked input.
            changes: whether the operation changes something. If so, it runs with the lock of its function or layer,
                so that no other operation changes this function or layer meanwhile. If it fails, the record of its
                function is restored, except for the list of versions.

        Raises:
            KeyError: there is no such operation.
            ThawdError: the operation failed.
        """
        operation = self.operations()[name]
        changed = _changed(parameters) if changes else None
        if changed is None:
            document = operation(parameters)
            return await document if inspect.isawaitable(document) else document
        async with self.registry.changing(changed):
            document = operation(parameters)
            return await document if inspect.isawaitable(document) else document

    def operations(self) -> dict[str, Operation]:
        """The operations by name; each takes the checked input and returns the document of the answer, or None."""
        functions, aliases, layers, tags = self.functions, self.aliases, self.layers, self.tags
        concurrency, configs, permissions = self.concurrency, self.event_configs, self.permissions
        urls, mappings, switches, signing = self.urls, self.mappings, self.switches, self.signing
        return {
            "CreateFunction": functions.create,
            "UpdateFunctionCode": functions.update_code,
            "UpdateFunctionConfiguration": functions.update_configuration,
            "PublishVersion": functions.publish,
            "DeleteFunction": functions.delete,
            "GetFunction": functions.get,
            "GetFunctionConfiguration": functions.get_configuration,
            "ListFunctions": functions.list,
            "ListVersionsByFunction": functions.list_versions,
            "CreateAlias": aliases.create,
            "UpdateAlias": aliases.update,
            "GetAlias": aliases.get,
            "ListAliases": aliases.list,
            "DeleteAlias": aliases.delete,
            "PublishLayerVersion": layers.publish,
            "GetLayerVersion": layers.get,
            "GetLayerVersionByArn": layers.get_by_arn,
            "ListLayers": layers.list,
            "ListLayerVersions": layers.list_versions,
            "DeleteLayerVersion": layers.delete,
            "AddLayerVersionPermission": layers.add_permission,
            "RemoveLayerVersionPermission": layers.remove_permission,
            "GetLayerVersionPolicy": layers.get_policy,
            "PutFunctionConcurrency": concurrency.put,
            "GetFunctionConcurrency": concurrency.get,
            "DeleteFunctionConcurrency": concurrency.delete,
            "PutProvisionedConcurrencyConfig": concurrency.provision,
            "GetProvisionedConcurrencyConfig": concurrency.get_provisioned,
            "DeleteProvisionedConcurrencyConfig": concurrency.delete_provisioned,
            "ListProvisionedConcurrencyConfigs": concurrency.list_provisioned,
            "GetAccountSettings": concurrency.account,
            "PutFunctionEventInvokeConfig": configs.put,
            "UpdateFunctionEventInvokeConfig": configs.update,
            "GetFunctionEventInvokeConfig": configs.get,
            "DeleteFunctionEventInvokeConfig": configs.delete,
            "ListFunctionEventInvokeConfigs": configs.list,
            "AddPermission": permissions.add,
            "RemovePermission": permissions.remove,
            "GetPolicy": permissions.get,
            "ListTags": tags.list,
            "TagResource": tags.add,
            "UntagResource": tags.remove,
            "CreateFunctionUrlConfig": urls.create,
            "UpdateFunctionUrlConfig": urls.update,
            "GetFunctionUrlConfig": urls.get,
            "DeleteFunctionUrlConfig": urls.delete,
            "ListFunctionUrlConfigs": urls.list,
            "CreateEventSourceMapping": mappings.create,
            "GetEventSourceMapping": mappings.get,
            "UpdateEventSourceMapping": mappings.update,
            "DeleteEventSourceMapping": mappings.delete,
            "ListEventSourceMappings": mappings.list,
            "CreateCodeSigningConfig": signing.create,
            "UpdateCodeSigningConfig": signing.update,
            "GetCodeSigningConfig": signing.get,
            "DeleteCodeSigningConfig": signing.delete,
            "ListCodeSigningConfigs": signing.list_all,
            "ListFunctionsByCodeSigningConfig": signing.list_functions,
            "PutFunctionCodeSigningConfig": signing.put,
            "GetFunctionCodeSigningConfig": signing.get_of_function,
            "DeleteFunctionCodeSigningConfig": signing.delete_of_function,
            "PutFunctionRecursionConfig": switches.put_recursion,
            "GetFunctionRecursionConfig": switches.get_recursion,
            "PutFunctionScalingConfig": switches.put_scaling,
            "GetFunctionScalingConfig": switches.get_scaling,
            "PutRuntimeManagementConfig": switches.put_runtime,
            "GetRuntimeManagementConfig": switches.get_runtime,
        }
