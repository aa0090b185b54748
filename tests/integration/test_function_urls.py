"""Function URLs end to end: by host and path, open and signed. Real clients: http.client, curl, botocore's signer."""

from __future__ import annotations

import http.client
import io
import json
import re
import shutil
import subprocess
import sys
import urllib.request
import zipfile
from collections.abc import Iterator

import boto3
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from thawd.gateway.function_urls.table import url_id

from .conftest import DEADLINE_S, Project, Running

CODE = """
import base64, json, os

def handler(event, context):
    path = event["rawPath"]
    if path == "/raise":
        raise ValueError("inside")
    if path == "/broken":
        return {"statusCode": "many"}
    if path == "/string":
        return "Hello, world!"
    if path == "/image":
        return {"statusCode": 201, "headers": {"Content-Type": "image/png"}, "isBase64Encoded": True,
                "body": base64.b64encode(bytes(range(256))).decode(), "cookies": ["a=1", "b=2"]}
    return {"statusCode": 200, "body": json.dumps({**event, "body": event.get("body", os.environ["_X_AMZN_TRACE_ID"])})}
"""
SHOP = "https://shop.example"
KEY, SECRET = "AKIALOCAL", "not-to-be-logged/+"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    project = Project(tmp_path_factory.mktemp("urls"))
    project.code(CODE)
    project.config(
        f"""
        access_keys = {{ {KEY} = "{SECRET}" }}
        [functions.open]
        handler = "app.handler"
        [functions.open.url]
        auth_type = "NONE"
        cors = {{ allow_origins = ["{SHOP}"], allow_methods = ["POST"], max_age_s = 60 }}
        [functions.signed]
        handler = "app.handler"
        url = {{ auth_type = "AWS_IAM" }}
        [functions.throttled]
        handler = "app.handler"
        reserved_concurrency = 0
        url = {{ auth_type = "NONE" }}
        [routes]
        "$default" = "open"
        """
    )
    with project.up() as server:
        yield server


def by_host(function: str, domain: str = "lambda-url.us-east-1.localhost:8350") -> str:
    return f"{url_id(function)}.{domain}"


def request(
    running: Running, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
) -> tuple[int, http.client.HTTPMessage, bytes]:
    connection = http.client.HTTPConnection(running.url.removeprefix("http://"), timeout=30)
    try:
        connection.request(method, path, body=body, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def signed(running: Running, method: str, path: str, body: bytes = b"", *, secret: str = SECRET) -> dict[str, str]:
    whole = AWSRequest(method=method, url=running.url + path, data=body)
    SigV4Auth(Credentials(KEY, secret), "lambda", "us-east-1").add_auth(whole)
    return dict(whole.headers.items())


@pytest.mark.parametrize(
    "host", [by_host("open"), by_host("open", "lambda-url.eu-west-1.on.aws"), by_host("open").upper()]
)
def test_a_url_is_reached_by_its_host(running: Running, host: str) -> None:
    status, _, body = request(running, "POST", "/a%20b?q=1", b"hello", {"Host": host, "Content-Type": "text/plain"})
    event = json.loads(body)
    assert (status, event["rawPath"], event["body"], event["routeKey"]) == (200, "/a b", "hello", "$default")
    assert event["requestContext"]["apiId"] == url_id("open")
    assert event["requestContext"]["domainName"] == host.lower().removesuffix(":8350")
    assert event["requestContext"]["accountId"] == "anonymous"


def test_a_url_is_reached_by_a_path_of_the_port(running: Running) -> None:
    event = json.loads(request(running, "GET", f"/_urls/{url_id('open')}/a/b?q=1")[2])
    assert (event["rawPath"], event["rawQueryString"]) == ("/a/b", "q=1")
    event = json.loads(request(running, "GET", f"/_urls/{url_id('open')}")[2])
    assert event["rawPath"] == "/"


def test_a_request_has_an_id_and_a_trace_its_own_or_the_callers(running: Running) -> None:
    path = f"/_urls/{url_id('open')}/"
    _, headers, body = request(running, "GET", path)
    event = json.loads(body)
    assert headers["x-amzn-requestid"] == event["requestContext"]["requestId"]
    assert headers["x-amzn-trace-id"] == event["headers"]["x-amzn-trace-id"]
    assert re.fullmatch(r"Root=1-[0-9a-f]{8}-[0-9a-f]{24}", headers["x-amzn-trace-id"])
    mine = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1"
    event = json.loads(request(running, "GET", path, headers={"X-Amzn-Trace-Id": mine})[2])
    assert event["headers"]["x-amzn-trace-id"] == mine
    assert re.fullmatch(re.escape(mine) + ";Lineage=1:[0-9a-f]{8}:0", event["body"])


def test_its_host_owns_every_path_and_other_hosts_none(running: Running) -> None:
    for path in ("/2015-03-31/functions/open/invocations", "/_thawd/status", "/metrics"):
        event = json.loads(request(running, "POST", path, headers={"Host": by_host("open")})[2])
        assert event["rawPath"] == path
    assert request(running, "GET", "/", headers={"Host": "localhost"})[0] == 200  # the default route


@pytest.mark.parametrize("path", ["/_urls/", "/_urls/nothing/", f"/_urls/{url_id('nobody')}/"])
def test_an_unknown_url_is_forbidden(running: Running, path: str) -> None:
    status, _, body = request(running, "GET", path)
    assert (status, json.loads(body)["Message"][:10]) == (403, "Forbidden.")


def test_answers_are_taken_as_aws_takes_them(running: Running) -> None:
    base = f"/_urls/{url_id('open')}"
    status, headers, body = request(running, "GET", f"{base}/image")
    assert (status, headers["content-type"], body) == (201, "image/png", bytes(range(256)))
    assert headers.get_all("set-cookie") == ["a=1", "b=2"]
    status, headers, body = request(running, "GET", f"{base}/string")
    assert (status, headers["content-type"], body) == (200, "application/json", b"Hello, world!")


@pytest.mark.parametrize("path", ["/raise", "/broken"])
def test_a_failure_is_a_502_that_leaks_nothing(running: Running, path: str) -> None:
    status, _, body = request(running, "GET", f"/_urls/{url_id('open')}{path}")
    assert (status, body) == (502, b"Internal Server Error")


def test_a_throttled_url_answers_429(running: Running) -> None:
    status, _, body = request(running, "GET", f"/_urls/{url_id('throttled')}/")
    assert (status, "Message" in json.loads(body)) == (429, True)


def test_a_body_over_the_limit_answers_413(running: Running) -> None:
    assert request(running, "POST", f"/_urls/{url_id('open')}/", b"x" * 6_000_000)[0] == 413


def test_cors_is_answered_by_the_platform(running: Running) -> None:
    path = f"/_urls/{url_id('open')}/string"
    before = running.function("open")["invocations"]
    asks = {"Origin": SHOP, "Access-Control-Request-Method": "POST"}
    status, headers, body = request(running, "OPTIONS", path, headers=asks)
    assert (status, body, headers["access-control-allow-origin"]) == (200, b"", SHOP)
    assert (headers["access-control-allow-methods"], headers["access-control-max-age"]) == ("POST", "60")
    assert request(running, "GET", path, headers={"Origin": "https://evil.example"})[0] == 403
    assert running.function("open")["invocations"] == before
    status, headers, _ = request(running, "POST", path, headers={"Origin": SHOP})
    assert (status, headers["access-control-allow-origin"]) == (200, SHOP)
    assert request(running, "POST", path, headers={"Origin": "http://localhost:3000"})[0] == 200


def test_a_signed_request_is_let_in_and_its_signer_told(running: Running) -> None:
    path = f"/_urls/{url_id('signed')}/a%20b?q=1&p=2"
    status, _, body = request(running, "POST", path, b"{}", signed(running, "POST", path, b"{}"))
    context = json.loads(body)["requestContext"]
    assert (status, context["authorizer"]["iam"]["accessKey"]) == (200, KEY)
    assert context["accountId"] == "000000000000"


def test_what_is_not_signed_rightly_is_forbidden_and_runs_nothing(running: Running) -> None:
    path = f"/_urls/{url_id('signed')}/"
    before = running.function("signed")["invocations"]
    wrong = [
        {},
        {"X-Api-Key": SECRET},
        signed(running, "POST", path, b"{}", secret="wrong"),
        signed(running, "POST", path, b"other"),
        signed(running, "GET", path, b"{}"),
        {name: value.replace(KEY, "test") for name, value in signed(running, "POST", path, b"{}").items()},
    ]
    for headers in wrong:
        status, _, body = request(running, "POST", path, b"{}", headers)
        assert (status, json.loads(body)["Message"][:10]) == (403, "Forbidden."), headers
    assert running.function("signed")["invocations"] == before
    assert SECRET not in "".join(running.output)


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")
def test_curl_signs_and_resolves_the_host(running: Running) -> None:
    port = running.url.rpartition(":")[2]
    host = by_host("signed", "lambda-url.us-east-1.localhost")
    command = ["curl", "-sS", "--resolve", f"{host}:{port}:127.0.0.1", "--aws-sigv4", "aws:amz:us-east-1:lambda"]
    done = subprocess.run(
        [*command, "--user", f"{KEY}:{SECRET}", "-d", "a=1", f"http://{host}:{port}/path?q=1"],
        capture_output=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stderr
    event = json.loads(done.stdout)
    assert (event["rawPath"], event["requestContext"]["domainPrefix"]) == ("/path", url_id("signed"))


def test_without_keys_of_ones_own_the_pair_test_test_signs(project: Project) -> None:
    project.code(CODE)
    project.config('[functions.f]\nhandler = "app.handler"\nurl = { auth_type = "AWS_IAM" }\n')
    with project.up() as running:
        assert any(f"{running.url}/_urls/{url_id('f')}/" in line for line in running.output)
        path = f"/_urls/{url_id('f')}/"
        whole = AWSRequest(method="GET", url=running.url + path)
        SigV4Auth(Credentials("test", "test"), "lambda", "eu-north-1").add_auth(whole)
        assert request(running, "GET", path, headers=dict(whole.headers.items()))[0] == 200
        assert request(running, "GET", path, headers=signed(running, "GET", path))[0] == 403


def test_a_url_open_to_all_needs_no_key_and_everything_else_does(project: Project) -> None:
    """The URL's auth_type decides who may call it. `server.key` applies to everything without such a setting."""
    project.code(CODE)
    project.config('key = "long-enough"\n[functions.f]\nhandler = "app.handler"\nurl = { auth_type = "NONE" }\n')
    with project.up() as running:
        assert request(running, "GET", f"/_urls/{url_id('f')}/")[0] == 200
        assert request(running, "GET", "/_thawd/status")[0] == 403


def test_a_url_that_the_api_made_is_served_for_its_alias_and_after_a_restart(project: Project) -> None:
    """Lambda API reference: CreateFunctionUrlConfig, UpdateFunctionUrlConfig, DeleteFunctionUrlConfig."""
    project.code(CODE)
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.write(project.root / "app.py", "app.py")
    project.config('[functions.f]\nhandler = "app.handler"\n')
    with project.up() as running:
        client = running.client()
        client.create_function(
            FunctionName="made",
            Runtime=f"python{sys.version_info.major}.{sys.version_info.minor}",
            Role="arn:aws:iam::000000000000:role/any",
            Handler="app.handler",
            Code={"ZipFile": archive.getvalue()},
        )
        client.get_waiter("function_active_v2").wait(FunctionName="made", WaiterConfig={"Delay": 1})
        number = client.publish_version(FunctionName="made")["Version"]
        client.create_alias(FunctionName="made", Name="live", FunctionVersion=number)
        made = client.create_function_url_config(FunctionName="made", Qualifier="live", AuthType="NONE")
        url = made["FunctionUrl"]
        assert url == f"{running.url}/_urls/{url_id('made', 'live')}/"
        event = json.loads(urllib.request.urlopen(url + "path", timeout=60).read())
        assert (event["rawPath"], event["requestContext"]["apiId"]) == ("/path", url_id("made", "live"))
    with project.up() as running:
        path = f"/_urls/{url_id('made', 'live')}/"
        assert request(running, "GET", path)[0] == 200
        client = running.client()
        shown = client.get_function_url_config(FunctionName="made", Qualifier="live")["FunctionUrl"]
        assert shown == running.url + path
        client.update_function_url_config(FunctionName="made", Qualifier="live", AuthType="AWS_IAM")
        assert request(running, "GET", path)[0] == 403
        client.delete_function_url_config(FunctionName="made", Qualifier="live")
        assert request(running, "GET", path, headers={"X-Amz-Date": "x"})[0] == 403


def test_the_api_shows_a_declared_url_and_does_not_change_it(running: Running) -> None:
    key = {"aws_access_key_id": KEY, "aws_secret_access_key": SECRET}
    client = boto3.client("lambda", endpoint_url=running.url, region_name="us-east-1", **key)
    shown = client.get_function_url_config(FunctionName="open")
    assert shown["FunctionUrl"] == f"{running.url}/_urls/{url_id('open')}/"
    assert (shown["AuthType"], shown["InvokeMode"]) == ("NONE", "BUFFERED")
    assert shown["Cors"] == {
        "AllowOrigins": [SHOP],
        "AllowMethods": ["POST"],
        "MaxAge": 60,
        "AllowCredentials": False,
    }
    listed = client.list_function_url_configs(FunctionName="open")["FunctionUrlConfigs"]
    assert [one["FunctionUrl"] for one in listed] == [shown["FunctionUrl"]]
    for change in (client.create_function_url_config, client.update_function_url_config):
        with pytest.raises(client.exceptions.ResourceConflictException):
            change(FunctionName="open", AuthType="AWS_IAM")
    with pytest.raises(client.exceptions.ResourceConflictException, match=r"thawd\.toml"):
        client.delete_function_url_config(FunctionName="open")
    assert request(running, "GET", f"/_urls/{url_id('open')}/")[0] == 200
