"""Old releases of boto3 that functions still include, installed by pip: before botocore 1.31.0 they ignore the
endpoint."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.conftest import Project
from tests.integration.test_aws import client

pytest_plugins = ["tests.integration.conftest"]

HANDLER = """
import boto3, botocore, json

s3 = boto3.client("s3")
table = boto3.resource("dynamodb").Table("rows")
sqs = boto3.session.Session(region_name="us-east-1").client("sqs")


def handler(event, context):
    s3.put_object(Bucket="b-1", Key="k", Body=b"x")
    table.put_item(Item={"k": "1", "n": 5})
    queue = sqs.get_queue_url(QueueName="q")["QueueUrl"]
    sqs.send_message(QueueUrl=queue, MessageBody="m")
    return [
        botocore.__version__,
        s3.get_object(Bucket="b-1", Key="k")["Body"].read().decode(),
        table.get_item(Key={"k": "1"})["Item"]["n"],
        boto3.client("sts").get_caller_identity()["Account"],
        boto3.client("secretsmanager").list_secrets()["SecretList"],
        sqs.receive_message(QueueUrl=queue)["Messages"][0]["Body"],
    ]
"""


@pytest.mark.parametrize("release", ["1.25.5", "1.26.165", "1.28.0"])
def test_a_release_of_the_functions_own_reaches_the_emulator(project: Project, release: str, tmp_path: Path) -> None:
    code = project.root / "code"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, "--target", str(code), f"boto3=={release}"], check=True, timeout=300)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True, timeout=120)
    project.code(HANDLER, "code/app.py")
    project.config(
        f'[functions.app]\nhandler = "app.handler"\ncode = "code"\npython = "{tmp_path / "bare"}"\nmemory_mb = 512\n'
    )
    with project.up("--aws") as running:
        client(running, "s3").create_bucket(Bucket="b-1")
        client(running, "sqs").create_queue(QueueName="q")
        client(running, "dynamodb").create_table(
            TableName="rows",
            KeySchema=[{"AttributeName": "k", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "k", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )
        answer, error = running.invoke("app")
        assert error is None, answer
        assert answer[0].startswith({"1.25.5": "1.28.", "1.26.165": "1.29.", "1.28.0": "1.31."}[release])
        assert answer[1:] == ["x", 5, "000000000000", [], "m"]
