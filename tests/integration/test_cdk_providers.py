"""Custom resources of CDK's framework for providers: the functions of the user make, change and delete them."""

from __future__ import annotations

import json
import sys
from typing import Any

from tests.integration.conftest import Project
from tests.integration.emulated import AwsAt
from tests.integration.stack_operations import stack_status

RUNTIME = f"python{sys.version_info[0]}.{sys.version_info[1]}"
ON_EVENT = """
import boto3
def handler(event, context):
    colour = event["ResourceProperties"]["Colour"]
    boto3.client("s3").put_object(Bucket="asked", Key=event["RequestType"] + colour)
    if colour == "refused":
        raise ValueError("no such colour")
    if event["RequestType"] == "Create":
        return {"PhysicalResourceId": "seed", "Data": {"Colour": colour}}
    return {"Data": {"Colour": colour}}
"""
IS_COMPLETE = """
import boto3
def handler(event, context):
    boto3.client("s3").put_object(Bucket="asked", Key="asked" + event["PhysicalResourceId"])
    return {"IsComplete": True, "Data": {"Done": "yes"}}
"""


def function(source: str) -> dict[str, Any]:
    properties = {"Runtime": RUNTIME, "Handler": "index.handler", "Role": "arn:aws:iam::000000000000:role/anybody"}
    return {"Type": "AWS::Lambda::Function", "Properties": {**properties, "Code": {"ZipFile": source}}}


def template(colour: str) -> str:
    def arn(name: str) -> dict[str, Any]:
        return {"Fn::GetAtt": [name, "Arn"]}

    variables = {"USER_ON_EVENT_FUNCTION_ARN": arn("OnEvent"), "USER_IS_COMPLETE_FUNCTION_ARN": arn("IsComplete")}
    framework = {
        "Runtime": "nodejs24.x",
        "Handler": "framework.onEvent",
        "Code": {"S3Bucket": "none", "S3Key": "none"},
        "Environment": {"Variables": variables},
    }
    seed = {"ServiceToken": arn("ProviderframeworkonEvent83C1D0A7"), "Colour": colour}
    resources = {
        "OnEvent": function(ON_EVENT),
        "IsComplete": function(IS_COMPLETE),
        "ProviderframeworkonEvent83C1D0A7": {"Type": "AWS::Lambda::Function", "Properties": framework},
        "Seed": {"Type": "Custom::Seed", "Properties": seed},
    }
    outputs = {name: {"Value": {"Fn::GetAtt": ["Seed", name]}} for name in ("Colour", "Done")}
    return json.dumps({"Resources": resources, "Outputs": outputs})


def test_functions_of_a_provider_make_change_and_delete_a_resource(project: Project) -> None:
    project.config("")
    with project.up("--aws") as running:
        aws = AwsAt(running.url)
        stacks, objects = aws.client("cloudformation"), aws.client("s3")
        objects.create_bucket(Bucket="asked")
        stacks.create_stack(StackName="s", TemplateBody=template("red"))
        assert stack_status(stacks, "s") == "CREATE_COMPLETE", stacks.describe_stack_events(StackName="s")
        outputs = stacks.describe_stacks(StackName="s")["Stacks"][0]["Outputs"]
        assert {one["OutputKey"]: one["OutputValue"] for one in outputs} == {"Colour": "red", "Done": "yes"}
        stacks.update_stack(StackName="s", TemplateBody=template("refused"))
        assert stack_status(stacks, "s") == "UPDATE_ROLLBACK_COMPLETE"
        events = stacks.describe_stack_events(StackName="s")["StackEvents"]
        assert any("ValueError: no such colour" in one.get("ResourceStatusReason", "") for one in events)
        stacks.delete_stack(StackName="s")
        assert stack_status(stacks, "s") == "DELETE_COMPLETE"
        asked = {one["Key"] for one in objects.list_objects_v2(Bucket="asked")["Contents"]}
        assert asked == {"Createred", "askedseed", "Updaterefused", "Updatered", "Deletered"}
        assert running.client().list_functions()["Functions"] == []
