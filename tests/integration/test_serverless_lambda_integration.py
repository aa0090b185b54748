"""A service with the integration ``lambda``: events are made by templates, errors select the status."""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from tests.clients import client_of
from tests.integration.conftest import Project, Running

pytest.importorskip("moto", reason="needs the extra `aws`")
pytest.importorskip("samtranslator", reason="needs the extra `aws`")

SERVICE = f"""
service: mapped
provider: {{name: aws, runtime: python{sys.version_info[0]}.{sys.version_info[1]}}}
functions:
  echo:
    handler: app.handler
    events:
      - http: {{method: post, path: 'rows/{{id}}', integration: lambda, cors: true}}
      - http: {{method: get, path: plain}}
      - http: {{method: get, path: guarded, integration: lambda, authorizer: gate}}
      - http:
          method: get
          path: page
          integration: lambda
          response: {{headers: {{Content-Type: "'text/html'"}}, template: "<p>$input.path('$.word')</p>"}}
  gate: {{handler: app.gate}}
resources:
  extensions:
    EchoLambdaFunction: {{Properties: {{Environment: {{Variables: {{WORD: extended}}}}}}}}
"""
APP = """
import os
def handler(event, context):
    if "httpMethod" in event:
        return {"statusCode": 200, "body": "proxy"}
    if event["body"] == {"fail": 404}:
        raise KeyError("[404] no such row")
    return {"word": os.environ["WORD"], **event}
def gate(event, context):
    effect = "Allow" if event["authorizationToken"] == "open" else "Deny"
    statement = {"Action": "execute-api:Invoke", "Effect": effect, "Resource": "*"}
    policy = {"Version": "2012-10-17", "Statement": [statement]}
    return {"principalId": "ann", "policyDocument": policy, "context": {"team": "o'neill"}}
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, str]]:
    project = Project(tmp_path_factory.mktemp("mapped"))
    project.code(SERVICE, "serverless.yml")
    project.code(APP)
    with project.up("--port", "0") as running:
        running.until_said("stack     ")
        stacks = client_of(running.url, "cloudformation")
        resources = stacks.describe_stack_resources(StackName="mapped-dev")["StackResources"]
        [api] = [each for each in resources if each["LogicalResourceId"] == "ApiGatewayRestApi"]
        yield running, f"{running.url}/_aws/execute-api/{api['PhysicalResourceId']}/dev"


def asked(url: str, body: bytes | None = None, **headers: str) -> tuple[int, Any, bytes]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(url, data=body, headers=named)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read()


def test_an_event_has_the_parts_of_the_request_and_the_result_is_the_answer(served: tuple[Running, str]) -> None:
    status, headers, content = asked(
        f"{served[1]}/rows/7?a=x%20%22y%22&b=it's", b'{"n": [1, 2]}', Content_Type="application/json", X_Own="one"
    )
    assert (status, headers["Access-Control-Allow-Origin"]) == (200, "*"), content
    event = json.loads(content)
    assert (event["body"], event["method"], event["stage"]) == ({"n": [1, 2]}, "POST", "dev")
    assert (event["path"], event["query"]) == ({"id": "7"}, {"a": 'x "y"', "b": "it's"})
    assert (event["requestPath"], event["word"]) == ("/rows/{id}", "extended")
    assert {name.lower(): text for name, text in event["headers"].items()}["x-own"] == "one"
    assert event["identity"]["sourceIp"] == "127.0.0.1"
    assert event["stageVariables"] == {}


def test_a_form_becomes_a_map(served: tuple[Running, str]) -> None:
    form = {"Content_Type": "application/x-www-form-urlencoded"}
    status, _, content = asked(f"{served[1]}/rows/7", b"name=ann%20o%27neill&empty=&alone", **form)
    assert status == 200, content
    assert json.loads(content)["body"] == {"name": "ann o'neill", "empty": "", "alone": ""}


def test_another_content_type_is_refused(served: tuple[Running, str]) -> None:
    assert asked(f"{served[1]}/rows/7", b"a,b", Content_Type="text/csv")[0] == 415


def test_the_status_in_an_errors_message_is_that_of_the_answer(served: tuple[Running, str]) -> None:
    status, _, content = asked(f"{served[1]}/rows/7", b'{"fail": 404}', Content_Type="application/json")
    assert status == 404
    assert "[404] no such row" in json.loads(content)["errorMessage"]


def test_a_template_of_the_response_and_paths_of_the_proxy_work_beside_it(served: tuple[Running, str]) -> None:
    status, headers, content = asked(f"{served[1]}/page")
    assert (status, headers["Content-Type"], content) == (200, "text/html", b"<p>extended</p>")
    assert asked(f"{served[1]}/plain")[::2] == (200, b"proxy")


def test_an_authorizer_decides_and_its_context_is_in_the_event(served: tuple[Running, str]) -> None:
    assert asked(f"{served[1]}/guarded")[0] == 401
    assert asked(f"{served[1]}/guarded", Authorization="shut")[0] == 403
    status, _, content = asked(f"{served[1]}/guarded", Authorization="open")
    assert status == 200, content
    event = json.loads(content)
    assert (event["principalId"], event["enhancedAuthContext"]["team"]) == ("ann", "o'neill")
