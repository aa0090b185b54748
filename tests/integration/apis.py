"""APIs of API Gateway for tests: makes them with boto3, and requests them at a server."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from tests.clients import client_of
from thawd.resources import ACCOUNT_ID

CODE = """
import base64, json, time

def echo(event, context):
    return {"statusCode": 200, "body": json.dumps(event)}

def plain(event, context):
    return event

def answer(event, context):
    return json.loads(event["body"])

def fails(event, context):
    raise Exception(event["error"] if "error" in event else "broken")

def slow(event, context):
    time.sleep(5)

def allows(event, context):
    token = event.get("authorizationToken") or (event.get("identitySource") or [""])[0]
    if token == "unauthorized":
        raise Exception("Unauthorized")
    if token == "malformed":
        return {"principalId": 5}
    effect = "Deny" if token == "deny" else "Allow"
    arn = event.get("methodArn") or event.get("routeArn")
    stage = "/".join(arn.split("/")[:2])
    resource = arn if token == "this" else stage + "/*"
    return {
        "principalId": token,
        "policyDocument": {"Statement": [{"Action": "execute-api:Invoke", "Effect": effect, "Resource": resource}]},
        "context": {"caller": token, "number": 7, "truth": True, "when": str(time.time_ns())},
    }

def simple(event, context):
    token = event["identitySource"][0]
    return {"isAuthorized": token != "deny", "context": {"caller": token, "when": str(time.time_ns())}}
"""
FUNCTIONS = ("echo", "plain", "answer", "fails", "slow", "allows", "simple")


def arn_of(function: str) -> str:
    """ARN of a function."""
    return f"arn:aws:lambda:us-east-1:{ACCOUNT_ID}:function:{function}"


def uri_of(function: str) -> str:
    """URI of a function for the integrations and authorizers of REST APIs."""
    return f"arn:aws:apigateway:us-east-1:lambda:path/2015-03-31/functions/{arn_of(function)}/invocations"


@dataclass
class Answer:
    """An answer of an API.

    Attributes:
        status: HTTP status.
        headers: values by name in lower case; several values are joined by a comma.
        body: as received.
    """

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body, decoded."""
        return json.loads(self.body)


def request(
    url: str, path: str, *, method: str = "GET", host: str | None = None, body: bytes = b"", **headers: str
) -> Answer:
    """Send a request to a server.

    Args:
        url: the server.
        path: path and query.
        method: HTTP method.
        host: the ``Host`` header; None: the server's own.
        body: sent as it is.
        headers: further headers; an underscore in a name stands for a hyphen.
    """
    port = urlsplit(url).port
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    given["Host"] = f"{host}:{port}" if host else f"127.0.0.1:{port}"
    connection.request(method, path, body or None, given)
    response = connection.getresponse()
    content = response.read()
    connection.close()
    found: dict[str, str] = {}
    for name, value in response.getheaders():
        found[name.lower()] = f"{found[name.lower()]},{value}" if name.lower() in found else value
    return Answer(response.status, found, content)


class RestApi:
    """A REST API that a test makes.

    Args:
        url: the server.
        settings: of CreateRestApi.
    """

    def __init__(self, url: str, **settings: Any) -> None:
        self.url = url
        self.client = client_of(url, "apigateway")
        made = self.client.create_rest_api(name="test", **settings)
        self.id, self.root = made["id"], made["rootResourceId"]
        self._resources = {"/": self.root}

    def resource(self, path: str) -> str:
        """Id of the resource of a path, which is made with those above it."""
        parent, above = self.root, ""
        for part in path.strip("/").split("/"):
            if not part:
                break
            above = f"{above}/{part}"
            if above not in self._resources:
                made = self.client.create_resource(restApiId=self.id, parentId=parent, pathPart=part)
                self._resources[above] = made["id"]
            parent = self._resources[above]
        return parent

    def method(
        self, path: str, integration: dict[str, Any], *, method: str = "GET", responses: Any = None, **settings: Any
    ) -> None:
        """Make a method with an integration and its integration responses, by status."""
        at = {"restApiId": self.id, "resourceId": self.resource(path), "httpMethod": method}
        self.client.put_method(**at, **{"authorizationType": "NONE", **settings})
        if integration["type"].startswith("AWS"):
            integration = {"integrationHttpMethod": "POST", **integration}
        self.client.put_integration(**at, **integration)
        for status, response in (responses or {}).items():
            self.client.put_method_response(**at, statusCode=status)
            self.client.put_integration_response(**at, statusCode=status, **response)

    def function(self, path: str, function: str, **settings: Any) -> None:
        """Make a method with a proxy integration of a function."""
        self.method(path, {"type": "AWS_PROXY", "uri": uri_of(function)}, **settings)

    def deploy(self, stage: str = "dev", **settings: Any) -> str:
        """Deploy to a stage; returns the deployment's id."""
        made = self.client.create_deployment(restApiId=self.id, stageName=stage, **settings)
        return str(made["id"])

    def get(self, path: str, **options: Any) -> Answer:
        """Request a path, which begins with the stage."""
        return request(self.url, f"/_aws/execute-api/{self.id}{path}", **options)
