"""Routes, as an HTTP API of API Gateway, and function URLs."""

from __future__ import annotations

from typing import Any

from thawd.deploy.aws import naming
from thawd.deploy.aws.stack import Stack, attribute, ref
from thawd.resources import Cors, FunctionUrl, Route

_API = "HttpApi"
# Source: API Gateway developer guide, "Quotas for configuring and running an HTTP API": maximum integration timeout.
_LONGEST_ANSWER_S = 30


def add_routes(stack: Stack) -> None:
    """Add an HTTP API with all routes, if there are any."""
    routes = []
    for route in stack.settings.routes:
        if route.asynchronous:
            stack.add_missing(
                f'routes."{route.key}"', "there is no such route: HTTP APIs cannot invoke functions asynchronously"
            )
        else:
            routes.append(route)
    if not routes:
        return
    cors = stack.settings.http.cors
    properties = {
        "Name": stack.name,
        "ProtocolType": "HTTP",
        "CorsConfiguration": None if cors is None else _cors(cors),
    }
    stack.add(_API, "AWS::ApiGatewayV2::Api", properties)
    for route in routes:
        _add_route(stack, route)
    stage = {
        "ApiId": ref(_API),
        "StageName": "$default",
        "AutoDeploy": True,
        "StageVariables": stack.settings.http.stage_variables or None,
    }
    stack.add("HttpStage", "AWS::ApiGatewayV2::Stage", stage)
    stack.output("HttpApiUrl", attribute(_API, "ApiEndpoint"), "routes")


def _add_route(stack: Stack, route: Route) -> None:
    function = stack.settings.functions[route.function]
    if function.timeout_s > _LONGEST_ANSWER_S:
        stack.add_missing(
            f'routes."{route.key}"', f"clients get 503 after {_LONGEST_ANSWER_S} s; the function continues to run"
        )
    kind = f"Integration{route.payload_format.partition('.')[0]}"
    integration = stack.add(
        naming.logical_id(route.function, kind),
        "AWS::ApiGatewayV2::Integration",
        {
            "ApiId": ref(_API),
            "IntegrationType": "AWS_PROXY",
            "IntegrationUri": stack.alias(route.function),
            "PayloadFormatVersion": route.payload_format,
        },
    )
    properties = {
        "ApiId": ref(_API),
        "RouteKey": route.key,
        "Target": {"Fn::Join": ["/", ["integrations", ref(integration)]]},
    }
    stack.add(naming.logical_id(route.key, "Route"), "AWS::ApiGatewayV2::Route", properties)
    source = {"Fn::Sub": f"arn:${{AWS::Partition}}:execute-api:${{AWS::Region}}:${{AWS::AccountId}}:${{{_API}}}/*"}
    stack.permit(route.function, principal="apigateway.amazonaws.com", source="http api", source_arn=source)


def add_url(stack: Stack, function: str, url: FunctionUrl) -> None:
    """Add a function URL of the function's alias."""
    if url.invoke_mode == "RESPONSE_STREAM" and stack.order.code[function].runtime.startswith("python"):
        where = f"functions.{function}.url.invoke_mode"
        stack.add_missing(where, "Lambda's Python runtimes do not stream; answers of a Python function arrive complete")
    alias = naming.logical_id(function, "Alias")
    properties = {
        "TargetFunctionArn": ref(stack.function_id(function)),
        "Qualifier": naming.ALIAS,
        "AuthType": url.auth_type,
        "InvokeMode": url.invoke_mode,
        "Cors": None if url.cors is None else _cors(url.cors),
    }
    logical_id = stack.add(naming.logical_id(function, "Url"), "AWS::Lambda::Url", properties, DependsOn=[alias])
    stack.output(logical_id + "Address", attribute(logical_id, "FunctionUrl"), f"URL of function {function}")
    if url.auth_type != "NONE":
        return
    # Source: Lambda developer guide, "Control access to Lambda function URLs": both permissions are needed.
    public = {"FunctionName": ref(alias), "Principal": "*"}
    invoke_url = {**public, "Action": "lambda:InvokeFunctionUrl", "FunctionUrlAuthType": "NONE"}
    stack.add(naming.logical_id(function, "PublicUrl"), "AWS::Lambda::Permission", invoke_url)
    invoke = {**public, "Action": "lambda:InvokeFunction", "InvokedViaFunctionUrl": True}
    stack.add(naming.logical_id(function, "PublicUrlInvocations"), "AWS::Lambda::Permission", invoke)


def _cors(cors: Cors) -> dict[str, Any]:
    given: dict[str, Any] = {
        "AllowOrigins": list(cors.allow_origins),
        "AllowMethods": list(cors.allow_methods),
        "AllowHeaders": list(cors.allow_headers),
        "ExposeHeaders": list(cors.expose_headers),
        "MaxAge": cors.max_age_s,
        "AllowCredentials": cors.allow_credentials,
    }
    return {name: value for name, value in given.items() if value}
