"""Makes resources of simple types: their properties are the parameters of one operation, except some names.

Source: CloudFormation template reference, for the properties, and for what Ref and GetAtt return.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from thawd.server.emulator.cloudformation.providers.aws_clients import Aws, tags_of
from thawd.server.emulator.cloudformation.providers.resource_kind import Kind, Made, Wanted
from thawd.server.emulator.cloudformation.stack_records import Resource

Properties = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Plain:
    """The operations with which the resources of a type are made, changed and deleted.

    Attributes:
        service: boto3's name of the service.
        create: the operation that makes one.
        delete: the operation that deletes one.
        answer: the field of `create`'s answer that contains the created resource; empty: the answer itself.
        identifier: the field of the answer, or the parameter, that contains the value of Ref.
        attributes: for each attribute of Fn::GetAtt, the field of the answer with its value.
        facts: the parameters of `delete`: names in the answer or among the parameters, by parameter.
        named: the property with the name; empty: there is none.
        renamed: names of parameters, by those of properties.
        change: the operation that updates one in place; None: a changed resource is replaced.
        fixed: properties whose change requires a new resource.
        tags: the parameter for tags, which is a map; empty: none.
        provider: the value of the attribute ProviderName, with placeholders for region and id; empty: it has none.
    """

    service: str
    create: str
    delete: str
    identifier: str
    facts: Mapping[str, str]
    answer: str = ""
    attributes: Mapping[str, str] = field(default_factory=dict)
    named: str = ""
    renamed: Mapping[str, str] = field(default_factory=dict)
    change: str | None = None
    fixed: frozenset[str] = frozenset()
    tags: str = ""
    provider: str = ""


def _kind(plain: _Plain) -> Kind:
    def parameters(wanted: Wanted) -> Properties:
        given = {plain.renamed.get(name, name): value for name, value in wanted.properties.items()}
        if plain.named:
            given[plain.renamed.get(plain.named, plain.named)] = wanted.name
        if plain.tags:
            given[plain.tags] = tags_of(wanted.properties, plain.tags)
        return given

    def make(aws: Aws, wanted: Wanted) -> Made:
        given = parameters(wanted)
        answer = aws.call(plain.service, plain.create, given)
        found = {**given, **(answer.get(plain.answer) or {} if plain.answer else answer)}
        attributes = {name: found[source] for name, source in plain.attributes.items() if source in found}
        identifier = str(found[plain.identifier])
        if plain.provider:
            name = plain.provider.format(region=wanted.stack.region, id=identifier)
            attributes |= {"ProviderName": name, "ProviderURL": f"https://{name}"}
        return Made(identifier, attributes, {name: found[source] for name, source in plain.facts.items()})

    def change(aws: Aws, resource: Resource, wanted: Wanted) -> None:
        assert plain.change is not None
        aws.call(plain.service, plain.change, {**parameters(wanted), **resource.facts})

    changes: Callable[..., Any] | None = None if plain.change is None else change
    return Kind(
        make,
        lambda aws, resource: aws.remove(plain.service, plain.delete, resource.facts),
        changes,
        fixed=plain.fixed,
        named=plain.named,
        makes_again=plain.change is None and bool(plain.named),
    )


_COGNITO = "AWS::Cognito::"
_POOL = frozenset({"UserPoolId"})

KINDS: dict[str, Kind] = {
    kind: _kind(plain)
    for kind, plain in {
        f"{_COGNITO}UserPool": _Plain(
            "cognito-idp",
            "create_user_pool",
            "delete_user_pool",
            identifier="Id",
            answer="UserPool",
            facts={"UserPoolId": "Id"},
            attributes={"Arn": "Arn", "UserPoolId": "Id"},
            named="UserPoolName",
            renamed={"UserPoolName": "PoolName", "EnabledMfas": "-"},
            change="update_user_pool",
            fixed=frozenset({"AliasAttributes", "UsernameAttributes", "Schema", "UsernameConfiguration"}),
            tags="UserPoolTags",
            provider="cognito-idp.{region}.amazonaws.com/{id}",
        ),
        f"{_COGNITO}UserPoolClient": _Plain(
            "cognito-idp",
            "create_user_pool_client",
            "delete_user_pool_client",
            identifier="ClientId",
            answer="UserPoolClient",
            facts={"UserPoolId": "UserPoolId", "ClientId": "ClientId"},
            attributes={"ClientId": "ClientId", "ClientSecret": "ClientSecret", "Name": "ClientName"},
            named="ClientName",
            change="update_user_pool_client",
            fixed=_POOL | {"GenerateSecret"},
        ),
        f"{_COGNITO}UserPoolDomain": _Plain(
            "cognito-idp",
            "create_user_pool_domain",
            "delete_user_pool_domain",
            identifier="Domain",
            facts={"UserPoolId": "UserPoolId", "Domain": "Domain"},
            attributes={"CloudFrontDistribution": "CloudFrontDomain"},
        ),
        f"{_COGNITO}UserPoolGroup": _Plain(
            "cognito-idp",
            "create_group",
            "delete_group",
            identifier="GroupName",
            answer="Group",
            facts={"UserPoolId": "UserPoolId", "GroupName": "GroupName"},
            named="GroupName",
            change="update_group",
            fixed=_POOL | {"GroupName"},
        ),
        f"{_COGNITO}UserPoolResourceServer": _Plain(
            "cognito-idp",
            "create_resource_server",
            "delete_resource_server",
            identifier="Identifier",
            answer="ResourceServer",
            facts={"UserPoolId": "UserPoolId", "Identifier": "Identifier"},
            change="update_resource_server",
            fixed=_POOL | {"Identifier"},
        ),
        "AWS::Events::Connection": _Plain(
            "events",
            "create_connection",
            "delete_connection",
            identifier="Name",
            facts={"Name": "Name"},
            attributes={"Arn": "ConnectionArn"},
            named="Name",
            change="update_connection",
            fixed=frozenset({"Name"}),
        ),
        "AWS::Events::ApiDestination": _Plain(
            "events",
            "create_api_destination",
            "delete_api_destination",
            identifier="Name",
            facts={"Name": "Name"},
            attributes={"Arn": "ApiDestinationArn"},
            named="Name",
            change="update_api_destination",
            fixed=frozenset({"Name"}),
        ),
        "AWS::StepFunctions::Activity": _Plain(
            "stepfunctions",
            "create_activity",
            "delete_activity",
            identifier="activityArn",
            facts={"activityArn": "activityArn"},
            attributes={"Arn": "activityArn", "Name": "name"},
            named="Name",
            renamed={"Name": "name", "Tags": "-"},
        ),
        "AWS::IAM::Group": _Plain(
            "iam",
            "create_group",
            "delete_group",
            identifier="GroupName",
            answer="Group",
            facts={"GroupName": "GroupName"},
            attributes={"Arn": "Arn"},
            named="GroupName",
        ),
    }.items()
}
"""The kinds of these resources, by type."""
