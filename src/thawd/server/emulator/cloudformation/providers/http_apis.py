"""Makes resources of AWS::ApiGatewayV2 in stacks by calling API Gateway's operations, not moto's CloudFormation code.

An API with a `Body` is imported; the properties that an import has no field for are set after it.

Source: CloudFormation template reference, "Amazon API Gateway V2", for the properties, and for what Ref and GetAtt
return.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from thawd.server.emulator.cloudformation.providers.aws_clients import Aws, tags_of
from thawd.server.emulator.cloudformation.providers.resource_kind import Kind, Made, Wanted, or_else
from thawd.server.emulator.cloudformation.stack_records import Resource

_PREFIX = "AWS::ApiGatewayV2::"

# Properties of an API with a `Body` that are set by UpdateApi.
_BESIDE_BODY = ("CorsConfiguration", "Description", "DisableExecuteApiEndpoint")

Properties = dict[str, Any]


def _http(aws: Aws, method: str, **given: Any) -> Properties:
    return aws.call("apigatewayv2", method, given)


def _document(body: Any) -> str:
    return body if isinstance(body, str) else json.dumps(body)


def _http_api(aws: Aws, wanted: Wanted) -> Made:
    name, properties = wanted.name, wanted.properties
    if "Body" in properties:
        made = _http(aws, "import_api", **{**properties, "Body": _document(properties["Body"])})
        with or_else(lambda: aws.remove("apigatewayv2", "delete_api", {"ApiId": made["ApiId"]})):
            _set_beside_body(aws, made["ApiId"], {}, properties)
    else:
        made = _http(
            aws, "create_api", **{**properties, "Name": properties.get("Name") or name, "Tags": tags_of(properties)}
        )
    attributes = {"ApiEndpoint": made["ApiEndpoint"], "ApiId": made["ApiId"]}
    return Made(made["ApiId"], attributes, {"ApiId": made["ApiId"]})


def _change_http_api(aws: Aws, resource: Resource, wanted: Wanted) -> None:
    properties = wanted.properties
    if "Body" in properties:
        given = {**properties, "ApiId": resource.physical_id, "Body": _document(properties["Body"])}
        _http(aws, "reimport_api", **given)
        _set_beside_body(aws, resource.physical_id, resource.properties, properties)
    else:
        given = {name: value for name, value in properties.items() if name not in ("Target", "RouteKey")}
        _http(aws, "update_api", **{**given, "ApiId": resource.physical_id})
        if "CorsConfiguration" in resource.properties and "CorsConfiguration" not in properties:
            aws.remove("apigatewayv2", "delete_cors_configuration", {"ApiId": resource.physical_id})


def _set_beside_body(aws: Aws, api: str, before: Properties, after: Properties) -> None:
    """Set the properties of an imported API that are not in its document."""
    given = {name: after[name] for name in _BESIDE_BODY if name in after}
    if given:
        _http(aws, "update_api", **given, ApiId=api)
    tags, old_tags = tags_of(after) or {}, tags_of(before) or {}
    client = aws.client("apigatewayv2")
    arn = f"arn:aws:apigateway:{client.meta.region_name}::/apis/{api}"
    if gone := sorted(old_tags.keys() - tags.keys()):
        client.untag_resource(ResourceArn=arn, TagKeys=gone)
    if tags:
        client.tag_resource(ResourceArn=arn, Tags=tags)


def _kind(make: Callable[[Aws, Wanted], Made], delete: str, change: Any = None, *, makes_again: bool = False) -> Kind:
    return Kind(
        make,
        lambda aws, resource: aws.remove("apigatewayv2", delete, resource.facts),
        change,
        fixed=_FIXED if change else frozenset(),
        makes_again=makes_again,
    )


# Which part of which API a resource is.
_FIXED = frozenset({"ApiId", "StageName", "ProtocolType"})


# Source: API Gateway API reference, version 2.
_DEFAULTS: Properties = {
    "ApiKeyRequired": False,
    "AuthorizationScopes": [],
    "AuthorizationType": "NONE",
    "AutoDeploy": False,
    "Description": "",
}


def _part(kind: str, identifier: str) -> Kind:
    """Return how a part of an HTTP API is made, changed and deleted: its operations have the kind in their names."""

    def make(aws: Aws, wanted: Wanted) -> Made:
        name, properties = wanted.name, wanted.properties
        made = _http(aws, f"create_{kind}", **{"Name": name, **_part_given(properties)})
        facts = {"ApiId": properties["ApiId"], identifier: made[identifier]}
        return Made(made[identifier], {identifier: made[identifier]}, facts)

    def change(aws: Aws, resource: Resource, wanted: Wanted) -> None:
        given = _part_given(wanted.properties)
        # What the template no longer has, returns to its default.
        removed = {name: _DEFAULTS[name] for name in resource.properties if name in _DEFAULTS and name not in given}
        _http(aws, f"update_{kind}", **{**given, **removed, identifier: resource.physical_id})

    return _kind(make, f"delete_{kind}", change)


def _part_given(properties: Properties) -> Properties:
    given = {**properties, "Tags": tags_of(properties)}
    mappings = properties.get("ResponseParameters")
    if mappings:
        given["ResponseParameters"] = {
            status: {one["Destination"]: one["Source"] for one in said["ResponseParameters"]}
            if isinstance(said.get("ResponseParameters"), list)
            else said
            for status, said in mappings.items()
        }
    return given


def _http_deployment(aws: Aws, wanted: Wanted) -> Made:
    properties = wanted.properties
    made = _http(aws, "create_deployment", **properties)
    facts = {"ApiId": properties["ApiId"], "DeploymentId": made["DeploymentId"]}
    return Made(made["DeploymentId"], {"DeploymentId": made["DeploymentId"]}, facts)


def _http_domain(aws: Aws, wanted: Wanted) -> Made:
    properties = wanted.properties
    made = _http(aws, "create_domain_name", **{**properties, "Tags": tags_of(properties)})
    domain = made["DomainName"]
    return Made(
        domain, {"RegionalDomainName": domain, "RegionalHostedZoneId": "Z1UJRXOUMOOFQ8"}, {"DomainName": domain}
    )


def _api_mapping(aws: Aws, wanted: Wanted) -> Made:
    properties = wanted.properties
    made = _http(aws, "create_api_mapping", **properties)
    facts = {"DomainName": properties["DomainName"], "ApiMappingId": made["ApiMappingId"]}
    return Made(made["ApiMappingId"], {"ApiMappingId": made["ApiMappingId"]}, facts)


KINDS: dict[str, Kind] = {
    f"{_PREFIX}Api": _kind(_http_api, "delete_api", _change_http_api),
    f"{_PREFIX}Integration": _part("integration", "IntegrationId"),
    f"{_PREFIX}Route": _part("route", "RouteId"),
    f"{_PREFIX}Stage": _part("stage", "StageName"),
    f"{_PREFIX}Authorizer": _part("authorizer", "AuthorizerId"),
    f"{_PREFIX}Deployment": _kind(_http_deployment, "delete_deployment"),
    f"{_PREFIX}DomainName": _kind(_http_domain, "delete_domain_name", makes_again=True),
    f"{_PREFIX}ApiMapping": _kind(_api_mapping, "delete_api_mapping", makes_again=True),
}
"""The kinds of AWS::ApiGatewayV2, by type."""
