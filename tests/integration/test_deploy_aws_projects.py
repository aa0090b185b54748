"""`thawd deploy aws` in the folder of a template: packaged, planned by a change set, deployed, changed, deleted."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.clients import KEYS
from tests.integration.conftest import Running
from tests.integration.emulated import AwsAt
from tests.integration.test_projects import wheel
from thawd.cli.program import main

pytest.importorskip("moto", reason="needs the extra `aws`")
pytest.importorskip("samtranslator", reason="needs the extra `aws`")

RUNTIME = f"python{sys.version_info[0]}.{sys.version_info[1]}"
TEMPLATE = f"""
Transform: AWS::Serverless-2016-10-31
Parameters:
  Colour: {{Type: String}}
Globals:
  Function: {{Runtime: {RUNTIME}, Timeout: 30, MemorySize: 256}}
Resources:
  Read:
    Type: AWS::Serverless::Function
    Properties:
      CodeUri: read/
      Handler: app.handler
      Environment: {{Variables: {{COLOUR: !Ref Colour, PASSWORD: correct horse}}}}
  Rows:
    Type: AWS::Serverless::SimpleTable
  Kept:
    Type: AWS::S3::Bucket
    DeletionPolicy: Retain
    Properties: {{BucketName: kept-files}}
Outputs:
  Name: {{Value: !Ref Read}}
"""
READ = """
import os
import greeting
def handler(event, context): return [greeting.WORD, os.environ["COLOUR"]]
"""


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a SAM application."""
    for name, value in KEYS.items():
        monkeypatch.setenv(name.upper(), value)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    (tmp_path / "template.yaml").write_text(TEMPLATE)
    (tmp_path / "read").mkdir()
    (tmp_path / "read/app.py").write_text(READ)
    wheel(tmp_path / "read")
    (tmp_path / "read/requirements.txt").write_text("./greeting-1.0-py3-none-any.whl\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def deploy(emulating: Running, stack: str, *arguments: str) -> Result:
    target = ["--stack", stack, "--region", "us-east-1", "--endpoint-url", emulating.url]
    return CliRunner().invoke(main, ["deploy", "aws", *arguments, *target])


def test_a_template_is_planned_deployed_changed_and_deleted_with_its_code(emulating: Running, app: Path) -> None:
    aws = AwsAt(emulating.url)
    stacks, objects = aws.client("cloudformation"), emulating.s3()
    refused = deploy(emulating, "sam", "--plan")
    assert (refused.exit_code, "Colour" in refused.output) == (1, True), refused.output
    planned = deploy(emulating, "sam", "--plan", "--parameters", "Colour=red")
    assert "+ AWS::Lambda::Function Read" in planned.stdout, planned.output
    assert "correct horse" not in planned.output
    assert stacks.list_stacks(StackStatusFilter=["REVIEW_IN_PROGRESS"])["StackSummaries"] == []
    assert objects.list_buckets()["Buckets"] == []

    first = deploy(emulating, "sam", "--yes", "--parameters", "Colour=red")
    assert first.exit_code == 0, first.output
    assert "Name: sam-Read-" in first.stdout
    assert json.loads(deploy(emulating, "sam", "invoke", "Read").stdout) == ["hello", "red"]
    assert "REPORT RequestId" in deploy(emulating, "sam", "logs", "Read").stdout
    assert "UPDATE_COMPLETE" not in (status := deploy(emulating, "sam", "status").stdout) and "Kept" in status
    assert deploy(emulating, "sam", "--plan").stdout == "stack sam: nothing to change\n"

    (app / "template.yaml").write_text(TEMPLATE.replace("256", "512").replace("correct horse", "battery staple"))
    changed = deploy(emulating, "sam", "--yes")
    assert changed.exit_code == 0, changed.output
    assert "    ~ MemorySize: 256 -> 512\n" in changed.stdout
    assert "Environment.Variables.PASSWORD: hidden-" in changed.stdout
    assert "battery staple" not in changed.output and "correct horse" not in changed.output
    assert json.loads(deploy(emulating, "sam", "invoke", "Read").stdout) == ["hello", "red"]

    (app / "template.yaml").write_text(TEMPLATE.replace("  Rows:\n    Type: AWS::Serverless::SimpleTable\n", ""))
    lost = deploy(emulating, "sam", "--yes")
    assert (lost.exit_code, "Rows would be deleted with all data" in lost.output) == (1, True)
    assert stacks.list_change_sets(StackName="sam")["Summaries"] == []
    assert deploy(emulating, "sam", "--yes", "--delete-data").exit_code == 0

    objects.put_object(Bucket="kept-files", Key="a", Body=b"kept")
    assert deploy(emulating, "sam", "destroy", "--yes").exit_code == 0
    assert deploy(emulating, "sam", "status").exit_code == 1
    assert objects.get_object(Bucket="kept-files", Key="a")["Body"].read() == b"kept"
    assert [bucket["Name"] for bucket in objects.list_buckets()["Buckets"]] == ["kept-files"]
    objects.delete_object(Bucket="kept-files", Key="a")
    objects.delete_bucket(Bucket="kept-files")


def test_a_plan_that_another_deployment_has_made_void_changes_nothing(emulating: Running, app: Path) -> None:
    (app / "template.yaml").write_text("Resources: {Q: {Type: AWS::SQS::Queue}}")
    assert deploy(emulating, "raced", "--yes").exit_code == 0
    (app / "template.yaml").write_text("Resources: {Q: {Type: AWS::SQS::Queue}, Mine: {Type: AWS::SNS::Topic}}")
    stacks = AwsAt(emulating.url).client("cloudformation")

    def others(*_: object) -> None:  # while the user is asked
        body = "Resources: {Q: {Type: AWS::SQS::Queue}, Theirs: {Type: AWS::SNS::Topic}}"
        stacks.update_stack(StackName="raced", TemplateBody=body)
        stacks.get_waiter("stack_update_complete").wait(StackName="raced", WaiterConfig={"Delay": 1})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("thawd.cli.deploy_project._confirm", others)
        refused = deploy(emulating, "raced", "--yes")
    assert "another deployment of the stack raced began at the same time" in refused.output
    found = stacks.describe_stack_resources(StackName="raced")["StackResources"]
    assert sorted(each["LogicalResourceId"] for each in found) == ["Q", "Theirs"]
    assert deploy(emulating, "raced", "destroy", "--yes").exit_code == 0


BUCKET = "Resources: {Q: {Type: AWS::SQS::Queue}, B: {Type: AWS::S3::Bucket, Properties: {BucketName: %s}}}"


def test_a_stack_that_must_not_be_deleted_keeps_the_objects_of_its_buckets(emulating: Running, app: Path) -> None:
    exported = "\nOutputs: {O: {Value: !Ref B, Export: {Name: bucket-name}}}\n"
    (app / "template.yaml").write_text(BUCKET % "guarded-files" + exported)
    assert deploy(emulating, "guarded", "--yes").exit_code == 0
    objects, stacks = emulating.s3(), AwsAt(emulating.url).client("cloudformation")
    objects.put_object(Bucket="guarded-files", Key="a", Body=b"kept")
    destroy = ("destroy", "--yes", "--delete-data")
    stacks.update_termination_protection(StackName="guarded", EnableTerminationProtection=True)
    assert "the stack is protected against deletion" in deploy(emulating, "guarded", *destroy).output
    stacks.update_termination_protection(StackName="guarded", EnableTerminationProtection=False)
    body = "Resources: {T: {Type: AWS::SNS::Topic, Properties: {DisplayName: !ImportValue bucket-name}}}"
    stacks.create_stack(StackName="importing", TemplateBody=body)
    stacks.get_waiter("stack_create_complete").wait(StackName="importing", WaiterConfig={"Delay": 1})
    assert "bucket-name is used by the stack importing" in deploy(emulating, "guarded", *destroy).output
    assert objects.get_object(Bucket="guarded-files", Key="a")["Body"].read() == b"kept"
    stacks.delete_stack(StackName="importing")
    stacks.get_waiter("stack_delete_complete").wait(StackName="importing", WaiterConfig={"Delay": 1})
    done = deploy(emulating, "guarded", *destroy)
    assert done.exit_code == 0, done.output
    assert objects.list_buckets()["Buckets"] == []


def test_a_bucket_with_objects_that_an_update_could_not_delete_is_named(emulating: Running, app: Path) -> None:
    (app / "template.yaml").write_text(BUCKET % "left-files")
    assert deploy(emulating, "left", "--yes").exit_code == 0
    (app / "template.yaml").write_text(
        "Resources: {Q: {Type: AWS::SQS::Queue}, B: {Type: AWS::S3::Bucket, Properties: {BucketName: left-files}}, "
        "K: {Type: AWS::S3::Bucket, DeletionPolicy: Retain, Properties: {BucketName: kept-away}}}"
    )
    assert deploy(emulating, "left", "--yes").exit_code == 0
    (app / "template.yaml").write_text(BUCKET % "left-files")
    assert deploy(emulating, "left", "--yes").exit_code == 0  # no data is lost
    emulating.s3().delete_bucket(Bucket="kept-away")
    emulating.s3().put_object(Bucket="left-files", Key="a", Body=b"kept")
    (app / "template.yaml").write_text("Resources: {Q: {Type: AWS::SQS::Queue}}")
    done = deploy(emulating, "left", "--yes", "--delete-data")
    assert done.exit_code == 0, done.output
    assert "B (AWS::S3::Bucket) is no part of the stack any more, and was not deleted: " in done.stderr
    emulating.s3().delete_object(Bucket="left-files", Key="a")
    assert deploy(emulating, "left", "destroy", "--yes").exit_code == 0


def test_a_stack_of_another_project_is_neither_changed_nor_deleted(emulating: Running, app: Path) -> None:
    (app / "template.yaml").write_text("Resources: {Q: {Type: AWS::SQS::Queue}}")
    assert deploy(emulating, "theirs", "--yes").exit_code == 0
    (app / "template.yaml").write_text("Resources: {Mine: {Type: AWS::SQS::Queue}}")
    for arguments in (["--yes"], ["destroy", "--yes"]):
        refused = deploy(emulating, "theirs", *arguments)
        assert (refused.exit_code, "it belongs to another project" in refused.output) == (1, True), refused.output
    (app / "template.yaml").write_text("Resources: {Q: {Type: AWS::SQS::Queue}}")
    assert deploy(emulating, "theirs", "destroy", "--yes").exit_code == 0


def test_stacks_of_a_thawd_toml_and_of_a_template_are_not_taken_for_each_other(emulating: Running, app: Path) -> None:
    (app / "template.yaml").write_text("Resources: {Q: {Type: AWS::SQS::Queue}}")
    stacks = AwsAt(emulating.url).client("cloudformation")
    body = json.dumps({"Description": "x: deployed by thawd", "Resources": {"Q": {"Type": "AWS::SQS::Queue"}}})
    stacks.create_stack(StackName="toml", TemplateBody=body)
    stacks.get_waiter("stack_create_complete").wait(StackName="toml", WaiterConfig={"Delay": 1})
    for arguments in (["--plan"], ["destroy", "--yes"]):
        assert "the stack toml was made of a thawd.toml" in deploy(emulating, "toml", *arguments).output
    stacks.delete_stack(StackName="toml")


@pytest.mark.parametrize(
    ("file", "way_out"),
    [("serverless.yml", "serverless deploy"), ("cdk.json", "cdk deploy"), ("cdk.out/manifest.json", "cdk deploy")],
)
def test_projects_that_their_own_tool_has_to_deploy_are_refused_with_its_command(
    emulating: Running, app: Path, file: str, way_out: str
) -> None:
    (app / "template.yaml").unlink()
    (app / file).parent.mkdir(exist_ok=True)
    (app / file).write_text("{}")
    refused = deploy(emulating, "none", "--plan")
    assert (refused.exit_code, f"`{way_out}`" in refused.output) == (1, True), refused.output


def test_options_that_a_template_or_a_configuration_does_not_have_are_refused(emulating: Running, app: Path) -> None:
    assert "--untried is for a thawd.toml" in deploy(emulating, "none", "--untried").output
    assert "the template has no parameter Size" in deploy(emulating, "none", "--parameters", "Size=1").output
    (app / "thawd.toml").write_text("")
    assert "--parameters needs a template" in deploy(emulating, "none", "--parameters", "Size=1").output
