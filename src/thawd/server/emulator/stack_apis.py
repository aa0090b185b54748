"""Makes the APIs of an emulated CloudFormation stack: resources of AWS::ApiGateway and AWS::ApiGatewayV2.

moto, the emulator, would ignore most of their properties, and does not know version 2. This module makes
them by calling API Gateway's API at thawd's port. It runs in the emulator's own process.

Source: CloudFormation template reference, "Amazon API Gateway" and "Amazon API Gateway V2", for the properties, and for
what Ref and GetAtt return.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from thawd.server.emulator import template_values
from thawd.server.emulator.stack_resources import Behaviour, Made, StackResource

_V1, _V2 = "AWS::ApiGateway::", "AWS::ApiGatewayV2::"
_connect: Callable[[str], Any]

Properties = dict[str, Any]


def connect(client: Callable[[str], Any]) -> None:
    """Make resources with the boto3 clients that `client` returns, by the name of the service."""
    global _connect  # noqa: PLW0603 - moto makes and pickles the resources, so they cannot hold a client
    _connect = client


def _call(service: str, method: str, given: Mapping[str, Any]) -> Properties:
    """Call an operation with values of a template, without those that are None or that the operation does not have."""
    client = _connect(service)
    operation = client.meta.service_model.operation_model(client.meta.method_to_api_mapping[method])
    known = operation.input_shape.members
    values = {name: value for name, value in given.items() if value is not None and name in known}
    answer: Properties = getattr(client, method)(**template_values.fitted(operation.input_shape, values))
    return answer


def _rest(method: str, **given: Any) -> Properties:
    return _call("apigateway", method, given)


def _http(method: str, **given: Any) -> Properties:
    return _call("apigatewayv2", method, given)


def _as_parameters(value: Any) -> Any:
    """Properties as the parameters of version 1's API: names of fields begin with a small letter."""
    if isinstance(value, dict):
        return {name[:1].lower() + name[1:]: one for name, one in value.items()}
    return value


def _tags(properties: Properties) -> dict[str, str] | None:
    given = properties.get("Tags")
    if isinstance(given, list):
        return {tag["Key"]: tag["Value"] for tag in given}
    return given


# REST APIs


def _rest_api(name: str, properties: Properties) -> Made:
    if "Body" in properties:
        made = _rest("import_rest_api", body=_document(properties["Body"]).encode())
        if properties.get("BinaryMediaTypes"):
            _set_binary_types(made["id"], properties["BinaryMediaTypes"])
    else:
        endpoint = properties.get("EndpointConfiguration")
        made = _rest(
            "create_rest_api",
            name=properties.get("Name") or name,
            description=properties.get("Description"),
            apiKeySource=properties.get("ApiKeySourceType"),
            binaryMediaTypes=properties.get("BinaryMediaTypes"),
            disableExecuteApiEndpoint=properties.get("DisableExecuteApiEndpoint"),
            endpointConfiguration=_as_parameters(endpoint) if endpoint else None,
            minimumCompressionSize=properties.get("MinimumCompressionSize"),
            policy=json.dumps(properties["Policy"]) if "Policy" in properties else None,
            tags=_tags(properties),
        )
    api = made["id"]
    return Made(api, {"RootResourceId": made["rootResourceId"], "RestApiId": api}, {"restApiId": api})


def _document(body: Any) -> str:
    return body if isinstance(body, str) else json.dumps(body)


def _set_binary_types(api: str, kinds: Iterable[str]) -> None:
    patches = [{"op": "add", "path": "/binaryMediaTypes/" + kind.replace("/", "~1")} for kind in kinds]
    _rest("update_rest_api", restApiId=api, patchOperations=patches)


def _change_rest_api(resource: StackResource, properties: Properties) -> None:
    api = resource.physical_resource_id
    if "Body" in properties:
        _rest("put_rest_api", restApiId=api, mode="overwrite", body=_document(properties["Body"]).encode())
        root = [one["id"] for one in _rest("get_resources", restApiId=api)["items"] if one["path"] == "/"]
        resource.attributes["RootResourceId"] = root[0]
    fields = {"Name": "name", "Description": "description", "ApiKeySourceType": "apiKeySource"}
    patches = [
        {"op": "replace", "path": f"/{field}", "value": str(properties[name])}
        for name, field in fields.items()
        if name in properties
    ]
    if patches:
        _rest("update_rest_api", restApiId=api, patchOperations=patches)
    if properties.get("BinaryMediaTypes"):
        _set_binary_types(api, properties["BinaryMediaTypes"])


def _resource(name: str, properties: Properties) -> Made:
    made = _rest("create_resource", **_as_parameters(properties))
    facts = {"restApiId": properties["RestApiId"], "resourceId": made["id"]}
    return Made(made["id"], {"ResourceId": made["id"]}, facts)


def _method(name: str, properties: Properties) -> Made:
    at = {
        "restApiId": properties["RestApiId"],
        "resourceId": properties["ResourceId"],
        "httpMethod": properties["HttpMethod"],
    }
    settings = {"authorizationType": "NONE", **_as_parameters(properties)}
    _rest("put_method", **{**settings, **at})
    for response in properties.get("MethodResponses") or []:
        _rest("put_method_response", **at, **_as_parameters(response))
    integration = properties.get("Integration")
    if integration:
        given = _as_parameters(integration)
        responses = given.pop("integrationResponses", None) or []
        _rest("put_integration", **{**given, **at})
        for response in responses:
            _rest("put_integration_response", **at, **_as_parameters(response))
    return Made("|".join(at.values()), {}, at)


def _rest_deployment(name: str, properties: Properties) -> Made:
    stage = properties.get("StageDescription") or {}
    made = _rest(
        "create_deployment",
        restApiId=properties["RestApiId"],
        stageName=properties.get("StageName"),
        description=properties.get("Description"),
        stageDescription=stage.get("Description"),
        variables=stage.get("Variables"),
    )
    facts = {"restApiId": properties["RestApiId"], "deploymentId": made["id"]}
    return Made(made["id"], {"DeploymentId": made["id"]}, {**facts, "stageName": properties.get("StageName")})


def _delete_rest_deployment(made: StackResource) -> None:
    facts = dict(made.facts)
    stage = facts.pop("stageName", None)
    if stage:
        stages = _rest("get_stages", restApiId=facts["restApiId"])["item"]
        if any(one["stageName"] == stage and one["deploymentId"] == facts["deploymentId"] for one in stages):
            _rest("delete_stage", restApiId=facts["restApiId"], stageName=stage)
    _rest("delete_deployment", **facts)


def _rest_stage(name: str, properties: Properties) -> Made:
    given = {**_as_parameters(properties), "tags": _tags(properties)}
    made = _rest("create_stage", **{**given, "stageName": properties.get("StageName") or name})
    stage = made["stageName"]
    return Made(stage, {}, {"restApiId": properties["RestApiId"], "stageName": stage})


def _change_rest_stage(resource: StackResource, properties: Properties) -> None:
    at = {"restApiId": properties["RestApiId"], "stageName": resource.physical_resource_id}
    before = _rest("get_stage", **at).get("variables") or {}
    wanted = properties.get("Variables") or {}
    patches = [{"op": "replace", "path": "/deploymentId", "value": properties["DeploymentId"]}]
    patches += [{"op": "replace", "path": f"/variables/{name}", "value": str(one)} for name, one in wanted.items()]
    patches += [{"op": "remove", "path": f"/variables/{name}"} for name in before.keys() - wanted.keys()]
    _rest("update_stage", **at, patchOperations=patches)


def _rest_authorizer(name: str, properties: Properties) -> Made:
    given = {"name": name, **_as_parameters(properties), "providerARNs": properties.get("ProviderARNs")}
    made = _rest("create_authorizer", **given)
    facts = {"restApiId": properties["RestApiId"], "authorizerId": made["id"]}
    return Made(made["id"], {"AuthorizerId": made["id"]}, facts)


def _api_key(name: str, properties: Properties) -> Made:
    stages = [_as_parameters(one) for one in properties.get("StageKeys") or []]
    given = {"name": name, **_as_parameters(properties), "stageKeys": stages or None, "tags": _tags(properties)}
    made = _rest("create_api_key", **given)
    return Made(made["id"], {"APIKeyId": made["id"]}, {"apiKey": made["id"]})


def _usage_plan(name: str, properties: Properties) -> Made:
    made = _rest(
        "create_usage_plan",
        name=properties.get("UsagePlanName") or name,
        description=properties.get("Description"),
        apiStages=[_as_parameters(one) for one in properties.get("ApiStages") or []],
        quota=_as_parameters(properties.get("Quota")),
        throttle=_as_parameters(properties.get("Throttle")),
        tags=_tags(properties),
    )
    return Made(made["id"], {"Id": made["id"]}, {"usagePlanId": made["id"]})


def _usage_plan_key(name: str, properties: Properties) -> Made:
    made = _rest("create_usage_plan_key", **_as_parameters(properties))
    return Made(made["id"], {"Id": made["id"]}, {"usagePlanId": properties["UsagePlanId"], "keyId": made["id"]})


def _rest_domain(name: str, properties: Properties) -> Made:
    given = {**_as_parameters(properties), "tags": _tags(properties)}
    endpoint = properties.get("EndpointConfiguration")
    made = _rest("create_domain_name", **{**given, "endpointConfiguration": _as_parameters(endpoint)})
    names = ("distributionDomainName", "distributionHostedZoneId", "regionalDomainName", "regionalHostedZoneId")
    attributes = {one[:1].upper() + one[1:]: made[one] for one in names if one in made}
    return Made(made["domainName"], attributes, {"domainName": made["domainName"]})


def _base_path_mapping(name: str, properties: Properties) -> Made:
    made = _rest("create_base_path_mapping", **_as_parameters(properties))
    base = made.get("basePath") or "(none)"
    domain = properties["DomainName"]
    return Made(f"{domain}|{base}", {}, {"domainName": domain, "basePath": base})


def _gateway_response(name: str, properties: Properties) -> Made:
    given = _as_parameters(properties)
    if "statusCode" in given:
        given["statusCode"] = str(given["statusCode"])
    _rest("put_gateway_response", **given)
    facts = {"restApiId": properties["RestApiId"], "responseType": properties["ResponseType"]}
    return Made("|".join(facts.values()), {"Id": "|".join(facts.values())}, facts)


def _model(name: str, properties: Properties) -> Made:
    given = {"name": name, "contentType": "application/json", **_as_parameters(properties)}
    given["schema"] = _document(properties.get("Schema") or {})
    made = _rest("create_model", **given)
    return Made(made["name"], {}, {"restApiId": properties["RestApiId"], "modelName": made["name"]})


def _validator(name: str, properties: Properties) -> Made:
    made = _rest("create_request_validator", **{"name": name, **_as_parameters(properties)})
    facts = {"restApiId": properties["RestApiId"], "requestValidatorId": made["id"]}
    return Made(made["id"], {"RequestValidatorId": made["id"]}, facts)


# HTTP APIs


def _http_api(name: str, properties: Properties) -> Made:
    if "Body" in properties:
        made = _http("import_api", Body=_document(properties["Body"]))
    else:
        made = _http("create_api", **{**properties, "Name": properties.get("Name") or name, "Tags": _tags(properties)})
    attributes = {"ApiEndpoint": made["ApiEndpoint"], "ApiId": made["ApiId"]}
    return Made(made["ApiId"], attributes, {"ApiId": made["ApiId"]})


def _change_http_api(resource: StackResource, properties: Properties) -> None:
    if "Body" in properties:
        _http("reimport_api", ApiId=resource.physical_resource_id, Body=_document(properties["Body"]))
    else:
        given = {name: value for name, value in properties.items() if name not in ("Target", "RouteKey")}
        _http("update_api", **{**given, "ApiId": resource.physical_resource_id})


def _part(kind: str, identifier: str) -> Behaviour:
    """How a part of an HTTP API is made, changed and deleted: its operations have the kind in their names."""

    def make(name: str, properties: Properties) -> Made:
        made = _http(f"create_{kind}", **{"Name": name, **_part_given(properties)})
        facts = {"ApiId": properties["ApiId"], identifier: made[identifier]}
        return Made(made[identifier], {identifier: made[identifier]}, facts)

    def change(resource: StackResource, properties: Properties) -> None:
        _http(f"update_{kind}", **{**_part_given(properties), identifier: resource.physical_resource_id})

    return Behaviour(make, change, lambda client, made: _http(f"delete_{kind}", **made.facts))


def _part_given(properties: Properties) -> Properties:
    given = {**properties, "Tags": _tags(properties)}
    mappings = properties.get("ResponseParameters")
    if mappings:
        given["ResponseParameters"] = {
            status: {one["Destination"]: one["Source"] for one in said["ResponseParameters"]}
            if isinstance(said.get("ResponseParameters"), list)
            else said
            for status, said in mappings.items()
        }
    return given


def _http_deployment(name: str, properties: Properties) -> Made:
    made = _http("create_deployment", **properties)
    facts = {"ApiId": properties["ApiId"], "DeploymentId": made["DeploymentId"]}
    return Made(made["DeploymentId"], {"DeploymentId": made["DeploymentId"]}, facts)


def _http_domain(name: str, properties: Properties) -> Made:
    made = _http("create_domain_name", **{**properties, "Tags": _tags(properties)})
    domain = made["DomainName"]
    return Made(
        domain, {"RegionalDomainName": domain, "RegionalHostedZoneId": "Z1UJRXOUMOOFQ8"}, {"DomainName": domain}
    )


def _api_mapping(name: str, properties: Properties) -> Made:
    made = _http("create_api_mapping", **properties)
    facts = {"DomainName": properties["DomainName"], "ApiMappingId": made["ApiMappingId"]}
    return Made(made["ApiMappingId"], {"ApiMappingId": made["ApiMappingId"]}, facts)


def _v1(make: Callable[[str, Properties], Made], delete: str, change: Any = None) -> Behaviour:
    return Behaviour(make, change, lambda client, made: _rest(delete, **made.facts))


def _v2(make: Callable[[str, Properties], Made], delete: str, change: Any = None) -> Behaviour:
    return Behaviour(make, change, lambda client, made: _http(delete, **made.facts))


KINDS: dict[str, Behaviour] = {
    f"{_V1}RestApi": _v1(_rest_api, "delete_rest_api", _change_rest_api),
    f"{_V1}Resource": _v1(_resource, "delete_resource"),
    f"{_V1}Method": _v1(_method, "delete_method", lambda made, properties: _method("", properties)),
    f"{_V1}Deployment": Behaviour(_rest_deployment, None, lambda client, made: _delete_rest_deployment(made)),
    f"{_V1}Stage": _v1(_rest_stage, "delete_stage", _change_rest_stage),
    f"{_V1}Authorizer": _v1(_rest_authorizer, "delete_authorizer"),
    f"{_V1}ApiKey": _v1(_api_key, "delete_api_key"),
    f"{_V1}UsagePlan": _v1(_usage_plan, "delete_usage_plan"),
    f"{_V1}UsagePlanKey": _v1(_usage_plan_key, "delete_usage_plan_key"),
    f"{_V1}DomainName": _v1(_rest_domain, "delete_domain_name"),
    f"{_V1}BasePathMapping": _v1(_base_path_mapping, "delete_base_path_mapping"),
    f"{_V1}GatewayResponse": _v1(
        _gateway_response, "delete_gateway_response", lambda made, properties: _gateway_response("", properties)
    ),
    f"{_V1}Model": _v1(_model, "delete_model"),
    f"{_V1}RequestValidator": _v1(_validator, "delete_request_validator"),
    # The role with which API Gateway writes its own logs; the emulator writes none.
    f"{_V1}Account": Behaviour(lambda name, properties: Made(name, {}, {}), None, lambda client, made: None),
    f"{_V2}Api": _v2(_http_api, "delete_api", _change_http_api),
    f"{_V2}Integration": _part("integration", "IntegrationId"),
    f"{_V2}Route": _part("route", "RouteId"),
    f"{_V2}Stage": _part("stage", "StageName"),
    f"{_V2}Authorizer": _part("authorizer", "AuthorizerId"),
    f"{_V2}Deployment": _v2(_http_deployment, "delete_deployment"),
    f"{_V2}DomainName": _v2(_http_domain, "delete_domain_name"),
    f"{_V2}ApiMapping": _v2(_api_mapping, "delete_api_mapping"),
}
