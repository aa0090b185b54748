"""boto3 in functions that do not include it, and requests that leave a function under `thawd up --aws`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import boto3
import pytest

from .conftest import Project
from .test_aws import client

HANDLER = """
import boto3

s3 = boto3.client("s3")

def handler(event, context):
    s3.put_object(Bucket="b-1", Key="k", Body=b"x")
    return [boto3.__version__, s3.get_object(Bucket="b-1", Key="k")["Body"].read().decode()]
"""


@pytest.fixture
def bare(tmp_path: Path) -> str:
    """An interpreter without packages, like a virtual environment for requirements without boto3."""
    folder = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=120)
    return str(folder)


def configured(project: Project, python: str, code: str, more: str = "") -> None:
    project.code(code, "code/app.py")
    project.config(
        f'[functions.app]\nhandler = "app.handler"\ncode = "code"\npython = "{python}"\nmemory_mb = 512\n{more}'
    )


def test_a_function_that_does_not_bring_boto3_finds_it_and_is_thawed(project: Project, bare: str) -> None:
    configured(project, bare, HANDLER)
    with project.up("--aws") as running:
        client(running, "s3").create_bucket(Bucket="b-1")
        assert running.invoke("app") == ([boto3.__version__, "x"], None), running.output
        shown = running.function("app")
        assert (shown["start"], shown["start_reason"]) == ("thaw", None)


def test_what_cannot_be_offered_is_said_where_the_import_fails(project: Project, bare: str) -> None:
    project.code("OWN = True\n", "code/botocore/__init__.py")
    project.code("Metadata-Version: 2.1\nName: botocore\nVersion: 1.28.5\n", "code/botocore-1.28.5.dist-info/METADATA")
    configured(project, bare, "import boto3\ndef handler(event, context): pass\n")
    with project.up() as running:
        told, error = running.invoke("app")
        assert error == "Unhandled"
        assert told["errorType"] == "Runtime.ImportModuleError"
        assert told["errorMessage"].startswith(
            "Unable to import module 'app': No module named 'boto3' (the function brings"
        )
        assert "Name boto3 in the function's requirements" in told["errorMessage"]


@pytest.mark.parametrize(
    "asked",
    ['boto3.client("s3", endpoint_url="https://s3.us-east-1.amazonaws.com")', 'boto3.client("s3")'],
    ids=["an endpoint of its own", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"],
)
def test_no_request_leaves_for_aws(project: Project, bare: str, asked: str) -> None:
    code = f"import boto3\ndef handler(event, context):\n    return {asked}.list_buckets()\n"
    more = "" if "endpoint_url" in asked else 'environment = { AWS_IGNORE_CONFIGURED_ENDPOINT_URLS = "true" }\n'
    configured(project, bare, code, more)
    with project.up("--aws") as running:
        told, error = running.invoke("app")
        assert (error, told["errorType"]) == ("Unhandled", "LeavesForAwsError")
        assert "thawd up --aws-real" in told["errorMessage"]


CHILD = """
import boto3
try:
    boto3.client("s3", endpoint_url="https://s3.us-east-1.amazonaws.com").list_buckets()
except Exception as error:
    print(type(error).__name__)
"""


def test_pythons_that_a_function_starts_do_not_leave_for_aws_either(project: Project) -> None:
    project.code(CHILD, "code/child.py")
    project.code(
        f"""
        import subprocess

        def handler(event, context):
            done = subprocess.run([{sys.executable!r}, "child.py"], capture_output=True, text=True)
            return done.stdout.strip() or done.stderr
        """,
        "code/app.py",
    )
    project.config('[functions.app]\nhandler = "app.handler"\ncode = "code"\n')
    with project.up("--aws") as running:
        assert running.invoke("app") == ("LeavesForAwsError", None)
