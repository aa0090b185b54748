"""Aliases: names for versions, with weights.

Source: AWS Lambda API reference, the operations named.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from thawd.control import paging
from thawd.control.deployments import Deployments
from thawd.control.names import ALIAS_NAME, function_arn, is_version, parse_function
from thawd.control.records import Alias, Family, new_revision
from thawd.control.registry import Registry, check_revision
from thawd.errors import (
    InvalidParameterValueException,
    ResourceConflictException,
    ResourceNotFoundException,
    ValidationException,
)
from thawd.resources import LATEST

Given = Mapping[str, Any]


class Aliases:
    """CreateAlias, GetAlias, ListAliases, UpdateAlias, DeleteAlias."""

    def __init__(self, known: Registry, deployments: Deployments) -> None:
        self._registry = known
        self._deployments = deployments
        self.on_url_end: Callable[[str, str], None] = lambda name, alias: None

    async def create(self, given: Given) -> dict[str, Any]:
        """CreateAlias."""
        name = parse_function(given["FunctionName"]).name
        family = self._registry.family(name)
        if not ALIAS_NAME.fullmatch(given["Name"]):
            raise ValidationException(
                f"1 validation error detected: Value '{given['Name']}' at 'name' failed to satisfy constraint: Member "
                f"must satisfy regular expression pattern: {ALIAS_NAME.pattern}"
            )
        if given["Name"] in family.aliases:
            arn = function_arn(name, given["Name"])
            raise ResourceConflictException(f"Alias already exists: {arn}")
        alias = Alias(given["Name"], given["FunctionVersion"], given.get("Description", ""))
        return await self._store(family, alias, given)

    async def update(self, given: Given) -> dict[str, Any]:
        """UpdateAlias."""
        name = parse_function(given["FunctionName"]).name
        family = self._registry.family(name)
        old = self._find(family, given["Name"])
        check_revision(given.get("RevisionId"), old.revision, what="GetFunction/GetAlias")
        alias = Alias(
            old.name,
            given.get("FunctionVersion", old.version),
            given.get("Description", old.description),
            old.weights,
        )
        return await self._store(family, alias, given)

    async def _store(self, family: Family, alias: Alias, given: Given) -> dict[str, Any]:
        if "RoutingConfig" in given:
            alias.weights = given["RoutingConfig"].get("AdditionalVersionWeights") or {}
        for number in alias.shares():
            if not is_version(number):
                raise InvalidParameterValueException(f"{number} is no version; an alias cannot stand for another alias")
            self._registry.record(family.name, number)
        self._check_weights(alias)
        alias.revision = new_revision()
        before = family.aliases.get(alias.name)
        family.aliases[alias.name] = alias
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
                "$LATEST is not supported for an alias pointing to more than 1 version"
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

    def get(self, given: Given) -> dict[str, Any]:
        """GetAlias."""
        family = self._registry.family(parse_function(given["FunctionName"]).name)
        return self._find(family, given["Name"]).document(family.name)

    def list(self, given: Given) -> dict[str, Any]:
        """ListAliases."""
        family = self._registry.family(parse_function(given["FunctionName"]).name)
        wanted = given.get("FunctionVersion")
        items = [(name, alias) for name, alias in sorted(family.aliases.items()) if wanted in (None, alias.version)]
        chosen, marker = paging.page(items, given)
        return paging.with_marker({"Aliases": [alias.document(family.name) for alias in chosen]}, marker)

    async def delete(self, given: Given) -> None:
        """DeleteAlias; one that is not there is as good as deleted."""
        name = parse_function(given["FunctionName"]).name
        family = self._registry.family(name)
        if given["Name"] not in family.aliases:
            return
        alias = family.aliases[given["Name"]]
        was_provisioned = alias.name in family.provisioned
        had_url = alias.name in family.urls
        for settings in (family.provisioned, family.provisioned_modified, family.event_configs, family.runtime_updates):
            settings.pop(alias.name, None)
        family.policies.pop(alias.name, None)
        family.urls.pop(alias.name, None)
        del family.aliases[alias.name]
        await self._registry.save(family)
        if was_provisioned:
            self._deployments.provision(family, alias.version, None)
        if had_url:
            self.on_url_end(name, alias.name)
        self._deployments.aliases_changed(family)
