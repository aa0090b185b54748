"""AWS's APIs with configured access keys: boto3, the command line, and clients that do not sign.

Source: AWS Lambda API reference, "Common Errors".
"""

from __future__ import annotations

import datetime
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any
from unittest import mock

import boto3
import botocore.auth
import pytest
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.exceptions import ClientError

from .conftest import Project, Running

KEY, SECRET = "AKIALOCAL", "not-to-be-logged/+"
CODE = """
from thawd import streaming

def handler(event, context):
    return event

@streaming.handler
def stream(event, context):
    yield "streamed"
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    project = Project(tmp_path_factory.mktemp("signed"))
    project.code(CODE)
    project.config(
        f"""
        access_keys = {{ {KEY} = "{SECRET}" }}
        [functions.echo]
        handler = "app.handler"
        [functions.stream]
        handler = "app.stream"
        [routes]
        "GET /open" = "echo"
        """
    )
    with project.up() as server:
        yield server


def client(running: Running, key: str | None = KEY, secret: str | None = SECRET, **config: Any) -> Any:
    return boto3.client(
        "lambda",
        endpoint_url=running.url,
        region_name="eu-west-1",
        aws_access_key_id=key,
        aws_secret_access_key=secret,
        config=Config(retries={"max_attempts": 0}, **config),
    )


def test_what_is_signed_is_let_in(running: Running) -> None:
    signing = client(running)
    payload = json.dumps({"text": "é" * 100_000}).encode()
    assert signing.invoke(FunctionName="echo:$LATEST", Payload=payload)["Payload"].read() == payload
    assert [one["FunctionName"] for one in signing.list_functions(MaxItems=1)["Functions"]] == ["echo"]
    answer = signing.invoke_with_response_stream(FunctionName="stream", Payload=b"{}")
    assert next(iter(list(answer["EventStream"])))["PayloadChunk"]["Payload"] == b"streamed"


@pytest.mark.parametrize(
    ("key", "secret", "code"),
    [(KEY, "wrong", "InvalidSignatureException"), ("test", "test", "UnrecognizedClientException")],
)
@pytest.mark.parametrize("operation", ["invoke", "list_functions"])
def test_a_wrong_secret_and_an_unknown_key_are_refused(
    running: Running, key: str, secret: str, code: str, operation: str
) -> None:
    arguments = {"FunctionName": "echo"} if operation == "invoke" else {}
    before = running.function("echo")["invocations"]
    with pytest.raises(ClientError) as error:
        getattr(client(running, key, secret), operation)(**arguments)
    response = error.value.response
    assert (response["Error"]["Code"], response["ResponseMetadata"]["HTTPStatusCode"]) == (code, 403)
    assert running.function("echo")["invocations"] == before


def test_a_signature_for_one_api_does_not_open_another(running: Running) -> None:
    path = "/2015-03-31/functions/echo/invocations"
    for service, headers in (("s3", {}), ("logs", {}), ("logs", {"X-Amz-Target": "Logs_20140328.FilterLogEvents"})):
        url = running.url + path
        asked = AWSRequest(method="POST", url=url, data=b"1", headers=headers)
        botocore.auth.SigV4Auth(Credentials(KEY, SECRET), service, "us-east-1").add_auth(asked)
        request = urllib.request.Request(url, data=b"1", headers=dict(asked.headers), method="POST")
        with pytest.raises(urllib.error.HTTPError) as error:
            urllib.request.urlopen(request, timeout=60)
        with error.value:
            assert error.value.code == 403
            assert b"correct service: 'lambda'" in error.value.read()


def test_a_stale_signature_is_refused(running: Running) -> None:
    past = datetime.datetime.now(datetime.UTC).replace(tzinfo=None) - datetime.timedelta(minutes=6)
    with (
        mock.patch.object(botocore.auth, "get_current_datetime", return_value=past),
        pytest.raises(ClientError) as error,
    ):
        client(running).invoke(FunctionName="echo")
    assert error.value.response["Error"]["Code"] == "InvalidSignatureException"
    assert error.value.response["Error"]["Message"].startswith("Signature expired: ")


def test_an_unsigned_request_is_refused_and_routes_are_as_open_as_before(running: Running) -> None:
    from botocore import UNSIGNED

    with pytest.raises(ClientError) as error:
        client(running, signature_version=UNSIGNED).invoke(FunctionName="echo")
    assert error.value.response["Error"]["Code"] == "MissingAuthenticationTokenException"
    with urllib.request.urlopen(f"{running.url}/open", timeout=60) as answer:
        assert answer.status == 200
    assert SECRET not in "".join(running.output)


@pytest.mark.parametrize(
    "method, path",
    [
        ("GET", "/_thawd/sources"),
        ("POST", "/_thawd/sources/orders/pause"),
        ("POST", "/_thawd/cluster/drain"),
        ("POST", "/_thawd/cluster/leave"),
        ("POST", "/_thawd/dead/redrive"),
        ("GET", "/_thawd/invocations"),
    ],
)
def test_what_changes_or_shows_the_work_of_a_server_must_be_signed(running: Running, method: str, path: str) -> None:
    request = urllib.request.Request(running.url + path, method=method)
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(request, timeout=60)
    with error.value as answer:
        assert answer.code == 403
    assert error.value.headers["x-amzn-errortype"] == "MissingAuthenticationTokenException"


def test_the_command_line_signs(running: Running) -> None:
    done = running.project.command("invoke", "echo", "-p", '{"a": 1}')
    assert (done.returncode, json.loads(done.stdout)) == (0, {"a": 1}), done.stderr
    done = running.project.command("source", "list")
    assert done.returncode == 0, done.stderr


def test_with_a_key_as_well_either_lets_in(project: Project) -> None:
    project.code(CODE)
    project.config(
        f'key = "long-enough"\naccess_keys = {{ {KEY} = "{SECRET}" }}\n[functions.echo]\nhandler = "app.handler"\n'
    )
    with project.up() as running:
        assert client(running).invoke(FunctionName="echo", Payload=b"1")["Payload"].read() == b"1"
        url = f"{running.url}/2015-03-31/functions/echo/invocations"
        request = urllib.request.Request(url, data=b"2", headers={"X-Api-Key": "long-enough"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert answer.read() == b"2"
        with pytest.raises(urllib.error.HTTPError) as error:
            urllib.request.urlopen(urllib.request.Request(url, data=b"2", headers={"X-Api-Key": "wrong"}), timeout=60)
        assert error.value.code == 403
        error.value.close()


def test_functions_under_aws_sign_with_a_key_that_is_let_in(project: Project) -> None:
    """`thawd up --aws` gives functions credentials: the first of the configured keys, if there are any."""
    project.code(
        """
        import boto3, json

        def handler(event, context):
            answer = boto3.client("lambda").invoke(FunctionName="echo", Payload=json.dumps(event))
            return json.loads(answer["Payload"].read())

        def echo(event, context):
            return event
        """
    )
    project.config(
        f"""
        access_keys = {{ {KEY} = "{SECRET}" }}
        [functions.echo]
        handler = "app.echo"
        [functions.caller]
        handler = "app.handler"
        """
    )
    with project.up("--aws") as running:
        done = running.project.command("invoke", "caller", "-p", '{"a": 1}')
        assert (done.returncode, json.loads(done.stdout)) == (0, {"a": 1}), done.stderr
