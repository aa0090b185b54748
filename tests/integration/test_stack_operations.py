"""Operations on CloudFormation stacks in the emulator: creation, update, deletion, and the ways back from a failure."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.integration.conftest import eventually
from tests.integration.emulated import EmulatedAws
from tests.integration.stack_operations import stack_status

HANDLE = {"Type": "AWS::CloudFormation::WaitConditionHandle"}


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


def queue(name: str | None = None, **more: Any) -> dict[str, Any]:
    properties = {**({"QueueName": name} if name else {}), **more}
    return {"Type": "AWS::SQS::Queue", "Properties": properties}


def template(outputs: dict[str, Any] | None = None, **resources: Any) -> str:
    return json.dumps({"Resources": resources, **({"Outputs": outputs} if outputs else {})})


def waits(seconds: int = 600, **more: Any) -> dict[str, Any]:
    """A resource whose creation takes until a signal comes to the handle `Handle`."""
    properties = {"Handle": {"Ref": "Handle"}, "Timeout": str(seconds)}
    return {"Type": "AWS::CloudFormation::WaitCondition", "Properties": properties, **more}


def queues(aws: EmulatedAws) -> set[str]:
    return {url.rpartition("/")[2] for url in aws.client("sqs").list_queues().get("QueueUrls", [])}


def reasons(stacks: Any, name: str) -> str:
    events = stacks.describe_stack_events(StackName=name)["StackEvents"]
    return " ".join(event.get("ResourceStatusReason", "") for event in events)


def physical(stacks: Any, name: str) -> dict[str, str]:
    found = stacks.describe_stack_resources(StackName=name)["StackResources"]
    return {one["LogicalResourceId"]: one.get("PhysicalResourceId", "") for one in found}


TABLE = {
    "KeySchema": [{"AttributeName": "id", "KeyType": "HASH"}],
    "AttributeDefinitions": [{"AttributeName": "id", "AttributeType": "S"}],
    "BillingMode": "PAY_PER_REQUEST",
}
INDEX = {
    "IndexName": "by-colour",
    "KeySchema": [{"AttributeName": "colour", "KeyType": "HASH"}],
    "Projection": {"ProjectionType": "ALL"},
}


def test_an_update_changes_only_what_differs_and_a_table_keeps_its_items(aws: EmulatedAws, stacks: Any) -> None:
    old = {"Table": {"Type": "AWS::DynamoDB::Table", "Properties": TABLE}, "Kept": queue(), "Gone": queue()}
    stacks.create_stack(StackName="s", TemplateBody=template(**old))
    assert stack_status(stacks, "s") == "CREATE_COMPLETE"
    before, tables = physical(stacks, "s"), aws.client("dynamodb")
    tables.put_item(TableName=before["Table"], Item={"id": {"S": "1"}})
    attributes = [*TABLE["AttributeDefinitions"], {"AttributeName": "colour", "AttributeType": "S"}]
    indexed = {**TABLE, "AttributeDefinitions": attributes, "GlobalSecondaryIndexes": [INDEX]}
    new = {"Table": {"Type": "AWS::DynamoDB::Table", "Properties": indexed}, "Kept": queue(), "Added": queue("added")}
    stacks.update_stack(StackName="s", TemplateBody=template(**new))
    assert stack_status(stacks, "s") == "UPDATE_COMPLETE"
    after = physical(stacks, "s")
    assert (after["Table"], after["Kept"], after.keys()) == (before["Table"], before["Kept"], new.keys())
    shown = tables.describe_table(TableName=after["Table"])["Table"]
    assert [index["IndexName"] for index in shown["GlobalSecondaryIndexes"]] == ["by-colour"]
    assert tables.scan(TableName=after["Table"])["Count"] == 1
    assert queues(aws) == {after["Kept"].rpartition("/")[2], "added"}
    changed = {e["LogicalResourceId"] for e in stacks.describe_stack_events(StackName="s")["StackEvents"]
               if e["ResourceStatus"].startswith("UPDATE")}  # fmt: skip
    assert changed == {"s", "Table"}


def test_an_update_that_fails_returns_to_the_state_before(aws: EmulatedAws, stacks: Any) -> None:
    outputs = {"Url": {"Value": {"Ref": "Changed"}}}
    old = {"Changed": queue("changed", DelaySeconds=1), "Replaced": queue("first"), "Gone": queue("gone")}
    stacks.create_stack(StackName="s", TemplateBody=template(outputs, **old))
    assert stack_status(stacks, "s") == "CREATE_COMPLETE"
    before = physical(stacks, "s")
    bad = {"Type": "AWS::SQS::Queue", "Properties": {"QueueName": "no queue!"}, "DependsOn": ["Changed", "Replaced"]}
    new = {"Changed": queue("changed", DelaySeconds=2), "Replaced": queue("second"), "New": queue("new"), "Bad": bad}
    stacks.update_stack(StackName="s", TemplateBody=template(**new))
    assert stack_status(stacks, "s") == "UPDATE_ROLLBACK_COMPLETE"
    assert "The following resource(s) failed to update: [Bad]" in reasons(stacks, "s")
    assert physical(stacks, "s") == before
    assert queues(aws) == {"changed", "first", "gone"}
    found = aws.client("sqs").get_queue_attributes(QueueUrl=before["Changed"], AttributeNames=["DelaySeconds"])
    assert found["Attributes"] == {"DelaySeconds": "1"}
    (stack,) = stacks.describe_stacks(StackName="s")["Stacks"]
    assert stack["Outputs"] == [{"OutputKey": "Url", "OutputValue": before["Changed"]}]
    assert json.loads(json.dumps(stacks.get_template(StackName="s")["TemplateBody"])) == json.loads(
        template(outputs, **old)
    )
    with pytest.raises(ClientError, match="No updates are to be performed"):
        stacks.update_stack(StackName="s", TemplateBody=template(outputs, **old))


@pytest.mark.parametrize(
    ("given", "status", "left"),
    [
        ({}, "ROLLBACK_COMPLETE", set()),
        ({"OnFailure": "DO_NOTHING"}, "CREATE_FAILED", {"good"}),
        ({"DisableRollback": True}, "CREATE_FAILED", {"good"}),
        ({"OnFailure": "DELETE"}, "DELETE_COMPLETE", set()),
    ],
)
def test_a_failed_creation_ends_as_the_request_says(
    aws: EmulatedAws, stacks: Any, given: dict[str, Any], status: str, left: set[str]
) -> None:
    broken = template(Good=queue("good"), Bad={"Type": "AWS::Amplify::App", "DependsOn": "Good"})
    made = stacks.create_stack(StackName="s", TemplateBody=broken, **given)
    assert stack_status(stacks, made["StackId"]) == status
    assert "thawd cannot make resources of the type AWS::Amplify::App" in reasons(stacks, made["StackId"])
    assert queues(aws) == left
    if status != "DELETE_COMPLETE":
        with pytest.raises(ClientError, match="already exists"):
            stacks.create_stack(StackName="s", TemplateBody=broken)
    stacks.delete_stack(StackName="s")
    assert stack_status(stacks, "s") == "DELETE_COMPLETE"
    assert queues(aws) == set()


def test_a_resource_with_another_ones_name_fails_and_the_other_one_stays(aws: EmulatedAws, stacks: Any) -> None:
    aws.queue("mine")
    stacks.create_stack(StackName="s", TemplateBody=template(Queue=queue("mine")))
    assert stack_status(stacks, "s") == "ROLLBACK_COMPLETE"
    assert "with identifier 'mine' already exists" in reasons(stacks, "s")
    assert queues(aws) == {"mine"}


def test_a_named_resource_cannot_be_replaced_under_its_name(aws: EmulatedAws, stacks: Any) -> None:
    table = {**TABLE, "TableName": "orders"}
    stacks.create_stack(StackName="s", TemplateBody=template(T={"Type": "AWS::DynamoDB::Table", "Properties": table}))
    assert stack_status(stacks, "s") == "CREATE_COMPLETE"
    other = json.loads(json.dumps(table).replace('"id"', '"number"'))
    stacks.update_stack(StackName="s", TemplateBody=template(T={"Type": "AWS::DynamoDB::Table", "Properties": other}))
    assert stack_status(stacks, "s") == "UPDATE_ROLLBACK_COMPLETE"
    assert "Rename orders and update the stack again" in reasons(stacks, "s")


def test_an_export_in_use_can_be_neither_deleted_nor_changed(stacks: Any) -> None:
    def exporting(name: str) -> str:
        outputs = {"Q": {"Value": {"Fn::GetAtt": ["Q", "QueueName"]}, "Export": {"Name": "the-queue"}}}
        return template(outputs, Q=queue(name))

    parameter = {"Type": "String", "Value": {"Fn::ImportValue": "the-queue"}}
    importing = template(P={"Type": "AWS::SSM::Parameter", "Properties": parameter})
    with pytest.raises(ClientError, match="No export named the-queue found"):
        stacks.create_stack(StackName="user", TemplateBody=importing)
    stacks.create_stack(StackName="owner", TemplateBody=exporting("one"))
    assert stack_status(stacks, "owner") == "CREATE_COMPLETE"
    stacks.create_stack(StackName="user", TemplateBody=importing)
    assert stack_status(stacks, "user") == "CREATE_COMPLETE"
    assert [one["Value"] for one in stacks.list_exports()["Exports"]] == ["one"]
    assert stacks.list_imports(ExportName="the-queue")["Imports"] == ["user"]
    stacks.create_stack(StackName="other", TemplateBody=exporting("three"))
    assert stack_status(stacks, "other") == "ROLLBACK_COMPLETE"
    assert "already exported by stack owner" in reasons(stacks, "other")
    stacks.update_stack(StackName="owner", TemplateBody=exporting("two"))
    assert stack_status(stacks, "owner") == "UPDATE_ROLLBACK_COMPLETE"
    assert "Export the-queue cannot be updated as it is in use by user" in reasons(stacks, "owner")
    stacks.delete_stack(StackName="owner")
    assert stack_status(stacks, "owner") == "DELETE_FAILED"
    for name in ("user", "owner"):
        stacks.delete_stack(StackName=name)
        assert stack_status(stacks, name) == "DELETE_COMPLETE"


def test_a_nested_stack_gives_outputs_and_changes_rolls_back_and_goes_with_its_parent(
    aws: EmulatedAws, stacks: Any
) -> None:
    objects = aws.client("s3")
    objects.create_bucket(Bucket="templates")
    child = {
        "Parameters": {"Delay": {"Type": "Number"}},
        "Resources": {"Queue": queue("inner", DelaySeconds={"Ref": "Delay"})},
        "Outputs": {"Url": {"Value": {"Ref": "Queue"}}},
    }
    objects.put_object(Bucket="templates", Key="child.json", Body=json.dumps(child).encode())

    def parent(delay: int, **more: Any) -> str:
        properties = {"TemplateURL": f"{aws.url}/templates/child.json", "Parameters": {"Delay": delay}}
        nested = {"Type": "AWS::CloudFormation::Stack", "Properties": properties}
        return template({"Url": {"Value": {"Fn::GetAtt": ["Child", "Outputs.Url"]}}}, Child=nested, **more)

    def delay() -> str:
        found = aws.client("sqs").get_queue_attributes(
            QueueUrl=f"{aws.url}/{aws.account}/inner", AttributeNames=["DelaySeconds"]
        )
        return str(found["Attributes"]["DelaySeconds"])

    stacks.create_stack(StackName="parent", TemplateBody=parent(1))
    assert stack_status(stacks, "parent") == "CREATE_COMPLETE", reasons(stacks, "parent")
    (stack,) = stacks.describe_stacks(StackName="parent")["Stacks"]
    assert stack["Outputs"][0]["OutputValue"].endswith("/inner")
    inner = physical(stacks, "parent")["Child"]
    assert stacks.describe_stacks(StackName=inner)["Stacks"][0]["ParentId"] == stack["StackId"]
    stacks.update_stack(StackName="parent", TemplateBody=parent(2))
    assert (stack_status(stacks, "parent"), delay()) == ("UPDATE_COMPLETE", "2")
    bad = {"Type": "AWS::Amplify::App", "DependsOn": "Child"}
    stacks.update_stack(StackName="parent", TemplateBody=parent(3, Bad=bad))
    assert (stack_status(stacks, "parent"), delay()) == ("UPDATE_ROLLBACK_COMPLETE", "2")
    stacks.delete_stack(StackName="parent")
    assert stack_status(stacks, "parent") == "DELETE_COMPLETE"
    assert stack_status(stacks, inner) == "DELETE_COMPLETE"
    assert queues(aws) == set()


def test_deletion_policies_keep_resources(aws: EmulatedAws, stacks: Any) -> None:
    def of(name: str, policy: str) -> dict[str, Any]:
        return {**queue(name), "DeletionPolicy": policy}

    kept = {"A": of("retained", "Retain"), "B": of("on-create", "RetainExceptOnCreate"), "C": of("plain", "Delete")}
    stacks.create_stack(StackName="s", TemplateBody=template(**kept))
    assert stack_status(stacks, "s") == "CREATE_COMPLETE"
    stacks.delete_stack(StackName="s")
    assert stack_status(stacks, "s") == "DELETE_COMPLETE"
    assert queues(aws) == {"retained", "on-create"}
    bad = {"Type": "AWS::Amplify::App", "DependsOn": "B"}
    stacks.create_stack(StackName="t", TemplateBody=template(B=of("new", "RetainExceptOnCreate"), Bad=bad))
    assert stack_status(stacks, "t") == "ROLLBACK_COMPLETE"
    assert queues(aws) == {"retained", "on-create"}


def test_a_stack_can_be_deleted_while_it_is_created(aws: EmulatedAws, stacks: Any) -> None:
    body = template(Queue=queue("early"), Handle=HANDLE, Wait=waits(DependsOn="Queue"), Late=queue("late"))
    made = stacks.create_stack(StackName="s", TemplateBody=body)["StackId"]
    handle = eventually(lambda: physical(stacks, made).get("Handle"), what="the handle")
    eventually(lambda: "early" in queues(aws), what="the first queue")
    stacks.delete_stack(StackName="s")
    signal = json.dumps({"Status": "FAILURE", "UniqueId": "1", "Reason": "enough"}).encode()
    urllib.request.urlopen(urllib.request.Request(handle, signal, method="PUT")).close()
    assert stack_status(stacks, made) == "DELETE_COMPLETE"
    assert queues(aws) == set()


def test_a_stack_whose_creation_is_killed_is_rolled_back_after_the_restart(tmp_path: Path) -> None:
    body = template(Queue=queue("early"), Handle=HANDLE, Wait=waits(DependsOn=["Queue", "Table"]), Table={
        "Type": "AWS::DynamoDB::Table", "Properties": TABLE})  # fmt: skip
    with EmulatedAws(tmp_path) as aws:
        aws.connect_to_itself()
        stacks = aws.client("cloudformation")
        made = stacks.create_stack(StackName="s", TemplateBody=body)["StackId"]

        def is_waiting() -> bool:
            events = stacks.describe_stack_events(StackName=made)["StackEvents"]
            return any(e["LogicalResourceId"] == "Wait" for e in events)

        eventually(is_waiting, what="the wait condition")
        aws.kill()
    with EmulatedAws(tmp_path) as aws:
        aws.connect_to_itself()
        stacks = aws.client("cloudformation")
        assert stack_status(stacks, made) == "ROLLBACK_COMPLETE"
        assert "thawd ended while the operation ran" in reasons(stacks, made)
        assert queues(aws) == set()
        assert aws.client("dynamodb").list_tables()["TableNames"] == []


REFUSED = [
    ("describe_stacks", {"StackName": "absent"}, "ValidationError", "Stack with id absent does not exist"),
    ("update_stack", {"StackName": "absent", "TemplateBody": "{}"}, "ValidationError", r"Stack \[absent\] does not"),
    ("describe_stack_events", {"StackName": "absent"}, "ValidationError", r"Stack \[absent\] does not exist"),
    ("create_stack", {"StackName": "9"}, "ValidationError", "failed to satisfy constraint"),
    ("create_stack", {"StackName": "x"}, "ValidationError", "Either Template URL or Template Body must be specified"),
    ("create_stack", {"StackName": "x", "TemplateBody": "Resources: {}"}, "ValidationError", "At least one Resources"),
    ("validate_template", {"TemplateBody": "[1]"}, "ValidationError", "unsupported structure"),
    ("describe_change_set", {"ChangeSetName": "absent"}, "ChangeSetNotFound", r"ChangeSet \[absent\] does not exist"),
    (
        "create_change_set",
        {"StackName": "x", "ChangeSetName": "c", "ChangeSetType": "CREATE", "TemplateBody": "{"},
        "ValidationError",
        "Template format error",
    ),
    (
        "create_stack",
        {"StackName": "x", "TemplateURL": "https://s3.amazonaws.com/absent/t.json"},
        "ValidationError",
        "S3 error",
    ),
]


@pytest.mark.parametrize(("method", "given", "code", "message"), REFUSED)
def test_a_wrong_request_is_refused_in_cloudformations_words(
    stacks: Any, method: str, given: dict[str, Any], code: str, message: str
) -> None:
    with pytest.raises(ClientError, match=message) as refused:
        getattr(stacks, method)(**given)
    assert refused.value.response["Error"]["Code"] == code


def test_a_protected_stack_cannot_be_deleted(stacks: Any) -> None:
    stacks.create_stack(StackName="s", TemplateBody=template(Q=queue()), EnableTerminationProtection=True)
    assert stack_status(stacks, "s") == "CREATE_COMPLETE"
    with pytest.raises(ClientError, match="TerminationProtection is enabled"):
        stacks.delete_stack(StackName="s")
    stacks.update_termination_protection(StackName="s", EnableTerminationProtection=False)
    stacks.delete_stack(StackName="s")
    assert stack_status(stacks, "s") == "DELETE_COMPLETE"


def test_a_change_set_announces_what_its_execution_does(aws: EmulatedAws, stacks: Any) -> None:
    policy = {"Queues": [{"Ref": "Queue"}], "PolicyDocument": {"Statement": []}}
    users = {"Policy": {"Type": "AWS::SQS::QueuePolicy", "Properties": policy}}
    stacks.create_stack(StackName="s", TemplateBody=template(Queue=queue("a"), Other=queue(), **users))
    assert stack_status(stacks, "s") == "CREATE_COMPLETE"
    new = template(Queue=queue("b"), Added=queue(), **users)
    made = stacks.create_change_set(StackName="s", ChangeSetName="c", TemplateBody=new)["Id"]
    shown = stacks.describe_change_set(ChangeSetName=made)
    changes = [change["ResourceChange"] for change in shown["Changes"]]
    assert {(one["Action"], one["LogicalResourceId"], one.get("Replacement")) for one in changes} == {
        ("Modify", "Queue", "True"),
        ("Modify", "Policy", "False"),
        ("Add", "Added", None),
        ("Remove", "Other", None),
    }
    assert (shown["Status"], shown["ExecutionStatus"]) == ("CREATE_COMPLETE", "AVAILABLE")
    stacks.execute_change_set(ChangeSetName=made)
    assert stack_status(stacks, "s") == "UPDATE_COMPLETE"
    assert stacks.describe_change_set(ChangeSetName=made)["ExecutionStatus"] == "EXECUTE_COMPLETE"
    assert "b" in queues(aws)
    assert "a" not in queues(aws)


def test_templates_of_sam_are_transformed(aws: EmulatedAws, stacks: Any) -> None:
    table = {"Type": "AWS::Serverless::SimpleTable", "Properties": {"TableName": "simple"}}
    body = json.dumps({"Transform": "AWS::Serverless-2016-10-31", "Resources": {"Simple": table}})
    with pytest.raises(ClientError, match=r"Requires capabilities : \[CAPABILITY_AUTO_EXPAND\]"):
        stacks.create_stack(StackName="s", TemplateBody=body)
    stacks.create_stack(StackName="s", TemplateBody=body, Capabilities=["CAPABILITY_AUTO_EXPAND"])
    assert stack_status(stacks, "s") == "CREATE_COMPLETE"
    assert aws.client("dynamodb").list_tables()["TableNames"] == ["simple"]
    processed = stacks.get_template(StackName="s", TemplateStage="Processed")["TemplateBody"]
    assert processed["Resources"]["Simple"]["Type"] == "AWS::DynamoDB::Table"


def test_secrets_are_used_and_not_shown(aws: EmulatedAws, stacks: Any) -> None:
    aws.client("secretsmanager").create_secret(Name="door", SecretString='{"code": "1357"}')
    parameter = {"Type": "String", "Value": "{{resolve:secretsmanager:door:SecretString:code}}"}
    hidden = {"Type": "String", "Value": {"Fn::Sub": "word-${Word}"}}
    resources = {"A": {"Type": "AWS::SSM::Parameter", "Properties": {"Name": "a", **parameter}}}
    resources["B"] = {"Type": "AWS::SSM::Parameter", "Properties": {"Name": "b", **hidden}}
    body = json.dumps({"Parameters": {"Word": {"Type": "String", "NoEcho": True}}, "Resources": resources})
    given = [{"ParameterKey": "Word", "ParameterValue": "sesame"}]
    stacks.create_stack(StackName="s", TemplateBody=body, Parameters=given)
    assert stack_status(stacks, "s") == "CREATE_COMPLETE"
    values = [aws.client("ssm").get_parameter(Name=name)["Parameter"]["Value"] for name in "ab"]
    assert values == ["1357", "word-sesame"]
    (stack,) = stacks.describe_stacks(StackName="s")["Stacks"]
    shown = json.dumps([stack, stacks.describe_stack_events(StackName="s")["StackEvents"]], default=str)
    assert "1357" not in shown
    assert "sesame" not in shown


def test_an_update_that_is_killed_returns_to_the_state_before_after_the_restart(tmp_path: Path) -> None:
    old = {"Changed": queue("changed", DelaySeconds=1), "Replaced": queue("first")}
    new = {"Changed": queue("changed", DelaySeconds=2), "Replaced": queue("second"), "Handle": HANDLE}
    new["Wait"] = waits(DependsOn=["Changed", "Replaced"])
    with EmulatedAws(tmp_path) as aws:
        aws.connect_to_itself()
        stacks = aws.client("cloudformation")
        stacks.create_stack(StackName="s", TemplateBody=template(**old))
        assert stack_status(stacks, "s") == "CREATE_COMPLETE"
        before = physical(stacks, "s")
        stacks.update_stack(StackName="s", TemplateBody=template(**new))
        eventually(lambda: "Wait" in physical(stacks, "s"), what="the wait condition")
        aws.kill()
    with EmulatedAws(tmp_path) as aws:
        aws.connect_to_itself()
        stacks = aws.client("cloudformation")
        assert stack_status(stacks, "s") == "UPDATE_ROLLBACK_COMPLETE"
        names = {name: url.rpartition("/")[2] for name, url in physical(stacks, "s").items()}
        assert names == {name: url.rpartition("/")[2] for name, url in before.items()}
        assert queues(aws) == {"changed", "first"}
        url = aws.client("sqs").get_queue_url(QueueName="changed")["QueueUrl"]
        found = aws.client("sqs").get_queue_attributes(QueueUrl=url, AttributeNames=["DelaySeconds"])
        assert found["Attributes"] == {"DelaySeconds": "1"}


def test_user_pools_and_buses_with_their_parts_are_made_changed_and_deleted(aws: EmulatedAws, stacks: Any) -> None:
    def body(minimum: int) -> str:
        policies = {"PasswordPolicy": {"MinimumLength": minimum}}
        pool = {"UserPoolName": "people", "Policies": policies, "UserPoolTags": {"team": "paint"}}
        client = {"UserPoolId": {"Ref": "Pool"}, "ExplicitAuthFlows": ["ALLOW_USER_PASSWORD_AUTH"]}
        rule = {"EventBusName": {"Ref": "Bus"}, "EventPattern": {"source": ["shop"]}}
        rule["Targets"] = [{"Id": "q", "Arn": {"Fn::GetAtt": ["Queue", "Arn"]}}]
        return template(
            {
                "Pool": {"Value": {"Ref": "Pool"}},
                "Client": {"Value": {"Ref": "Client"}},
                "Provider": {"Value": {"Fn::GetAtt": ["Pool", "ProviderURL"]}},
            },
            Pool={"Type": "AWS::Cognito::UserPool", "Properties": pool},
            Client={"Type": "AWS::Cognito::UserPoolClient", "Properties": client},
            Group={"Type": "AWS::Cognito::UserPoolGroup", "Properties": {"UserPoolId": {"Ref": "Pool"}}},
            Bus={"Type": "AWS::Events::EventBus", "Properties": {"Name": "orders"}},
            Queue=queue("ordered"),
            Rule={"Type": "AWS::Events::Rule", "Properties": rule},
        )

    stacks.create_stack(StackName="s", TemplateBody=body(8))
    assert stack_status(stacks, "s") == "CREATE_COMPLETE", reasons(stacks, "s")
    (stack,) = stacks.describe_stacks(StackName="s")["Stacks"]
    made = {one["OutputKey"]: one["OutputValue"] for one in stack["Outputs"]}
    assert made["Provider"] == f"https://cognito-idp.us-east-1.amazonaws.com/{made['Pool']}"
    pools, events = aws.client("cognito-idp"), aws.client("events")
    pools.describe_user_pool_client(UserPoolId=made["Pool"], ClientId=made["Client"])
    stacks.update_stack(StackName="s", TemplateBody=body(12))
    assert stack_status(stacks, "s") == "UPDATE_COMPLETE", reasons(stacks, "s")
    policies = pools.describe_user_pool(UserPoolId=made["Pool"])["UserPool"]["Policies"]
    assert policies["PasswordPolicy"]["MinimumLength"] == 12
    events.put_events(Entries=[{"EventBusName": "orders", "Source": "shop", "DetailType": "t", "Detail": "{}"}])
    eventually(lambda: aws.messages(f"arn:aws:sqs:us-east-1:{aws.account}:ordered"), what="the event")
    stacks.delete_stack(StackName="s")
    assert stack_status(stacks, "s") == "DELETE_COMPLETE", reasons(stacks, stack["StackId"])
    assert pools.list_user_pools(MaxResults=5)["UserPools"] == []


def test_a_network_with_its_parts_is_made_and_deleted(aws: EmulatedAws, stacks: Any) -> None:
    def of(kind: str, needs: str | None = None, **properties: Any) -> dict[str, Any]:
        made = {"Type": f"AWS::EC2::{kind}", "Properties": properties}
        return {**made, "DependsOn": needs} if needs else made

    net, table, group = {"Ref": "Net"}, {"Ref": "Table"}, {"Fn::GetAtt": ["Group", "GroupId"]}
    anywhere = {"IpProtocol": "tcp", "FromPort": 443, "ToPort": 443, "CidrIp": "0.0.0.0/0"}
    body = template(
        Net=of("VPC", CidrBlock="10.7.0.0/16"),
        Subnet=of("Subnet", VpcId=net, CidrBlock="10.7.1.0/24"),
        Table=of("RouteTable", VpcId=net),
        Association=of("SubnetRouteTableAssociation", SubnetId={"Ref": "Subnet"}, RouteTableId=table),
        Gateway=of("InternetGateway"),
        Attachment=of("VPCGatewayAttachment", VpcId=net, InternetGatewayId={"Ref": "Gateway"}),
        Route=of(
            "Route",
            "Attachment",
            RouteTableId=table,
            DestinationCidrBlock="0.0.0.0/0",
            GatewayId={"Ref": "Gateway"},
        ),
        Address=of("EIP", "Attachment", Domain="vpc"),
        Nat=of("NatGateway", SubnetId={"Ref": "Subnet"}, AllocationId={"Fn::GetAtt": ["Address", "AllocationId"]}),
        Group=of("SecurityGroup", VpcId=net, GroupDescription="functions"),
        In=of("SecurityGroupIngress", GroupId=group, **anywhere),
        Out=of("SecurityGroupEgress", GroupId=group, **anywhere),
    )
    stacks.create_stack(StackName="s", TemplateBody=body)
    assert stack_status(stacks, "s") == "CREATE_COMPLETE", reasons(stacks, "s")
    stacks.delete_stack(StackName="s")
    assert stack_status(stacks, "s") == "DELETE_COMPLETE"
    networks, addresses = aws.client("ec2").describe_vpcs()["Vpcs"], aws.client("ec2").describe_addresses()
    assert [one["CidrBlock"] for one in networks if not one["IsDefault"]] == []
    assert addresses["Addresses"] == []
