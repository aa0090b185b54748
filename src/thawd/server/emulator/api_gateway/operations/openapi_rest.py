"""Makes REST APIs from OpenAPI documents (Swagger 2.0 and OpenAPI 3.0), with API Gateway's extensions.

Source: API Gateway developer guide, "OpenAPI extensions for API Gateway" and "Develop REST APIs using OpenAPI in API
Gateway".
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

Fields = dict[str, Any]
METHODS = frozenset({"get", "put", "post", "delete", "options", "head", "patch"})
EXTENSION = "x-amazon-apigateway-"
ANY_METHOD = f"{EXTENSION}any-method"


def install() -> None:
    """Replace moto's import, which supports only a part of OpenAPI and of API Gateway's extensions."""
    from moto.apigateway.exceptions import (
        InvalidOpenAPIDocumentException,
        InvalidOpenApiDocVersionException,
        InvalidOpenApiModeException,
    )
    from moto.apigateway.models import APIGatewayBackend
    from openapi_spec_validator import validate
    from openapi_spec_validator.validation.exceptions import OpenAPIValidationError

    def import_rest_api(backend: Any, api_doc: Fields, fail_on_warnings: bool) -> Any:
        info = api_doc.get("info") or {}
        api = backend.create_rest_api(name=info.get("title") or "api", description=info.get("description") or "")
        try:
            return backend.put_rest_api(api.id, api_doc, fail_on_warnings=fail_on_warnings)
        except Exception:
            backend.apis.pop(api.id, None)
            raise

    def put_rest_api(
        backend: Any, function_id: str, api_doc: Fields, fail_on_warnings: bool, mode: str = "merge"
    ) -> Any:
        if mode not in ("merge", "overwrite"):
            raise InvalidOpenApiModeException
        if str(api_doc.get("swagger", "")) != "2.0" and not str(api_doc.get("openapi", "")).startswith("3"):
            raise InvalidOpenApiDocVersionException
        if fail_on_warnings and "openapi" in api_doc:
            try:
                validate(api_doc)
            except OpenAPIValidationError as error:
                raise InvalidOpenAPIDocumentException(error) from error
        api = backend.get_rest_api(function_id)
        if mode == "overwrite":
            api.resources, api.authorizers, api.models = {}, {}, {}
            api.request_validators, api.gateway_responses = {}, {}
            api.default = api.add_child("/")
            api.root_resource_id = api.default.id
        _Import(backend, api, api_doc).run()
        return api

    setattr(APIGatewayBackend, "import_rest_api", import_rest_api)  # noqa: B010 - mypy forbids to assign to a method
    setattr(APIGatewayBackend, "put_rest_api", put_rest_api)  # noqa: B010


class _Import:
    """One import.

    Args:
        backend: moto's backend.
        api: the API that gets what the document says.
        document: the document.
    """

    def __init__(self, backend: Any, api: Any, document: Fields) -> None:
        self._backend = backend
        self._api = api
        self._document = document
        self._validators: dict[str, str] = {}
        self._authorizers: dict[str, str] = {}

    def run(self) -> None:
        """Make everything that the document describes."""
        api, document = self._api, self._document
        info = document.get("info") or {}
        api.name = info.get("title") or api.name
        api.description = info.get("description") or api.description
        api.binaryMediaTypes = document.get(f"{EXTENSION}binary-media-types") or api.binaryMediaTypes
        api.api_key_source = document.get(f"{EXTENSION}api-key-source") or api.api_key_source
        for kind, response in (document.get(f"{EXTENSION}gateway-responses") or {}).items():
            api.put_gateway_response(
                kind,
                response.get("statusCode"),
                response.get("responseParameters") or {},
                response.get("responseTemplates") or {},
            )
        for name, validator in (document.get(f"{EXTENSION}request-validators") or {}).items():
            made = api.create_request_validator(
                name, validator.get("validateRequestBody"), validator.get("validateRequestParameters")
            )
            self._validators[name] = made.id
        schemas = document.get("definitions") or (document.get("components") or {}).get("schemas") or {}
        for name, schema in schemas.items():
            api.add_model(name, schema.get("description") or "", json.dumps(self._linked(schema)), "application/json")
        for name, scheme in self._schemes().items():
            if f"{EXTENSION}authorizer" in scheme:
                self._authorizers[name] = self._authorizer(name, scheme)
        for path, item in (document.get("paths") or {}).items():
            resource = self._resource(path)
            for method, operation in methods_of(item):
                self._method(resource, method, operation, item)

    def _schemes(self) -> Fields:
        found = self._document.get("securityDefinitions") or (self._document.get("components") or {}).get(
            "securitySchemes"
        )
        return found or {}

    def _linked(self, schema: Any) -> Any:
        """Return a schema whose references to other schemas of the document are those of API Gateway's models."""
        if isinstance(schema, list):
            return [self._linked(one) for one in schema]
        if not isinstance(schema, dict):
            return schema
        made = {key: self._linked(value) for key, value in schema.items()}
        reference = made.get("$ref")
        if isinstance(reference, str) and reference.startswith(("#/definitions/", "#/components/schemas/")):
            name = reference.rpartition("/")[2]
            made["$ref"] = f"https://apigateway.amazonaws.com/restapis/{self._api.id}/models/{name}"
        return made

    def _authorizer(self, name: str, scheme: Fields) -> str:
        given = scheme[f"{EXTENSION}authorizer"]
        kind = str(given.get("type", "token")).upper()
        source = given.get("identitySource")
        if kind != "REQUEST" and not source:
            source = f"method.request.header.{scheme.get('name') or 'Authorization'}"
        made = self._backend.create_authorizer(
            self._api.id,
            name,
            kind,
            provider_arns=given.get("providerARNs"),
            auth_type=scheme.get(f"{EXTENSION}authtype"),
            authorizer_uri=given.get("authorizerUri"),
            authorizer_credentials=given.get("authorizerCredentials"),
            identity_source=source,
            identiy_validation_expression=given.get("identityValidationExpression"),
            authorizer_result_ttl=given.get("authorizerResultTtlInSeconds", 300),
        )
        return str(made.id)

    def _resource(self, path: str) -> Any:
        """Return the resource of a path. Missing resources on the path are made."""
        api = self._api
        found = api.default if path.strip("/") == "" else None
        parent = api.default
        for part in filter(None, path.split("/")):
            children = [one for one in api.resources.values() if one.parent_id == parent.id and one.path_part == part]
            found = parent = children[0] if children else api.add_child(part, parent.id)
        return found

    def _method(self, resource: Any, method: str, operation: Fields, item: Fields) -> None:
        parameters, models = self._parameters(operation, item)
        kind, authorizer, scopes, needs_key = self._security(operation)
        validator = operation.get(f"{EXTENSION}request-validator") or self._document.get(
            f"{EXTENSION}request-validator"
        )
        made = resource.add_method(
            method,
            kind,
            needs_key,
            request_parameters=parameters or None,
            request_models=models or None,
            operation_name=operation.get("operationId"),
            authorizer_id=authorizer,
            authorization_scopes=scopes or None,
            request_validator_id=self._validators.get(validator or ""),
        )
        for status, response in (operation.get("responses") or {}).items():
            headers = {f"method.response.header.{name}": False for name in response.get("headers") or {}}
            made.create_response(str(status), None, headers or None)
        integration = operation.get(f"{EXTENSION}integration")
        if integration:
            self._integration(resource, method, integration)

    def _parameters(self, operation: Fields, item: Fields) -> tuple[dict[str, bool], dict[str, str]]:
        places = {"header": "header", "query": "querystring", "path": "path"}
        parameters: dict[str, bool] = {}
        models: dict[str, str] = {}
        for one in [*(item.get("parameters") or []), *(operation.get("parameters") or [])]:
            if one.get("in") in places:
                parameters[f"method.request.{places[one['in']]}.{one['name']}"] = bool(one.get("required"))
            elif one.get("in") == "body" and "$ref" in (one.get("schema") or {}):
                models["application/json"] = one["schema"]["$ref"].rpartition("/")[2]
        for kind, content in ((operation.get("requestBody") or {}).get("content") or {}).items():
            if "$ref" in (content.get("schema") or {}):
                models[kind] = content["schema"]["$ref"].rpartition("/")[2]
        return parameters, models

    def _security(self, operation: Fields) -> tuple[str, str | None, list[str], bool]:
        """Authorization type, authorizer, scopes and whether an API key is required."""
        needed = operation.get("security")
        needed = self._document.get("security") if needed is None else needed
        kind, authorizer, scopes, needs_key = "NONE", None, [], False
        for name, wanted in ((name, wanted) for one in needed or [] for name, wanted in one.items()):
            scheme = self._schemes().get(name) or {}
            if scheme.get(f"{EXTENSION}authtype") == "awsSigv4":
                kind = "AWS_IAM"
            elif name in self._authorizers:
                authorizer, scopes = self._authorizers[name], list(wanted or [])
                is_pool = self._api.authorizers[authorizer].type == "COGNITO_USER_POOLS"
                kind = "COGNITO_USER_POOLS" if is_pool else "CUSTOM"
            elif scheme.get("type") == "apiKey":
                needs_key = True
        return kind, authorizer, scopes, needs_key

    def _integration(self, resource: Any, method: str, given: Fields) -> None:
        kind = str(given.get("type", "")).upper()
        behavior = given.get("passthroughBehavior")
        made = self._backend.put_integration(
            function_id=self._api.id,
            resource_id=resource.id,
            method_type=method,
            integration_type=kind,
            uri=given.get("uri") or "",
            integration_method=given.get("httpMethod") or ("POST" if kind.startswith("AWS") else method),
            credentials=given.get("credentials"),
            request_templates=given.get("requestTemplates"),
            passthrough_behavior=behavior.upper() if behavior else "WHEN_NO_MATCH",
            timeout_in_millis=given.get("timeoutInMillis"),
            request_parameters=given.get("requestParameters"),
            content_handling=given.get("contentHandling"),
            connection_type=given.get("connectionType"),
        )
        for pattern, response in (given.get("responses") or {}).items():
            made.create_integration_response(
                str(response.get("statusCode", "200")),
                None if pattern == "default" else pattern,
                response.get("responseTemplates") or {},
                response.get("responseParameters") or {},
                response.get("contentHandling"),
            )


def methods_of(item: Fields) -> Iterator[tuple[str, Fields]]:
    """Yield the methods of a path of a document, in upper case, with their operations; ``ANY`` is one of them."""
    for name, operation in item.items():
        if name == ANY_METHOD:
            yield "ANY", operation or {}
        elif name.lower() in METHODS:
            yield name.upper(), operation or {}
