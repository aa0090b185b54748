"""Configuration of asynchronous invocation.

Source: AWS Lambda API reference, the operations named.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from thawd.control import paging
from thawd.control.deployments import Deployments
from thawd.control.names import function_arn, parse_function
from thawd.control.outcomes import check_destinations
from thawd.control.records import Family
from thawd.control.registry import Registry, check_undeclared
from thawd.errors import (
    InvalidParameterValueException,
    ResourceNotFoundException,
)
from thawd.resources import LATEST

Given = Mapping[str, Any]


class EventConfigs:
    """Configuration of asynchronous invocation."""

    def __init__(self, known: Registry, deployments: Deployments) -> None:
        self._registry = known
        self._deployments = deployments

    async def put(self, given: Given) -> dict[str, Any]:
        """PutFunctionEventInvokeConfig: replaces what there is."""
        return await self._store(given, {})

    async def update(self, given: Given) -> dict[str, Any]:
        """UpdateFunctionEventInvokeConfig: changes what there is."""
        family, qualifier = self._find(given)
        return await self._store(given, family.event_configs[qualifier])

    async def _store(self, given: Given, before: Given) -> dict[str, Any]:
        name, qualifier = parse_function(given["FunctionName"], given.get("Qualifier"))
        qualifier = self._registry.qualified(name, qualifier)
        family = self._registry.family(name)
        if qualifier == LATEST:
            check_undeclared(family, "The configuration of asynchronous invocation")
        fields = ("MaximumRetryAttempts", "MaximumEventAgeInSeconds", "DestinationConfig")
        made = {**before, **{field: given[field] for field in fields if field in given}, "LastModified": time.time()}
        if len(made) == 1:
            raise InvalidParameterValueException("You must specify at least one setting for asynchronous invocation")
        check_destinations(name, made, exists=self._registry.record)
        family.event_configs[qualifier] = made
        await self._registry.save(family)
        self._deployments.settings_changed(family)
        return self._document(family, qualifier)

    def get(self, given: Given) -> dict[str, Any]:
        """GetFunctionEventInvokeConfig."""
        return self._document(*self._find(given))

    async def delete(self, given: Given) -> None:
        """DeleteFunctionEventInvokeConfig."""
        family, qualifier = self._find(given)
        del family.event_configs[qualifier]
        await self._registry.save(family)
        self._deployments.settings_changed(family)

    def list(self, given: Given) -> dict[str, Any]:
        """ListFunctionEventInvokeConfigs."""
        family = self._registry.family(parse_function(given["FunctionName"]).name)
        chosen, marker = paging.page([(name, name) for name in sorted(family.event_configs)], given)
        configs = [self._document(family, name) for name in chosen]
        return paging.with_marker({"FunctionEventInvokeConfigs": configs}, marker)

    def _find(self, given: Given) -> tuple[Family, str]:
        name, qualifier = parse_function(given["FunctionName"], given.get("Qualifier"))
        family = self._registry.family(name)
        qualifier = self._registry.qualified(name, qualifier)
        if qualifier not in family.event_configs:
            raise ResourceNotFoundException(
                f"The function {function_arn(name, qualifier)} doesn't have an EventInvokeConfig"
            )
        return family, qualifier

    def _document(self, family: Family, qualifier: str) -> dict[str, Any]:
        return {
            "FunctionArn": function_arn(family.name, qualifier),
            "DestinationConfig": {"OnSuccess": {}, "OnFailure": {}},
            **family.event_configs[qualifier],
        }
