"""Aliases: names for versions. An alias for two versions divides the invocations between them by weight.

For each invocation, `scheduling.function_entries` chooses the version.

Source: AWS Lambda API reference, the operations that the docstrings name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thawd.control import paging
from thawd.control.deployments import Deployments
from thawd.control.function_records import Alias, Family, Parameters, assigned, new_revision, without
from thawd.control.names import ALIAS_NAME, function_arn, is_version, parse_function
from thawd.control.registry import Registry, check_revision
from thawd.errors import (
    InvalidParameterValueException,
    ResourceConflictException,
    ResourceNotFoundException,
    ValidationException,
)
from thawd.resources import LATEST


class Aliases:
    """CreateAlias, GetAlias, ListAliases, UpdateAlias, DeleteAlias."""

    def __init__(self, registry: Registry, deployments: Deployments) -> None:
        self._registry = registry
        self._deployments = deployments
        # Called with the names of function and alias when an alias that has a function URL is deleted.
        self.on_url_end: Callable[[str, str], None] = lambda name, alias: None

    async def create(self, parameters: Parameters) -> dict[str, Any]:
        """CreateAlias."""
        name = parse_function(parameters["FunctionName"]).name
        self._registry.record(name, parameters["FunctionVersion"])
        family = self._registry.family(name)
        if not ALIAS_NAME.fullmatch(parameters["Name"]):
            raise ValidationException(
                f"1 validation error detected: Value '{parameters['Name']}' at 'name' failed to satisfy constraint: "
                f"Member must satisfy regular expression pattern: {ALIAS_NAME.pattern}"
            )
        if parameters["Name"] in family.aliases:
            arn = function_arn(name, parameters["Name"])
            raise ResourceConflictException(f"Alias already exists: {arn}")
        alias = Alias(parameters["Name"], parameters["FunctionVersion"], parameters.get("Description", ""))
        return await self._store(family, alias, parameters)

    async def update(self, parameters: Parameters) -> dict[str, Any]:
        """UpdateAlias."""
        name = parse_function(parameters["FunctionName"]).name
        family = self._registry.family(name)
        if parameters["Name"] not in family.aliases:
            raise ResourceNotFoundException(f"Alias not found: {function_arn(name, parameters['Name'])}")
        old = family.aliases[parameters["Name"]]
        check_revision(parameters.get("RevisionId"), old.revision, what="GetFunction/GetAlias")
        alias = Alias(
            old.name,
            parameters.get("FunctionVersion", old.version),
            parameters.get("Description", old.description),
            old.weights,
        )
        return await self._store(family, alias, parameters)

    async def _store(self, family: Family, alias: Alias, parameters: Parameters) -> dict[str, Any]:
        if "RoutingConfig" in parameters:
            alias.weights = parameters["RoutingConfig"].get("AdditionalVersionWeights") or {}
        for number in alias.shares():
            if not is_version(number):
                raise InvalidParameterValueException(
                    f"{number} is not a version number; an alias can point only to versions, not to another alias"
                )
            self._registry.record(family.name, number)
        self._check_weights(alias)
        alias.revision = new_revision()
        before = family.aliases.get(alias.name)
        family.aliases = assigned(family.aliases, alias.name, alias)
        await self._registry.save(family)
        count = family.provisioned.get(alias.name)
        if count is not None and before is not None and before.version != alias.version:
            self._deployments.provision(family, before.version, None)
        self._deployments.aliases_changed(family)
        if count is not None:
            self._deployments.provision(family, alias.name, count)
        return alias.document(family.name)

    def _check_weights(self, alias: Alias) -> None:
        if not alias.weights:
            return
        if len(alias.weights) > 1:
            raise InvalidParameterValueException("Number of items in AdditionalVersionWeights cannot be greater than 1")
        if LATEST in alias.shares():
            raise InvalidParameterValueException(
                "$LATEST is not supported for an alias pointing to more than 1 version", is_typed=False
            )
        if alias.version in alias.weights:
            raise InvalidParameterValueException(
                f"Invalid function version {alias.version}. Function version {alias.version} is already included in "
                "routing configuration."
            )

    def _find(self, family: Family, name: str) -> Alias:
        alias = family.aliases.get(name)
        if alias is None:
            raise ResourceNotFoundException(f"Cannot find alias arn: {function_arn(family.name, name)}")
        return alias

    def get(self, parameters: Parameters) -> dict[str, Any]:
        """GetAlias."""
        family = self._registry.family(parse_function(parameters["FunctionName"]).name)
        return self._find(family, parameters["Name"]).document(family.name)

    def list(self, parameters: Parameters) -> dict[str, Any]:
        """ListAliases."""
        family = self._registry.family(parse_function(parameters["FunctionName"]).name)
        wanted = parameters.get("FunctionVersion")
        items = [(name, alias) for name, alias in sorted(family.aliases.items()) if wanted in (None, alias.version)]
        chosen, marker = paging.page(items, parameters)
        return paging.with_marker({"Aliases": [alias.document(family.name) for alias in chosen]}, marker)

    async def delete(self, parameters: Parameters) -> None:
        """DeleteAlias; deleting an alias that does not exist succeeds."""
        name = parse_function(parameters["FunctionName"]).name
        family = self._registry.family(name)
        if parameters["Name"] not in family.aliases:
            return
        alias = family.aliases[parameters["Name"]]
        was_provisioned = alias.name in family.provisioned
        had_url = alias.name in family.urls
        family.drop_settings(alias.name)
        family.aliases = without(family.aliases, alias.name)
        await self._registry.save(family)
        if was_provisioned:
            self._deployments.provision(family, alias.version, None)
        if had_url:
            self.on_url_end(name, alias.name)
        self._deployments.aliases_changed(family)
