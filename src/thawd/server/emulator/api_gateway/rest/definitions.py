"""The definition of a REST API, as a deployment stores it. Later changes of the API do not change the deployment.

Source: API Gateway developer guide, "Deploy REST APIs in API Gateway".
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

Fields = dict[str, Any]


@dataclass(frozen=True, slots=True)
class RestDefinition:
    """A deployed REST API.

    Attributes:
        resources: by id: ``path``, and ``methods`` by HTTP method, with the fields of API Gateway's API.
        authorizers: by id.
        gateway_responses: by type.
        models: the schemas by name, as JSON text.
        validators: by id.
        settings: the fields of the API itself, such as ``binaryMediaTypes``.
    """

    resources: dict[str, Fields]
    authorizers: dict[str, Fields]
    gateway_responses: dict[str, Fields]
    models: dict[str, str]
    validators: dict[str, Fields]
    settings: Fields

    @property
    def binary_types(self) -> list[str]:
        """The media types whose bodies are binary; ``*/*`` means all."""
        return [str(one).replace("~1", "/") for one in self.settings.get("binaryMediaTypes") or []]


def definition_of(api: Any) -> RestDefinition:
    """Return the definition of moto's REST API `api` as it is now."""
    resources = {
        identifier: {
            "path": resource.get_path(),
            "methods": {name: method.to_json() for name, method in list(resource.resource_methods.items())},
        }
        for identifier, resource in list(api.resources.items())
    }
    return copy.deepcopy(
        RestDefinition(
            resources=resources,
            authorizers={key: one.to_json() for key, one in list(api.authorizers.items())},
            gateway_responses={key: one.to_json() for key, one in list(api.gateway_responses.items())},
            models={model.name: model.schema for model in list(api.models.values())},
            validators={key: one.to_dict() for key, one in list(api.request_validators.items())},
            settings=api.to_dict(),
        )
    )
