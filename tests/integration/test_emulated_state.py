"""The data of `thawd up --aws`'s emulated services is in the data folder, and is loaded before functions are
published."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests import prestarted
from tests.clients import client_of

from .conftest import Project, eventually
from .emulated import EmulatedAws
from .test_aws import client


def fill(aws: Any) -> dict[str, str]:
    """Store something in each service. Return the ids that the services chose."""
    s3 = aws("s3")
    s3.create_bucket(Bucket="images")
    s3.put_bucket_versioning(Bucket="images", VersioningConfiguration={"Status": "Enabled"})
    first = s3.put_object(Bucket="images", Key="a", Body=b"first", Metadata={"colour": "red"})["VersionId"]
    s3.put_object(Bucket="images", Key="a", Body=b"second")
    s3.put_object(Bucket="images", Key="empty", Body=b"")
    s3.upload_fileobj(io.BytesIO(b"y" * 9_000_000), "images", "large")
    upload = s3.create_multipart_upload(Bucket="images", Key="parts")["UploadId"]
    s3.upload_part(Bucket="images", Key="parts", UploadId=upload, PartNumber=1, Body=b"p" * 5_300_000)
    table = {
        "TableName": "rows",
        "KeySchema": [{"AttributeName": "k", "KeyType": "HASH"}],
        "AttributeDefinitions": [{"AttributeName": "k", "AttributeType": "S"}],
        "BillingMode": "PAY_PER_REQUEST",
    }
    aws("dynamodb").create_table(**table)
    aws("dynamodb").put_item(TableName="rows", Item={"k": {"S": "1"}, "n": {"N": "5"}})
    queue = aws("sqs").create_queue(QueueName="jobs")["QueueUrl"]
    aws("sqs").send_message(QueueUrl=queue, MessageBody="held")
    held = aws("sqs").receive_message(QueueUrl=queue, VisibilityTimeout=600)["Messages"][0]["ReceiptHandle"]
    aws("sqs").send_message(QueueUrl=queue, MessageBody="waiting")
    topic = aws("sns").create_topic(Name="news")["TopicArn"]
    aws("sns").subscribe(TopicArn=topic, Protocol="sqs", Endpoint="arn:aws:sqs:us-east-1:000000000000:jobs")
    aws("secretsmanager").create_secret(Name="s", SecretString="hush")
    aws("ssm").put_parameter(Name="/p", Value="v", Type="SecureString")
    aws("events").put_rule(Name="r", EventPattern='{"source":["a"]}')
    key = aws("kms").create_key()["KeyMetadata"]["KeyId"]
    sealed = aws("kms").encrypt(KeyId=key, Plaintext=b"plain")["CiphertextBlob"]
    aws("kms").create_key(KeySpec="RSA_2048", KeyUsage="SIGN_VERIFY")
    return {"first": first, "upload": upload, "held": held, "topic": topic, "sealed": sealed}


def look(aws: Any, known: dict[str, Any]) -> None:
    """Check that everything is unchanged."""
    s3 = aws("s3")
    old = s3.get_object(Bucket="images", Key="a", VersionId=known["first"])
    assert (old["Body"].read(), old["Metadata"]) == (b"first", {"colour": "red"})
    assert s3.get_object(Bucket="images", Key="a")["Body"].read() == b"second"
    assert s3.get_object(Bucket="images", Key="empty")["Body"].read() == b""
    large = s3.get_object(Bucket="images", Key="large")
    assert large["Body"].read() == b"y" * 9_000_000
    assert s3.get_object(Bucket="images", Key="large", Range="bytes=8999990-")["Body"].read() == b"y" * 10
    part = s3.upload_part(Bucket="images", Key="parts", UploadId=known["upload"], PartNumber=2, Body=b"q")
    first = s3.list_parts(Bucket="images", Key="parts", UploadId=known["upload"])["Parts"][0]
    parts = [{"PartNumber": 1, "ETag": first["ETag"]}, {"PartNumber": 2, "ETag": part["ETag"]}]
    s3.complete_multipart_upload(
        Bucket="images", Key="parts", UploadId=known["upload"], MultipartUpload={"Parts": parts}
    )
    assert s3.head_object(Bucket="images", Key="parts")["ContentLength"] == 5_300_001
    assert aws("dynamodb").scan(TableName="rows")["Items"] == [{"k": {"S": "1"}, "n": {"N": "5"}}]
    queue = aws("sqs").get_queue_url(QueueName="jobs")["QueueUrl"]
    assert [one["Body"] for one in aws("sqs").receive_message(QueueUrl=queue)["Messages"]] == ["waiting"]
    aws("sqs").delete_message(QueueUrl=queue, ReceiptHandle=known["held"])
    aws("sns").publish(TopicArn=known["topic"], Message="hello")
    assert "hello" in aws("sqs").receive_message(QueueUrl=queue)["Messages"][0]["Body"]
    assert aws("secretsmanager").get_secret_value(SecretId="s")["SecretString"] == "hush"
    assert aws("ssm").get_parameter(Name="/p", WithDecryption=True)["Parameter"]["Value"] == "v"
    assert [rule["Name"] for rule in aws("events").list_rules()["Rules"]] == ["r"]
    assert aws("kms").decrypt(CiphertextBlob=known["sealed"])["Plaintext"] == b"plain"


def test_what_the_services_hold_is_there_after_the_emulators_end(tmp_path: Path) -> None:
    with EmulatedAws(tmp_path / "aws") as aws:
        known = fill(aws.client)
    with EmulatedAws(tmp_path / "aws") as aws:
        look(aws.client, known)
    assert (tmp_path / "aws").stat().st_mode & 0o077 == 0


def test_an_emulator_that_is_killed_has_kept_what_it_wrote(tmp_path: Path) -> None:
    with EmulatedAws(tmp_path / "aws") as aws:
        known = fill(aws.client)
        for number in range(20):
            aws.client("dynamodb").put_item(TableName="rows", Item={"k": {"S": f"later {number}"}})
        state = tmp_path / "aws" / "state"
        eventually(lambda: state.exists() and b"later 19" in state.read_bytes(), what="the last row on the disk")
        aws.kill()
    with EmulatedAws(tmp_path / "aws") as aws:
        for number in range(20):
            aws.client("dynamodb").delete_item(TableName="rows", Key={"k": {"S": f"later {number}"}})
        look(aws.client, known)


def test_contents_of_removed_objects_leave_the_disk(tmp_path: Path) -> None:
    with EmulatedAws(tmp_path / "aws") as aws:
        aws.client("s3").create_bucket(Bucket="images")
        aws.client("s3").put_object(Bucket="images", Key="a", Body=b"x")
        aws.client("s3").put_object(Bucket="images", Key="b", Body=b"x")
        aws.client("s3").delete_object(Bucket="images", Key="a")
    assert len(list((tmp_path / "aws" / "objects").iterdir())) == 1


def test_no_request_waits_for_one_that_polls(tmp_path: Path) -> None:
    with EmulatedAws(tmp_path / "aws") as aws:
        queue = aws.client("sqs").create_queue(QueueName="jobs")["QueueUrl"]
        got: list[Any] = []

        def poll() -> None:
            got.append(aws.client("sqs").receive_message(QueueUrl=queue, WaitTimeSeconds=20))

        polling = threading.Thread(target=poll)
        polling.start()
        state = tmp_path / "aws" / "state"
        aws.client("ssm").put_parameter(Name="/during", Value="v", Type="String")
        eventually(lambda: state.exists() and b"/during" in state.read_bytes(), what="the parameter on the disk")
        assert not got
        aws.client("sqs").send_message(QueueUrl=queue, MessageBody="come")
        polling.join()
        assert got[0]["Messages"][0]["Body"] == "come"


TRIALS = """
import gc, sys
from pathlib import Path
import boto3
from moto import mock_aws
from moto.core.model_instances import model_data
from thawd.server.emulator.state import EmulatedState

def tracked():
    return sum(len(model.instances_tracked) for models in model_data.values() for model in models.values())

with mock_aws():
    aws = lambda service: boto3.client(service, region_name="us-east-1")
    aws("s3").create_bucket(Bucket="images")
    aws("s3").put_object(Bucket="images", Key="a", Body=b"x")
    aws("sqs").create_queue(QueueName="jobs")
    ec2 = aws("ec2")
    subnet = ec2.describe_subnets()["Subnets"][0]["SubnetId"]
    ec2.run_instances(ImageId="ami-12c6146b", MinCount=1, MaxCount=1, SubnetId=subnet)
    free = lambda: ec2.describe_subnets(SubnetIds=[subnet])["Subnets"][0]["AvailableIpAddressCount"]
    state = EmulatedState(Path(sys.argv[-1]))
    before = tracked(), free()
    for _ in range(2):
        assert state.can_be_loaded(state.take()), state.left_out
    gc.collect()
    assert not state.left_out, state.left_out
    assert (tracked(), free()) == before, (tracked(), free(), before)
"""


def test_a_long_poll_that_may_deliver_nothing_rests_between_its_looks() -> None:
    with EmulatedAws() as aws:
        sqs = aws.client("sqs")
        fifo = {"FifoQueue": "true", "ContentBasedDeduplication": "true"}
        url = sqs.create_queue(QueueName="q.fifo", Attributes=fifo)["QueueUrl"]
        for body in ("first", "second"):
            sqs.send_message(QueueUrl=url, MessageBody=body, MessageGroupId="group")
        assert sqs.receive_message(QueueUrl=url)["Messages"][0]["Body"] == "first"
        before_s = processor_time_s(aws.pid)
        assert "Messages" not in sqs.receive_message(QueueUrl=url, WaitTimeSeconds=2)
        assert processor_time_s(aws.pid) - before_s < 0.5 * 2
        sqs.close()


def test_a_long_poll_of_a_fifo_queue_gets_a_message_whose_group_becomes_free_meanwhile() -> None:
    with EmulatedAws() as aws, ThreadPoolExecutor() as threads:
        sqs = aws.client("sqs")
        fifo = {"FifoQueue": "true", "ContentBasedDeduplication": "true"}
        url = sqs.create_queue(QueueName="q.fifo", Attributes=fifo)["QueueUrl"]
        for body in ("first", "second"):
            sqs.send_message(QueueUrl=url, MessageBody=body, MessageGroupId="group")
        [first] = sqs.receive_message(QueueUrl=url)["Messages"]
        other, sending = client_of(aws.url, "sqs"), threading.Event()
        other.meta.events.register("before-send.sqs.ReceiveMessage", lambda **_: sending.set())
        poll = threads.submit(other.receive_message, QueueUrl=url, WaitTimeSeconds=20)
        assert sending.wait(20)
        begun_s = time.monotonic()
        sqs.delete_message(QueueUrl=url, ReceiptHandle=first["ReceiptHandle"])
        assert poll.result()["Messages"][0]["Body"] == "second"
        assert time.monotonic() - begun_s < 15
        other.close()
        sqs.close()


def processor_time_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_trial_of_what_is_saved_leaves_nothing_behind(tmp_path: Path) -> None:
    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
    script = tmp_path / "trials.py"
    script.write_text(f"#!{sys.executable}\n{TRIALS}")
    script.chmod(0o755)
    prestarted.SCRIPTS.add(str(script))  # a fork of a process that has imported the emulator
    command = [str(script), "-m", "thawd.server.emulator.moto_program", str(tmp_path / "aws")]
    done = prestarted.run(command, env={**os.environ, **keys}, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (b'"moto": "', b'"moto": "0', "was written with moto 0"),
        (b"hush", b"hash", "is damaged"),
        (b'{"format"', b"format", "is damaged"),
    ],
)
def test_a_state_that_cannot_be_trusted_is_refused(
    tmp_path: Path, old: bytes, new: bytes, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with EmulatedAws(tmp_path / "aws") as aws:
        aws.client("secretsmanager").create_secret(Name="s", SecretString="hush")
    state = tmp_path / "aws" / "state"
    state.write_bytes(state.read_bytes().replace(old, new, 1))
    with pytest.raises(ValueError, match="invalid literal"), EmulatedAws(tmp_path / "aws"):
        pass
    told = capfd.readouterr().err
    assert said in told
    assert f"move {tmp_path / 'aws'} to another place" in told


NOTIFIED = "def handler(event, context):\n    return event\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_it_is_there_before_functions_are_published(project: Project, number: signal.Signals) -> None:
    project.code(
        """
        import boto3

        s3 = boto3.client("s3")
        MODEL = s3.get_object(Bucket="models", Key="m")["Body"].read().decode()

        def handler(event, context):
            return MODEL
        """,
        "code/app.py",
    )
    project.code(NOTIFIED, "noted/app.py")
    project.config(
        '[functions.app]\nhandler = "app.handler"\ncode = "code"\n'
        '[functions.noted]\nhandler = "app.handler"\ncode = "noted"\n'
    )
    with project.up("--aws") as running:
        assert running.function("app")["state"] == "Failed"
        s3 = client(running, "s3")
        s3.create_bucket(Bucket="models")
        s3.put_object(Bucket="models", Key="m", Body=b"weights")
        arn = "arn:aws:lambda:us-east-1:000000000000:function:noted"
        configuration = {"LambdaFunctionConfigurations": [{"LambdaFunctionArn": arn, "Events": ["s3:ObjectCreated:*"]}]}
        s3.put_bucket_notification_configuration(Bucket="models", NotificationConfiguration=configuration)
        running.stop(number=number)
    with project.up("--aws") as running:
        assert running.function("app")["state"] == "Active", running.output
        assert running.invoke("app") == ("weights", None)
        client(running, "s3").put_object(Bucket="models", Key="other", Body=b"x")
        eventually(
            lambda: sum(kind["count"] for kind in running.function("noted")["invocations"].values()) == 1,
            what="the invocation by the notification",
        )
