"""Makes the custom resources of an emulated CloudFormation stack: a function of thawd makes, changes and deletes each.

The function gets a request with a URL, and sends its answer to that URL with PUT. A small server on loopback receives
the answers. As on AWS, the answer may arrive after the function has returned. If the function fails and has sent no
answer, the stack fails with the function's error; AWS would wait for the time-out. This module runs in the emulator's
own process.

Source: CloudFormation user guide, "Custom resource request objects" and "Custom resource response objects".
"""

from __future__ import annotations

import http.server
import json
import queue
import secrets
import threading
import uuid
from collections.abc import Callable
from typing import Any

_TYPE, _PREFIX = "AWS::CloudFormation::CustomResource", "Custom::"
_TIMEOUT_S = 3600
_MOST_BYTES = 1 << 20
_answers: _Answers
_client: Callable[[], Any]

Properties = dict[str, Any]


class CustomResource:
    """A custom resource, in the form in which moto's stacks hold it.

    Attributes:
        kind: its type, such as ``Custom::Seed``.
        physical_resource_id: what Ref returns; the function chooses it.
        attributes: what GetAtt returns, by name: the data that the function has answered.
        properties: its properties in the template.
        identity: the fields of a request that say which resource of which stack it is for.
    """

    def __init__(self, kind: str, identity: dict[str, str], properties: Properties) -> None:
        self.kind = self.type = kind
        self.identity = identity
        self.properties: Properties = _as_text(properties)
        self.physical_resource_id = ""
        self.attributes: dict[str, Any] = {}

    @classmethod
    def has_cfn_attr(cls, attr: str) -> bool:
        """Whether GetAtt may name this attribute; whether the resource has it is checked later."""
        return True

    def get_cfn_attribute(self, attribute_name: str) -> Any:
        """The value that GetAtt returns."""
        from moto.cloudformation.exceptions import UnformattedGetAttTemplateException

        if attribute_name not in self.attributes:
            raise UnformattedGetAttTemplateException
        return self.attributes[attribute_name]

    @classmethod
    def create_from_cloudformation_json(
        cls, resource_name: str, cloudformation_json: Properties, account_id: str, region_name: str, **facts: Any
    ) -> CustomResource:
        """Have the function make the resource."""
        kind = facts["ResourceType"]
        identity = {"StackId": facts["StackId"], "LogicalResourceId": facts["LogicalId"], "ResourceType": kind}
        made = cls(kind, identity, cloudformation_json["Properties"])
        made._take(made._ask("Create"))
        return made

    @classmethod
    def update_from_cloudformation_json(
        cls,
        original_resource: CustomResource,
        new_resource_name: str,
        cloudformation_json: Properties,
        account_id: str,
        region_name: str,
    ) -> CustomResource:
        """Have the function change the resource; if the id is another one then, have it delete the old resource."""
        old = original_resource
        changed = cls(old.kind, old.identity, cloudformation_json["Properties"])
        changed.physical_resource_id = old.physical_resource_id
        changed._take(changed._ask("Update", OldResourceProperties=old.properties))
        if changed.physical_resource_id != old.physical_resource_id:
            old.delete(account_id, region_name)
        return changed

    def is_created(self) -> bool:
        """Whether the resource is there; it is, once it is made."""
        return True

    def delete(self, account_id: str, region: str) -> None:
        """Have the function delete the resource."""
        self._ask("Delete")

    def _take(self, answer: Properties) -> None:
        if not answer.get("PhysicalResourceId"):
            raise self._failed("Invalid PhysicalResourceId")
        self.physical_resource_id = answer["PhysicalResourceId"]
        self.attributes = answer.get("Data") or {}

    def _ask(self, request: str, **more: Any) -> Properties:
        """Send a request to the function and wait for its answer.

        Raises:
            ValidationError: the function failed, refused or did not answer in time.
        """
        token, function = secrets.token_urlsafe(32), self.properties.get("ServiceToken", "")
        if ":lambda:" not in function:
            raise self._failed(f"thawd can send requests to functions, and ServiceToken is {function or 'missing'}")
        event = {
            **self.identity,
            **more,
            "RequestType": request,
            "RequestId": str(uuid.uuid4()),
            "ServiceToken": function,
            "ResponseURL": _answers.url(token),
            "ResourceProperties": self.properties,
        }
        if request != "Create":
            event["PhysicalResourceId"] = self.physical_resource_id
        answers = _answers.expect(token)
        try:
            threading.Thread(target=_invoke, args=(function, event, answers), daemon=True).start()
            answer = answers.get(timeout=int(self.properties.get("ServiceTimeout", _TIMEOUT_S)))
        except queue.Empty:
            raise self._failed("CloudFormation did not receive a response from your Custom Resource") from None
        finally:
            _answers.forget(token)
        if answer.get("Status") != "SUCCESS":
            raise self._failed(f"Received response status [FAILED] from custom resource. {answer.get('Reason', '')}")
        return answer

    def _failed(self, why: str) -> Exception:
        from moto.cloudformation.exceptions import ValidationError

        name = self.identity["LogicalResourceId"]
        failure: Exception = ValidationError(message=f"The custom resource {name} failed: {why}")
        return failure


def makes(kind: str) -> bool:
    """Whether the resources of this type are custom resources."""
    return kind == _TYPE or kind.startswith(_PREFIX)


def start(client: Callable[[], Any]) -> None:
    """Start the server for answers.

    Args:
        client: returns a boto3 client for thawd's Lambda API that waits for the longest invocations and does not retry.
    """
    global _client, _answers  # moto makes and pickles the resources, so they cannot hold these
    _client, _answers = client, _Answers()


def _invoke(function: str, event: Properties, answers: queue.Queue[Properties]) -> None:
    """Invoke the function; if it fails, that is the answer, unless the function has sent one before."""
    try:
        ended = _client().invoke(FunctionName=function, Payload=json.dumps(event, default=str).encode())
        if "FunctionError" in ended:
            error = json.loads(ended["Payload"].read())
            answers.put({"Reason": f"The function failed: {error.get('errorType')}: {error.get('errorMessage')}"})
    except Exception as error:  # whatever is wrong, the stack fails with it
        answers.put({"Reason": f"The function could not be invoked: {error}"})


def _as_text(value: Any) -> Any:
    """The value with each number and boolean as text, as CloudFormation sends them."""
    if isinstance(value, dict):
        return {name: _as_text(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_as_text(each) for each in value]
    return str(value).lower() if isinstance(value, bool) else str(value)


class _Answers:
    """A server on loopback that receives the answers of functions, each at a URL that is used once."""

    def __init__(self) -> None:
        expected: dict[str, queue.Queue[Properties]] = {}
        self._expected = expected

        class Handler(http.server.BaseHTTPRequestHandler):
            timeout = 30

            def do_PUT(self) -> None:
                waiting = expected.get(self.path.partition("?")[0].removeprefix("/"))
                length = int(self.headers.get("Content-Length") or 0)
                if waiting is None or length > _MOST_BYTES:
                    self.send_error(403)
                    return
                try:
                    answer = json.loads(self.rfile.read(length))
                except ValueError as error:
                    answer = {"Reason": f"The answer is not JSON: {error}"}
                waiting.put(answer if isinstance(answer, dict) else {"Reason": "The answer is not a JSON object"})
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing on the console."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def url(self, token: str) -> str:
        """The URL for the answer with this token."""
        return f"http://127.0.0.1:{self._server.server_port}/{token}"

    def expect(self, token: str) -> queue.Queue[Properties]:
        """Expect an answer; it is put into the queue that is returned."""
        self._expected[token] = queue.Queue()
        return self._expected[token]

    def forget(self, token: str) -> None:
        """Refuse further answers with this token."""
        self._expected.pop(token, None)
