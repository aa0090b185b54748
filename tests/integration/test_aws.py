"""`thawd up --aws`: handlers written for AWS run unchanged, set up only by boto3 calls."""

from __future__ import annotations

import io
import json
import sys
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from tests.clients import client_of

from .conftest import Project, Running, eventually

ROLE = "arn:aws:iam::000000000000:role/anybody"
SITE_PACKAGES = str(Path(boto3.__file__).parents[1])
HANDLER = """
import json
import os
import sys
import urllib.parse

sys.path.append({site_packages!r})

import boto3
from aws_lambda_powertools import Logger
from aws_lambda_powertools.utilities.data_classes import S3Event, event_source

logger = Logger(service="captions")
s3 = boto3.client("s3")
table = boto3.resource("dynamodb").Table("captions")


@logger.inject_lambda_context
@event_source(data_class=S3Event)
def handler(event, context):
    for record in event.records:
        key = urllib.parse.unquote_plus(record.s3.get_object.key)
        body = s3.get_object(Bucket=record.s3.bucket.name, Key=key)["Body"].read()
        etag = record.s3.get_object.etag
        table.put_item(Item={{"image": key, "bytes": len(body), "event": record.event_name, "etag": etag}})
        logger.info("captioned", extra={{"key": key}})
    return "done"
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    root = tmp_path_factory.mktemp("aws")
    project = Project(root)
    project.config('[buckets.own]\npath = "own"\n')
    with project.up("--aws") as served:
        yield served


def client(running: Running, service: str, **config: Any) -> Any:
    """Return a client that knows only the endpoint."""
    return client_of(running.url, service, **config)


def deploy(running: Running, name: str, code: str, **parameters: Any) -> str:
    """Make a function and return its ARN."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("app.py", code)
    made = client(running, "lambda").create_function(
        FunctionName=name,
        Runtime=f"python{sys.version_info[0]}.{sys.version_info[1]}",
        Role=ROLE,
        Handler="app.handler",
        Timeout=60,
        MemorySize=512,
        Code={"ZipFile": buffer.getvalue()},
        **parameters,
    )
    client(running, "lambda").get_waiter("function_active_v2").wait(FunctionName=name, WaiterConfig={"Delay": 0.2})
    return str(made["FunctionArn"])


def test_an_upload_fires_a_handler_that_reads_s3_and_writes_dynamodb(running: Running) -> None:
    s3, dynamodb = client(running, "s3"), client(running, "dynamodb")
    s3.create_bucket(Bucket="images")
    dynamodb.create_table(
        TableName="captions",
        KeySchema=[{"AttributeName": "image", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "image", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    arn = deploy(running, "captions", HANDLER.format(site_packages=SITE_PACKAGES))
    client(running, "lambda").add_permission(
        FunctionName="captions",
        StatementId="images",
        Action="lambda:InvokeFunction",
        Principal="s3.amazonaws.com",
        SourceArn="arn:aws:s3:::images",
    )
    notification = {
        "LambdaFunctionConfigurations": [
            {
                "Id": "uploads",
                "LambdaFunctionArn": arn,
                "Events": ["s3:ObjectCreated:*"],
                "Filter": {"Key": {"FilterRules": [{"Name": "suffix", "Value": ".jpg"}]}},
            }
        ]
    }
    s3.put_bucket_notification_configuration(Bucket="images", NotificationConfiguration=notification)
    kept = s3.get_bucket_notification_configuration(Bucket="images")["LambdaFunctionConfigurations"]
    assert [(one["Id"], one["LambdaFunctionArn"]) for one in kept] == [("uploads", arn)]
    s3.put_object(Bucket="images", Key="a cat & a dög.jpg", Body=b"x" * 1000)
    s3.put_object(Bucket="images", Key="notes.txt", Body=b"x")
    s3.upload_fileobj(io.BytesIO(b"y" * 9_000_000), "images", "large.jpg")
    s3.copy_object(Bucket="images", Key="copied.jpg", CopySource={"Bucket": "images", "Key": "a cat & a dög.jpg"})

    def rows() -> dict[str, Any]:
        return {row["image"]["S"]: row for row in dynamodb.scan(TableName="captions")["Items"]}

    eventually(lambda: len(rows()) == 3, what="the rows")
    found = rows()
    assert {key: (int(row["bytes"]["N"]), row["event"]["S"]) for key, row in found.items()} == {
        "a cat & a dög.jpg": (1000, "ObjectCreated:Put"),
        "large.jpg": (9_000_000, "ObjectCreated:CompleteMultipartUpload"),
        "copied.jpg": (1000, "ObjectCreated:Copy"),
    }
    head = s3.head_object(Bucket="images", Key="large.jpg")
    assert found["large.jpg"]["etag"]["S"] == head["ETag"].strip('"')
    lines = client(running, "logs").filter_log_events(logGroupName="/aws/lambda/captions", filterPattern="captioned")
    message = json.loads(lines["events"][0]["message"])
    assert (message["service"], message["function_name"]) == ("captions", "captions")


def test_other_services_answer_on_the_same_endpoint(running: Running) -> None:
    queue = client(running, "sqs").create_queue(QueueName="q")["QueueUrl"]
    assert queue.startswith(running.url)
    sent = client(running, "sqs").send_message(QueueUrl=queue, MessageBody="hello")
    assert "," not in sent["ResponseMetadata"]["HTTPHeaders"]["date"].partition(",")[2], "one date alone"
    client(running, "secretsmanager").create_secret(Name="s", SecretString="hush")
    client(running, "ssm").put_parameter(Name="/p", Value="v", Type="String")
    topic = client(running, "sns").create_topic(Name="t")["TopicArn"]
    assert topic == "arn:aws:sns:us-east-1:000000000000:t"
    code = f"""
import sys
sys.path.append({SITE_PACKAGES!r})
import boto3

def handler(event, context):
    return [
        boto3.client("sqs").receive_message(QueueUrl=event["queue"])["Messages"][0]["Body"],
        boto3.client("secretsmanager").get_secret_value(SecretId="s")["SecretString"],
        boto3.client("ssm").get_parameter(Name="/p")["Parameter"]["Value"],
        boto3.client("sts").get_caller_identity()["Account"],
        boto3.client("lambda").get_account_settings()["AccountUsage"]["FunctionCount"] > 0,
    ]
"""
    deploy(running, "caller", code)
    answer, error = running.invoke("caller", {"queue": queue})
    assert (answer, error) == (["hello", "hush", "v", "000000000000", True], None)


def test_removals_and_own_buckets(running: Running) -> None:
    s3 = client(running, "s3")
    s3.create_bucket(Bucket="removed")
    arn = deploy(running, "removals", "def handler(event, context):\n    return event\n")
    configuration = {"LambdaFunctionConfigurations": [{"LambdaFunctionArn": arn, "Events": ["s3:ObjectRemoved:*"]}]}
    s3.put_bucket_notification_configuration(Bucket="removed", NotificationConfiguration=configuration)
    s3.put_object(Bucket="removed", Key="a", Body=b"x")
    s3.delete_object(Bucket="removed", Key="a")
    s3.put_object(Bucket="removed", Key="b & c", Body=b"x")
    s3.delete_objects(Bucket="removed", Delete={"Objects": [{"Key": "b & c"}, {"Key": "never there"}]})

    def runs() -> int:
        return sum(kind["count"] for kind in running.function("removals")["invocations"].values())

    eventually(lambda: runs() >= 2, what="the invocations")
    s3.put_object(Bucket="own", Key="b", Body=b"mine")
    assert (running.project.root / "own" / "b").read_bytes() == b"mine"


def test_events_of_a_bucket_do_not_depend_on_how_an_sdk_writes_its_request(running: Running) -> None:
    s3 = client(running, "s3")
    s3.create_bucket(Bucket="written")
    arn = deploy(running, "written", "def handler(event, context):\n    return event\n")
    rule = {"LambdaFunctionArn": arn, "Events": ["s3:ObjectCreated:*", "s3:ObjectRemoved:*"]}
    configuration = {"LambdaFunctionConfigurations": [rule]}
    s3.put_bucket_notification_configuration(Bucket="written", NotificationConfiguration=configuration)

    def runs() -> int:
        return sum(kind["count"] for kind in running.function("written")["invocations"].values())

    def send(method: str, url: str, body: bytes, headers: dict[str, str]) -> None:
        headers = {"content-type": "application/xml", **headers}
        with urllib.request.urlopen(urllib.request.Request(url, body, headers, method=method)) as answer:
            assert answer.status == 200

    # boto3 signs URLs with version 2 unless it is told otherwise.
    link = s3.generate_presigned_url("put_object", Params={"Bucket": "written", "Key": "k"})
    assert "AWSAccessKeyId=" in link
    send("PUT", link, b"body", {})
    eventually(lambda: runs() == 1, what="the invocation for the object")
    # SDKs differ in the order and the form of parameters without values.
    signed = "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
    for count, query in enumerate(("delete&x-id=DeleteObjects", "x-id=DeleteObjects&delete="), 2):
        s3.put_object(Bucket="written", Key="k", Body=b"")
        body = b"<Delete><Object><Key>k</Key></Object></Delete>"
        send("POST", f"{running.url}/written?{query}", body, {"authorization": signed})
        eventually(lambda count=count: runs() == 2 * count - 1, what="the invocations for the removed object")


def test_code_may_lie_in_an_emulated_bucket_and_presigned_links_work(running: Running) -> None:
    s3 = client(running, "s3")
    s3.create_bucket(Bucket="deployments")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("app.py", "def handler(event, context):\n    return 'from a bucket'\n")
    s3.put_object(Bucket="deployments", Key="a/b c.zip", Body=buffer.getvalue())
    client(running, "lambda").create_function(
        FunctionName="deployed",
        Runtime=f"python{sys.version_info[0]}.{sys.version_info[1]}",
        Role=ROLE,
        Handler="app.handler",
        Code={"S3Bucket": "deployments", "S3Key": "a/b c.zip"},
    )
    assert running.invoke("deployed", {}) == ("from a bucket", None)
    for version in ("s3", "s3v4"):
        link = client(running, "s3", signature_version=version).generate_presigned_url(
            "get_object", Params={"Bucket": "deployments", "Key": "a/b c.zip"}
        )
        with urllib.request.urlopen(link, timeout=30) as answer:
            assert answer.read() == buffer.getvalue(), version


def test_a_notification_to_a_function_that_is_not_there_is_refused(running: Running) -> None:
    s3 = client(running, "s3")
    s3.create_bucket(Bucket="refused")
    arn = "arn:aws:lambda:us-east-1:000000000000:function:none"
    configuration = {"LambdaFunctionConfigurations": [{"LambdaFunctionArn": arn, "Events": ["s3:ObjectCreated:*"]}]}
    with pytest.raises(ClientError) as refused:
        s3.put_bucket_notification_configuration(Bucket="refused", NotificationConfiguration=configuration)
    assert refused.value.response["Error"]["Code"] == "InvalidArgument"
    assert "LambdaFunctionConfigurations" not in s3.get_bucket_notification_configuration(Bucket="refused")


def test_powertools_idempotency_runs_a_handler_once(running: Running) -> None:
    client(running, "dynamodb").create_table(
        TableName="idempotency",
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    code = f"""
import sys
sys.path.append({SITE_PACKAGES!r})
from aws_lambda_powertools import Tracer
from aws_lambda_powertools.utilities.idempotency import DynamoDBPersistenceLayer, IdempotencyConfig, idempotent
from aws_lambda_powertools.utilities.parser import BaseModel, event_parser

tracer = Tracer(service="pay")
RUNS = []
STORE = DynamoDBPersistenceLayer(table_name="idempotency")

class Order(BaseModel):
    order: str
    amount: int

@tracer.capture_lambda_handler
@idempotent(persistence_store=STORE, config=IdempotencyConfig(event_key_jmespath="order"))
@event_parser(model=Order)
def handler(event, context):
    RUNS.append(event.order)
    return {{"paid": event.amount, "runs": len(RUNS)}}
"""
    deploy(running, "pay", code)
    first, error = running.invoke("pay", {"order": "1", "amount": 5})
    assert error is None, first
    again, _ = running.invoke("pay", {"order": "1", "amount": 5})
    other, _ = running.invoke("pay", {"order": "2", "amount": 6})
    assert (first, again, other) == ({"paid": 5, "runs": 1}, {"paid": 5, "runs": 1}, {"paid": 6, "runs": 2})
    wrong, error = running.invoke("pay", {"order": "3"})
    assert error == "Unhandled"
    assert "amount" in wrong["errorMessage"]


def test_own_credentials_are_passed_on_only_when_asked(project: Project) -> None:
    project.code("import os\ndef handler(event, context):\n    return os.environ.get('AWS_ACCESS_KEY_ID')\n")
    project.config('[functions.app]\nhandler = "app.handler"\n')
    environ = {"AWS_ACCESS_KEY_ID": "AKIDOWN", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "eu-west-1"}
    with project.up(environ=environ) as running:
        assert running.invoke("app", {}) == (None, None)
    with project.up("--aws-real", environ=environ) as running:
        assert running.invoke("app", {}) == ("AKIDOWN", None)


def test_the_emulator_ends_with_the_server_and_is_not_for_other_machines(project: Project) -> None:
    project.config("[buckets.own]\n")
    done = project.command("up", "--aws", "--host", "0.0.0.0", env={"THAWD_KEY": "k" * 12, "PATH": "/usr/bin"})
    assert done.returncode == 1
    assert "--aws is only for development" in done.stderr + done.stdout
    both = project.command("up", "--aws", "--aws-real")
    assert both.returncode == 2
