"""Operations of REST APIs (``apigateway``) that moto lacks or that differ from AWS's.

The most important difference: on AWS, a deployment is a copy of the API. Later changes of the API do not change the
copy. A stage uses the copy until it is moved to another deployment.

Source: API Gateway API reference, version 1; API Gateway developer guide, "Deploy REST APIs in API Gateway".
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from thawd.server.emulator.api_gateway.authorizer_cache import AuthorizerCache
from thawd.server.emulator.api_gateway.operations import openapi_rest
from thawd.server.emulator.api_gateway.operations.patches import PatchError, apply, is_true
from thawd.server.emulator.api_gateway.rest.definitions import definition_of
from thawd.server.emulator.api_gateway.rest.server import DEFINITION

_FLUSH = "{0}/restapis/(?P<function_id>[^/]+)/stages/(?P<stage_name>[^/]+)/cache/authorizers/?$"
_METHOD = {
    "authorizationType": ("authorization_type", str),
    "authorizerId": ("authorizer_id", str),
    "authorizationScopes": ("authorization_scopes", str),
    "apiKeyRequired": ("api_key_required", is_true),
    "operationName": ("operation_name", str),
    "requestParameters": ("request_parameters", is_true),
    "requestModels": ("request_models", str),
    "requestValidatorId": ("request_validator_id", str),
}
_INTEGRATION = {
    "type": ("integration_type", str),
    "httpMethod": ("http_method", str),
    "uri": ("uri", str),
    "credentials": ("credentials", str),
    "passthroughBehavior": ("passthrough_behaviour", str),
    "contentHandling": ("content_handling", str),
    "timeoutInMillis": ("timeout_in_millis", int),
    "requestTemplates": ("request_templates", str),
    "requestParameters": ("request_parameters", str),
    "cacheKeyParameters": ("cache_key_parameters", str),
    "cacheNamespace": ("cache_namespace", str),
}
_INTEGRATION_RESPONSE = {
    "selectionPattern": ("selection_pattern", str),
    "responseTemplates": ("response_templates", str),
    "responseParameters": ("response_parameters", str),
    "contentHandling": ("content_handling", str),
}
_METHOD_RESPONSE = {
    "responseModels": ("response_models", str),
    "responseParameters": ("response_parameters", is_true),
}
_GATEWAY_RESPONSE = {
    "statusCode": ("status_code", str),
    "responseTemplates": ("response_templates", str),
    "responseParameters": ("response_parameters", str),
}
_API = {
    "name": ("name", str),
    "description": ("description", str),
    "apiKeySource": ("api_key_source", str),
    "binaryMediaTypes": ("binaryMediaTypes", str),
    "disableExecuteApiEndpoint": ("disableExecuteApiEndpoint", is_true),
    "policy": ("policy", str),
    # An empty text turns compression off.
    "minimumCompressionSize": ("minimum_compression_size", lambda text: int(text) if text else None),
    "endpointConfiguration": ("endpoint_configuration", str),
}


def install(cache: AuthorizerCache) -> None:
    """Change ``moto.apigateway``.

    Args:
        cache: answers of authorizers, for FlushStageAuthorizersCache.
    """
    _deploy_copies()
    _keep_settings()
    _change_parts()
    _flush(cache)
    openapi_rest.install()


def _deploy_copies() -> None:
    from moto.apigateway.exceptions import DeploymentNotFoundException, StageStillActive
    from moto.apigateway.models import RestAPI

    create = RestAPI.create_deployment

    def create_deployment(api: Any, name: str, description: str, stage_variables: Any = None) -> Any:
        before = api.stages.get(name) if name else None
        deployment = create(api, name, description, stage_variables)
        setattr(deployment, DEFINITION, asdict(definition_of(api)))
        if before is not None:  # moto would replace the stage, with all its settings
            before.deployment_id = deployment.id
            before.variables = {**(before.variables or {}), **(stage_variables or {})}
            api.stages[name] = before
        return deployment

    def delete_deployment(api: Any, deployment_id: str) -> Any:
        if deployment_id not in api.deployments:
            raise DeploymentNotFoundException
        if any(stage.deployment_id == deployment_id for stage in api.stages.values()):
            raise StageStillActive
        return api.deployments.pop(deployment_id)

    setattr(RestAPI, "create_deployment", create_deployment)  # noqa: B010 - mypy forbids to assign to a method
    setattr(RestAPI, "delete_deployment", delete_deployment)  # noqa: B010
    # moto would register each method with a library that intercepts HTTP requests in this process.
    setattr(RestAPI, "update_integration_mocks", lambda api, stage_name: None)  # noqa: B010


def _keep_settings() -> None:
    """Keep what moto's operations drop: binary media types, and the validation expression of authorizers."""
    from moto.apigateway.models import Authorizer, RestAPI
    from moto.apigateway.responses import APIGatewayResponse

    create, patch = APIGatewayResponse.create_rest_api, RestAPI.apply_patch_operations
    make_authorizer = Authorizer.__init__

    def create_rest_api(response: Any) -> Any:
        made = create(response)
        kinds = response._get_param("binaryMediaTypes")
        if not kinds or not isinstance(made, tuple) or made[0] != 200:
            return made
        api = response.backend.get_rest_api(json.loads(made[2])["id"])
        api.binaryMediaTypes = list(kinds)
        return made[0], made[1], json.dumps(api.to_dict())

    def apply_patch_operations(api: Any, patch_operations: list[dict[str, Any]]) -> None:
        ours = [one for one in patch_operations if not str(one.get("path", "")).startswith("/endpointConfiguration")]
        patch(api, [one for one in patch_operations if one not in ours])
        if any(one.get("op") == "add" and one.get("path") == "/binaryMediaTypes" for one in ours):
            ours = [_with_key(one) for one in ours]
        _patched(api, ours, _API)

    def make(authorizer: Any, *given: Any, **named: Any) -> None:
        make_authorizer(authorizer, *given, **named)
        expression = named.get("identiy_validation_expression")
        if expression is not None:
            authorizer.identity_validation_expression = expression

    setattr(APIGatewayResponse, "create_rest_api", create_rest_api)  # noqa: B010
    setattr(RestAPI, "apply_patch_operations", apply_patch_operations)  # noqa: B010
    setattr(Authorizer, "__init__", make)  # noqa: B010


def _with_key(patch: dict[str, Any]) -> dict[str, Any]:
    """Convert a patch that adds a binary media type by its value into one that adds it by its path."""
    if patch.get("path") != "/binaryMediaTypes":
        return patch
    return {**patch, "path": "/binaryMediaTypes/" + str(patch.get("value", "")).replace("/", "~1")}


def _patched(target: Any, patches: list[dict[str, Any]], names: Any) -> None:
    from moto.apigateway.exceptions import BadRequestException

    try:
        apply(target, patches, names)
    except PatchError as error:
        raise BadRequestException(str(error)) from error


def _change_parts() -> None:
    """Add the operations that change parts of an API."""
    from moto.apigateway.responses import APIGatewayResponse

    def update(find: Callable[[Any, list[str]], Any], names: Any) -> Callable[[Any], Any]:
        def work(response: Any) -> Any:
            parts = response.path.strip("/").split("/")
            target = find(response.backend, parts)
            _patched(target, response._get_param("patchOperations") or [], names)
            status = {"status": 200}
            return 200, status, json.dumps(target.to_json() if hasattr(target, "to_json") else target.to_dict())

        return work

    # The parts of a path: restapis, API, resources, resource, methods, method, integration or responses, ...
    added = {
        "update_method": update(lambda backend, at: backend.get_method(at[1], at[3], at[5]), _METHOD),
        "update_integration": update(_integration, _INTEGRATION),
        "update_integration_response": update(
            lambda backend, at: _integration(backend, at).get_integration_response(at[8]), _INTEGRATION_RESPONSE
        ),
        "update_method_response": update(
            lambda backend, at: backend.get_method_response(at[1], at[3], at[5], at[7]), _METHOD_RESPONSE
        ),
        "update_resource": update(
            lambda backend, at: backend.get_resource(at[1], at[3]),
            {"pathPart": ("path_part", str), "parentId": ("parent_id", str)},
        ),
        "update_gateway_response": update(
            lambda backend, at: _gateway_response(backend, at[1], at[3]), _GATEWAY_RESPONSE
        ),
        "update_deployment": update(
            lambda backend, at: backend.get_deployment(at[1], at[3]), {"description": ("description", str)}
        ),
    }
    for name, method in added.items():
        setattr(APIGatewayResponse, name, method)


def _integration(backend: Any, at: list[str]) -> Any:
    from moto.apigateway.exceptions import NoIntegrationDefined

    found = backend.get_integration(at[1], at[3], at[5])
    if found is None:
        raise NoIntegrationDefined
    return found


def _gateway_response(backend: Any, api_id: str, kind: str) -> Any:
    """Return the gateway response of a type. As on AWS, it is made at its first change."""
    api = backend.get_rest_api(api_id)
    if kind not in api.gateway_responses:
        api.put_gateway_response(kind, None, {}, {})
    return api.gateway_responses[kind]


def _flush(cache: AuthorizerCache) -> None:
    from moto.apigateway import urls
    from moto.apigateway.responses import APIGatewayResponse

    def flush_stage_authorizers_cache(response: Any) -> Any:
        parts = response.path.strip("/").split("/")
        response.backend.get_stage(parts[1], parts[3])
        cache.flush((parts[1], parts[3]))
        return 202, {"status": 202}, ""

    setattr(APIGatewayResponse, "flush_stage_authorizers_cache", flush_stage_authorizers_cache)  # noqa: B010
    urls.url_paths[_FLUSH] = APIGatewayResponse.dispatch
