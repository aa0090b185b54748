"""`thawd up` in a folder with another tool's project: its stacks are made from local code, and follow its files."""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients import client_of
from tests.integration.conftest import Project, Running, eventually

pytest.importorskip("moto", reason="needs the extra `aws`")
pytest.importorskip("samtranslator", reason="needs the extra `aws`")

RUNTIME = f"python{sys.version_info[0]}.{sys.version_info[1]}"
TEMPLATE = f"""
Transform: AWS::Serverless-2016-10-31
Parameters:
  Colour: {{Type: String}}
Globals:
  Function: {{Runtime: {RUNTIME}, Timeout: 30, MemorySize: 256, Tracing: Active}}
Resources:
  Read:
    Type: AWS::Serverless::Function
    Properties:
      CodeUri: read/
      Handler: app.handler
      Environment: {{Variables: {{TABLE: !Ref Rows, COLOUR: !Ref Colour}}}}
      Policies: [DynamoDBReadPolicy: {{TableName: !Ref Rows}}]
      Events: {{Get: {{Type: HttpApi, Properties: {{Path: '/rows/{{id}}', Method: GET}}}}}}
  Record:
    Type: AWS::Serverless::Function
    Properties:
      CodeUri: record/
      Handler: app.handler
      Environment: {{Variables: {{TABLE: !Ref Rows}}}}
      Events: {{New: {{Type: S3, Properties: {{Bucket: !Ref Files, Events: s3:ObjectCreated:*}}}}}}
  Rows:
    Type: AWS::DynamoDB::Table
    Properties:
      BillingMode: PAY_PER_REQUEST
      AttributeDefinitions: [{{AttributeName: id, AttributeType: S}}]
      KeySchema: [{{AttributeName: id, KeyType: HASH}}]
  Files: {{Type: AWS::S3::Bucket, Properties: {{BucketName: sam-files}}}}
Outputs:
  Api: {{Value: !Ref ServerlessHttpApi}}
"""
READ = """
import json, os
import boto3, greeting
table = boto3.resource("dynamodb").Table(os.environ["TABLE"])
def handler(event, context):
    item = table.get_item(Key={"id": event["pathParameters"]["id"]}).get("Item")
    return {"statusCode": 200 if item else 404, "body": json.dumps([greeting.WORD, item, os.environ["COLOUR"]])}
"""
RECORD = """
import os
import boto3
table = boto3.resource("dynamodb").Table(os.environ["TABLE"])
def handler(event, context):
    for record in event["Records"]:
        table.put_item(Item={"id": record["s3"]["object"]["key"], "bucket": record["s3"]["bucket"]["name"]})
"""


def wheel(folder: Path) -> None:
    """A package `greeting`, which the function Read requires, without a build and an index."""
    name = "greeting-1.0"
    with zipfile.ZipFile(folder / f"{name}-py3-none-any.whl", "w") as file:
        file.writestr("greeting.py", "WORD = 'hello'\n")
        file.writestr(f"{name}.dist-info/METADATA", "Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n")
        file.writestr(f"{name}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{name}.dist-info/RECORD", "greeting.py,,\n")


@pytest.fixture
def sam(project: Project) -> Project:
    project.code(TEMPLATE, "template.yaml")
    project.code(READ, "read/app.py")
    project.code(RECORD, "record/app.py")
    wheel(project.root)
    project.code("../greeting-1.0-py3-none-any.whl\n", "read/requirements.txt")
    return project


def starts(running: Running) -> set[str]:
    """The kinds of start of all functions."""
    return {each["start"] for each in running.status()["functions"].values()}


def answer(running: Running, path: str) -> tuple[int, Any]:
    """What the project's API answers."""
    stacks = client_of(running.url, "cloudformation")
    [stack] = stacks.describe_stacks()["Stacks"]
    [output] = stack["Outputs"]
    url = f"{running.url}/_aws/execute-api/{output['OutputValue']}{path}"
    try:
        with urllib.request.urlopen(url, timeout=60) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def calls_of_last(running: Running) -> list[str]:
    """Return the names of the calls of the handler that has answered a request for a row last."""

    def get(path: str) -> dict[str, Any]:
        with urllib.request.urlopen(f"{running.url}/_thawd/invocations{path}", timeout=60) as response:
            document: dict[str, Any] = json.loads(response.read())
            return document

    records = get("")["invocations"]
    request_id = next(each["request_id"] for each in records if each["source"].startswith("GET /rows"))
    return [call["name"] for call in get(f"/{request_id}")["calls"]]


def test_a_sam_project_is_served_follows_its_files_and_is_there_after_a_restart(sam: Project) -> None:
    arguments = ("--port", "0", "--parameters", "Colour=red")
    with sam.up(*arguments, "--watch") as running:
        assert answer(running, "/rows/a.txt") == (404, ["hello", None, "red"])
        (installed,) = (line for line in running.output if line.startswith("  packages  "))
        assert installed.startswith("  packages  read/requirements.txt installed in ")
        running.s3().put_object(Bucket="sam-files", Key="a.txt", Body=b"x")
        item = {"id": "a.txt", "bucket": "sam-files"}
        eventually(lambda: starts(running) == {"thaw"}, what="snapshots of both functions")
        eventually(lambda: answer(running, "/rows/a.txt") == (200, ["hello", item, "red"]), what="the row")
        event = json.dumps({"pathParameters": {"id": "a.txt"}})
        assert json.loads(sam.command("invoke", "Read", "-p", event).stdout)["statusCode"] == 200
        sam.code(READ.replace("greeting.WORD,", "greeting.WORD.upper(),"), "read/app.py")
        eventually(lambda: answer(running, "/rows/a.txt")[1][0] == "HELLO", what="the changed code")
        sam.code("Resources: {A: {Type: AWS::Nothing::Here, Properties: !Foo x}}", "template.yaml")
        running.until_said("YAML tag !Foo is not supported (line 1")
        assert answer(running, "/rows/a.txt")[0] == 200
        sam.code(TEMPLATE.replace("COLOUR: !Ref Colour", "COLOUR: !Sub 'dark ${Colour}'"), "template.yaml")
        eventually(lambda: answer(running, "/rows/a.txt")[1][2] == "dark red", what="the changed template")
        stacks = client_of(running.url, "cloudformation")
        eventually(
            lambda: stacks.describe_stacks()["Stacks"][0]["StackStatus"] == "UPDATE_COMPLETE", what="the update's end"
        )
    with sam.up(*arguments) as running:
        assert answer(running, "/rows/a.txt") == (200, ["HELLO", item, "dark red"])
        assert "dynamodb GetItem" in calls_of_last(running), "boto3 has no tracer"
        running.until_said("output    Api")
        assert any("unchanged" in line for line in running.output), running.output


@pytest.fixture
def assembly(project: Project) -> Iterator[Project]:
    """What CDK would synthesise for a function with an asset, and a bucket whose name another stack imports."""
    folder = project.root / "cdk.out"
    project.code("def handler(event, context):\n    return 'from CDK'\n", "cdk.out/asset.abc/index.py")
    bucket = "cdk-hnb659fds-assets-${AWS::AccountId}-${AWS::Region}"
    version = {"Type": "AWS::SSM::Parameter::Value<String>", "Default": "/cdk-bootstrap/hnb659fds/version"}
    role = {
        "Type": "AWS::IAM::Role",
        "Properties": {"AssumeRolePolicyDocument": {"Version": "2012-10-17", "Statement": []}},
    }
    function = {
        "Type": "AWS::Lambda::Function",
        "Properties": {
            "FunctionName": "from-cdk",
            "Handler": "index.handler",
            "Runtime": RUNTIME,
            "Role": {"Fn::GetAtt": ["Role", "Arn"]},
            "Code": {"S3Bucket": {"Fn::Sub": bucket}, "S3Key": "abc.zip"},
        },
    }
    template = {"Resources": {"Role": role, "F": function}, "Parameters": {"BootstrapVersion": version}}
    place = {"here": {"bucketName": bucket, "objectKey": "abc.zip"}}
    assets = {"files": {"abc": {"source": {"path": "asset.abc", "packaging": "zip"}, "destinations": place}}}
    artifacts = {
        "App": {
            "type": "aws:cloudformation:stack",
            "properties": {"templateFile": "App.template.json"},
            "dependencies": ["App.assets"],
        },
        "App.assets": {"type": "cdk:asset-manifest", "properties": {"file": "App.assets.json"}},
    }
    (folder / "App.template.json").write_text(json.dumps(template))
    (folder / "App.assets.json").write_text(json.dumps(assets))
    (folder / "manifest.json").write_text(json.dumps({"version": "38.0.0", "artifacts": artifacts}))
    yield project


SERVERLESS = f"""
service: greeter
provider:
  name: aws
  runtime: {RUNTIME}
  environment: {{STAGE: '${{sls:stage}}'}}
  httpApi: {{authorizers: {{asked: {{type: request, functionName: gate, enableSimpleResponses: true}}}}}}
package: {{patterns: ['!data/**', 'data/kept.txt']}}
functions:
  hello:
    handler: app.handler
    events:
      - httpApi: 'GET /hello/{{name}}'
      - httpApi: {{method: get, path: '/guarded/{{name}}', authorizer: asked}}
      - http: {{method: get, path: 'rest/{{name}}', authorizer: {{name: gate, type: request}}}}
  gate: {{handler: app.gate}}
"""
GREETER = """
import json, os
def handler(event, context):
    answer = [event["pathParameters"]["name"], os.environ["STAGE"], sorted(os.listdir("data"))]
    return {"statusCode": 200, "body": json.dumps(answer)}
def gate(event, context):
    headers = {name.lower(): text for name, text in event["headers"].items()}
    effect = "Allow" if headers.get("authorization") == "open" else "Deny"
    statement = {"Action": "execute-api:Invoke", "Effect": effect, "Resource": "*"}
    policy = {"Version": "2012-10-17", "Statement": [statement]}
    return {"isAuthorized": effect == "Allow", "principalId": "u", "policyDocument": policy}
"""


def test_a_cloud_assembly_of_cdk_is_served(assembly: Project) -> None:
    with assembly.up("--port", "0") as running:
        assert running.invoke("from-cdk") == ("from CDK", None)


def test_a_serverless_yml_is_served_with_its_authorizers_and_without_the_files_that_it_leaves_out(
    project: Project,
) -> None:
    project.code(SERVERLESS, "serverless.yml")
    project.code(GREETER)
    for name in ("left.txt", "kept.txt"):
        project.code("", f"data/{name}")
    with project.up("--port", "0", "--env", "test") as running:
        event = {"pathParameters": {"name": "ann"}}
        expected = {"statusCode": 200, "body": '["ann", "test", ["kept.txt"]]'}
        assert running.invoke("greeter-test-hello", event) == (expected, None)
        called = project.command("invoke", "greeter-test-hello", "-p", json.dumps(event))
        assert json.loads(called.stdout) == expected
        measured = project.command("bench", "HelloLambdaFunction", "-n", "3", "-p", json.dumps(event))
        assert (measured.returncode, "3 requests" in measured.stdout) == (0, True), measured.stdout + measured.stderr
        assert "REPORT RequestId" in project.command("logs", "HelloLambdaFunction").stdout
        resources = client_of(running.url, "cloudformation").describe_stack_resources(StackName="greeter-test")
        ids = {each["LogicalResourceId"]: each["PhysicalResourceId"] for each in resources["StackResources"]}

        def status(path: str, **headers: str) -> int:
            request = urllib.request.Request(f"{running.url}/_aws/execute-api/{path}", headers=headers)
            try:
                with urllib.request.urlopen(request, timeout=60) as answered:
                    return int(answered.status)
            except urllib.error.HTTPError as error:
                return error.code

        http, rest = ids["HttpApi"], ids["ApiGatewayRestApi"]
        assert any(line.endswith(f"/_aws/execute-api/{rest}/test/") for line in running.output)
        assert status(f"{http}/hello/ann") == 200
        for path in (f"{http}/guarded/ann", f"{rest}/test/rest/ann"):
            assert [status(path, Authorization=text) for text in ("open", "shut")] == [200, 403], path
            assert status(path) in (401, 403), path


def test_a_stack_that_fails_says_why_and_the_server_goes_on(project: Project) -> None:
    project.code(
        f"Resources: {{F: {{Type: AWS::Lambda::Function, Properties: {{Code: gone, Runtime: {RUNTIME}}}}}}}",
        "template.yaml",
    )
    with project.up("--port", "0") as running:
        assert any("F: there is no" in line for line in running.output)
        assert running.status()["functions"] == {}
    checked = project.command("check")
    assert (checked.returncode, "F: there is no" in checked.stderr) == (1, True)


def test_check_says_what_a_project_has_and_which_parameters_are_missing(sam: Project) -> None:
    checked = sam.command("check")
    assert checked.returncode == 1
    assert "Parameters: [Colour] must have values; give them with --parameters Key=Value" in checked.stderr
    checked = sam.command("check", "--parameters", "Colour=red")
    assert (checked.returncode, checked.stderr) == (0, "")
    assert "2 functions" in checked.stdout
    more = "  Alarm: {Type: AWS::CloudWatch::CompositeAlarm}\n  Mesh: {Type: AWS::AppMesh::Mesh}\nOutputs:"
    sam.code(TEMPLATE.replace("Outputs:", more), "template.yaml")
    checked = sam.command("check", "--lint", "--parameters", "Colour=red")
    assert "template.yaml:30: E3003 'AlarmRule' is a required property" in checked.stderr
    assert "missing: Alarm (AWS::CloudWatch::CompositeAlarm): its alarms do not watch metrics" in checked.stdout
    assert (checked.returncode, "Mesh: thawd cannot make resources of the type" in checked.stderr) == (1, True)
    refused = sam.command("up", "--aws-real")
    assert (refused.returncode, "without AWS" in refused.stderr) == (2, True)
    (sam.root / "template.yaml").unlink()
    sam.config("")
    refused = sam.command("up", "--stack", "x")
    assert (refused.returncode, "need a template, cdk.out or serverless.yml" in refused.stderr) == (2, True)


def test_functions_are_thawed_and_a_missing_runtime_can_be_another_interpreter(project: Project) -> None:
    code = "import os\ndef handler(event, context):\n    return os.environ.get('AWS_XRAY_CONTEXT_MISSING')\n"
    function = (
        "{Type: AWS::Serverless::Function, Properties: {Runtime: %s, Handler: index.handler, InlineCode: %s, "
        "Tracing: Active}}"
    )
    missing = "python3.9" if RUNTIME != "python3.9" else "python3.10"
    resources = f"Resources: {{F: {function % (missing, json.dumps(code))}}}"
    project.code(f"Transform: AWS::Serverless-2016-10-31\n{resources}", "template.yaml")
    with project.up("--port", "0", "--runtime", f"{missing}={sys.executable}") as running:
        (name,) = running.status()["functions"]
        assert running.invoke(name, {}) == ("LOG_ERROR", None), "the template makes the function traced"
        assert running.function(name)["start"] == "thaw", running.function(name)
        shown = running.client().get_function_configuration(FunctionName=name)
        assert shown["TracingConfig"] == {"Mode": "Active"}
