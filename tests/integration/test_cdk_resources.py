"""CDK's own custom resources in a stack: thawd does the work of the functions that CDK puts into it."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.emulated import EmulatedAws
from tests.integration.stack_operations import stack_status

# The logical ids are of no account: thawd knows CDK's functions by their code.
FUNCTIONS = {"calls": "Caller", "copies": "Copier", "empties": "Emptier", "notifies": "Notifier", "retains": "Keeper"}
# The words by which thawd knows them, which the code of CDK has: see `test_cdk.py`.
SOURCES = {
    "calls": ("index.js", "PHYSICAL:RESOURCEID: ignoreErrorCodesMatching outputPaths"),
    "copies": ("index.py", "aws.cdk.s3deployment SourceBucketNames DestinationBucketName"),
    "empties": ("index.js", "aws-cdk:auto-delete-objects BucketName RequestType"),
    "notifies": ("index.py", "put_bucket_notification_configuration NotificationConfiguration ResponseURL"),
    "retains": ("index.js", "LogGroupRegion retentionInDays RequestType"),
}


@pytest.fixture(scope="module")
def aws() -> Iterator[EmulatedAws]:
    with EmulatedAws() as emulated:
        emulated.connect_to_itself()
        yield emulated


def custom(kind: str, function: str, needs: list[str] | None = None, **properties: Any) -> dict[str, Any]:
    token = {"Fn::GetAtt": [FUNCTIONS[function], "Arn"]}
    made = {"Type": f"Custom::{kind}", "Properties": {"ServiceToken": token, **properties}}
    return {**made, "DependsOn": needs} if needs else made


def sdk_call(action: str, parameters: dict[str, Any], **more: Any) -> str:
    return json.dumps({"service": "@aws-sdk/client-ssm", "action": action, "parameters": parameters, **more})


def template(value: str) -> str:
    functions = {
        name: {
            "Type": "AWS::Lambda::Function",
            "Properties": {
                "Runtime": "nodejs24.x",
                "Handler": "index.handler",
                "Code": {"S3Bucket": "assets", "S3Key": kind},
            },
        }
        for kind, name in FUNCTIONS.items()
    }
    functions[FUNCTIONS["notifies"]]["Properties"]["Code"] = {"ZipFile": SOURCES["notifies"][1]}
    tags = [{"Key": "aws-cdk:auto-delete-objects", "Value": "true"}]
    bucket = {"Ref": "Bucket"}
    put = sdk_call("PutParameter", {"Name": "made", "Value": value, "Type": "String", "Overwrite": True},
                   physicalResourceId={"id": "made"})  # fmt: skip
    get = sdk_call("getParameter", {"Name": "made"}, physicalResourceId={"responsePath": "Parameter.ARN"})
    queues = [{"Events": ["s3:ObjectCreated:*"], "QueueArn": {"Fn::GetAtt": ["Queue", "Arn"]}}]
    resources = {
        **functions,
        "Bucket": {"Type": "AWS::S3::Bucket", "Properties": {"BucketName": "filled", "Tags": tags}},
        "Empties": custom("S3AutoDeleteObjects", "empties", BucketName=bucket),
        "Queue": {"Type": "AWS::SQS::Queue", "Properties": {"QueueName": "told"}},
        "Notifies": custom(
            "S3BucketNotifications",
            "notifies",
            BucketName=bucket,
            NotificationConfiguration={"QueueConfigurations": queues},
            Managed=True,
        ),
        "Copies": custom(
            "CDKBucketDeployment",
            "copies",
            SourceBucketNames=["assets"],
            SourceObjectKeys=["site.zip"],
            SourceMarkers=[{"<<value>>": value}],
            DestinationBucketName=bucket,
            DestinationBucketKeyPrefix="site",
            Prune=True,
        ),
        "Retains": custom("LogRetention", "retains", LogGroupName="/kept", RetentionInDays=7),
        "RetainsOwn": custom(
            "LogRetention",
            "retains",
            LogGroupName={"Fn::Join": ["", ["/aws/lambda/", {"Ref": FUNCTIONS["calls"]}]]},
            RetentionInDays=1,
        ),
        "Puts": custom("AWS", "calls", Create=put, Update=put, Delete=sdk_call("DeleteParameter", {"Name": "made"})),
        "Gets": custom("AWS", "calls", ["Puts"], Create=get),
    }
    outputs = {"Value": {"Value": {"Fn::GetAtt": ["Gets", "Parameter.Value"]}}}
    return json.dumps({"Resources": resources, "Outputs": outputs})


def archive(**files: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as opened:
        for name, text in files.items():
            opened.writestr(name if "." in name else f"{name}.html", text)
    return buffer.getvalue()


def test_the_work_of_cdks_functions_is_done_changed_and_undone(aws: EmulatedAws) -> None:
    stacks, objects, logs = aws.client("cloudformation"), aws.client("s3"), aws.client("logs")
    objects.create_bucket(Bucket="assets")
    for kind, (name, source) in SOURCES.items():
        objects.put_object(Bucket="assets", Key=kind, Body=archive(**{name: source}))
    objects.put_object(Bucket="assets", Key="site.zip", Body=archive(index="a <<value>>", old="old"))

    def site() -> dict[str, bytes]:
        keys = [one["Key"] for one in objects.list_objects_v2(Bucket="filled").get("Contents", [])]
        return {key: objects.get_object(Bucket="filled", Key=key)["Body"].read() for key in keys}

    made = stacks.create_stack(StackName="cdk", TemplateBody=template("red"))["StackId"]
    assert stack_status(stacks, "cdk") == "CREATE_COMPLETE", stacks.describe_stack_events(StackName="cdk")
    assert stacks.describe_stacks(StackName="cdk")["Stacks"][0]["Outputs"][0]["OutputValue"] == "red"
    assert site() == {"site/index.html": b"a red", "site/old.html": b"old"}
    assert logs.describe_log_groups(logGroupNamePrefix="/kept")["logGroups"][0]["retentionInDays"] == 7
    found = objects.get_bucket_notification_configuration(Bucket="filled")["QueueConfigurations"]
    assert [one["QueueArn"].rpartition(":")[2] for one in found] == ["told"]
    objects.put_object(Bucket="assets", Key="site.zip", Body=archive(index="a <<value>>"))
    stacks.update_stack(StackName="cdk", TemplateBody=template("blue"))
    assert stack_status(stacks, "cdk") == "UPDATE_COMPLETE", stacks.describe_stack_events(StackName="cdk")
    assert site() == {"site/index.html": b"a blue"}
    assert aws.client("ssm").get_parameter(Name="made")["Parameter"]["Value"] == "blue"
    stacks.delete_stack(StackName="cdk")
    assert stack_status(stacks, made) == "DELETE_COMPLETE", stacks.describe_stack_events(StackName=made)
    assert [bucket["Name"] for bucket in objects.list_buckets()["Buckets"]] == ["assets"]
    assert aws.client("ssm").describe_parameters()["Parameters"] == []
