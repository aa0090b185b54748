"""Stacks that an earlier version has saved as moto's objects become records, with all that a deletion needs."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from thawd.resources import ACCOUNT_ID
from thawd.server.emulator.cloudformation import saved_moto_stacks
from thawd.server.emulator.cloudformation.providers.aws_clients import Aws
from thawd.server.emulator.cloudformation.providers.kinds_by_type import Registry
from thawd.server.emulator.cloudformation.stack_files import StackStore
from thawd.server.emulator.cloudformation.stack_records import Stack
from thawd.server.emulator.cloudformation.template_plans import Planner
from thawd.server.emulator.state import _Unpickler
from thawd.server.emulator.state_saving import Saving

TEMPLATE = {
    "Parameters": {"Name": {"Type": "String"}},
    "Resources": {
        "Queue": {"Type": "AWS::SQS::Queue", "Properties": {"QueueName": {"Ref": "Name"}}, "DeletionPolicy": "Retain"},
        "Network": {"Type": "AWS::EC2::VPC", "Properties": {"CidrBlock": "10.7.0.0/16"}},
    },
    "Outputs": {"Arn": {"Value": {"Fn::GetAtt": ["Queue", "Arn"]}, "Export": {"Name": "the-arn"}}},
}
LAMBDA = {
    "Type": "AWS::Lambda::Function",
    "Properties": {"FunctionName": "painter", "Environment": {"Variables": {"QUEUE": {"Ref": "Queue"}}}},
}


@pytest.fixture
def backend() -> Any:
    from moto.cloudformation.models import cloudformation_backends

    found = cloudformation_backends[ACCOUNT_ID]["us-east-1"]
    yield found
    found.reset()


def function() -> Any:
    """A function's resource, as the class of an earlier version is loaded."""
    unpickler = _Unpickler(io.BytesIO(), is_trial=False)
    made = object.__new__(unpickler.find_class("thawd.server.emulator.stack_resources", "StackResource"))
    vars(made).update(
        kind="AWS::Lambda::Function",
        physical_resource_id="painter",
        attributes={"Arn": "arn:aws:lambda:us-east-1:000000000000:function:painter"},
        facts={"FunctionName": "painter"},
    )
    return made


def taken_over() -> tuple[list[Stack], list[str]]:
    lines: list[str] = []
    store, registry = StackStore(None, lines.append), Registry(Saving().changing)

    def nothing(service: str, **more: Any) -> Any:
        raise AssertionError(service)

    saved_moto_stacks.take_over(store, Planner(store, Aws(nothing), registry), lines.append)
    return store.all(), lines


def test_a_saved_stack_becomes_a_record_with_what_its_resources_need(backend: Any) -> None:
    old = backend.create_stack(
        name="old",
        template=json.dumps(TEMPLATE),
        parameters={"Name": "jobs"},
        notification_arns=[],
        tags={"team": "paint"},
    )
    extended = {**TEMPLATE, "Resources": {**TEMPLATE["Resources"], "Painter": LAMBDA}}  # type: ignore[dict-item]
    old.template = json.dumps(extended)
    old.resource_map._resource_json_map["Painter"] = LAMBDA
    old.resource_map._parsed_resources["Painter"] = function()
    [stack], lines = taken_over()
    assert lines == []
    assert (stack.name, stack.id, stack.status) == ("old", old.stack_id, "CREATE_COMPLETE")
    assert (stack.settings.parameters, stack.settings.tags) == ({"Name": "jobs"}, {"team": "paint"})
    queue, network, painter = (stack.resources[name] for name in ("Queue", "Network", "Painter"))
    assert (queue.facts, queue.properties) == ({"QueueUrl": queue.physical_id}, {"QueueName": "jobs"})
    assert (queue.deletion_policy, painter.needs) == ("Retain", ["Queue"])
    assert (painter.facts, painter.properties["Environment"]) == (
        {"FunctionName": "painter"},
        {"Variables": {"QUEUE": queue.physical_id}},
    )
    assert network.physical_id.startswith("vpc-")
    assert "key" in network.facts
    [output] = stack.outputs
    assert (output.export, output.value) == ("the-arn", f"arn:aws:sqs:us-east-1:{ACCOUNT_ID}:jobs")
    assert backend.stacks == {}


def test_a_stack_that_cannot_be_taken_over_is_reported(backend: Any) -> None:
    backend.create_stack(
        name="odd", template=json.dumps(TEMPLATE), parameters={"Name": "jobs"}, notification_arns=[], tags={}
    ).template = "no template"
    stacks, [line] = taken_over()
    assert stacks == []
    assert "the stack odd, which an earlier version of thawd has made, cannot be taken over" in line
