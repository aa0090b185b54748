"""`thawd up --aws`: functions can read emulated resources while they are published, and failed publications are
retried."""

from __future__ import annotations

import signal

from .conftest import Project, Running, eventually
from .test_aws import client

READING = 'MODEL = s3.get_object(Bucket=os.environ["BUCKET"], Key="model.txt")["Body"].read().decode()'
READS_AT_IMPORT = f"""
import os
import boto3

s3 = boto3.client("s3")
{READING}


def handler(event, context):
    s3 = boto3.client("s3")
    again = s3.get_object(Bucket=os.environ["BUCKET"], Key="model.txt")["Body"].read().decode()
    return [MODEL, again]
"""
FUNCTION = """
[buckets.own]
path = "own"
[functions.app]
handler = "app.handler"
code = "code"
prime = {{}}
memory_mb = 512
environment = {{ BUCKET = "{bucket}" }}
"""


def test_imports_and_prime_read_a_bucket_folder_at_the_first_start(project: Project) -> None:
    project.code(READS_AT_IMPORT, "code/app.py")
    project.config(FUNCTION.format(bucket="own"))
    (project.root / "own").mkdir()
    (project.root / "own" / "model.txt").write_text("weights")
    with project.up("--aws") as running:
        shown = running.function("app")
        assert (shown["state"], shown["start"]) == ("Active", "thaw"), (shown, running.output)
        assert running.invoke("app") == (["weights", "weights"], None)


def _until_reloaded(running: Running, times: int) -> None:
    running.process.send_signal(signal.SIGHUP)
    eventually(lambda: sum("configuration reloaded" in line for line in running.output) == times, what="the reload")


def test_a_version_whose_import_failed_is_tried_again_by_sighup(project: Project) -> None:
    project.code(READS_AT_IMPORT, "code/app.py")
    project.config(FUNCTION.format(bucket="models"))
    with project.up("--aws") as running:
        assert running.function("app")["state"] == "Failed"
        _until_reloaded(running, 1)
        assert running.function("app")["state"] == "Failed"
        s3 = client(running, "s3")
        s3.create_bucket(Bucket="models")
        s3.put_object(Bucket="models", Key="model.txt", Body=b"weights")
        _until_reloaded(running, 2)
        shown = running.function("app")
        assert (shown["state"], shown["start"]) == ("Active", "thaw"), shown
        assert running.invoke("app") == (["weights", "weights"], None)


def test_a_version_whose_import_failed_is_tried_again_by_the_first_request(project: Project) -> None:
    project.code(READS_AT_IMPORT, "code/app.py")
    project.config(FUNCTION.format(bucket="models"))
    with project.up("--aws") as running:
        assert running.function("app")["state"] == "Failed"
        s3 = client(running, "s3")
        s3.create_bucket(Bucket="models")
        s3.put_object(Bucket="models", Key="model.txt", Body=b"weights")
        assert running.invoke("app") == (["weights", "weights"], None)
        shown = running.function("app")
        assert (shown["state"], shown["start"]) == ("Active", "thaw"), shown


def test_a_version_whose_priming_event_failed_is_frozen_after_sighup(project: Project) -> None:
    project.code(READS_AT_IMPORT.replace(READING, 'MODEL = "weights"'), "code/app.py")
    project.config(FUNCTION.format(bucket="models"))
    with project.up("--aws") as running:
        shown = running.function("app")
        assert shown["state"] == "Active"
        assert "NoSuchBucket" in shown["start_reason"]
        s3 = client(running, "s3")
        s3.create_bucket(Bucket="models")
        s3.put_object(Bucket="models", Key="model.txt", Body=b"weights")
        _until_reloaded(running, 1)
        shown = running.function("app")
        assert (shown["state"], shown["start"]) == ("Active", "thaw"), shown
        assert running.invoke("app") == (["weights", "weights"], None)
        _until_reloaded(running, 2)
        assert sum("republished" in line for line in running.output) == 1
