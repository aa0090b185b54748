"""Makes resources of an emulated CloudFormation stack that moto, the emulator, cannot make, or not as they are needed.

moto would make functions of its own, which cannot be invoked, and say that the stack is complete. Here a stack's
resources of AWS::Lambda are made through thawd's Lambda API, with all their properties. A type of AWS::Lambda that this
module does not know is refused, and so is the stack. The subscriptions of topics are made in moto, whose stacks do not
know them. This module runs in the emulator's own process.

Source: CloudFormation template reference, "AWS Lambda" and "AWS::SNS::Subscription", for the properties, and for what
Ref and GetAtt return.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from thawd.server.emulator import inline_modules, template_values

_PREFIX = "AWS::Lambda::"
# Resources that only a transformation of the template turns into resources of AWS::Lambda and others.
_TRANSFORMED = "AWS::Serverless::"
_MOST_NAME = 64
# Error codes for a resource that does not exist: Lambda's, and API Gateway's.
_GONE = ("ResourceNotFoundException", "NotFoundException")
# Wait for a function at most this long, in looks of a tenth of a second.
_LOOKS = 600
_client: Callable[[], Any]
_SUBSCRIPTION = "AWS::SNS::Subscription"

Properties = dict[str, Any]


class StackResource:
    """A resource of a stack, in the form in which moto's stacks hold it.

    Attributes:
        kind: its type, such as ``AWS::Lambda::Function``.
        physical_resource_id: what Ref returns.
        attributes: what GetAtt returns, by name.
        facts: what is needed to delete it.
    """

    def __init__(self, kind: str, made: Made) -> None:
        self.kind = kind
        self.physical_resource_id = made.identifier
        self.attributes = made.attributes
        self.facts = made.facts
        self.type = kind

    @classmethod
    def has_cfn_attr(cls, attr: str) -> bool:
        """Whether GetAtt may name this attribute; whether the resource has it is checked later."""
        return True

    def get_cfn_attribute(self, attribute_name: str) -> str:
        """The value that GetAtt returns."""
        from moto.cloudformation.exceptions import UnformattedGetAttTemplateException

        if attribute_name not in self.attributes:
            raise UnformattedGetAttTemplateException
        return self.attributes[attribute_name]

    @classmethod
    def create_from_cloudformation_json(
        cls, resource_name: str, cloudformation_json: Properties, account_id: str, region_name: str, **facts: Any
    ) -> StackResource:
        """Make the resource that a template describes."""
        kind = facts["ResourceType"]
        make = _of(kind).make
        return cls(kind, _told(facts["LogicalId"], lambda: make(resource_name, cloudformation_json["Properties"])))

    @classmethod
    def update_from_cloudformation_json(
        cls,
        original_resource: StackResource,
        new_resource_name: str,
        cloudformation_json: Properties,
        account_id: str,
        region_name: str,
    ) -> StackResource:
        """Change the resource; it is replaced if its kind cannot be changed."""
        kind, properties = original_resource.kind, cloudformation_json["Properties"]
        behaviour = _of(kind)
        if behaviour.change is not None:
            _told(new_resource_name, lambda: behaviour.change and behaviour.change(original_resource, properties))
            return original_resource
        made = _told(new_resource_name, lambda: behaviour.make(new_resource_name, properties))
        if kind != f"{_PREFIX}Version":  # as on AWS, the old version is kept: an alias may point to it
            original_resource.delete(account_id, region_name)
        return cls(kind, made)

    def is_created(self) -> bool:
        """Whether the resource is there; it is, once it is made."""
        return True

    def delete(self, account_id: str, region: str) -> None:
        """Delete the resource, unless it is gone already."""
        from botocore.exceptions import ClientError

        try:
            _of(self.kind).delete(_client(), self)
        except ClientError as error:
            if error.response["Error"]["Code"] not in _GONE:
                raise


class Made(NamedTuple):
    """A resource that has been made: what Ref returns, what GetAtt returns by name, and what is needed to delete it."""

    identifier: str
    attributes: dict[str, str]
    facts: dict[str, Any]


class Behaviour(NamedTuple):
    """How the resources of one kind are made, changed (None: they are replaced) and deleted."""

    make: Callable[[str, Properties], Made]
    change: Callable[[StackResource, Properties], object] | None
    delete: Callable[[Any, StackResource], object]


def makes(kind: str) -> bool:
    """Whether this module makes, or refuses, the resources of this type."""
    return kind.startswith((_PREFIX, _TRANSFORMED)) or kind in _KINDS


def add(kinds: Mapping[str, Behaviour]) -> None:
    """Make resources of further types."""
    _KINDS.update(kinds)


def connect(client: Callable[[], Any]) -> None:
    """Make resources with the boto3 client for thawd's Lambda API that `client` returns."""
    global _client  # noqa: PLW0603 - moto makes and pickles the resources, so they cannot hold a client
    _client = client


def _of(kind: str) -> Behaviour:
    behaviour = _KINDS.get(kind)
    if kind.startswith(_TRANSFORMED):
        raise _refusal(
            f"thawd does not apply SAM's transformation, so it cannot make {kind}; transform the template before, for "
            "example with aws-sam-translator, and deploy the result"
        )
    if behaviour is None:
        raise _refusal(f"thawd cannot make resources of the type {kind}; it knows {', '.join(sorted(_KINDS))}")
    return behaviour


def _refusal(message: str) -> Exception:
    from moto.cloudformation.exceptions import ValidationError

    refusal: Exception = ValidationError(message=message)
    return refusal


def _call(method: str, given: Properties) -> Any:
    """Call a method of thawd's Lambda API with values of a template."""
    client = _client()
    operation = client.meta.service_model.operation_model(client.meta.method_to_api_mapping[method])
    return getattr(client, method)(**template_values.fitted(operation.input_shape, given))


def _told(name: str, work: Callable[[], Any]) -> Any:
    """Do `work`. If thawd refuses it, the stack's request fails with thawd's words."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        return work()
    except (BotoCoreError, ClientError, KeyError, ValueError) as error:
        missing = f"the property {error} is missing" if isinstance(error, KeyError) else error
        raise _refusal(f"The resource {name} could not be created or updated: {missing}") from error


# Functions

_NOT_GIVEN_ON = (
    "Code",
    "Tags",
    "ReservedConcurrentExecutions",
    "RecursiveLoop",
    "RuntimeManagementConfig",
    "KmsKeyArn",
)


def _function(name: str, properties: Properties) -> Made:
    client, name = _client(), name[:_MOST_NAME]
    given = {**_configuration(properties), "FunctionName": name, "Code": _code(properties)}
    if "Tags" in properties:
        given["Tags"] = {tag["Key"]: tag["Value"] for tag in properties["Tags"]}
    arn = _call("create_function", given)["FunctionArn"]
    try:
        _settings(name, properties)
        _wait(client, name)
    except Exception:
        client.delete_function(FunctionName=name)
        raise
    return Made(name, {"Arn": arn}, {"FunctionName": name})


def _change_function(resource: StackResource, properties: Properties) -> None:
    client, name = _client(), resource.physical_resource_id
    kept = ("Architectures", "PackageType")
    configuration = {key: value for key, value in _configuration(properties).items() if key not in kept}
    _call("update_function_configuration", {**configuration, "FunctionName": name})
    _wait(client, name)
    client.update_function_code(FunctionName=name, **_code(properties))
    _settings(name, properties)
    _wait(client, name)


def _configuration(properties: Properties) -> Properties:
    given = {key: value for key, value in properties.items() if key not in _NOT_GIVEN_ON}
    if "KmsKeyArn" in properties:
        given["KMSKeyArn"] = properties["KmsKeyArn"]
    return given


def _code(properties: Properties) -> Properties:
    code = dict(properties["Code"])
    if "ZipFile" in code:  # in a template this is the source text of one file
        code["ZipFile"] = _zipped(code["ZipFile"], properties.get("Runtime", ""))
    return code


def _zipped(source: str, runtime: str) -> bytes:
    is_node = runtime.startswith("nodejs")
    files = {"index.js" if is_node else "index.py": source, **inline_modules.needed_by(source, is_node=is_node)}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, text in files.items():
            entry = zipfile.ZipInfo(name)
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, text)
    return buffer.getvalue()


def _settings(name: str, properties: Properties) -> None:
    if "ReservedConcurrentExecutions" in properties:
        count = properties["ReservedConcurrentExecutions"]
        _call("put_function_concurrency", {"FunctionName": name, "ReservedConcurrentExecutions": count})
    if "RecursiveLoop" in properties:
        setting = {"FunctionName": name, "RecursiveLoop": properties["RecursiveLoop"]}
        _call("put_function_recursion_config", setting)


def _wait(client: Any, name: str) -> None:
    """Wait until the function is active and updated.

    Raises:
        ValueError: it cannot be published; the error says why.
    """
    for waiter in ("function_active_v2", "function_updated_v2"):
        try:
            client.get_waiter(waiter).wait(FunctionName=name, WaiterConfig={"Delay": 0.1, "MaxAttempts": _LOOKS})
        except Exception as error:
            found = client.get_function_configuration(FunctionName=name)
            reason = found.get("StateReason") or found.get("LastUpdateStatusReason") or str(error)
            raise ValueError(reason) from error


# The other kinds


def _version(name: str, properties: Properties) -> Made:
    client = _client()
    names = ("FunctionName", "Description", "CodeSha256")
    wanted: Properties = {key: properties[key] for key in names if key in properties}
    made = _call("publish_version", wanted)
    function, number = made["FunctionName"], made["Version"]
    waiter = client.get_waiter("published_version_active")
    waiter.wait(FunctionName=function, Qualifier=number, WaiterConfig={"Delay": 0.1, "MaxAttempts": _LOOKS})
    arn = made["FunctionArn"]
    if "ProvisionedConcurrencyConfig" in properties:
        _provision(function, number, properties)
    return Made(arn, {"Version": number, "FunctionArn": arn}, {"FunctionName": function, "Qualifier": number})


def _provision(function: str, qualifier: str, properties: Properties) -> None:
    wanted = properties["ProvisionedConcurrencyConfig"]
    _call("put_provisioned_concurrency_config", {"FunctionName": function, "Qualifier": qualifier, **wanted})


def _alias_given(properties: Properties) -> Properties:
    names = ("FunctionName", "Name", "FunctionVersion", "Description")
    given = {key: properties[key] for key in names if key in properties}
    weights = properties.get("RoutingConfig", {}).get("AdditionalVersionWeights", [])
    shares = {str(weight["FunctionVersion"]): float(weight["FunctionWeight"]) for weight in weights}
    return {**given, "RoutingConfig": {"AdditionalVersionWeights": shares}}


def _alias(name: str, properties: Properties) -> Made:
    given = _alias_given(properties)
    arn = _call("create_alias", given)["AliasArn"]
    if "ProvisionedConcurrencyConfig" in properties:
        _provision(given["FunctionName"], given["Name"], properties)
    return Made(arn, {"AliasArn": arn}, {"FunctionName": given["FunctionName"], "Name": given["Name"]})


def _permission(name: str, properties: Properties) -> Made:
    statement = name[:100]
    _call("add_permission", {"StatementId": statement, **properties})
    return Made(statement, {"Id": statement}, {"FunctionName": properties["FunctionName"], "StatementId": statement})


def _mapping_given(properties: Properties) -> Properties:
    given = dict(properties)
    if "Tags" in given:
        given["Tags"] = {tag["Key"]: tag["Value"] for tag in given["Tags"]}
    return given


def _mapping(name: str, properties: Properties) -> Made:
    made = _call("create_event_source_mapping", _mapping_given(properties))
    return Made(made["UUID"], {"Id": made["UUID"]}, {"UUID": made["UUID"]})


def _change_mapping(resource: StackResource, properties: Properties) -> None:
    kept = ("EventSourceArn", "StartingPosition", "StartingPositionTimestamp", "Tags")
    given = {key: value for key, value in properties.items() if key not in kept}
    _call("update_event_source_mapping", {**given, "UUID": resource.physical_resource_id})


def _layer(name: str, properties: Properties) -> Made:
    given = {"LayerName": name, **properties}
    made = _call("publish_layer_version", given)
    arn, facts = made["LayerVersionArn"], {"LayerName": given["LayerName"], "VersionNumber": made["Version"]}
    return Made(arn, {"LayerVersionArn": arn}, facts)


def _url_given(properties: Properties) -> Properties:
    given = {key: value for key, value in properties.items() if key != "TargetFunctionArn"}
    return {**given, "FunctionName": properties["TargetFunctionArn"]}


def _url(name: str, properties: Properties) -> Made:
    made = _call("create_function_url_config", _url_given(properties))
    arn = made["FunctionArn"]
    return Made(arn, {"FunctionArn": arn, "FunctionUrl": made["FunctionUrl"]}, {"FunctionName": arn})


def _asynchronous(name: str, properties: Properties) -> Made:
    _call("put_function_event_invoke_config", properties)
    facts = {"FunctionName": properties["FunctionName"], "Qualifier": properties["Qualifier"]}
    return Made(name, {}, facts)


# Subscriptions of topics

_SUBSCRIPTION_ATTRIBUTES = (
    "FilterPolicyScope",  # first: it says how a filter policy is read
    "FilterPolicy",
    "RawMessageDelivery",
    "DeliveryPolicy",
    "RedrivePolicy",
)


def _subscription(name: str, properties: Properties) -> Made:
    arn = properties["TopicArn"]
    topics = _topics(arn)
    made = topics.subscribe(arn, properties["Endpoint"], properties["Protocol"])
    for attribute in _SUBSCRIPTION_ATTRIBUTES:
        value = properties.get(attribute)
        if attribute == "RawMessageDelivery":
            value = str(value).lower() == "true"
        elif isinstance(value, dict):
            value = json.dumps(value)
        topics.set_subscription_attributes(made.arn, attribute, value)
    return Made(made.arn, {"Arn": made.arn}, {})


def _change_subscription(resource: StackResource, properties: Properties) -> None:
    old, made = resource.physical_resource_id, _subscription("", properties)  # the old one, if nothing else is named
    if made.identifier != old:
        _topics(old).unsubscribe(old)
        resource.physical_resource_id, resource.attributes = made.identifier, made.attributes


def _topics(arn: str) -> Any:
    from moto.sns.models import sns_backends

    _, _, _, region, account, *_ = arn.split(":")
    return sns_backends[account][region]


_KINDS: dict[str, Behaviour] = {
    _SUBSCRIPTION: Behaviour(
        _subscription,
        _change_subscription,
        lambda client, made: _topics(made.physical_resource_id).unsubscribe(made.physical_resource_id),
    ),
    f"{_PREFIX}Function": Behaviour(
        _function, _change_function, lambda client, made: client.delete_function(**made.facts)
    ),
    f"{_PREFIX}Version": Behaviour(_version, None, lambda client, made: client.delete_function(**made.facts)),
    f"{_PREFIX}Alias": Behaviour(
        _alias,
        lambda made, properties: _call("update_alias", _alias_given(properties)),
        lambda client, made: client.delete_alias(**made.facts),
    ),
    f"{_PREFIX}Permission": Behaviour(_permission, None, lambda client, made: client.remove_permission(**made.facts)),
    f"{_PREFIX}EventSourceMapping": Behaviour(
        _mapping, _change_mapping, lambda client, made: client.delete_event_source_mapping(**made.facts)
    ),
    f"{_PREFIX}LayerVersion": Behaviour(_layer, None, lambda client, made: client.delete_layer_version(**made.facts)),
    f"{_PREFIX}Url": Behaviour(
        _url,
        lambda made, properties: _call("update_function_url_config", _url_given(properties)),
        lambda client, made: client.delete_function_url_config(**made.facts),
    ),
    f"{_PREFIX}EventInvokeConfig": Behaviour(
        _asynchronous,
        lambda made, properties: _call("put_function_event_invoke_config", properties),
        lambda client, made: client.delete_function_event_invoke_config(**made.facts),
    ),
}
