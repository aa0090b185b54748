"""`thawd up --aws`: the functions of an emulated CloudFormation stack are made in thawd, or the stack says why not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.integration.conftest import Project, Running, eventually
from tests.integration.emulated import AwsAt
from tests.integration.stack_operations import stack_status
from tests.integration.stack_templates import RUNTIME, SOURCE, seeded, template, wired


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    project = Project(tmp_path_factory.mktemp("server"))
    project.config("")
    with project.up("--aws") as served:
        yield served


@pytest.fixture
def running(server: Running) -> Iterator[Running]:
    """The server, from which all stacks and buckets are deleted at the end of the test."""
    yield server
    aws = AwsAt(server.url)
    stacks, objects, functions = aws.client("cloudformation"), aws.client("s3"), server.client()
    for bucket in objects.list_buckets()["Buckets"]:
        for each in objects.list_objects_v2(Bucket=bucket["Name"]).get("Contents", []):
            objects.delete_object(Bucket=bucket["Name"], Key=each["Key"])
    names = [stack["StackName"] for stack in stacks.describe_stacks()["Stacks"]]
    for name in names:
        stacks.delete_stack(StackName=name)
    assert {stack_status(stacks, name) for name in names} <= {"DELETE_COMPLETE"}
    for bucket in objects.list_buckets()["Buckets"]:
        objects.delete_bucket(Bucket=bucket["Name"])
    eventually(lambda: not functions.list_event_source_mappings()["EventSourceMappings"], what="the end of mappings")


def test_a_stacks_functions_answer_are_changed_and_deleted_with_it(running: Running) -> None:
    stacks, functions = AwsAt(running.url).client("cloudformation"), running.client()
    stacks.create_stack(StackName="paint", TemplateBody=template("red"))
    assert stack_status(stacks, "paint") == "CREATE_COMPLETE"
    stack = stacks.describe_stacks(StackName="paint")["Stacks"][0]
    assert stack["Outputs"][0]["OutputValue"] == "arn:aws:lambda:us-east-1:000000000000:function:painter"
    assert running.invoke("painter")[0] == {"colour": "red", "memory": "256", "version": "$LATEST"}
    assert running.invoke("painter", Qualifier="live")[0]["version"] == "1"
    found = functions.get_function(FunctionName="painter")
    shown = found["Configuration"]
    assert (shown["Timeout"], shown["EphemeralStorage"], found["Tags"]) == (7, {"Size": 600}, {"team": "paint"})
    (mapping,) = functions.list_event_source_mappings(FunctionName="painter")["EventSourceMappings"]
    assert mapping["BatchSize"] == 5
    assert "s3.amazonaws.com" in functions.get_policy(FunctionName="painter")["Policy"]
    stacks.update_stack(StackName="paint", TemplateBody=template("blue"))
    assert stack_status(stacks, "paint") == "UPDATE_COMPLETE"
    assert running.invoke("painter")[0]["colour"] == "blue"
    stacks.delete_stack(StackName="paint")
    assert stack_status(stacks, "paint") == "DELETE_COMPLETE"
    with pytest.raises(ClientError, match="Function not found"):
        functions.get_function(FunctionName="painter")
    eventually(lambda: not functions.list_event_source_mappings()["EventSourceMappings"], what="the end of the mapping")


@pytest.mark.parametrize(
    ("runtime", "more", "reason"),
    [
        ("python2.7", {}, "The runtime parameter of python2.7 is no longer supported"),
        (RUNTIME, {"Other": {"Type": "AWS::Lambda::CapacityProvider"}}, "cannot make resources of the type"),
        (RUNTIME, {"Other": {"Type": "AWS::Serverless::Function"}}, "needs the template's line Transform"),
    ],
)
def test_a_stack_that_cannot_be_made_is_rolled_back_and_says_why(
    running: Running, runtime: str, more: dict[str, Any], reason: str
) -> None:
    aws = AwsAt(running.url)
    stacks = aws.client("cloudformation")
    stacks.create_stack(StackName="broken", TemplateBody=template("red", runtime=runtime, more=more))
    assert stack_status(stacks, "broken") == "ROLLBACK_COMPLETE"
    events = stacks.describe_stack_events(StackName="broken")["StackEvents"]
    assert any(reason in event.get("ResourceStatusReason", "") for event in events)
    assert running.client().list_functions()["Functions"] == []
    assert "QueueUrls" not in aws.client("sqs").list_queues()


@pytest.mark.parametrize(("runtime", "status"), [(RUNTIME, "CREATE_COMPLETE"), ("python2.7", "ROLLBACK_COMPLETE")])
def test_a_stack_can_be_made_by_a_change_set_as_the_aws_cli_does(running: Running, runtime: str, status: str) -> None:
    stacks = AwsAt(running.url).client("cloudformation")
    stacks.create_change_set(
        StackName="deployed",
        ChangeSetName="first",
        ChangeSetType="CREATE",
        TemplateBody=template("red", runtime=runtime),
    )
    assert running.client().list_functions()["Functions"] == []
    stacks.create_change_set(
        StackName="other",
        ChangeSetName="first",
        ChangeSetType="CREATE",
        TemplateBody=json.dumps({"Resources": {"Topic": {"Type": "AWS::SNS::Topic"}}}),
    )
    stacks.execute_change_set(StackName="deployed", ChangeSetName="first")
    assert stack_status(stacks, "other") == "REVIEW_IN_PROGRESS"
    assert stack_status(stacks, "deployed") == status
    if status == "CREATE_COMPLETE":
        assert running.invoke("painter", Qualifier="live")[0]["colour"] == "red"
        (output,) = stacks.describe_stacks(StackName="deployed")["Stacks"][0]["Outputs"]
        assert output["OutputKey"] == "Arn"
        stacks.create_change_set(
            StackName="deployed", ChangeSetName="second", ChangeSetType="UPDATE", TemplateBody=template("blue")
        )
        stacks.execute_change_set(StackName="deployed", ChangeSetName="second")
        assert stack_status(stacks, "deployed") == "UPDATE_COMPLETE"
        assert running.invoke("painter")[0]["colour"] == "blue"
        named = {"StackName": "deployed", "ChangeSetName": "nothing"}
        stacks.create_change_set(**named, ChangeSetType="UPDATE", TemplateBody=template("blue"))
        nothing = stacks.describe_change_set(**named)
        assert (nothing["Status"], nothing["ExecutionStatus"]) == ("FAILED", "UNAVAILABLE")
        assert "didn't contain changes" in nothing["StatusReason"]
    else:
        assert running.client().list_functions()["Functions"] == []


def test_a_stacks_buckets_and_subscriptions_invoke_functions(running: Running) -> None:
    aws = AwsAt(running.url)
    stacks, objects, topics = aws.client("cloudformation"), aws.client("s3"), aws.client("sns")

    def seen() -> set[str]:
        return {each["Key"] for each in objects.list_objects_v2(Bucket="seen").get("Contents", [])}

    def send(number: int) -> None:
        for folder in ("a", "b"):
            objects.put_object(Bucket="uploads", Key=f"{folder}{number}", Body=b"-")
            kind = {"kind": {"DataType": "String", "StringValue": folder}}
            arn = "arn:aws:sns:us-east-1:000000000000:news"
            topics.publish(TopicArn=arn, Message=f"{folder}{number}", MessageAttributes=kind)

    stacks.create_stack(StackName="wired", TemplateBody=wired("a", "a"))
    assert stack_status(stacks, "wired") == "CREATE_COMPLETE"
    eventually(
        lambda: "resource of the type AWS::CloudWatch::Alarm, which thawd does not have" in "".join(running.output),
        what="the line for the operator",
    )
    (output,) = stacks.describe_stacks(StackName="wired")["Stacks"][0]["Outputs"]
    assert output["OutputValue"] == topics.list_subscriptions()["Subscriptions"][0]["SubscriptionArn"]
    send(1)
    eventually(lambda: seen() == {"s3/a1", "sns/a1"}, what="the first events")
    stacks.update_stack(StackName="wired", TemplateBody=wired("b", "b"))
    assert stack_status(stacks, "wired") == "UPDATE_COMPLETE"
    send(2)
    eventually(lambda: seen() == {"s3/a1", "sns/a1", "s3/b2", "sns/b2"}, what="the events of the new rules")
    for bucket in ("seen", "uploads"):
        for each in objects.list_objects_v2(Bucket=bucket)["Contents"]:
            objects.delete_object(Bucket=bucket, Key=each["Key"])
    stacks.delete_stack(StackName="wired")
    assert stack_status(stacks, "wired") == "DELETE_COMPLETE"
    assert topics.list_subscriptions()["Subscriptions"] == []
    objects.create_bucket(Bucket="uploads")
    found = objects.get_bucket_notification_configuration(Bucket="uploads")
    assert "LambdaFunctionConfigurations" not in found


STREAMED = """
import json, boto3
def handler(event, context):
    for record in event["Records"]:
        key = f"{record['eventName']}-{record['dynamodb']['Keys']['id']['S']}"
        boto3.client("s3").put_object(Bucket="changes", Key=key, Body=json.dumps(record))
"""


def test_a_stacks_table_invokes_a_function_with_its_changes(running: Running) -> None:
    aws = AwsAt(running.url)
    stacks, objects, tables = aws.client("cloudformation"), aws.client("s3"), aws.client("dynamodb")
    function = {
        "FunctionName": "recorder",
        "Runtime": RUNTIME,
        "Handler": "index.handler",
        "Role": "arn:aws:iam::000000000000:role/anybody",
        "Code": {"ZipFile": STREAMED},
    }
    table = {
        "TableName": "orders",
        "KeySchema": [{"AttributeName": "id", "KeyType": "HASH"}],
        "AttributeDefinitions": [{"AttributeName": "id", "AttributeType": "S"}],
        "BillingMode": "PAY_PER_REQUEST",
        "StreamSpecification": {"StreamViewType": "NEW_IMAGE"},
    }
    mapping = {
        "EventSourceArn": {"Fn::GetAtt": ["Orders", "StreamArn"]},
        "FunctionName": {"Ref": "Recorder"},
        "StartingPosition": "TRIM_HORIZON",
        "MaximumRetryAttempts": "2",
        "BisectBatchOnFunctionError": "true",
    }
    resources = {
        "Changes": {"Type": "AWS::S3::Bucket", "Properties": {"BucketName": "changes"}},
        "Orders": {"Type": "AWS::DynamoDB::Table", "Properties": table},
        "Recorder": {"Type": "AWS::Lambda::Function", "Properties": function},
        "Mapping": {"Type": "AWS::Lambda::EventSourceMapping", "Properties": mapping},
    }
    stacks.create_stack(StackName="orders", TemplateBody=json.dumps({"Resources": resources}))
    assert stack_status(stacks, "orders") == "CREATE_COMPLETE"
    (made,) = running.client().list_event_source_mappings()["EventSourceMappings"]
    assert (made["MaximumRetryAttempts"], made["BisectBatchOnFunctionError"]) == (2, True)
    assert made["EventSourceArn"] == tables.describe_table(TableName="orders")["Table"]["LatestStreamArn"]
    tables.put_item(TableName="orders", Item={"id": {"S": "1"}})
    tables.delete_item(TableName="orders", Key={"id": {"S": "1"}})

    def seen() -> set[str]:
        return {each["Key"] for each in objects.list_objects_v2(Bucket="changes").get("Contents", [])}

    eventually(lambda: seen() == {"INSERT-1", "REMOVE-1"}, what="both changes")


def test_functions_make_the_custom_resources_of_stacks(running: Running) -> None:
    aws = AwsAt(running.url)
    stacks, objects = aws.client("cloudformation"), aws.client("s3")
    objects.create_bucket(Bucket="asked")

    def asked() -> set[str]:
        return {each["Key"] for each in objects.list_objects_v2(Bucket="asked").get("Contents", [])}

    def outputs() -> dict[str, str]:
        (stack,) = stacks.describe_stacks(StackName="seeded")["Stacks"]
        return {each["OutputKey"]: each["OutputValue"] for each in stack["Outputs"]}

    stacks.create_stack(StackName="seeded", TemplateBody=seeded("red"))
    assert stack_status(stacks, "seeded") == "CREATE_COMPLETE"
    assert (outputs(), asked()) == ({"Id": "seed-red", "Length": "3"}, {"Createred"})
    stacks.update_stack(StackName="seeded", TemplateBody=seeded("blue"))
    assert stack_status(stacks, "seeded") == "UPDATE_COMPLETE"
    assert (outputs(), asked()) == ({"Id": "seed-blue", "Length": "4"}, {"Createred", "Updateblue", "Deletered"})
    update = json.loads(objects.get_object(Bucket="asked", Key="Updateblue")["Body"].read())
    assert (update["PhysicalResourceId"], update["OldResourceProperties"]["Colour"]) == ("seed-red", "red")
    assert update["ResourceProperties"]["Deep"] == [{"Yes": "true", "Two": "2"}]  # as CloudFormation sends them
    moved = seeded("blue").replace('{"Fn::GetAtt": ["Seeder", "Arn"]}', '"arn:aws:sns:us-east-1:000000000000:other"')
    stacks.update_stack(StackName="seeded", TemplateBody=moved)
    assert stack_status(stacks, "seeded") == "UPDATE_ROLLBACK_COMPLETE"
    assert "Modifying service token is not allowed." in str(stacks.describe_stack_events(StackName="seeded"))
    stacks.delete_stack(StackName="seeded")
    assert stack_status(stacks, "seeded") == "DELETE_COMPLETE"
    assert "Deleteblue" in asked()
    for colour, reason in (("refuses", "not this one"), ("raises", "ValueError: no such colour")):
        stacks.create_stack(StackName=colour, TemplateBody=seeded(colour))
        assert stack_status(stacks, colour) == "ROLLBACK_COMPLETE"
        events = stacks.describe_stack_events(StackName=colour)["StackEvents"]
        assert any(reason in event.get("ResourceStatusReason", "") for event in events)
    assert "Deleterefuses" in asked()  # it may have made something before it refused
    assert running.client().list_functions()["Functions"] == []


ANSWERS = {
    RUNTIME: """
import cfnresponse
def handler(event, context):
    cfnresponse.send(event, context, cfnresponse.SUCCESS, {"Length": "5"}, "chosen")
""",
    "nodejs20.x": """
const response = require("cfn-response");
exports.handler = (event, context) => {
  response.send(event, context, response.SUCCESS, { Length: "5" }, "chosen");
};
""",
}


@pytest.mark.parametrize("runtime", list(ANSWERS))
def test_code_in_a_template_has_the_module_that_answers_for_custom_resources(running: Running, runtime: str) -> None:
    if runtime.startswith("nodejs") and shutil.which("node") is None:
        pytest.skip("needs Node")
    stacks = AwsAt(running.url).client("cloudformation")
    template = json.loads(seeded("red"))
    template["Resources"]["Seeder"]["Properties"] |= {"Runtime": runtime, "Code": {"ZipFile": ANSWERS[runtime]}}
    stacks.create_stack(StackName="seeded", TemplateBody=json.dumps(template))
    assert stack_status(stacks, "seeded") == "CREATE_COMPLETE"
    outputs = stacks.describe_stacks(StackName="seeded")["Stacks"][0]["Outputs"]
    assert {each["OutputValue"] for each in outputs} == {"chosen", "5"}


def test_resources_share_neither_a_version_nor_settings_for_asynchronous_invocations(running: Running) -> None:
    stacks, functions = AwsAt(running.url).client("cloudformation"), running.client()
    stacks.create_stack(StackName="paint", TemplateBody=template("red"))
    assert stack_status(stacks, "paint") == "CREATE_COMPLETE"
    functions.put_function_event_invoke_config(FunctionName="painter", MaximumRetryAttempts=1)
    for kind, reason in (
        ("Version", "A version for this Lambda function exists ( 1 ). Modify the function"),
        ("EventInvokeConfig", "with identifier 'painter|$LATEST' already exists."),
    ):
        other = {"Type": f"AWS::Lambda::{kind}", "Properties": {"FunctionName": "painter"}}
        stacks.create_stack(StackName=kind, TemplateBody=json.dumps({"Resources": {"Other": other}}))
        assert stack_status(stacks, kind) == "ROLLBACK_COMPLETE"
        assert reason in str(stacks.describe_stack_events(StackName=kind)["StackEvents"])
    assert running.invoke("painter", Qualifier="live")[0]["version"] == "1"
    assert functions.get_function_event_invoke_config(FunctionName="painter")["MaximumRetryAttempts"] == 1


def test_a_stack_and_its_functions_are_there_after_a_restart(project: Project) -> None:
    project.config("")
    with project.up("--aws") as running:
        stacks = AwsAt(running.url).client("cloudformation")
        stacks.create_stack(StackName="kept", TemplateBody=template("red"))
        assert stack_status(stacks, "kept") == "CREATE_COMPLETE"
    with project.up("--aws") as running:
        stacks = AwsAt(running.url).client("cloudformation")
        assert stack_status(stacks, "kept") == "CREATE_COMPLETE"
        assert running.invoke("painter", Qualifier="live")[0]["colour"] == "red"
        stacks.update_stack(StackName="kept", TemplateBody=template("green"))
        assert stack_status(stacks, "kept") == "UPDATE_COMPLETE"
        assert running.invoke("painter")[0]["colour"] == "green"
        stacks.delete_stack(StackName="kept")
        assert stack_status(stacks, "kept") == "DELETE_COMPLETE"
        assert running.client().list_functions()["Functions"] == []


def test_a_stack_whose_functions_are_being_made_when_the_server_is_killed_leaves_none(
    project: Project, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    source = f"import pathlib, time\nwhile not pathlib.Path({str(gate)!r}).exists():\n    time.sleep(0.01)\n{SOURCE}"
    body = json.loads(template("red"))
    body["Resources"]["Painter"]["Properties"]["Code"] = {"ZipFile": source}
    project.config("")
    with project.up("--aws") as running:
        stacks = AwsAt(running.url).client("cloudformation")
        made = stacks.create_stack(StackName="killed", TemplateBody=json.dumps(body))["StackId"]
        eventually(lambda: running.client().list_functions()["Functions"], what="the function")

        def queue_is_recorded() -> bool:
            resources = stacks.describe_stack_resources(StackName=made)["StackResources"]
            return ("Queue", "CREATE_COMPLETE") in {(r["LogicalResourceId"], r["ResourceStatus"]) for r in resources}

        # So the rollback has a queue to delete, besides the function that is being made.
        eventually(queue_is_recorded, what="the queue of the stack")
        running.process.kill()
        running.process.wait()
    gate.touch()
    with project.up("--aws") as running:
        aws = AwsAt(running.url)
        assert stack_status(aws.client("cloudformation"), made) == "ROLLBACK_COMPLETE"
        assert running.client().list_functions()["Functions"] == []
        assert running.client().list_event_source_mappings()["EventSourceMappings"] == []
        assert "QueueUrls" not in aws.client("sqs").list_queues()
