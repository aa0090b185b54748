"""The definition of an HTTP API, and how it finds the route for a request. No side effects.

Source: API Gateway developer guide, "Create routes for HTTP APIs in API Gateway".
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from thawd.server.emulator.api_gateway import path_templates

Fields = dict[str, Any]
DEFAULT = "$default"


@dataclass(frozen=True, slots=True)
class HttpDefinition:
    """An HTTP API, deployed or as it is now.

    Attributes:
        routes: the fields of each route in API Gateway's API.
        integrations: by id.
        authorizers: by id.
        cors: the CORS configuration; None: there is none.
    """

    routes: list[Fields]
    integrations: dict[str, Fields]
    authorizers: dict[str, Fields]
    cors: Fields | None


def definition_of(api: Any) -> HttpDefinition:
    """Return the definition of moto's HTTP API `api` as it is now."""
    return copy.deepcopy(
        HttpDefinition(
            routes=[route.to_json() for route in list(api.routes.values())],
            integrations={key: one.to_json() for key, one in list(api.integrations.items())},
            authorizers={key: one.to_json() for key, one in list(api.authorizers.items())},
            cors=api.cors_configuration or None,
        )
    )


def route_for(definition: HttpDefinition, method: str, path: str) -> tuple[Fields, dict[str, str]] | None:
    """Return the route for a request and the decoded values of its parameters; None: there is none.

    Args:
        definition: the API.
        method: in upper case.
        path: percent-encoded path after the stage.
    """
    keyed = [(route, *str(route["routeKey"]).partition(" ")[::2]) for route in definition.routes]
    of_paths = [one for one in keyed if one[0]["routeKey"] != DEFAULT]
    found = path_templates.best(of_paths, path, template_of=lambda one: one[2], is_strict=True)
    usable = [(one, values) for one, values in found if one[1] in (method, "ANY")]
    if usable:
        ranked = sorted(usable, key=lambda pair: (path_templates.specificity(pair[0][2]), pair[0][1] == "ANY"))
        (route, _, _), values = ranked[0]
        return route, {name: unquote(value) for name, value in values.items()}
    default = next((route for route in definition.routes if route["routeKey"] == DEFAULT), None)
    return None if default is None else (default, {})
