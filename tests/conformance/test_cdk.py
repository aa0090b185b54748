"""AWS's CDK, as it comes, against a real server: bootstrap, deployment, invocation, change and destruction of an app.

Source: AWS CDK command line reference.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import deployment_clients
from tests.clients import client_of
from tests.integration.conftest import Project, Running, eventually
from thawd.server.emulator.cloudformation.providers import cdk_handlers

from .conftest import RUNTIME

SOURCE = """
import os
import boto3

def handler(event, context):
    for record in event.get("Records", []):
        key = record["s3"]["object"]["key"]
        boto3.client("dynamodb").put_item(TableName=os.environ["TABLE"], Item={"key": {"S": key}})
    return {"colour": os.environ["COLOUR"]}
"""
APP = f"""
const cdk = require("aws-cdk-lib");
const lambda = require("aws-cdk-lib/aws-lambda");
const s3 = require("aws-cdk-lib/aws-s3");
const dynamodb = require("aws-cdk-lib/aws-dynamodb");
const {{ LambdaDestination }} = require("aws-cdk-lib/aws-s3-notifications");
const {{ BucketDeployment, Source }} = require("aws-cdk-lib/aws-s3-deployment");

class Captions extends cdk.Stack {{
  constructor(scope, id, props) {{
    super(scope, id, props);
    const removalPolicy = cdk.RemovalPolicy.DESTROY;
    const table = new dynamodb.TableV2(this, "Rows", {{
      partitionKey: {{ name: "key", type: dynamodb.AttributeType.STRING }}, removalPolicy,
    }});
    const painter = new lambda.Function(this, "Painter", {{
      functionName: "painter",
      runtime: new lambda.Runtime("{RUNTIME}", lambda.RuntimeFamily.PYTHON),
      handler: "app.handler",
      code: lambda.Code.fromAsset("src"),
      environment: {{ COLOUR: process.env.COLOUR, TABLE: table.tableName }},
    }});
    table.grantWriteData(painter);
    new lambda.Alias(this, "Live", {{ aliasName: "live", version: painter.currentVersion }});
    const uploads = new s3.Bucket(this, "Uploads", {{ removalPolicy, autoDeleteObjects: true }});
    uploads.addEventNotification(s3.EventType.OBJECT_CREATED, new LambdaDestination(painter), {{ suffix: ".png" }});
    const files = new BucketDeployment(this, "Files", {{
      sources: [Source.asset("files")], destinationBucket: uploads, prune: false,
    }});
    new cdk.CfnOutput(this, "Bucket", {{ value: uploads.bucketName }});
    new cdk.CfnOutput(this, "Table", {{ value: table.tableName }});
  }}
}}

new Captions(new cdk.App(), "captions", {{ env: {{ account: "000000000000", region: "us-east-1" }} }});
"""


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    project = Project(tmp_path)
    project.config("")
    with project.up("--aws") as served:
        yield served


class Cdk:
    """Runs `cdk` in a folder with an app.

    Args:
        url: the server.
        folder: the folder.
    """

    def __init__(self, url: str, folder: Path) -> None:
        modules = deployment_clients.cdk()
        for name, text in (("src/app.py", SOURCE), ("files/note.txt", "hello"), ("app.js", APP)):
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text)
        (folder / "home").mkdir()
        self._program, self._folder = modules / ".bin" / "cdk", folder
        self._environment = {**deployment_clients.environment(url, folder / "home"), "NODE_PATH": str(modules)}

    def __call__(self, *command: str, colour: str = "") -> str:
        """Run a command for the app in a colour, or without one for the cloud assembly that was made of it last."""
        ended = subprocess.run(
            [self._program, *command, "--app", "node app.js" if colour else "cdk.out", "--no-notices", "--ci"],
            cwd=self._folder,
            env={**self._environment, "COLOUR": colour},
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout + ended.stderr


def test_an_app_is_deployed_invoked_changed_and_destroyed(running: Running, tmp_path: Path) -> None:
    cdk = Cdk(running.url, tmp_path)
    deploy = ("deploy", "--require-approval", "never")
    cdk("bootstrap", "aws://000000000000/us-east-1", colour="red")
    cdk(*deploy, colour="red")
    (stack,) = client_of(running.url, "cloudformation").describe_stacks(StackName="captions")["Stacks"]
    made = {one["OutputKey"]: one["OutputValue"] for one in stack["Outputs"]}
    assert running.invoke("painter", {}, Qualifier="live")[0] == {"colour": "red"}
    objects, tables = client_of(running.url, "s3"), client_of(running.url, "dynamodb")
    assert objects.get_object(Bucket=made["Bucket"], Key="note.txt")["Body"].read() == b"hello"
    objects.put_object(Bucket=made["Bucket"], Key="boat.png", Body=b"a picture")
    eventually(lambda: tables.scan(TableName=made["Table"])["Items"] == [{"key": {"S": "boat.png"}}], what="the row")
    cdk(*deploy, colour="blue")
    assert running.invoke("painter", {}, Qualifier="live")[0] == {"colour": "blue"}
    assert "no changes" in cdk(*deploy)
    cdk("destroy", "--force")
    assert running.client().list_functions()["Functions"] == []
    assert made["Table"] not in tables.list_tables()["TableNames"]
    assert made["Bucket"] not in [bucket["Name"] for bucket in objects.list_buckets()["Buckets"]]


# The folders of CDK's library that have the functions whose work thawd does, and what thawd calls them.
FUNCTIONS_OF_CDK = {
    "custom-resources/aws-custom-resource-handler": "calls",
    "aws-s3/notifications-resource-handler": "notifications",
    "aws-s3-deployment/bucket-deployment-handler": "files",
    "aws-s3/auto-delete-objects-handler": "emptying",
    "aws-ec2/restrict-default-security-group-handler": "security-groups",
    "aws-logs/log-retention-handler": "retention",
}


def test_the_functions_whose_work_thawd_does_are_known_by_their_code_and_no_others() -> None:
    handlers = deployment_clients.cdk() / "aws-cdk-lib" / "custom-resource-handlers" / "dist"
    known = {}
    for source in sorted((*handlers.glob("*/*/index.js"), *handlers.glob("*/*/index.py"))):
        kind = cdk_handlers.kind_of(source.read_text())
        if kind is not None:
            known[source.parent.relative_to(handlers).as_posix()] = kind
    assert known == FUNCTIONS_OF_CDK
