"""The server's key and signatures do not pass the gateway: no event, log, destination record or report contains
them."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import botocore.auth
import pytest
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from tests.integration.conftest import Project, Running, eventually

KEY, SECRET = "the-key-of-the-server", "secret-of-a-signer"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    project = Project(tmp_path_factory.mktemp("credentials"))
    project.code(
        """
        import json

        def handler(event, context):
            print(event)
            return {"statusCode": 200, "body": json.dumps(event)}
        """
    )
    project.config(
        f"""
        key = "{KEY}"
        access_keys = {{ AKIALOCAL = "{SECRET}" }}
        [functions.open]
        handler = "app.handler"
        on_success = "bucket:outcomes"
        [functions.open.url]
        auth_type = "NONE"
        [functions.signed]
        handler = "app.handler"
        [functions.signed.url]
        auth_type = "AWS_IAM"
        [routes]
        "ANY /new" = "open"
        "ANY /old" = {{ function = "open", payload_format = "1.0" }}
        "POST /later" = {{ function = "open", asynchronous = true }}
        [buckets.outcomes]
        """
    )
    with project.up() as server:
        yield server


def ask(url: str, **headers: str) -> Any:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    with urllib.request.urlopen(urllib.request.Request(url, headers=named), timeout=60) as answer:
        return json.loads(answer.read())


def url_of(running: Running, function: str) -> str:
    (line,) = (line for line in running.output if "/_urls/" in line and function in line)
    return next(word for word in line.split() if word.startswith("http"))


@pytest.mark.parametrize("path", ["/new", "/old"])
@pytest.mark.parametrize("headers", [{"X_Api_Key": KEY}, {"Authorization": f"Bearer {KEY}"}, {"Authorization": KEY}])
def test_the_key_that_lets_in_is_in_no_event(running: Running, path: str, headers: dict[str, str]) -> None:
    cookie = f"session=mine; key={KEY}"
    event = ask(f"{running.url}{path}?a=1&key={KEY}", **headers, Cookie=cookie, X_Own="mine")
    assert KEY not in json.dumps(event)
    assert (event["headers"]["x-own"], event["queryStringParameters"]) == ("mine", {"a": "1"})
    assert event.get("cookies", [event["headers"].get("cookie")]) == ["session=mine"]


def test_a_token_of_the_functions_own_reaches_it(running: Running) -> None:
    event = ask(f"{running.url}/new", X_Api_Key=KEY, Authorization="Bearer of-a-user")
    assert event["headers"]["authorization"] == "Bearer of-a-user"
    url = url_of(running, "open")
    event = ask(url, X_Api_Key="of-a-user", Authorization="Bearer of-a-user")
    assert (event["headers"]["x-api-key"], event["headers"]["authorization"]) == ("of-a-user", "Bearer of-a-user")


def test_a_function_url_that_asks_for_no_key_passes_none_on(running: Running) -> None:
    assert KEY not in json.dumps(ask(url_of(running, "open"), X_Api_Key=KEY, Authorization=f"Bearer {KEY}"))


def test_a_signature_that_was_checked_is_not_passed_on(running: Running) -> None:
    url = url_of(running, "signed")
    asked = AWSRequest(method="GET", url=url, headers={"X-Amz-Own": "mine"})
    botocore.auth.SigV4Auth(Credentials("AKIALOCAL", SECRET), "lambda", "us-east-1").add_auth(asked)
    event = ask(url, **{name.replace("-", "_"): value for name, value in asked.headers.items()})
    assert event["headers"]["x-amz-own"] == "mine"
    assert "authorization" not in event["headers"]
    assert "Signature" not in json.dumps(event)
    asked = AWSRequest(method="GET", url=url + "?a=1")
    botocore.auth.SigV4QueryAuth(Credentials("AKIALOCAL", SECRET), "lambda", "us-east-1", expires=60).add_auth(asked)
    event = ask(asked.url)
    assert event["queryStringParameters"]["a"] == "1"
    assert "Signature" not in event["rawQueryString"]


def test_neither_logs_nor_records_of_destinations_hold_the_key(running: Running) -> None:
    request = urllib.request.Request(f"{running.url}/later", data=b"{}", headers={"X-Api-Key": KEY, "X-Own": "mine"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.status == 202
    outcomes = running.project.root / "outcomes"
    eventually(lambda: any(path.is_file() for path in outcomes.rglob("[!.]*.json")), what="the record")
    (record,) = (path.read_bytes() for path in outcomes.rglob("[!.]*.json"))
    assert json.loads(record)["requestPayload"]["headers"]["x-own"] == "mine"
    assert KEY.encode() not in record
    for path in running.project.data.rglob("*"):
        if path.is_file():
            assert KEY.encode() not in path.read_bytes(), path
    assert KEY not in "".join(running.output)


def test_a_bench_report_holds_no_signature(running: Running) -> None:
    asked = AWSRequest(method="GET", url=url_of(running, "signed"))
    botocore.auth.SigV4QueryAuth(Credentials("AKIALOCAL", SECRET), "lambda", "us-east-1", expires=600).add_auth(asked)
    done = running.project.command("bench", asked.url, "-n", "3", "-c", "1", "--json", "report.json")
    assert done.returncode == 0, done.stderr
    signature = asked.url.partition("X-Amz-Signature=")[2]
    assert signature not in done.stdout + done.stderr
    assert signature not in (running.project.root / "report.json").read_text()
