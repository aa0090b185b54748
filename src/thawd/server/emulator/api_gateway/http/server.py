"""Serves the requests to a stage of an HTTP API."""

from __future__ import annotations

import time
from typing import Any

from thawd.gateway import cors
from thawd.gateway.aws.api_messages import ApiRequest, ApiResponse, Headers
from thawd.invocation import new_request_id
from thawd.resources import Cors
from thawd.server.emulator.api_gateway.api_services import ApiServices, Target
from thawd.server.emulator.api_gateway.http.authorizers import authorize
from thawd.server.emulator.api_gateway.http.calls import HttpCall
from thawd.server.emulator.api_gateway.http.definitions import (
    DEFAULT,
    Fields,
    HttpDefinition,
    definition_of,
    route_for,
)
from thawd.server.emulator.api_gateway.http.errors import HttpError
from thawd.server.emulator.api_gateway.http.integrations import integrate
from thawd.server.emulator.api_gateway.rest.calls import extended_id

DEPLOYMENTS = "thawd_deployments"
"""Attribute of moto's HTTP APIs with their deployments by id: ``fields`` and ``definition``."""
DEPLOYMENT = "thawd_deployment_id"
"""Attribute of moto's stages with the id of the deployment that the stage serves."""


def serve(api: Any, request: ApiRequest, services: ApiServices, target: Target) -> ApiResponse:
    """Answer a request to a stage.

    Args:
        api: moto's HTTP API.
        request: the request.
        services: what serving needs.
        target: the stage and the path.
    """
    stage, path, base_path = target
    request_id = extended_id(new_request_id())
    definition = _deployed(api, stage)
    shared = None if definition is None else _cors(definition.cors)
    shown = base_path if base_path is not None else "" if stage == DEFAULT else stage
    if definition is None or (api.disable_execute_api_endpoint and base_path is None):
        response = HttpError(404).response()
        response.headers.append(("Apigw-Requestid", request_id))
        return response
    try:
        variables = dict(api.stages[stage].stage_variables or {})
        raw_path = f"/{shown}{path}" if shown else path
        call = HttpCall(request, api.api_id, stage, variables, definition, path, raw_path, request_id, time.time())
        response = _answered(call, shared, services)
    except HttpError as error:
        if error.reason and error.status >= 500:
            services.complain(f"thawd: --aws: API {api.api_id}, {request.method} {path}: {error.reason}")
        response = error.response()
    origin = request.header("origin")
    if shared is not None and origin is not None and request.method != "OPTIONS":
        response.headers = _texts(cors.answer_headers(shared, origin, _bytes(response.headers)))
    response.headers.append(("Apigw-Requestid", request_id))
    return response


def _answered(call: HttpCall, shared: Cors | None, services: ApiServices) -> ApiResponse:
    request = call.request
    scope = {"method": request.method, "headers": _bytes(request.headers)}
    if shared is not None and cors.is_preflight(scope):
        return ApiResponse(204, _texts(cors.preflight_headers(shared, scope)))
    origin = request.foreign_origin
    if origin and not (shared is not None and cors.allows(shared, origin)):
        raise HttpError(
            403,
            f"thawd refuses requests from web pages of {origin}, because the API's CORS configuration does not allow "
            "them",
        )
    found = route_for(call.definition, request.method, call.path)
    if found is None:
        raise HttpError(404)
    call.route, call.parameters = found
    authorize(call, services)
    return integrate(call, services)


def _deployed(api: Any, name: str) -> HttpDefinition | None:
    """Return the definition that a stage serves; None: there is no such stage, or nothing is deployed to it."""
    stage = api.stages.get(name)
    if stage is None:
        return None
    if stage.auto_deploy:
        return definition_of(api)
    deployed = getattr(api, DEPLOYMENTS, {}).get(getattr(stage, DEPLOYMENT, None) or "")
    return None if deployed is None else HttpDefinition(**deployed["definition"])


def _cors(given: Fields | None) -> Cors | None:
    if not given:
        return None
    return Cors(
        allow_origins=tuple(given.get("allowOrigins") or ()),
        allow_methods=tuple(given.get("allowMethods") or ()),
        allow_headers=tuple(given.get("allowHeaders") or ()),
        expose_headers=tuple(given.get("exposeHeaders") or ()),
        max_age_s=int(given.get("maxAge") or 0),
        allow_credentials=bool(given.get("allowCredentials")),
    )


def _bytes(headers: Headers) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode("latin-1"), value.encode("latin-1", "replace")) for name, value in headers]


def _texts(headers: list[tuple[bytes, bytes]]) -> Headers:
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]
