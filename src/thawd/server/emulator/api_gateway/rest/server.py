"""Serves the requests to a stage of a REST API."""

from __future__ import annotations

import time
from typing import Any

from thawd.gateway.aws.api_messages import ApiRequest, ApiResponse
from thawd.server.emulator.api_gateway import path_templates
from thawd.server.emulator.api_gateway.api_services import ApiServices, Target
from thawd.server.emulator.api_gateway.rest.authorizers import authorize
from thawd.server.emulator.api_gateway.rest.calls import RestCall, RestStage, call_of
from thawd.server.emulator.api_gateway.rest.definitions import Fields, RestDefinition, definition_of
from thawd.server.emulator.api_gateway.rest.gateway_responses import GatewayError, response_for
from thawd.server.emulator.api_gateway.rest.integrations import integrate
from thawd.server.emulator.api_gateway.rest.mapping_templates import TemplateError, rendered
from thawd.server.emulator.api_gateway.rest.parameter_mapping import value_of
from thawd.server.emulator.api_gateway.rest.request_checks import require_api_key, validate

# The methods that ANY means.
_ANY = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})
_ALLOW_ORIGIN = "method.response.header.access-control-allow-origin"
DEFINITION = "thawd_definition"
"""Attribute of moto's deployments in which `thawd.server.emulator.api_gateway.operations` keeps what is deployed."""


def serve(api: Any, backend: Any, request: ApiRequest, services: ApiServices, target: Target) -> ApiResponse:
    """Answer a request to a stage.

    Args:
        api: moto's REST API.
        backend: moto's backend.
        request: the request.
        services: what serving needs.
        target: the stage and the path. The path is percent-encoded, and as sent: it may be empty.
    """
    found = _stage(api, target.stage)
    call = call_of(
        request,
        found or _absent(api, target.stage),
        path=target.path,
        base_path=target.base_path,
        now_s=time.time(),
    )
    is_hidden = api.disableExecuteApiEndpoint and target.base_path is None
    try:
        _route(call, exists=found is not None and not is_hidden)
        _refuse_foreign_page(call)
        authorize(call, services)
        require_api_key(call, backend, services.usage)
        validate(call)
        response = integrate(call, services)
    except GatewayError as error:
        if error.reason and error.status >= 500:
            services.complain(f"thawd: --aws: API {api.id}, {request.method} {call.path}: {error.reason}")
        response = _gateway_response(call, error)
    response.headers += [
        ("x-amzn-RequestId", call.context["requestId"]),
        ("x-amz-apigw-id", call.context["extendedRequestId"]),
    ]
    return response


def _stage(api: Any, name: str) -> RestStage | None:
    stage = api.stages.get(name)
    if stage is None:
        return None
    deployment = api.deployments.get(stage.deployment_id)
    deployed = getattr(deployment, DEFINITION, None)  # older states have deployments without a definition
    definition = definition_of(api) if deployed is None else RestDefinition(**deployed)
    return RestStage(api.id, name, stage.deployment_id or "", dict(stage.variables or {}), definition)


def _absent(api: Any, name: str) -> RestStage:
    return RestStage(api.id, name, "", {}, RestDefinition({}, {}, {}, {}, {}, {}))


def _route(call: RestCall, *, exists: bool) -> None:
    """Find the resource and method for a request.

    Args:
        call: the call, to which resource and method are added.
        exists: whether the stage exists, and may be called by this address.

    Raises:
        GatewayError: there is none; AWS's message for that is "Missing Authentication Token", and without a stage
            "Forbidden".
    """
    if not exists:
        raise GatewayError("INVALID_API_KEY")
    method = call.request.method
    resources = [{"id": key, **one} for key, one in call.stage.definition.resources.items()]
    for resource, parameters in path_templates.best(resources, call.path, template_of=lambda one: str(one["path"])):
        methods = resource["methods"]
        found = methods.get(method) or (methods.get("ANY") if method in _ANY else None)
        if found is not None:
            call.resource, call.method, call.path_parameters = resource, found, parameters
            call.context |= {"resourceId": resource["id"], "resourcePath": resource["path"]}
            return
    raise GatewayError("MISSING_AUTHENTICATION_TOKEN")


def _refuse_foreign_page(call: RestCall) -> None:
    """Refuse the request of another site's web page unless the resource's OPTIONS method allows that site.

    AWS would answer it. Here a page that is open in a browser on this machine could reach every API that is under
    development.

    Raises:
        GatewayError: the page may not call this method.
    """
    origin = call.request.foreign_origin
    options: Fields = (call.resource["methods"].get("OPTIONS") or {}).get("methodIntegration") or {}
    if not origin or (call.request.method == "OPTIONS" and call.integration.get("type") == "MOCK"):
        return
    allowed = {
        str(value).strip("'")
        for response in (options.get("integrationResponses") or {}).values()
        for name, value in (response.get("responseParameters") or {}).items()
        if name.lower() == _ALLOW_ORIGIN
    }
    if not allowed & {"*", origin}:
        raise GatewayError(
            "ACCESS_DENIED",
            f"thawd refuses requests from web pages of {origin}, because the resource has no OPTIONS method of the "
            "type MOCK whose Access-Control-Allow-Origin allows them",
        )


def _gateway_response(call: RestCall, error: GatewayError) -> ApiResponse:
    def render(template: str, variables: Fields) -> str:
        parameters = {"path": call.path_parameters, "querystring": call.last_query(), "header": call.last_headers()}
        try:
            return rendered(
                template,
                body=call.body_text,
                parameters=parameters,
                context={**call.context, "error": variables},
                stage_variables=call.stage.variables,
            ).text
        except TemplateError:
            return '{"message": "Internal server error"}'

    def find(expression: str) -> Any:
        try:
            return value_of(expression, call)
        except GatewayError:
            return None

    return response_for(error, call.stage.definition.gateway_responses, render=render, value_of=find)
