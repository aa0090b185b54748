"""Paths of a REST API with ``integration: lambda``: mapping templates make the event, and the answer is not a proxy's.

The methods are written as OpenAPI, which SAM merges with what it makes of the other paths.

Source: Serverless Framework documentation, "API Gateway", "Lambda Integration"; API Gateway developer guide,
"OpenAPI extensions for API Gateway".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from thawd.deploy.projects.stacks import ProjectError

_JSON, _FORM = "application/json", "application/x-www-form-urlencoded"
_URI = "arn:${AWS::Partition}:apigateway:${AWS::Region}:lambda:path/2015-03-31/functions/${%s}/invocations"
_CALLER = "arn:${AWS::Partition}:execute-api:${AWS::Region}:${AWS::AccountId}:${%s}/*"
# The statuses that Serverless selects by the error's message, such as "[404] no such row".
_BRACKETED = ("400", "401", "403", "404", "422", "502")
_PATTERNS = {
    "200": "",
    **{status: rf"[\s\S]*\[{status}\][\s\S]*" for status in _BRACKETED},
    "500": r"[\s\S]*(Process\s?exited\s?before\s?completing\s?request|\[500\])[\s\S]*",
    "504": r"([\s\S]*\[504\][\s\S]*)|(.*Task timed out after \d+\.\d+ seconds$)",
}
# Maps in the event, with the template's expression of each.
_MAPS = {
    "enhancedAuthContext": "$context.authorizer",
    "headers": "$input.params().header",
    "query": "$input.params().querystring",
    "path": "$input.params().path",
    "identity": "$context.identity",
    "stageVariables": "$stageVariables",
}
_TEXTS = {
    "method": "$context.httpMethod",
    "principalId": "$context.authorizer.principalId",
    "stage": "$context.stage",
    "requestPath": "$context.resourcePath",
}
_ESCAPED = """$util.escapeJavaScript(%s).replaceAll("\\\\'", "'")"""
_FORM_BODY = (
    "#set($fields = $input.path('$').split('&')){#foreach($field in $fields)#set($parts = $field.split('='))"
    '"$util.escapeJavaScript($util.urlDecode($parts[0]))": '
    '"#if($parts.size() > 1)' + _ESCAPED % "$util.urlDecode($parts[1])" + '#end"#if($foreach.hasNext), #end#end}'
)


@dataclass(frozen=True, slots=True)
class LambdaMethod:
    """A method of the REST API that has the integration ``lambda``.

    Attributes:
        function: logical id of the function.
        path: the path.
        method: the HTTP method in lower case, or ``any``.
        options: the options of the event.
        security: the authorizers that a request needs, with their scopes, by name.
    """

    function: str
    path: str
    method: str
    options: Mapping[str, Any]
    security: Mapping[str, list[str]]


def definition_of(methods: list[LambdaMethod], resources: Mapping[str, Any]) -> dict[str, Any]:
    """Return the OpenAPI document of methods.

    Args:
        methods: the methods.
        resources: the template's resources, by logical id, to know which functions have an alias.

    Raises:
        ProjectError: a path has a method twice, or an option is malformed.
    """
    paths: dict[str, dict[str, Any]] = {}
    for each in methods:
        name = "x-amazon-apigateway-any-method" if each.method == "any" else each.method
        if name in paths.setdefault(each.path, {}):
            raise ProjectError(f"serverless.yml: {each.method.upper()} {each.path} is the path of two events")
        paths[each.path][name] = _operation(each, resources)
    names = {name for each in methods for name in each.security}
    schemes: dict[str, Any] = {}
    if "api_key" in names:
        schemes["api_key"] = {"type": "apiKey", "name": "x-api-key", "in": "header"}
    if "AWS_IAM" in names:
        authorization = {"type": "apiKey", "name": "Authorization", "in": "header"}
        schemes["AWS_IAM"] = {**authorization, "x-amazon-apigateway-authtype": "awsSigv4"}
    return {
        "swagger": "2.0",
        "info": {"version": "1.0", "title": {"Ref": "AWS::StackName"}},
        "paths": paths,
        **({"securityDefinitions": schemes} if schemes else {}),
    }


def permissions_of(methods: list[LambdaMethod], resources: Mapping[str, Any], *, api: str) -> dict[str, Any]:
    """Return the permissions with which the API calls the functions, by logical id.

    Args:
        methods: the methods.
        resources: the template's resources.
        api: logical id of the API.
    """
    made = {}
    for function in sorted({each.function for each in methods}):
        made[f"{function.removesuffix('LambdaFunction')}LambdaPermissionApiGateway"] = {
            "Type": "AWS::Lambda::Permission",
            "Properties": {
                "Action": "lambda:InvokeFunction",
                "FunctionName": {"Ref": f"{function}.Alias"} if _has_alias(function, resources) else {"Ref": function},
                "Principal": "apigateway.amazonaws.com",
                "SourceArn": {"Fn::Sub": _CALLER % api},
            },
        }
    return made


def _has_alias(function: str, resources: Mapping[str, Any]) -> bool:
    return "AutoPublishAlias" in resources.get(function, {}).get("Properties", {})


def _operation(each: LambdaMethod, resources: Mapping[str, Any]) -> dict[str, Any]:
    request, response = _map(each.options, "request"), _map(each.options, "response")
    parameters: dict[str, Any] = {}
    for name, value in _map(request, "parameters").items():
        source = value.get("mappedValue", name) if isinstance(value, dict) else name
        parameters[f"integration.{name.removeprefix('method.')}"] = source
    if each.options.get("async"):
        parameters["integration.request.header.X-Amz-Invocation-Type"] = "'Event'"
    target = f"{each.function}.Alias" if _has_alias(each.function, resources) else f"{each.function}.Arn"
    responses: dict[str, Any] = {}
    integration = {
        "type": "aws",
        "httpMethod": "POST",
        "uri": {"Fn::Sub": _URI % target},
        "passthroughBehavior": str(request.get("passThrough") or "NEVER").lower(),
        "contentHandling": request.get("contentHandling"),
        "requestTemplates": _request_templates(each, request),
        "requestParameters": parameters or None,
        "responses": responses,
    }
    operation: dict[str, Any] = {"responses": {}}
    for status, config in _statuses(response).items():
        mapped = {**_cors_headers(each.options.get("cors")), **_map(response, "headers"), **_map(config, "headers")}
        headers = {f"method.response.header.{name}": str(value) for name, value in mapped.items()}
        pattern = str(config.get("pattern") or "")
        responses[pattern or "default"] = _without_none(
            statusCode=status,
            responseParameters=headers or None,
            responseTemplates=_response_templates(response, config) or None,
            contentHandling=response.get("contentHandling") if status.startswith("2") else None,
        )
        declared = {name: {"type": "string"} for name in mapped}
        operation["responses"][status] = _without_none(description=status, headers=declared or None)
    operation["x-amazon-apigateway-integration"] = _without_none(**integration)
    if each.security:
        operation["security"] = [{name: scopes} for name, scopes in each.security.items()]
    return operation


def _statuses(response: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the statuses of answers; the one without a pattern is that of results."""
    given = {str(status): config or {} for status, config in _map(response, "statusCodes").items()}
    if not given:
        return {status: {"pattern": pattern} for status, pattern in _PATTERNS.items()}
    if all(config.get("pattern") for config in given.values()):
        given["200"] = {"pattern": ""}
    return given


def _request_templates(each: LambdaMethod, request: Mapping[str, Any]) -> dict[str, str]:
    claims = _map(each.options, "authorizer").get("claims") or ()
    templates = {_JSON: _event_template('$input.json("$")', claims), _FORM: _event_template(_FORM_BODY, claims)}
    given = request.get("template")
    if isinstance(given, dict):
        templates |= given
    return {kind: text for kind, text in templates.items() if text is not None}


def _event_template(body: str, claims: Any) -> str:
    """Return the template of the event that Serverless documents for this integration."""
    names = [*(str(each) for each in claims), "sub"]
    known = ", ".join(f'"{each.rpartition(":")[2]}": "$context.authorizer.claims.{each}"' for each in names)
    fields = [f'"body": {body}', *(f'"{name}": "{value}"' for name, value in _TEXTS.items())]
    fields.append(f'"cognitoPoolClaims": {{{known}}}')
    return "{" + ", ".join([*fields, *(f'"{name}": {_map_template(value)}' for name, value in _MAPS.items())]) + "}"


def _map_template(expression: str) -> str:
    """Return the template of a JSON object with the texts of a map."""
    return (
        f"#set($map = {expression}){{#foreach($key in $map.keySet())"
        f'"$util.escapeJavaScript($key)": "{_ESCAPED % "$map.get($key)"}"#if($foreach.hasNext), #end#end}}'
    )


def _response_templates(response: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, str]:
    templates: dict[str, str] = {}
    for given in (response.get("template"), config.get("template")):
        if given:
            templates |= given if isinstance(given, dict) else {_JSON: str(given)}
    return templates


def _cors_headers(given: Any) -> dict[str, str]:
    if not given:
        return {}
    options = given if isinstance(given, dict) else {}
    origins = options.get("origins", options.get("origin", "*"))
    made = {"Access-Control-Allow-Origin": f"'{','.join(origins) if isinstance(origins, list) else origins}'"}
    if options.get("allowCredentials"):
        made["Access-Control-Allow-Credentials"] = "'true'"
    return made


def _without_none(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _map(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = document.get(name) or {}
    return found if isinstance(found, dict) else {}
