"""Operations of HTTP APIs (``apigatewayv2``) that moto lacks: deployments, quick create, import, changes of stages.

A stage without automatic deployment serves what was deployed to it. Source: API Gateway API reference, version 2; API
Gateway developer guide, "Stages for HTTP APIs in API Gateway" and "Create an HTTP API by using the AWS CLI".
"""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

from thawd.server.emulator.api_gateway.function_invocations import function_in
from thawd.server.emulator.api_gateway.http.definitions import DEFAULT, definition_of
from thawd.server.emulator.api_gateway.http.server import DEPLOYMENT, DEPLOYMENTS
from thawd.server.emulator.api_gateway.operations import openapi_http

_DEPLOYMENTS_URL = "{0}/v2/apis/(?P<api_id>[^/]+)/deployments$"
_DEPLOYMENT_URL = "{0}/v2/apis/(?P<api_id>[^/]+)/deployments/(?P<deployment_id>[^/]+)$"
_STAGE_FIELDS = {
    "accessLogSettings": "access_log_settings",
    "autoDeploy": "auto_deploy",
    "clientCertificateId": "client_certificate_id",
    "defaultRouteSettings": "default_route_settings",
    "description": "description",
    "routeSettings": "route_settings",
    "stageVariables": "stage_variables",
}
Fields = dict[str, Any]


def install(connection: Callable[[], Mapping[str, Any]]) -> None:
    """Change ``moto.apigatewayv2``.

    Args:
        connection: returns how thawd's port is reached: ``url`` and others.
    """
    _show_address(connection)
    _deploy()
    _change_stages()
    _create_quickly()
    _list_authorizers()


def _show_address(connection: Callable[[], Mapping[str, Any]]) -> None:
    """Make ``apiEndpoint`` an address that works on this machine."""
    from moto.apigatewayv2.models import Api

    describe = Api.to_json

    def to_json(api: Any) -> Fields:
        url = str(connection()["url"]).rstrip("/")
        return {**describe(api), "apiEndpoint": f"{url}/_aws/execute-api/{api.api_id}"}

    setattr(Api, "to_json", to_json)  # noqa: B010 - mypy forbids to assign to a method


def _api(response: Any) -> Any:
    return response.apigatewayv2_backend.get_api(response.path.split("/")[3])


def deploy(api: Any, *, description: str | None = None, stage: str | None = None) -> Fields:
    """Deploy moto's HTTP API `api` as it is now; returns the deployment's fields.

    Args:
        api: the API.
        description: of the deployment.
        stage: name of a stage that is to serve the deployment; None: none is.
    """
    made = {
        "deploymentId": secrets.token_hex(5)[:6],
        "createdDate": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "deploymentStatus": "DEPLOYED",
        "autoDeployed": False,
    }
    if description is not None:
        made["description"] = description
    deployments = vars(api).setdefault(DEPLOYMENTS, {})
    deployments[made["deploymentId"]] = {"fields": made, "definition": asdict(definition_of(api))}
    if stage is not None:
        setattr(api.get_stage(stage), DEPLOYMENT, made["deploymentId"])
    return made


def _deploy() -> None:
    from moto.apigatewayv2 import urls
    from moto.apigatewayv2.exceptions import APIGatewayV2Error, BadRequestException
    from moto.apigatewayv2.responses import ApiGatewayV2Response

    class DeploymentNotFound(APIGatewayV2Error):
        code = 404

        def __init__(self, identifier: str) -> None:
            super().__init__("NotFoundException", f"Invalid deployment identifier specified {identifier}")

    def find(response: Any) -> tuple[Any, str, Fields]:
        api, identifier = _api(response), response.path.rstrip("/").split("/")[-1]
        found = getattr(api, DEPLOYMENTS, {}).get(identifier)
        if found is None:
            raise DeploymentNotFound(identifier)
        return api, identifier, found["fields"]

    def create_deployment(response: Any) -> Any:
        given = json.loads(response.body or "{}")
        api = _api(response)
        name = given.get("stageName")
        if name is not None and api.get_stage(name).auto_deploy:
            raise BadRequestException(f"Deployment failed: the stage {name} is deployed automatically")
        made = deploy(api, description=given.get("description"), stage=name)
        return 201, {"status": 201}, json.dumps(made)

    def get_deployment(response: Any) -> Any:
        return 200, {}, json.dumps(find(response)[2])

    def get_deployments(response: Any) -> Any:
        listed = [one["fields"] for one in getattr(_api(response), DEPLOYMENTS, {}).values()]
        return 200, {}, json.dumps({"items": listed})

    def update_deployment(response: Any) -> Any:
        fields = find(response)[2]
        fields["description"] = json.loads(response.body or "{}").get("description")
        return 200, {}, json.dumps(fields)

    def delete_deployment(response: Any) -> Any:
        api, identifier, _ = find(response)
        if any(getattr(stage, DEPLOYMENT, None) == identifier for stage in api.stages.values()):
            raise BadRequestException("Active stages pointing to this deployment must be moved or deleted")
        del getattr(api, DEPLOYMENTS)[identifier]
        return 204, {"status": 204}, ""

    for function in (create_deployment, get_deployment, get_deployments, update_deployment, delete_deployment):
        setattr(ApiGatewayV2Response, function.__name__, function)
    _add_urls(urls, ApiGatewayV2Response.dispatch, _DEPLOYMENTS_URL, _DEPLOYMENT_URL)


def _add_urls(urls: Any, dispatch: Any, *templates: str) -> None:
    """Add paths; REST APIs' module copies all of them when it is imported, so this adds them there if it was."""
    of_both = getattr(sys.modules.get("moto.apigateway.urls"), "url_paths", {})
    for template in templates:
        urls.url_paths[template] = of_both[template] = dispatch


def _change_stages() -> None:
    from moto.apigatewayv2.models import Stage
    from moto.apigatewayv2.responses import ApiGatewayV2Response

    describe, make = Stage.to_json, Stage.__init__

    def init(stage: Any, api: Any, config: Fields) -> None:
        make(stage, api, config)
        setattr(stage, DEPLOYMENT, config.get("deploymentId"))

    def to_json(stage: Any) -> Fields:
        deployment = getattr(stage, DEPLOYMENT, None)
        return {**describe(stage), **({"deploymentId": deployment} if deployment else {})}

    def update_stage(response: Any) -> Any:
        api, given = _api(response), json.loads(response.body or "{}")
        stage = api.get_stage(unquote(response.path.rstrip("/").split("/")[-1]))
        for name, attribute in _STAGE_FIELDS.items():
            if given.get(name) is not None:
                setattr(stage, attribute, given[name])
        if given.get("deploymentId") is not None:
            setattr(stage, DEPLOYMENT, given["deploymentId"])
        stage.updated = datetime.now()
        return 200, {}, json.dumps(stage.to_json())

    setattr(Stage, "__init__", init)  # noqa: B010
    setattr(Stage, "to_json", to_json)  # noqa: B010
    setattr(ApiGatewayV2Response, "update_stage", update_stage)  # noqa: B010


def _create_quickly() -> None:
    """Make CreateApi with ``target`` make an integration, a route and a stage, and add ImportApi."""
    from moto.apigatewayv2.models import Api
    from moto.apigatewayv2.responses import ApiGatewayV2Response

    create = ApiGatewayV2Response.create_api

    def create_api(response: Any) -> Any:
        made = create(response)
        given = json.loads(response.body)
        if given.get("target"):
            api = response.apigatewayv2_backend.get_api(json.loads(made[2])["apiId"])
            _fill(api, given)
        return 201, {"status": 201}, made[2]

    def import_api(response: Any) -> Any:
        document = openapi_http.parsed(json.loads(response.body)["body"])
        api = response.apigatewayv2_backend.create_api(
            api_key_selection_expression=None,
            cors_configuration=None,
            description=document.get("info", {}).get("description"),
            disable_schema_validation=None,
            disable_execute_api_endpoint=None,
            name=document.get("info", {}).get("title", "api"),
            protocol_type="HTTP",
            route_selection_expression=None,
            tags={},
            version=str(document.get("info", {}).get("version", "")),
        )
        openapi_http.fill(api, document)
        return 201, {"status": 201}, json.dumps(api.to_json())

    def reimport(api: Any, body_str: str, fail_on_warnings: bool) -> None:
        document = openapi_http.parsed(body_str)
        stages = dict(api.stages)
        api.clear()
        api.stages.update(stages)  # on AWS stages outlive a new import
        openapi_http.fill(api, document)

    setattr(ApiGatewayV2Response, "create_api", create_api)  # noqa: B010
    setattr(ApiGatewayV2Response, "import_api", import_api)  # noqa: B010
    setattr(Api, "import_api", reimport)  # noqa: B010


def _fill(api: Any, given: Fields) -> None:
    target = given["target"]
    is_function = function_in(target) is not None
    integration = api.create_integration(
        connection_type="INTERNET",
        description=None,
        integration_type="AWS_PROXY" if is_function else "HTTP_PROXY",
        integration_method=None if is_function else "ANY",
        integration_uri=target,
        payload_format_version="2.0" if is_function else "1.0",
        credentials_arn=given.get("credentialsArn"),
    )
    api.create_route(
        api_key_required=False,
        authorization_scopes=[],
        authorization_type="NONE",
        route_key=given.get("routeKey") or DEFAULT,
        target=f"integrations/{integration.id}",
    )
    api.create_stage({"stageName": DEFAULT, "autoDeploy": True})


def _list_authorizers() -> None:
    from moto.apigatewayv2.responses import ApiGatewayV2Response

    def get_authorizers(response: Any) -> Any:
        return 200, {}, json.dumps({"items": [one.to_json() for one in _api(response).authorizers.values()]})

    setattr(ApiGatewayV2Response, "get_authorizers", get_authorizers)  # noqa: B010
