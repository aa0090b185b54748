"""Makes HTTP APIs from OpenAPI 3.0 documents, with API Gateway's extensions.

Source: API Gateway developer guide, "Using OpenAPI definitions for HTTP APIs" and "OpenAPI extensions for API Gateway".
"""

from __future__ import annotations

import json
from typing import Any

from thawd.server.emulator.api_gateway.http.definitions import DEFAULT
from thawd.server.emulator.api_gateway.operations.openapi_rest import EXTENSION, methods_of

Fields = dict[str, Any]


def parsed(text: str) -> Fields:
    """Return the document in a text, JSON or YAML.

    Raises:
        BadRequestException: the text is no such document.
    """
    import yaml
    from moto.apigatewayv2.exceptions import BadRequestException

    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise BadRequestException(f"Unable to parse the document: {error}") from error
    if not isinstance(document, dict) or not str(document.get("openapi", "")).startswith("3"):
        raise BadRequestException("Invalid OpenAPI version; it must be 3.0.1 or later, and not 3.1")
    return document


def fill(api: Any, document: Fields) -> None:
    """Give moto's HTTP API `api` what a document describes."""
    info = document.get("info") or {}
    api.name = info.get("title") or api.name
    api.version = str(info["version"]) if "version" in info else api.version
    api.description = info.get("description") or api.description
    if f"{EXTENSION}cors" in document:
        api.cors_configuration = document[f"{EXTENSION}cors"]
    schemes = (document.get("components") or {}).get("securitySchemes") or {}
    authorizers = {
        name: _authorizer(api, name, scheme[f"{EXTENSION}authorizer"])
        for name, scheme in schemes.items()
        if f"{EXTENSION}authorizer" in scheme
    }
    shared: dict[str, str] = {}
    for path, item in (document.get("paths") or {}).items():
        for method, operation in methods_of(item or {}):
            key = DEFAULT if path in (DEFAULT, f"/{DEFAULT}") else f"{method} {path}"
            target = _integration(api, operation.get(f"{EXTENSION}integration"), document, shared)
            needed = operation.get("security")
            needed = document.get("security") if needed is None else needed
            api.create_route(
                api_key_required=False,
                route_key=key,
                target=target,
                operation_name=operation.get("operationId"),
                **_security(needed or [], authorizers, schemes),
            )


def _authorizer(api: Any, name: str, given: Fields) -> Any:
    sources = given.get("identitySource") or []
    return api.create_authorizer(
        auth_creds_arn=given.get("authorizerCredentials"),
        auth_payload_format_version=given.get("authorizerPayloadFormatVersion"),
        auth_result_ttl=given.get("authorizerResultTtlInSeconds"),
        authorizer_type=str(given.get("type", "")).upper(),
        authorizer_uri=given.get("authorizerUri"),
        enable_simple_response=given.get("enableSimpleResponses"),
        identity_source=[one.strip() for one in sources.split(",")] if isinstance(sources, str) else sources,
        identity_validation_expr=None,
        jwt_config=given.get("jwtConfiguration"),
        name=name,
    )


def _security(needed: list[Fields], authorizers: Fields, schemes: Fields) -> Fields:
    for name, scopes in ((name, scopes) for one in needed for name, scopes in one.items()):
        if name in authorizers:
            made = authorizers[name]
            kind = "JWT" if made.authorizer_type == "JWT" else "CUSTOM"
            return {"authorization_type": kind, "authorizer_id": made.id, "authorization_scopes": list(scopes or [])}
        if (schemes.get(name) or {}).get(f"{EXTENSION}authtype") == "awsSigv4":
            return {"authorization_type": "AWS_IAM", "authorizer_id": None, "authorization_scopes": []}
    return {"authorization_type": "NONE", "authorizer_id": None, "authorization_scopes": []}


def _integration(api: Any, given: Fields | None, document: Fields, shared: dict[str, str]) -> str:
    """Return the target of a route: its own integration, or one of ``components``, which several routes share."""
    if not given:
        return ""
    key = json.dumps(given, sort_keys=True)
    if "$ref" in given:
        if key in shared:
            return shared[key]
        name = given["$ref"].rpartition("/")[2]
        given = ((document.get("components") or {}).get(f"{EXTENSION}integrations") or {}).get(name) or {}
    made = api.create_integration(
        connection_type=str(given.get("connectionType", "INTERNET")).upper(),
        connection_id=given.get("connectionId"),
        credentials_arn=given.get("credentials"),
        description=None,
        integration_type=str(given.get("type", "")).upper(),
        integration_subtype=given.get("integrationSubtype"),
        integration_method=given.get("httpMethod"),
        integration_uri=given.get("uri"),
        payload_format_version=str(given["payloadFormatVersion"]) if "payloadFormatVersion" in given else None,
        request_parameters=given.get("requestParameters"),
        response_parameters=given.get("responseParameters"),
        timeout_in_millis=given.get("timeoutInMillis"),
    )
    shared[key] = f"integrations/{made.id}"
    return shared[key]
