"""Capabilities of CloudFormation: what a template can do must be acknowledged, also in nested stacks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.integration.emulated import EmulatedAws
from tests.integration.stack_operations import stack_status

ROLE = {
    "Type": "AWS::IAM::Role",
    "Properties": {"AssumeRolePolicyDocument": {"Version": "2012-10-17", "Statement": []}},
}
NAMED = {**ROLE, "Properties": {**ROLE["Properties"], "RoleName": "mine"}}
# A function of SAM without a role gets one.
SAM = {
    "Transform": "AWS::Serverless-2016-10-31",
    "Resources": {
        "F": {
            "Type": "AWS::Serverless::Function",
            "Properties": {"InlineCode": "x = 1", "Handler": "index.x", "Runtime": "python3.12"},
        }
    },
}


@pytest.fixture(scope="module")
def aws() -> Iterator[EmulatedAws]:
    with EmulatedAws() as emulated:
        emulated.connect_to_itself()
        yield emulated


@pytest.fixture
def stacks(aws: EmulatedAws) -> Iterator[Any]:
    aws.empty()
    yield aws.client("cloudformation")
    aws.empty()


def template(**resources: Any) -> str:
    return json.dumps({"Resources": resources})


@pytest.mark.parametrize(
    ("resource", "given", "lacking"),
    [
        (ROLE, [], "CAPABILITY_IAM"),
        (ROLE, ["CAPABILITY_AUTO_EXPAND"], "CAPABILITY_IAM"),
        (NAMED, ["CAPABILITY_IAM"], "CAPABILITY_NAMED_IAM"),
    ],
)
def test_a_template_with_roles_needs_a_capability(stacks: Any, resource: Any, given: list[str], lacking: str) -> None:
    body = template(Role=resource)
    for operation, more in (
        (stacks.create_stack, {}),
        (stacks.create_change_set, {"ChangeSetName": "c", "ChangeSetType": "CREATE"}),
    ):
        with pytest.raises(ClientError) as refused:
            operation(StackName="s", TemplateBody=body, Capabilities=given, **more)
        error = refused.value.response["Error"]
        assert (error["Code"], error["Message"]) == (
            "InsufficientCapabilitiesException", f"Requires capabilities : [{lacking}]"
        )  # fmt: skip
    assert stacks.describe_stacks()["Stacks"] == []


def test_an_update_needs_the_capability_that_its_template_needs(stacks: Any) -> None:
    queue = {"Type": "AWS::SQS::Queue"}
    stacks.create_stack(StackName="s", TemplateBody=template(Queue=queue))
    assert stack_status(stacks, "s") == "CREATE_COMPLETE"
    more = template(Queue=queue, Role=ROLE)
    with pytest.raises(ClientError, match="CAPABILITY_IAM"):
        stacks.update_stack(StackName="s", TemplateBody=more)
    stacks.update_stack(StackName="s", TemplateBody=more, Capabilities=["CAPABILITY_NAMED_IAM"])
    assert stack_status(stacks, "s") == "UPDATE_COMPLETE"


def test_a_change_set_says_which_capability_what_its_transform_made_needs(stacks: Any) -> None:
    given = {"StackName": "s", "ChangeSetType": "CREATE", "TemplateBody": json.dumps(SAM)}
    stacks.create_change_set(**given, ChangeSetName="without")
    shown = stacks.describe_change_set(StackName="s", ChangeSetName="without")
    assert (shown["Status"], shown["StatusReason"]) == ("FAILED", "Requires capabilities : [CAPABILITY_IAM]")
    stacks.create_change_set(**given, ChangeSetName="with", Capabilities=["CAPABILITY_IAM"])
    assert stacks.describe_change_set(StackName="s", ChangeSetName="with")["Status"] == "CREATE_COMPLETE"


def test_a_nested_stack_has_only_the_capabilities_of_its_parent(aws: EmulatedAws, stacks: Any) -> None:
    objects = aws.client("s3")
    objects.create_bucket(Bucket="templates")
    objects.put_object(Bucket="templates", Key="child.json", Body=template(Role=ROLE).encode())
    child = {
        "Type": "AWS::CloudFormation::Stack",
        "Properties": {"TemplateURL": f"{aws.url}/templates/child.json"},
    }
    stacks.create_stack(StackName="p", TemplateBody=template(Child=child))
    assert stack_status(stacks, "p") == "ROLLBACK_COMPLETE"
    events = stacks.describe_stack_events(StackName="p")["StackEvents"]
    assert "Requires capabilities : [CAPABILITY_IAM]" in [event.get("ResourceStatusReason") for event in events]
    stacks.delete_stack(StackName="p")
    assert stack_status(stacks, "p") == "DELETE_COMPLETE"
    stacks.create_stack(StackName="p", TemplateBody=template(Child=child), Capabilities=["CAPABILITY_IAM"])
    assert stack_status(stacks, "p") == "CREATE_COMPLETE"
