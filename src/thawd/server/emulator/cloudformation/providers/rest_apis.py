"""Makes resources of AWS::ApiGateway in stacks by calling API Gateway's operations, not moto's CloudFormation code.

Source: CloudFormation template reference, "Amazon API Gateway", for the properties, and for what Ref and GetAtt return.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from thawd.server.emulator.cloudformation.providers.aws_clients import Aws, tags_of
from thawd.server.emulator.cloudformation.providers.resource_kind import Kind, Made, Wanted, or_else
from thawd.server.emulator.cloudformation.stack_records import Resource

_PREFIX = "AWS::ApiGateway::"

Properties = dict[str, Any]


def _rest(aws: Aws, method: str, **given: Any) -> Properties:
    return aws.call("apigateway", method, given)


def _as_parameters(value: Any) -> Any:
    """Properties as the parameters of the API: names of fields begin with a small letter."""
    if isinstance(value, dict):
        return {name[:1].lower() + name[1:]: one for name, one in value.items()}
    return value


def _rest_api(aws: Aws, wanted: Wanted) -> Made:
    name, properties = wanted.name, wanted.properties
    if "Body" in properties:
        made = _rest(aws, "import_rest_api", body=_document(properties["Body"]).encode())
        with or_else(lambda: aws.remove("apigateway", "delete_rest_api", {"restApiId": made["id"]})):
            if properties.get("BinaryMediaTypes"):
                _set_binary_types(aws, made["id"], properties["BinaryMediaTypes"])
    else:
        endpoint = properties.get("EndpointConfiguration")
        made = _rest(
            aws,
            "create_rest_api",
            name=properties.get("Name") or name,
            description=properties.get("Description"),
            apiKeySource=properties.get("ApiKeySourceType"),
            binaryMediaTypes=properties.get("BinaryMediaTypes"),
            disableExecuteApiEndpoint=properties.get("DisableExecuteApiEndpoint"),
            endpointConfiguration=_as_parameters(endpoint) if endpoint else None,
            minimumCompressionSize=properties.get("MinimumCompressionSize"),
            policy=json.dumps(properties["Policy"]) if "Policy" in properties else None,
            tags=tags_of(properties),
        )
    api = made["id"]
    return Made(api, {"RootResourceId": made["rootResourceId"], "RestApiId": api}, {"restApiId": api})


def _document(body: Any) -> str:
    return body if isinstance(body, str) else json.dumps(body)


def _set_binary_types(aws: Aws, api: str, kinds: Iterable[str]) -> None:
    patches = [{"op": "add", "path": "/binaryMediaTypes/" + kind.replace("/", "~1")} for kind in kinds]
    _rest(aws, "update_rest_api", restApiId=api, patchOperations=patches)


def _change_rest_api(aws: Aws, resource: Resource, wanted: Wanted) -> Made:
    properties, api, attributes = wanted.properties, resource.physical_id, dict(resource.attributes)
    if "Body" in properties:
        _rest(aws, "put_rest_api", restApiId=api, mode="overwrite", body=_document(properties["Body"]).encode())
        root = [one["id"] for one in _rest(aws, "get_resources", restApiId=api)["items"] if one["path"] == "/"]
        attributes["RootResourceId"] = root[0]
    patches = _api_patches(resource.properties, properties)
    if patches:
        _rest(aws, "update_rest_api", restApiId=api, patchOperations=patches)
    return Made(api, attributes, resource.facts)


_API_FIELDS = {
    "Name": "name",
    "Description": "description",
    "ApiKeySourceType": "apiKeySource",
    "DisableExecuteApiEndpoint": "disableExecuteApiEndpoint",
    "MinimumCompressionSize": "minimumCompressionSize",
    "Policy": "policy",
}
# What a field is again when the template no longer has it.
_API_DEFAULTS = {
    "Description": "",
    "ApiKeySourceType": "HEADER",
    "DisableExecuteApiEndpoint": "false",
    "MinimumCompressionSize": "",
    "Policy": "",
}


def _api_patches(before: Properties, after: Properties) -> list[Properties]:
    """The patches that change an API. What its document (Body) says is set anew by the document."""
    patches: list[Properties] = []
    for name, field in _API_FIELDS.items():
        value = after.get(name, _API_DEFAULTS.get(name) if name in before else None)
        if value is not None and (name in after or before.get(name) != value):
            text = str(value).lower() if isinstance(value, bool) else value
            text = text if isinstance(text, str) else json.dumps(text)
            patches.append({"op": "replace", "path": f"/{field}", "value": text})
    old = [] if "Body" in after else before.get("BinaryMediaTypes") or []
    new = after.get("BinaryMediaTypes") or []
    for operation, kinds in (
        ("remove", [kind for kind in old if kind not in new]),
        ("add", [kind for kind in new if kind not in old]),
    ):
        patches += [{"op": operation, "path": "/binaryMediaTypes/" + kind.replace("/", "~1")} for kind in kinds]
    return patches


def _resource(aws: Aws, wanted: Wanted) -> Made:
    properties = wanted.properties
    made = _rest(aws, "create_resource", **_as_parameters(properties))
    facts = {"restApiId": properties["RestApiId"], "resourceId": made["id"]}
    return Made(made["id"], {"ResourceId": made["id"]}, facts)


def _method(aws: Aws, wanted: Wanted) -> Made:
    properties = wanted.properties
    at = {
        "restApiId": properties["RestApiId"],
        "resourceId": properties["ResourceId"],
        "httpMethod": properties["HttpMethod"],
    }
    settings = {"authorizationType": "NONE", **_as_parameters(properties)}
    _rest(aws, "put_method", **{**settings, **at})
    for response in properties.get("MethodResponses") or []:
        _rest(aws, "put_method_response", **at, **_as_parameters(response))
    integration = properties.get("Integration")
    if integration:
        given = _as_parameters(integration)
        responses = given.pop("integrationResponses", None) or []
        _rest(aws, "put_integration", **{**given, **at})
        for response in responses:
            _rest(aws, "put_integration_response", **at, **_as_parameters(response))
    return Made("|".join(at.values()), {}, at)


def _rest_deployment(aws: Aws, wanted: Wanted) -> Made:
    properties = wanted.properties
    stage = properties.get("StageDescription") or {}
    made = _rest(
        aws,
        "create_deployment",
        restApiId=properties["RestApiId"],
        stageName=properties.get("StageName"),
        description=properties.get("Description"),
        stageDescription=stage.get("Description"),
        variables=stage.get("Variables"),
    )
    facts = {"restApiId": properties["RestApiId"], "deploymentId": made["id"]}
    return Made(made["id"], {"DeploymentId": made["id"]}, {**facts, "stageName": properties.get("StageName")})


def _delete_rest_deployment(aws: Aws, resource: Resource) -> None:
    facts = dict(resource.facts)
    stage = facts.pop("stageName", None)
    if stage:
        api = {"restApiId": facts["restApiId"]}
        stages = _rest(aws, "get_stages", **api)["item"] if aws.is_there("apigateway", "get_rest_api", api) else []
        if any(one["stageName"] == stage and one["deploymentId"] == facts["deploymentId"] for one in stages):
            aws.remove("apigateway", "delete_stage", {**api, "stageName": stage})
    aws.remove("apigateway", "delete_deployment", facts)


def _rest_stage(aws: Aws, wanted: Wanted) -> Made:
    name, properties = wanted.name, wanted.properties
    given = {**_as_parameters(properties), "tags": tags_of(properties)}
    made = _rest(aws, "create_stage", **{**given, "stageName": properties.get("StageName") or name})
    stage = made["stageName"]
    return Made(stage, {}, {"restApiId": properties["RestApiId"], "stageName": stage})


def _change_rest_stage(aws: Aws, resource: Resource, wanted: Wanted) -> None:
    properties = wanted.properties
    at = {"restApiId": properties["RestApiId"], "stageName": resource.physical_id}
    before = _rest(aws, "get_stage", **at).get("variables") or {}
    after = properties.get("Variables") or {}
    patches = [{"op": "replace", "path": "/deploymentId", "value": properties["DeploymentId"]}]
    patches += [{"op": "replace", "path": f"/variables/{name}", "value": str(one)} for name, one in after.items()]
    patches += [{"op": "remove", "path": f"/variables/{name}"} for name in before.keys() - after.keys()]
    _rest(aws, "update_stage", **at, patchOperations=patches)


def _rest_authorizer(aws: Aws, wanted: Wanted) -> Made:
    name, properties = wanted.name, wanted.properties
    given = {"name": name, **_as_parameters(properties), "providerARNs": properties.get("ProviderARNs")}
    made = _rest(aws, "create_authorizer", **given)
    facts = {"restApiId": properties["RestApiId"], "authorizerId": made["id"]}
    return Made(made["id"], {"AuthorizerId": made["id"]}, facts)


def _api_key(aws: Aws, wanted: Wanted) -> Made:
    name, properties = wanted.name, wanted.properties
    stages = [_as_parameters(one) for one in properties.get("StageKeys") or []]
    given = {"name": name, **_as_parameters(properties), "stageKeys": stages or None, "tags": tags_of(properties)}
    made = _rest(aws, "create_api_key", **given)
    return Made(made["id"], {"APIKeyId": made["id"]}, {"apiKey": made["id"]})


def _usage_plan(aws: Aws, wanted: Wanted) -> Made:
    name, properties = wanted.name, wanted.properties
    made = _rest(
        aws,
        "create_usage_plan",
        name=properties.get("UsagePlanName") or name,
        description=properties.get("Description"),
        apiStages=[_api_stage(one) for one in properties.get("ApiStages") or []],
        quota=_as_parameters(properties.get("Quota")),
        throttle=_as_parameters(properties.get("Throttle")),
        tags=tags_of(properties),
    )
    return Made(made["id"], {"Id": made["id"]}, {"usagePlanId": made["id"]})


def _api_stage(properties: Properties) -> Properties:
    """A stage of a usage plan; its throttle has limits by path and method."""
    limits = properties.get("Throttle")
    throttle = {place: _as_parameters(one) for place, one in limits.items()} if limits else None
    stage = _as_parameters({name: one for name, one in properties.items() if name != "Throttle"})
    return {**stage, "throttle": throttle} if throttle else stage


def _usage_plan_key(aws: Aws, wanted: Wanted) -> Made:
    properties = wanted.properties
    made = _rest(aws, "create_usage_plan_key", **_as_parameters(properties))
    return Made(made["id"], {"Id": made["id"]}, {"usagePlanId": properties["UsagePlanId"], "keyId": made["id"]})


def _rest_domain(aws: Aws, wanted: Wanted) -> Made:
    properties = wanted.properties
    given = {**_as_parameters(properties), "tags": tags_of(properties)}
    endpoint = properties.get("EndpointConfiguration")
    made = _rest(aws, "create_domain_name", **{**given, "endpointConfiguration": _as_parameters(endpoint)})
    names = ("distributionDomainName", "distributionHostedZoneId", "regionalDomainName", "regionalHostedZoneId")
    attributes = {one[:1].upper() + one[1:]: made[one] for one in names if one in made}
    return Made(made["domainName"], attributes, {"domainName": made["domainName"]})


def _base_path_mapping(aws: Aws, wanted: Wanted) -> Made:
    properties = wanted.properties
    made = _rest(aws, "create_base_path_mapping", **_as_parameters(properties))
    base = made.get("basePath") or "(none)"
    domain = properties["DomainName"]
    return Made(f"{domain}|{base}", {}, {"domainName": domain, "basePath": base})


def _gateway_response(aws: Aws, wanted: Wanted) -> Made:
    properties = wanted.properties
    given = _as_parameters(properties)
    if "statusCode" in given:
        given["statusCode"] = str(given["statusCode"])
    _rest(aws, "put_gateway_response", **given)
    facts = {"restApiId": properties["RestApiId"], "responseType": properties["ResponseType"]}
    return Made("|".join(facts.values()), {"Id": "|".join(facts.values())}, facts)


def _model(aws: Aws, wanted: Wanted) -> Made:
    name, properties = wanted.name, wanted.properties
    given = {"name": name, "contentType": "application/json", **_as_parameters(properties)}
    given["schema"] = _document(properties.get("Schema") or {})
    made = _rest(aws, "create_model", **given)
    return Made(made["name"], {}, {"restApiId": properties["RestApiId"], "modelName": made["name"]})


def _validator(aws: Aws, wanted: Wanted) -> Made:
    name, properties = wanted.name, wanted.properties
    made = _rest(aws, "create_request_validator", **{"name": name, **_as_parameters(properties)})
    facts = {"restApiId": properties["RestApiId"], "requestValidatorId": made["id"]}
    return Made(made["id"], {"RequestValidatorId": made["id"]}, facts)


def _kind(make: Callable[[Aws, Wanted], Made], delete: str, change: Any = None, *, makes_again: bool = False) -> Kind:
    return Kind(
        make,
        lambda aws, resource: aws.remove("apigateway", delete, resource.facts),
        change,
        fixed=_FIXED if change else frozenset(),
        makes_again=makes_again,
    )


def _make_again(make: Callable[[Aws, Wanted], Made]) -> Callable[[Aws, Resource, Wanted], Made]:
    """A change by the operation that also makes the resource."""
    return lambda aws, resource, wanted: make(aws, wanted)


# Which part of which API a resource is.
_FIXED = frozenset({"RestApiId", "ResourceId", "HttpMethod", "StageName", "ResponseType"})

KINDS: dict[str, Kind] = {
    f"{_PREFIX}RestApi": _kind(_rest_api, "delete_rest_api", _change_rest_api),
    f"{_PREFIX}Resource": _kind(_resource, "delete_resource"),
    f"{_PREFIX}Method": _kind(_method, "delete_method", _make_again(_method)),
    f"{_PREFIX}Deployment": Kind(_rest_deployment, _delete_rest_deployment),
    f"{_PREFIX}Stage": _kind(_rest_stage, "delete_stage", _change_rest_stage),
    f"{_PREFIX}Authorizer": _kind(_rest_authorizer, "delete_authorizer"),
    f"{_PREFIX}ApiKey": _kind(_api_key, "delete_api_key", makes_again=True),
    f"{_PREFIX}UsagePlan": _kind(_usage_plan, "delete_usage_plan"),
    f"{_PREFIX}UsagePlanKey": _kind(_usage_plan_key, "delete_usage_plan_key", makes_again=True),
    f"{_PREFIX}DomainName": _kind(_rest_domain, "delete_domain_name", makes_again=True),
    f"{_PREFIX}BasePathMapping": _kind(_base_path_mapping, "delete_base_path_mapping", makes_again=True),
    f"{_PREFIX}GatewayResponse": _kind(_gateway_response, "delete_gateway_response", _make_again(_gateway_response)),
    f"{_PREFIX}Model": _kind(_model, "delete_model", makes_again=True),
    f"{_PREFIX}RequestValidator": _kind(_validator, "delete_request_validator"),
    # The role with which API Gateway writes its own logs; the emulator writes none.
    f"{_PREFIX}Account": Kind(lambda aws, wanted: Made(wanted.name, {"Id": wanted.name}), lambda aws, resource: None),
}
"""The kinds of AWS::ApiGateway, by type."""
