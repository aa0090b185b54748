"""Finds the API and the stage for each request that thawd forwards to the emulator: by id, path or custom domain."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from thawd.gateway.aws.api_messages import (
    DOMAINS_PATH,
    EXECUTE_PATH,
    INTERNAL_HEADER,
    ApiRequest,
    ApiResponse,
    decoded_request,
    encoded,
)
from thawd.gateway.routes.payload_formats import checked_name, header_text
from thawd.resources import ACCOUNT_ID
from thawd.server.emulator.api_gateway.api_services import ApiServices, Target
from thawd.server.emulator.api_gateway.http import server as http_server
from thawd.server.emulator.api_gateway.http.definitions import DEFAULT
from thawd.server.emulator.api_gateway.rest import server as rest_server

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
_HEADER = "HTTP_" + INTERNAL_HEADER.upper().replace("-", "_")
_NO_BASE_PATH = "(none)"


def serving(application: Application, services: ApiServices) -> Application:
    """Wrap moto's WSGI application: answer requests to APIs here, and forward all other requests to moto."""

    def serve(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path not in (EXECUTE_PATH, DOMAINS_PATH):
            return application(environ, start_response)
        if _HEADER not in environ:  # the request is not from thawd; a web page may not send this header without CORS
            start_response("404 Not Found", [("Content-Length", "0")])
            return [b""]
        if path == DOMAINS_PATH:
            body = json.dumps(sorted(custom_domains())).encode()
        else:
            length = int(environ.get("CONTENT_LENGTH") or 0)
            body = encoded(answered(decoded_request(environ["wsgi.input"].read(length)), services))
        start_response("200 OK", [("Content-Type", "application/octet-stream"), ("Content-Length", str(len(body)))])
        return [body]

    return serve


def answered(request: ApiRequest, services: ApiServices) -> ApiResponse:
    """Return the answer to a request to an API."""
    try:
        if "." in request.identifier:
            return sendable(_of_domain(request, services))
        return sendable(_of_api(request, services, request.identifier, path=request.path, stage=None, base_path=None))
    except Exception as error:  # a bug in this package: the client gets status 500, and the operator the cause
        services.complain(f"thawd: --aws: {request.method} {request.path} of the API {request.identifier}: {error!r}")
        return _message(500, "Internal server error")


def sendable(response: ApiResponse) -> ApiResponse:
    """Return the response after a check of its headers, because mappings may put any part of a request into them.

    Raises:
        MalformedResponseError: a header cannot be sent.
    """
    for name, value in response.headers:
        checked_name(name)
        header_text(value)
    return response


def _message(status: int, text: str) -> ApiResponse:
    body = json.dumps({"message": text}, separators=(",", ":")).encode()
    return ApiResponse(status, [("Content-Type", "application/json")], body)


def _backends(dictionary: Any) -> Iterator[Any]:
    yield from list(dictionary[ACCOUNT_ID].values())


def _of_api(
    request: ApiRequest,
    services: ApiServices,
    identifier: str,
    *,
    path: str,
    stage: str | None,
    base_path: str | None,
) -> ApiResponse:
    """Answer a request to the API `identifier`; if `stage` is None, the path begins with the stage."""
    from moto.apigateway.models import apigateway_backends
    from moto.apigatewayv2.models import apigatewayv2_backends

    for backend in _backends(apigateway_backends):
        api = backend.apis.get(identifier)
        if api is not None:
            name, rest = _split(path) if stage is None else (stage, path)
            return rest_server.serve(api, backend, request, services, Target(name, rest, base_path))
    for backend in _backends(apigatewayv2_backends):
        api = backend.apis.get(identifier)
        if api is None:
            continue
        if api.protocol_type != "HTTP":
            return _message(501, "thawd serves REST and HTTP APIs, and no WebSocket APIs")
        name, rest = (stage, path) if stage is not None else _http_stage(api, path)
        return http_server.serve(api, request, services, Target(name, rest or "/", base_path))
    forbidden = _message(403, "Forbidden")
    forbidden.headers.append(("x-amzn-ErrorType", "ForbiddenException"))
    return forbidden


def _split(path: str) -> tuple[str, str]:
    """Return the first part of a path, and the rest with the slash before it."""
    first, slash, rest = path.lstrip("/").partition("/")
    return first, slash + rest


def _http_stage(api: Any, path: str) -> tuple[str, str]:
    name, rest = _split(path)
    return (name, rest) if name in api.stages and name != DEFAULT else (DEFAULT, path)


# Custom domain names


class _Mapping(NamedTuple):
    key: str
    api_id: str
    stage: str | None


def custom_domains() -> set[str]:
    """Return the custom domain names of all APIs, in lower case."""
    from moto.apigateway.models import apigateway_backends
    from moto.apigatewayv2.models import apigatewayv2_backends

    return {
        name.lower()
        for backends in (apigateway_backends, apigatewayv2_backends)
        for backend in _backends(backends)
        for name in list(backend.domain_names)
    }


def _mappings(domain: str) -> Iterator[_Mapping]:
    from moto.apigateway.models import apigateway_backends
    from moto.apigatewayv2.models import apigatewayv2_backends

    for backend in _backends(apigateway_backends):
        for name, mappings in list(backend.base_path_mappings.items()):
            if name.lower() == domain:
                for one in list(mappings.values()):
                    key = "" if one.base_path == _NO_BASE_PATH else one.base_path
                    yield _Mapping(key, one.rest_api_id, one.stage or None)
    for backend in _backends(apigatewayv2_backends):
        for mapping in list(backend.api_mappings.values()):
            if mapping.domain_name.lower() == domain:
                key = (mapping.api_mapping_key or "").strip("/")
                yield _Mapping("" if key == _NO_BASE_PATH else key, mapping.api_id, mapping.stage)


def _of_domain(request: ApiRequest, services: ApiServices) -> ApiResponse:
    """Answer a request to a custom domain name. It goes to the mapping with the longest matching path."""
    path = "/" + request.path.lstrip("/")
    fitting = [
        one
        for one in _mappings(request.identifier)
        if not one.key or path == f"/{one.key}" or path.startswith(f"/{one.key}/")
    ]
    if not fitting:
        return _message(403, "Forbidden")
    chosen = max(fitting, key=lambda one: len(one.key))
    rest = path[len(chosen.key) + 1 :] if chosen.key else path
    return _of_api(request, services, chosen.api_id, path=rest, stage=chosen.stage, base_path=chosen.key)
