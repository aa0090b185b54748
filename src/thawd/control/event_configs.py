"""The operations on the settings for asynchronous invocation (retries, age, destinations), by function and qualifier.

Source: AWS Lambda API reference, the operations that the docstrings name.
"""

from __future__ import annotations

import time
from typing import Any

from thawd.control import paging
from thawd.control.deployments import Deployments
from thawd.control.destinations import check_destinations
from thawd.control.function_records import Family, Parameters, assigned, without
from thawd.control.names import function_arn, parse_function
from thawd.control.registry import Registry, check_undeclared
from thawd.errors import (
    InvalidParameterValueException,
    ResourceNotFoundException,
)
from thawd.resources import LATEST

_NO_FUNCTION = "The function doesn't exist."


class EventConfigs:
    """The operations on the settings for asynchronous invocation."""

    def __init__(self, registry: Registry, deployments: Deployments) -> None:
        self._registry = registry
        self._deployments = deployments

    async def put(self, parameters: Parameters) -> dict[str, Any]:
        """PutFunctionEventInvokeConfig: replaces the configuration."""
        return await self._store(parameters, {})

    async def update(self, parameters: Parameters) -> dict[str, Any]:
        """UpdateFunctionEventInvokeConfig: changes the settings that the request names."""
        self._family(parameters)
        family, qualifier = self._find(parameters)
        return await self._store(parameters, family.event_configs[qualifier])

    async def _store(self, parameters: Parameters, before: Parameters) -> dict[str, Any]:
        fields = ("MaximumRetryAttempts", "MaximumEventAgeInSeconds", "DestinationConfig")
        name, qualifier = parse_function(parameters["FunctionName"], parameters.get("Qualifier"))
        if not before and not any(field in parameters for field in fields):
            raise InvalidParameterValueException(
                "You must specify at least one of error handling or destination setting."
            )
        try:
            qualifier = self._registry.qualified(name, qualifier)
        except ResourceNotFoundException as error:
            raise ResourceNotFoundException(_NO_FUNCTION) from error
        family = self._registry.family(name)
        if qualifier == LATEST:
            check_undeclared(family, "The configuration of asynchronous invocation of")
        made = {
            **before,
            **{field: parameters[field] for field in fields if field in parameters},
            "LastModified": time.time(),
        }
        check_destinations(name, made, exists=self._registry.record)
        family.event_configs = assigned(family.event_configs, qualifier, made)
        await self._registry.save(family)
        self._deployments.settings_changed(family)
        return self._document(family, qualifier)

    def get(self, parameters: Parameters) -> dict[str, Any]:
        """GetFunctionEventInvokeConfig."""
        return self._document(*self._find(parameters))

    async def delete(self, parameters: Parameters) -> None:
        """DeleteFunctionEventInvokeConfig."""
        family, qualifier = self._find(parameters)
        family.event_configs = without(family.event_configs, qualifier)
        await self._registry.save(family)
        self._deployments.settings_changed(family)

    def list(self, parameters: Parameters) -> dict[str, Any]:
        """ListFunctionEventInvokeConfigs."""
        family = self._family(parameters)
        chosen, marker = paging.page([(name, name) for name in sorted(family.event_configs)], parameters)
        configs = [self._document(family, name) for name in chosen]
        return paging.with_marker({"FunctionEventInvokeConfigs": configs}, marker)

    def _family(self, parameters: Parameters) -> Family:
        name, _ = parse_function(parameters["FunctionName"], parameters.get("Qualifier"))
        family = self._registry.families.get(name)
        if family is None or LATEST not in family.versions:
            raise ResourceNotFoundException(_NO_FUNCTION)
        return family

    def _find(self, parameters: Parameters) -> tuple[Family, str]:
        name, qualifier = parse_function(parameters["FunctionName"], parameters.get("Qualifier"))
        family = self._registry.families.get(name)
        qualifier = qualifier or LATEST
        if family is None or qualifier not in family.event_configs:
            raise ResourceNotFoundException(
                f"The function {function_arn(name, qualifier)} doesn't have an EventInvokeConfig"
            )
        return family, qualifier

    def _document(self, family: Family, qualifier: str) -> dict[str, Any]:
        config = family.event_configs[qualifier]
        return {
            "FunctionArn": function_arn(family.name, qualifier),
            **config,
            "DestinationConfig": {"OnSuccess": {}, "OnFailure": {}, **config.get("DestinationConfig", {})},
        }
