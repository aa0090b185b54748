"""Definitions of APIs and state machines that a template keeps in S3."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from botocore.exceptions import ClientError

from thawd.server.emulator.cloudformation.errors import ResourceError
from thawd.server.emulator.cloudformation.providers.documents_in_s3 import reading
from thawd.server.emulator.cloudformation.providers.resource_kind import Kind, Made, Wanted

pytestmark = pytest.mark.in_memory

_MACHINE, _REST = "AWS::StepFunctions::StateMachine", "AWS::ApiGateway::RestApi"


class _Objects:
    """Stands for AWS's services: S3 with these objects."""

    def __init__(self, **objects: bytes) -> None:
        self.objects = objects
        self.asked: dict[str, Any] = {}

    def call(self, service: str, method: str, given: dict[str, Any]) -> dict[str, Any]:
        assert (service, method) == ("s3", "get_object")
        self.asked = given
        if given["Key"] not in self.objects:
            error: Any = {"Error": {"Code": "NoSuchKey", "Message": "The specified key does not exist."}}
            raise ClientError(error, "GetObject")
        return {"Body": io.BytesIO(self.objects[given["Key"]])}


def _properties(kind: str, properties: dict[str, Any], **objects: bytes) -> dict[str, Any]:
    """The properties that a resource is made with."""
    seen: list[dict[str, Any]] = []

    def make(aws: Any, wanted: Wanted) -> Made:
        seen.append(wanted.properties)
        return Made("x")

    wanted: Any = Wanted(None, "M", kind, "m", properties)  # type: ignore[arg-type]
    aws: Any = _Objects(**objects)
    found = reading(kind, Kind(make, lambda *_: None, lambda aws, resource, wanted: make(aws, wanted)))
    found.make(aws, wanted)
    assert found.change is not None
    found.change(aws, None, wanted)  # type: ignore[arg-type]
    assert seen[0] == seen[1]
    return seen[0]


def test_a_definition_in_s3_takes_the_place_of_one_in_the_template() -> None:
    properties = {"BodyS3Location": {"Bucket": "b", "Key": "api", "Version": "7"}, "Name": "shop"}
    assert _properties(_REST, properties, api=b"openapi: 3.0.1") == {"Body": "openapi: 3.0.1", "Name": "shop"}


def test_a_state_machine_may_be_json_or_yaml() -> None:
    place = {"DefinitionS3Location": {"Bucket": "b", "Key": "flow"}, "RoleArn": "r"}
    json_text = b'{"StartAt": "A", "States": {"A": {"Type": "Succeed", "n": "${Name}"}}}'
    yaml_text = b"StartAt: A\nStates:\n  A: {Type: Succeed, n: '${Name}'}\n"
    made = [json.loads(_properties(_MACHINE, place, flow=text)["DefinitionString"]) for text in (json_text, yaml_text)]
    assert made[0] == made[1] == json.loads(json_text)


def test_properties_without_a_place_in_s3_stay_as_they_are() -> None:
    assert _properties(_MACHINE, {"DefinitionString": "{}"}) == {"DefinitionString": "{}"}
    assert _properties("AWS::SNS::Topic", {"BodyS3Location": {}}) == {"BodyS3Location": {}}


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ({}, r"s3://b/flow cannot be read: The specified key does not exist\."),
        ({"flow": b"\xff"}, "s3://b/flow is not text in UTF-8"),
        ({"flow": b"[1, "}, "s3://b/flow is neither JSON nor YAML"),
        ({"flow": b"x" * (6 << 20) + b"x"}, "s3://b/flow has more than 6291456 bytes"),
    ],
)
def test_a_definition_that_cannot_be_read_is_the_reason_of_the_failure(
    content: dict[str, bytes], complaint: str
) -> None:
    with pytest.raises(ResourceError, match=complaint):
        _properties(_MACHINE, {"DefinitionS3Location": {"Bucket": "b", "Key": "flow"}}, **content)
