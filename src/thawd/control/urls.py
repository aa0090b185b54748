"""Function URLs, recursion and runtime management: what is configured by qualifier and has no life of its own.

Source: AWS Lambda API reference, the operations named.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from thawd.control import paging
from thawd.control.names import function_arn, parse_function
from thawd.control.records import Family, now_text
from thawd.control.registry import Registry
from thawd.errors import InvalidParameterValueException, ResourceConflictException, ResourceNotFoundException
from thawd.resources import LATEST

Given = Mapping[str, Any]
_FIELDS = ("AuthType", "Cors", "InvokeMode")


class Urls:
    """The operations on function URLs.

    Args:
        known: all functions.
        serve: has a URL served: function, qualifier or None, its configuration or None to end it; the URL.
        declared: the configuration of the URL that thawd.toml declares for a function; None: it declares none.
    """

    def __init__(
        self,
        known: Registry,
        *,
        serve: Callable[[str, str | None, Given | None], str],
        declared: Callable[[str], Given | None] = lambda name: None,
    ) -> None:
        self._registry = known
        self._serve = serve
        self._declared = declared
        self._since = now_text()

    def restore(self) -> None:
        """Have all URLs served that are stored; call it once, after the start."""
        for family in self._registry.families.values():
            for qualifier, config in family.urls.items():
                config["Url"] = self._serve(family.name, _plain(qualifier), config)  # the port may be another

    def end(self, name: str, alias: str) -> None:
        """The alias has been deleted."""
        self._serve(name, alias, None)

    def forget(self, family: Family) -> None:
        """The function has been deleted."""
        for qualifier in family.urls:
            self._serve(family.name, _plain(qualifier), None)

    async def create(self, given: Given) -> dict[str, Any]:
        """CreateFunctionUrlConfig."""
        family, qualifier = self._target(given)
        if self._config(family, qualifier) is not None:
            arn = function_arn(family.name, _plain(qualifier))
            raise ResourceConflictException(
                f"Failed to create function url config for [functionArn = {arn}]. Error message:  "
                "FunctionUrlConfig exists for this Lambda function"
            )
        config = {field: given[field] for field in _FIELDS if field in given}
        return await self._store(family, qualifier, {**config, "CreationTime": now_text()})

    async def update(self, given: Given) -> dict[str, Any]:
        """UpdateFunctionUrlConfig."""
        family, qualifier = self._changeable(given)
        config = {field: given[field] for field in _FIELDS if field in given}
        return await self._store(family, qualifier, {**family.urls[qualifier], **config})

    async def _store(self, family: Family, qualifier: str, config: dict[str, Any]) -> dict[str, Any]:
        made = {"InvokeMode": "BUFFERED", **config, "LastModifiedTime": now_text()}
        family.urls[qualifier] = made
        await self._registry.save(family)
        # Not before it is stored: what is served must be what is shown.
        made["Url"] = self._serve(family.name, _plain(qualifier), made)
        return self._document(family, qualifier)

    def get(self, given: Given) -> dict[str, Any]:
        """GetFunctionUrlConfig."""
        return self._document(*self._find(given))

    async def delete(self, given: Given) -> None:
        """DeleteFunctionUrlConfig."""
        family, qualifier = self._changeable(given)
        del family.urls[qualifier]
        await self._registry.save(family)
        self._serve(family.name, _plain(qualifier), None)

    def list(self, given: Given) -> dict[str, Any]:
        """ListFunctionUrlConfigs."""
        family = self._registry.family(parse_function(given["FunctionName"]).name)
        known = {*family.urls, *([LATEST] if self._declared(family.name) is not None else [])}
        chosen, marker = paging.page([(name, name) for name in sorted(known)], given)
        return paging.with_marker({"FunctionUrlConfigs": [self._document(family, name) for name in chosen]}, marker)

    def _target(self, given: Given) -> tuple[Family, str]:
        name, qualifier = parse_function(given["FunctionName"], given.get("Qualifier"))
        family = self._registry.family(name)
        if qualifier is not None and qualifier not in family.aliases:
            if qualifier in family.versions:
                raise InvalidParameterValueException(
                    "Function URLs are for the function itself or for an alias, and not for a version"
                )
            self._registry.record(name, qualifier)
        return family, qualifier or LATEST

    def _find(self, given: Given) -> tuple[Family, str]:
        family, qualifier = self._target(given)
        if self._config(family, qualifier) is None:
            raise ResourceNotFoundException("The resource you requested does not exist.")
        return family, qualifier

    def _changeable(self, given: Given) -> tuple[Family, str]:
        family, qualifier = self._find(given)
        if qualifier not in family.urls:
            raise ResourceConflictException(
                f"The URL of {family.name} cannot be changed through the API: thawd.toml declares it. Change it there; "
                "a running thawd takes it over on SIGHUP or with --watch."
            )
        return family, qualifier

    def _config(self, family: Family, qualifier: str) -> Given | None:
        """What is known of the URL of a qualifier, made through the API or declared; None: there is none."""
        made = family.urls.get(qualifier)
        if made is not None or qualifier != LATEST:
            return made
        declared = self._declared(family.name)
        return None if declared is None else {**declared, "CreationTime": self._since, "LastModifiedTime": self._since}

    def _document(self, family: Family, qualifier: str) -> dict[str, Any]:
        config = self._config(family, qualifier)
        assert config is not None
        return {
            "FunctionUrl": config["Url"],
            "FunctionArn": function_arn(family.name, _plain(qualifier)),
            **{field: config[field] for field in _FIELDS if field in config},
            "CreationTime": config["CreationTime"],
            "LastModifiedTime": config["LastModifiedTime"],
        }


def _plain(qualifier: str) -> str | None:
    return None if qualifier == LATEST else qualifier


class Switches:
    """Recursion and runtime management: stored and shown."""

    def __init__(self, known: Registry) -> None:
        self._registry = known

    async def put_recursion(self, given: Given) -> dict[str, Any]:
        """PutFunctionRecursionConfig."""
        family = self._registry.family(parse_function(given["FunctionName"]).name)
        family.recursion = given["RecursiveLoop"]
        await self._registry.save(family)
        return {"RecursiveLoop": family.recursion}

    def get_recursion(self, given: Given) -> dict[str, Any]:
        """GetFunctionRecursionConfig."""
        return {"RecursiveLoop": self._registry.family(parse_function(given["FunctionName"]).name).recursion}

    async def put_runtime(self, given: Given) -> dict[str, Any]:
        """PutRuntimeManagementConfig."""
        family, qualifier = self._qualified(given)
        if given["UpdateRuntimeOn"] == "Manual" and "RuntimeVersionArn" not in given:
            raise InvalidParameterValueException("RuntimeVersionArn is required when UpdateRuntimeOn is Manual")
        family.runtime_updates[qualifier] = {
            name: given[name] for name in ("UpdateRuntimeOn", "RuntimeVersionArn") if name in given
        }
        await self._registry.save(family)
        return self.get_runtime(given)

    def get_runtime(self, given: Given) -> dict[str, Any]:
        """GetRuntimeManagementConfig."""
        family, qualifier = self._qualified(given)
        made = {"UpdateRuntimeOn": "Auto", **family.runtime_updates.get(qualifier, {})}
        return {**made, "FunctionArn": function_arn(family.name, qualifier)}

    def _qualified(self, given: Given) -> tuple[Family, str]:
        name, qualifier = parse_function(given["FunctionName"], given.get("Qualifier"))
        family = self._registry.family(name)
        return family, self._registry.qualified(name, qualifier)
