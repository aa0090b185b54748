"""The HTTP events of serverless.yml, with their authorizers and API keys, as events and APIs of SAM.

Source: Serverless Framework documentation, "API Gateway" and "HTTP API", version 3; SAM developer guide,
"AWS::Serverless::Api" and "AWS::Serverless::HttpApi".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from thawd.deploy.projects import serverless_properties as known
from thawd.deploy.projects.serverless_lambda_methods import LambdaMethod, definition_of, permissions_of
from thawd.deploy.projects.stacks import ProjectError

REST_API, HTTP_API = "ApiGatewayRestApi", "HttpApi"
_HEADERS = "Content-Type,X-Amz-Date,Authorization,X-Api-Key,X-Amz-Security-Token,X-Amz-User-Agent"
_IAM = "AWS_IAM"
# How SAM calls the sources of a caller's identity, by how API Gateway's expressions for them begin.
_REST_SOURCES = {
    "method.request.header.": "Headers",
    "method.request.querystring.": "QueryStrings",
    "context.": "Context",
    "stageVariables.": "StageVariables",
}
_HTTP_SOURCES = {
    "$request.header.": "Headers",
    "$request.querystring.": "QueryStrings",
    "$context.": "Context",
    "$stageVariables.": "StageVariables",
}


@dataclass(slots=True)
class Generated:
    """The resources and settings that the events of all functions share.

    Attributes:
        resources: the template's resources, by logical id: those of the user, and those that events add.
        provider: the section ``provider``.
        functions: logical ids of the functions, by name.
        notes: a line for each property that was left out.
        rest_cors: the first settings of CORS that a path of the REST API has; None: no path has any.
        rest_authorizers: authorizers of the REST API, by name, as SAM wants them.
        has_signed_routes: whether a route of the HTTP API wants signed requests.
        lambda_methods: methods of the REST API with the integration ``lambda``.
    """

    resources: dict[str, Any]
    provider: Mapping[str, Any] = field(default_factory=dict)
    functions: Mapping[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    rest_cors: Any = None
    rest_authorizers: dict[str, Any] = field(default_factory=dict)
    has_signed_routes: bool = False
    lambda_methods: list[LambdaMethod] = field(default_factory=list)

    def arn_of(self, function: str, where: str) -> Any:
        """Return the ARN of a function of the service.

        Raises:
            ProjectError: there is no such function.
        """
        if function not in self.functions:
            raise ProjectError(f"serverless.yml: {where} names the function {function}, which does not exist")
        return {"Fn::GetAtt": [self.functions[function], "Arn"]}


def cors_of(given: Any, *, expose: str = "ExposeHeaders") -> dict[str, Any]:
    """CORS of an HTTP API or a function URL: ``true``, or a map.

    Args:
        given: the option.
        expose: what the resource calls the headers that scripts may read.
    """
    if not isinstance(given, dict):
        return {"AllowOrigins": ["*"], "AllowHeaders": ["*"], "AllowMethods": ["*"]}
    names = {
        "allowedOrigins": "AllowOrigins", "allowedHeaders": "AllowHeaders", "allowedMethods": "AllowMethods",
        "allowCredentials": "AllowCredentials", "exposedResponseHeaders": expose, "maxAge": "MaxAge",
    }  # fmt: skip
    lists = ("AllowOrigins", "AllowHeaders", "AllowMethods", expose)
    made = {names[name]: value for name, value in given.items() if name in names}
    return {name: [value] if name in lists and not isinstance(value, list) else value for name, value in made.items()}


def route_of(function: str, kind: str, given: Any) -> tuple[str, str, dict[str, Any]]:
    """Method, path and options of an HTTP event: ``GET /path``, or a map.

    Raises:
        ProjectError: it has no path.
    """
    options = dict(given) if isinstance(given, dict) else {}
    if isinstance(given, str):
        method, _, path = given.strip().partition(" ")
        options = {"method": method, "path": path.strip()}
    if not options.get("path") and options.get("method") != "*":
        raise ProjectError(f"serverless.yml: functions.{function}.events.{kind} has no path")
    path = str(options.get("path") or "")
    method = str(options.get("method", "*")).lower()
    return "any" if method == "*" else method, path if path.startswith(("/", "*")) else f"/{path}", options


def rest_event(function: str, given: Any, generated: Generated) -> dict[str, Any] | None:
    """Return an event ``http``: a path of the REST API.

    Raises:
        ProjectError: it is malformed.
    """
    method, path, options = route_of(function, "http", given)
    integration = str(options.get("integration", "lambda-proxy")).lower().replace("_", "-")
    is_mapped = integration in ("lambda", "aws")
    if integration not in ("lambda-proxy", "aws-proxy") and not is_mapped:
        reason = "thawd reads only the integrations lambda-proxy and lambda"
        generated.notes.append(f"{function}: {path} is left out: {reason}")
        return None
    section = known.EVENTS["http, lambda" if is_mapped else "http"]
    generated.notes += known.unread(section, f"functions.{function}.events.http.", options)
    if options.get("cors"):
        generated.rest_cors = generated.rest_cors or options["cors"]
    generated.resources.setdefault(REST_API, {"Type": "AWS::Serverless::Api", "Properties": {}})
    properties: dict[str, Any] = {"Path": path, "Method": method, "RestApiId": {"Ref": REST_API}}
    auth: dict[str, Any] = {"ApiKeyRequired": True} if options.get("private") else {}
    if options.get("authorizer"):
        auth |= _rest_authorizer(function, path, options["authorizer"], generated)
    if is_mapped:
        if {"schema", "schemas"} & _map(options, "request").keys():
            generated.notes.append(f"functions.{function}.events.http.request.schemas has no effect: nothing validates")
        scopes = {str(auth["Authorizer"]): auth.get("AuthorizationScopes", [])} if "Authorizer" in auth else {}
        keys: dict[str, list[str]] = {"api_key": []} if "ApiKeyRequired" in auth else {}
        identifier = generated.functions[function]
        generated.lambda_methods.append(LambdaMethod(identifier, path, method, options, {**scopes, **keys}))
        return None
    if auth:
        properties["Auth"] = auth
    return {"Type": "Api", "Properties": properties}


def _rest_authorizer(function: str, path: str, given: Any, generated: Generated) -> dict[str, Any]:
    """Return the authorizer of a path, which is added to the API.

    A name is that of a function of the service; ``aws_iam`` wants signed requests.
    """
    where = f"functions.{function}.events.http.authorizer"
    options = dict(given) if isinstance(given, dict) else {}
    if isinstance(given, str):
        options = {"arn": given} if given.startswith("arn:") else {"name": given}
    if _IAM in (str(options.get("name", "")).upper(), str(options.get("type", "")).upper()):
        return {"Authorizer": _IAM, "InvokeRole": "NONE"}
    if options.get("authorizerId"):
        raise ProjectError(
            f"serverless.yml: {where}.authorizerId: thawd does not read authorizers of another API; name the function "
            f"or the user pool that decides who may call {path}"
        )
    arn, name = options.get("arn"), options.get("name")
    if arn is None:
        arn = generated.arn_of(str(name), where)
    if name is None:
        name = arn.rpartition(":")[2].rpartition("/")[2] if isinstance(arn, str) else "authorizer"
    is_pool = ":cognito-idp:" in str(arn) or str(options.get("type", "")).upper() == "COGNITO_USER_POOLS"
    identity = _rest_identity(options, is_token=str(options.get("type", "token")).lower() != "request")
    if is_pool:
        header = {"Header": identity.get("Header", "Authorization")}
        made: dict[str, Any] = {"UserPoolArn": arn, "Identity": header}
    else:
        kind = "REQUEST" if str(options.get("type", "token")).lower() == "request" else "TOKEN"
        made = {"FunctionArn": arn, "FunctionPayloadType": kind, "Identity": identity}
    auth: dict[str, Any] = {"Authorizer": _added(generated.rest_authorizers, str(name), made)}
    if options.get("scopes"):
        auth["AuthorizationScopes"] = options["scopes"]
    return auth


def _added(authorizers: dict[str, Any], name: str, wanted: dict[str, Any]) -> str:
    """Add an authorizer, and return its name: with a number if another one has this name."""
    names = (name, *(f"{name}{number}" for number in range(2, len(authorizers) + 2)))
    free = next(each for each in names if authorizers.get(each, wanted) == wanted)
    authorizers[free] = wanted
    return free


def _rest_identity(options: Mapping[str, Any], *, is_token: bool) -> dict[str, Any]:
    identity: dict[str, Any] = {}
    if "resultTtlInSeconds" in options:
        identity["ReauthorizeEvery"] = options["resultTtlInSeconds"]
    source = options.get("identitySource", "method.request.header.Authorization")
    if is_token:
        identity["Header"] = str(source).rpartition(".")[2]
        if options.get("identityValidationExpression"):
            identity["ValidationExpression"] = options["identityValidationExpression"]
        return identity
    return identity | _sources(str(source).split(","), _REST_SOURCES)


def _sources(expressions: list[str], prefixes: Mapping[str, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for expression in expressions:
        text = expression.strip()
        for prefix, name in prefixes.items():
            if text.startswith(prefix):
                found.setdefault(name, []).append(text.removeprefix(prefix))
    return found


def http_event(function: str, given: Any, generated: Generated) -> dict[str, Any]:
    """Return an event ``httpApi``: a route of the HTTP API.

    Raises:
        ProjectError: it is malformed.
    """
    generated.resources.setdefault(HTTP_API, {"Type": "AWS::Serverless::HttpApi", "Properties": {}})
    properties: dict[str, Any] = {"ApiId": {"Ref": HTTP_API}}
    payload = _map(generated.provider, "httpApi").get("payload")
    if payload is not None:
        properties["PayloadFormatVersion"] = str(payload)
    if given == "*":
        return {"Type": "HttpApi", "Properties": properties}
    method, path, options = route_of(function, "httpApi", given)
    generated.notes += known.unread(known.EVENTS["httpApi"], f"functions.{function}.events.httpApi.", options)
    if path not in ("*", "/*"):
        properties |= {"Path": path, "Method": method}
    if "timeout" in options:
        properties["TimeoutInMillis"] = int(float(options["timeout"]) * 1000)
    if options.get("authorizer"):
        properties["Auth"] = _http_auth(function, options["authorizer"], generated)
    return {"Type": "HttpApi", "Properties": properties}


def _http_auth(function: str, given: Any, generated: Generated) -> dict[str, Any]:
    options = dict(given) if isinstance(given, dict) else {"name": given}
    if _IAM in (str(options.get("name", "")).upper(), str(options.get("type", "")).upper()):
        generated.has_signed_routes = True
        return {"Authorizer": _IAM}
    where = f"functions.{function}.events.httpApi.authorizer"
    if options.get("id"):
        raise ProjectError(f"serverless.yml: {where}.id: thawd does not read authorizers of another API")
    declared = _map(_map(generated.provider, "httpApi"), "authorizers")
    if options.get("name") not in declared:
        raise ProjectError(f"serverless.yml: {where}: provider.httpApi.authorizers has no {options.get('name')}")
    auth: dict[str, Any] = {"Authorizer": options["name"]}
    if options.get("scopes"):
        auth["AuthorizationScopes"] = options["scopes"]
    return auth


def _http_authorizer(name: str, given: Any, generated: Generated) -> dict[str, Any]:
    """Return an authorizer of ``provider.httpApi.authorizers``: it reads JSON web tokens, or asks a function."""
    options = given if isinstance(given, dict) else {}
    source = options.get("identitySource", [])
    sources = source if isinstance(source, list) else [source]
    if str(options.get("type", "jwt")) == "jwt":
        audience = options.get("audience", [])
        configuration = {
            "issuer": options.get("issuerUrl"),
            "audience": audience if isinstance(audience, list) else [audience],
        }
        first = sources[0] if sources else "$request.header.Authorization"
        return {"IdentitySource": first, "JwtConfiguration": configuration}
    where = f"provider.httpApi.authorizers.{name}"
    arn = options.get("functionArn")
    if arn is None:
        arn = generated.arn_of(str(options.get("functionName")), where)
    made: dict[str, Any] = {
        "FunctionArn": arn,
        "AuthorizerPayloadFormatVersion": str(options.get("payloadVersion", "2.0")),
        "EnableSimpleResponses": options.get("enableSimpleResponses", False),
        "EnableFunctionDefaultPermissions": True,
    }
    identity: dict[str, Any] = _sources([str(each) for each in sources], _HTTP_SOURCES)
    if "resultTtlInSeconds" in options:
        identity["ReauthorizeEvery"] = options["resultTtlInSeconds"]
    return {**made, "Identity": identity} if identity else made


def finish_apis(template: dict[str, Any], generated: Generated, *, service: str, stage: str) -> None:
    """Give the APIs their settings, and add the outputs that Serverless adds.

    Raises:
        ProjectError: an authorizer names a function that does not exist.
    """
    outputs = template.setdefault("Outputs", {})
    host = "execute-api.${AWS::Region}.${AWS::URLSuffix}"
    if REST_API in generated.resources:
        _finish_rest_api(generated, service=service, stage=stage)
        url = f"https://${{{REST_API}}}.{host}/{stage}"
        outputs.setdefault("ServiceEndpoint", {"Value": {"Fn::Sub": url}})
    if HTTP_API in generated.resources:
        _finish_http_api(generated, name=f"{stage}-{service}")
        outputs.setdefault("HttpApiUrl", {"Value": {"Fn::Sub": f"https://${{{HTTP_API}}}.{host}"}})


def _finish_http_api(generated: Generated, *, name: str) -> None:
    properties = generated.resources[HTTP_API].setdefault("Properties", {})
    settings = _map(generated.provider, "httpApi")
    generated.notes += known.unread(known.HTTP_API, "provider.httpApi.", settings)
    properties["Name"] = settings.get("name", name)
    if settings.get("cors"):
        properties["CorsConfiguration"] = cors_of(settings["cors"])
    if settings.get("disableDefaultEndpoint"):
        properties["DisableExecuteApiEndpoint"] = True
    declared = _map(settings, "authorizers")
    auth: dict[str, Any] = {}
    if declared:
        auth["Authorizers"] = {each: _http_authorizer(each, given, generated) for each, given in declared.items()}
    if generated.has_signed_routes:
        auth["EnableIamAuthorizer"] = True
    if auth:
        properties["Auth"] = auth


def _finish_rest_api(generated: Generated, *, service: str, stage: str) -> None:
    provider, properties = generated.provider, generated.resources[REST_API].setdefault("Properties", {})
    settings = _map(provider, "apiGateway")
    generated.notes += known.unread(known.REST_API, "provider.apiGateway.", settings)
    starts_with_service = settings.get("shouldStartNameWithService")
    by_default = f"{service}-{stage}" if starts_with_service else f"{stage}-{service}"
    properties |= {"Name": provider.get("apiName", by_default), "StageName": stage}
    if generated.rest_cors:
        properties["Cors"] = _rest_cors(generated.rest_cors)
    names = {"minimumCompressionSize": "MinimumCompressionSize", "description": "Description"}
    properties |= {ours: settings[theirs] for theirs, ours in names.items() if theirs in settings}
    if settings.get("binaryMediaTypes"):
        properties["BinaryMediaTypes"] = [str(each).replace("/", "~1") for each in settings["binaryMediaTypes"]]
    if settings.get("disableDefaultEndpoint"):
        properties["DisableExecuteApiEndpoint"] = True
    if provider.get("endpointType"):
        properties["EndpointConfiguration"] = {"Type": str(provider["endpointType"]).upper()}
    auth: dict[str, Any] = {}
    if generated.rest_authorizers:
        auth["Authorizers"] = generated.rest_authorizers
    if policy := settings.get("resourcePolicy", provider.get("resourcePolicy")):
        auth["ResourcePolicy"] = {"CustomStatements": policy}
    if auth:
        properties["Auth"] = {**auth, "AddDefaultAuthorizerToCorsPreflight": False}
    if methods := generated.lambda_methods:
        properties |= {"DefinitionBody": definition_of(methods, generated.resources), "MergeDefinitions": True}
        generated.resources |= permissions_of(methods, generated.resources, api=REST_API)
    _add_keys(generated, settings)


def _rest_cors(given: Any) -> dict[str, Any]:
    options = given if isinstance(given, dict) else {}
    origins = options.get("origins", options.get("origin", "*"))
    headers = options.get("headers", _HEADERS)
    made: dict[str, Any] = {
        "AllowOrigin": _quoted(origins[0] if isinstance(origins, list) and origins else origins),
        "AllowHeaders": _quoted(",".join(headers) if isinstance(headers, list) else headers),
    }
    if options.get("allowCredentials"):
        made["AllowCredentials"] = True
    if "maxAge" in options:
        made["MaxAge"] = _quoted(options["maxAge"])
    if "methods" in options:
        made["AllowMethods"] = _quoted(",".join(options["methods"]))
    return made


def _quoted(value: Any) -> str:
    return f"'{value}'"


def _add_keys(generated: Generated, settings: Mapping[str, Any]) -> None:
    """Add API keys and the usage plans that they belong to: one plan, or several with names and keys of their own."""
    provider, resources = generated.provider, generated.resources
    keys = settings.get("apiKeys", provider.get("apiKeys")) or []
    plan = settings.get("usagePlan", provider.get("usagePlan"))
    plans = {"": plan or {}}
    if isinstance(plan, list):
        plans = {str(name): limits for each in plan for name, limits in each.items()}
    elif not keys and not plan:
        return
    for name, limits in plans.items():
        properties: dict[str, Any] = {
            "ApiStages": [{"ApiId": {"Ref": REST_API}, "Stage": {"Ref": f"{REST_API}.Stage"}}]
        }
        if "quota" in limits:
            properties["Quota"] = {key.capitalize(): value for key, value in limits["quota"].items()}
        if "throttle" in limits:
            properties["Throttle"] = {key[:1].upper() + key[1:]: value for key, value in limits["throttle"].items()}
        resources[f"ApiGatewayUsagePlan{name[:1].upper()}{name[1:]}"] = {
            "Type": "AWS::ApiGateway::UsagePlan", "Properties": properties
        }  # fmt: skip
    count = 0
    for each in keys:
        named = isinstance(each, dict) and len(each) == 1 and isinstance(next(iter(each.values())), list)
        plan_name, listed = next(iter(each.items())) if named else ("", [each])
        for key in listed:
            count += 1
            _add_key(resources, key, count, plan=f"ApiGatewayUsagePlan{plan_name[:1].upper()}{plan_name[1:]}")


def _add_key(resources: dict[str, Any], key: Any, number: int, *, plan: str) -> None:
    given = key if isinstance(key, dict) else {"name": key}
    if plan not in resources:
        raise ProjectError(f"serverless.yml: provider.apiGateway.apiKeys: there is no usage plan for the key {number}")
    names = {"name": "Name", "value": "Value", "description": "Description", "customerId": "CustomerId"}
    properties = {ours: given[theirs] for theirs, ours in names.items() if theirs in given}
    identifier = f"ApiGatewayApiKey{number}"
    resources[identifier] = {"Type": "AWS::ApiGateway::ApiKey", "Properties": {**properties, "Enabled": True}}
    resources[f"{plan}Key{number}"] = {
        "Type": "AWS::ApiGateway::UsagePlanKey",
        "Properties": {"KeyId": {"Ref": identifier}, "KeyType": "API_KEY", "UsagePlanId": {"Ref": plan}},
    }


def _map(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = document.get(name) or {}
    return found if isinstance(found, dict) else {}
