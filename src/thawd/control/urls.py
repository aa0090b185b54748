"""The operations on function URLs, recursive loop detection and runtime management.

Source: AWS Lambda API reference, the operations that the docstrings name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thawd.control import paging
from thawd.control.function_records import Family, Parameters, assigned, now_text, without
from thawd.control.names import function_arn, parse_function
from thawd.control.registry import Registry
from thawd.errors import InvalidParameterValueException, ResourceConflictException, ResourceNotFoundException
from thawd.resources import LATEST

_NO_URL = "The resource you requested does not exist."
_NO_FUNCTION = "Function does not exist"
_FIELDS = ("AuthType", "Cors", "InvokeMode")


class Urls:
    """The operations on function URLs.

    Args:
        registry: all functions.
        serve: starts to serve a URL, or stops if the configuration is None. It is called with the function, the
            qualifier or None, and the configuration, and returns the URL.
        declared: returns the configuration of the URL that thawd.toml declares for a function; None: it declares none.
    """

    def __init__(
        self,
        registry: Registry,
        *,
        serve: Callable[[str, str | None, Parameters | None], str],
        declared: Callable[[str], Parameters | None] = lambda name: None,
    ) -> None:
        self._registry = registry
        self._serve = serve
        self._declared = declared
        self._since = now_text()

    def restore(self) -> None:
        """Start serving all stored URLs; call it once, after the server has started."""
        for family in self._registry.families.values():
            for qualifier, config in family.urls.items():
                # The URL is stored, but contains the server's port, which may have changed since.
                config["Url"] = self._serve(family.name, _plain(qualifier), config)

    def end(self, name: str, alias: str) -> None:
        """Stop serving the URL of an alias that has been deleted."""
        self._serve(name, alias, None)

    def forget(self, family: Family) -> None:
        """Stop serving the URLs of a function that has been deleted."""
        for qualifier in family.urls:
            self._serve(family.name, _plain(qualifier), None)

    async def create(self, parameters: Parameters) -> dict[str, Any]:
        """CreateFunctionUrlConfig."""
        family, qualifier = self._target(parameters, missing=_NO_FUNCTION)
        if self._config(family, qualifier) is not None:
            arn = function_arn(family.name, _plain(qualifier))
            raise ResourceConflictException(
                f"Failed to create function url config for [functionArn = {arn}]. Error message:  "
                "FunctionUrlConfig exists for this Lambda function"
            )
        config = {field: parameters[field] for field in _FIELDS if field in parameters}
        made = {**config, "CreationTime": now_text()}
        document = await self._store(family, qualifier, made, is_mode_named="InvokeMode" in parameters)
        del document["LastModifiedTime"]
        return document

    async def update(self, parameters: Parameters) -> dict[str, Any]:
        """UpdateFunctionUrlConfig."""
        family, qualifier = self._changeable(parameters, missing=_NO_FUNCTION)
        config = {field: parameters[field] for field in _FIELDS if field in parameters}
        made = {**family.urls[qualifier], **config}
        return await self._store(family, qualifier, made, is_mode_named="InvokeMode" in parameters)

    async def _store(
        self, family: Family, qualifier: str, config: dict[str, Any], *, is_mode_named: bool
    ) -> dict[str, Any]:
        made = {"InvokeMode": "BUFFERED", **config, "LastModifiedTime": now_text()}
        family.urls = assigned(family.urls, qualifier, made)
        await self._registry.save(family)
        # The URL is served only after it is stored, so that the API shows every URL that is served.
        made["Url"] = self._serve(family.name, _plain(qualifier), made)
        document = self._document(family, qualifier)
        # As on AWS, the answers to changes show the mode only if the request names it.
        return document if is_mode_named else {name: document[name] for name in document if name != "InvokeMode"}

    def get(self, parameters: Parameters) -> dict[str, Any]:
        """GetFunctionUrlConfig."""
        return self._document(*self._find(parameters))

    async def delete(self, parameters: Parameters) -> None:
        """DeleteFunctionUrlConfig."""
        family, qualifier = self._changeable(parameters)
        family.urls = without(family.urls, qualifier)
        await self._registry.save(family)
        self._serve(family.name, _plain(qualifier), None)

    def list(self, parameters: Parameters) -> dict[str, Any]:
        """ListFunctionUrlConfigs."""
        family, _ = self._target(
            {"FunctionName": parse_function(parameters["FunctionName"]).name}, missing=_NO_FUNCTION
        )
        known = {name for name in (*family.urls, LATEST) if self._config(family, name) is not None}
        chosen, marker = paging.page([(name, name) for name in sorted(known)], parameters)
        return paging.with_marker({"FunctionUrlConfigs": [self._document(family, name) for name in chosen]}, marker)

    def _target(self, parameters: Parameters, *, missing: str) -> tuple[Family, str]:
        """The function and the qualifier of a request; `missing` is the error's text if one of them does not exist."""
        name, qualifier = parse_function(parameters["FunctionName"], parameters.get("Qualifier"))
        family = self._registry.families.get(name)
        if family is None or LATEST not in family.versions:
            raise ResourceNotFoundException(missing)
        if qualifier is not None and qualifier not in family.aliases:
            if qualifier in family.versions:
                raise InvalidParameterValueException(
                    "A function URL can belong to a function or an alias, but not to a version"
                )
            raise ResourceNotFoundException(missing)
        return family, qualifier or LATEST

    def _find(self, parameters: Parameters, *, missing: str = _NO_URL) -> tuple[Family, str]:
        family, qualifier = self._target(parameters, missing=missing)
        if self._config(family, qualifier) is None:
            raise ResourceNotFoundException(_NO_URL)
        return family, qualifier

    def _changeable(self, parameters: Parameters, *, missing: str = _NO_URL) -> tuple[Family, str]:
        family, qualifier = self._find(parameters, missing=missing)
        if qualifier not in family.urls:
            raise ResourceConflictException(
                f"The URL of {family.name} cannot be changed through the API: thawd.toml declares it. Change the file "
                "instead; a running thawd reloads it on SIGHUP or with --watch."
            )
        return family, qualifier

    def _config(self, family: Family, qualifier: str) -> Parameters | None:
        """The configuration of a qualifier's URL, made through the API or declared; None: the qualifier has no URL."""
        made = family.urls.get(qualifier)
        if made is not None and "Url" not in made:
            made = None  # the URL is being stored, and is not served yet
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
    """The settings of recursive loop detection (`thawd.grammar.lineage`), runtime management and scaling.

    The settings of runtime management are stored and shown, but have no effect.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    async def put_recursion(self, parameters: Parameters) -> dict[str, Any]:
        """PutFunctionRecursionConfig."""
        family = self._registry.family(parse_function(parameters["FunctionName"]).name)
        family.recursion = parameters["RecursiveLoop"]
        await self._registry.save(family)
        return {"RecursiveLoop": family.recursion}

    def get_recursion(self, parameters: Parameters) -> dict[str, Any]:
        """GetFunctionRecursionConfig."""
        return {"RecursiveLoop": self._registry.family(parse_function(parameters["FunctionName"]).name).recursion}

    def put_scaling(self, parameters: Parameters) -> dict[str, Any]:
        """PutFunctionScalingConfig: refused, because it is for functions with a capacity provider, and none exist."""
        family, qualifier = self._qualified(parameters)
        raise InvalidParameterValueException(
            f"{function_arn(family.name, qualifier)} has no capacity provider, so it has no scaling configuration. "
            "Limit its environments by reserved concurrency, and keep some initialised by provisioned concurrency"
        )

    def get_scaling(self, parameters: Parameters) -> dict[str, Any]:
        """GetFunctionScalingConfig: no function has such a configuration."""
        family, qualifier = self._qualified(parameters)
        return {"FunctionArn": function_arn(family.name, qualifier)}

    async def put_runtime(self, parameters: Parameters) -> dict[str, Any]:
        """PutRuntimeManagementConfig."""
        family, qualifier = self._qualified(parameters)
        if parameters["UpdateRuntimeOn"] == "Manual" and "RuntimeVersionArn" not in parameters:
            raise InvalidParameterValueException("RuntimeVersionArn is required when UpdateRuntimeOn is Manual")
        made = {name: parameters[name] for name in ("UpdateRuntimeOn", "RuntimeVersionArn") if name in parameters}
        family.runtime_updates = assigned(family.runtime_updates, qualifier, made)
        await self._registry.save(family)
        return self.get_runtime(parameters)

    def get_runtime(self, parameters: Parameters) -> dict[str, Any]:
        """GetRuntimeManagementConfig."""
        family, qualifier = self._qualified(parameters)
        made = {"UpdateRuntimeOn": "Auto", **family.runtime_updates.get(qualifier, {})}
        return {**made, "FunctionArn": function_arn(family.name, qualifier)}

    def _qualified(self, parameters: Parameters) -> tuple[Family, str]:
        name, qualifier = parse_function(parameters["FunctionName"], parameters.get("Qualifier"))
        family = self._registry.family(name)
        return family, self._registry.qualified(name, qualifier)
