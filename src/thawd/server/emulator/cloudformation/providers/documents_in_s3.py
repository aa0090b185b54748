"""Reads the definitions of APIs and state machines that a template keeps in S3, as SAM's `DefinitionUri` does.

Source: CloudFormation template reference, "AWS::ApiGateway::RestApi S3Location", "AWS::ApiGatewayV2::Api
BodyS3Location" and "AWS::StepFunctions::StateMachine S3Location".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from thawd.deploy.templates.refusals import TemplateError
from thawd.deploy.templates.template_parsing import parse
from thawd.server.emulator.cloudformation.errors import ResourceError
from thawd.server.emulator.cloudformation.providers.aws_clients import Aws
from thawd.server.emulator.cloudformation.providers.resource_kind import Kind, Made, Wanted
from thawd.server.emulator.cloudformation.stack_records import Resource

# Source: Step Functions developer guide, "Quotas": a definition has at most 1 MB; API Gateway reads at most 6 MB.
_MOST_BYTES = 6 << 20


class _Place(NamedTuple):
    """The properties in which a type has its definition.

    Attributes:
        location: the property with the definition's address in S3.
        content: the property that may contain the definition itself.
    """

    location: str
    content: str


_STATE_MACHINE = "AWS::StepFunctions::StateMachine"
_PLACES = {
    "AWS::ApiGateway::RestApi": _Place("BodyS3Location", "Body"),
    "AWS::ApiGatewayV2::Api": _Place("BodyS3Location", "Body"),
    _STATE_MACHINE: _Place("DefinitionS3Location", "DefinitionString"),
}


def reading(name: str, kind: Kind) -> Kind:
    """Return a kind that first reads the resource's definition from S3 if it is there."""
    place = _PLACES.get(name)
    if place is None:
        return kind
    make, change = kind.make, kind.change

    def make_read(aws: Aws, wanted: Wanted) -> Made:
        return make(aws, _read(aws, wanted, place))

    def change_read(aws: Aws, resource: Resource, wanted: Wanted) -> Made | None:
        assert change is not None
        return change(aws, resource, _read(aws, wanted, place))

    return replace(kind, make=make_read, change=None if change is None else change_read)


def _read(aws: Aws, wanted: Wanted, place: _Place) -> Wanted:
    """Return the wanted resource with its definition among its properties."""
    location = wanted.properties.get(place.location)
    if not isinstance(location, Mapping):
        return wanted
    text = _text(aws, location)
    if wanted.kind == _STATE_MACHINE:
        text = _as_json(text, location)
    kept = {name: value for name, value in wanted.properties.items() if name != place.location}
    return replace(wanted, properties={**kept, place.content: text})


def _text(aws: Aws, location: Mapping[str, Any]) -> str:
    from botocore.exceptions import ClientError

    where = _shown(location)
    given = {"Bucket": location.get("Bucket"), "Key": location.get("Key"), "VersionId": location.get("Version")}
    try:
        content: bytes = aws.call("s3", "get_object", given)["Body"].read(_MOST_BYTES + 1)
    except ClientError as error:
        raise ResourceError(f"{where} cannot be read: {error.response['Error'].get('Message', error)}") from error
    if len(content) > _MOST_BYTES:
        raise ResourceError(f"{where} has more than {_MOST_BYTES} bytes")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ResourceError(f"{where} is not text in UTF-8: {error}") from error


def _as_json(text: str, location: Mapping[str, Any]) -> str:
    """Return a state machine's definition as JSON. In S3, it may also be YAML."""
    try:
        return json.dumps(parse(text))
    except TemplateError as error:
        raise ResourceError(f"{_shown(location)} is neither JSON nor YAML: {error.message}") from error


def _shown(location: Mapping[str, Any]) -> str:
    return f"s3://{location.get('Bucket')}/{location.get('Key')}"
