"""Makes the custom resources of stacks: a function of thawd makes, changes and deletes each.

The function gets a request with a URL, and sends its answer to that URL with PUT. As on AWS, the answer may arrive
after the function has returned. If the function fails and has sent no answer, the resource fails with the function's
error; AWS would wait for the time-out. As on AWS, a creation that has failed is followed by a request to delete what
the function may have made.

Source: CloudFormation user guide, "Custom resource request objects" and "Custom resource response objects".
"""

from __future__ import annotations

import json
import queue
import threading
import uuid
from collections.abc import Iterator
from typing import Any

from thawd.server.emulator.cloudformation.errors import LeftBehind, ResourceError
from thawd.server.emulator.cloudformation.providers import cdk_handlers, cdk_providers
from thawd.server.emulator.cloudformation.providers.aws_clients import Aws, is_unreachable
from thawd.server.emulator.cloudformation.providers.callback_server import Callbacks
from thawd.server.emulator.cloudformation.providers.resource_kind import Kind, Made, Wanted
from thawd.server.emulator.cloudformation.stack_records import Resource

_TYPE, _PREFIX = "AWS::CloudFormation::CustomResource", "Custom::"
_TIMEOUT_S = 3600

Properties = dict[str, Any]


class _NoAnswerError(LeftBehind):
    """The function failed, or could not be invoked, and has sent no answer."""


def is_custom(kind: str) -> bool:
    """Return whether the resources of this type are custom resources."""
    return kind == _TYPE or kind.startswith(_PREFIX)


def kind_of(callbacks: Callbacks) -> Kind:
    """Return the kind of all custom resources."""

    def make(aws: Aws, wanted: Wanted) -> Made:
        identity = _identity(wanted)
        answer = _ask(aws, callbacks, "Create", identity, as_text(wanted.properties))
        try:
            return _made(answer, identity)
        except ResourceError as error:
            raise LeftBehind(str(error)) from error

    def change(aws: Aws, resource: Resource, wanted: Wanted) -> Made:
        identity, old = _identity(wanted), as_text(resource.properties)
        more = {"PhysicalResourceId": resource.physical_id, "OldResourceProperties": old}
        answer = _ask(aws, callbacks, "Update", identity, as_text(wanted.properties), more)
        return _made({"PhysicalResourceId": resource.physical_id, **answer}, identity)

    def delete(aws: Aws, resource: Resource) -> None:
        # AWS gives this id to a resource whose function has never answered.
        more = {"PhysicalResourceId": resource.physical_id or resource.name}
        try:
            _ask(aws, callbacks, "Delete", resource.facts["identity"], as_text(resource.properties), more)
        except _NoAnswerError:
            if resource.physical_id:
                raise  # otherwise the function has failed before, too, and has made nothing that is known

    return Kind(
        make,
        delete,
        change,
        # Source: CloudFormation template reference, "AWS::CloudFormation::CustomResource", ServiceToken.
        refused={"ServiceToken": "Modifying service token is not allowed."},
        expected=lambda wanted: {"identity": _identity(wanted)},
    )


def _identity(wanted: Wanted) -> dict[str, str]:
    return {"StackId": wanted.stack.id, "LogicalResourceId": wanted.logical_id, "ResourceType": wanted.kind}


def _made(answer: Properties, identity: dict[str, str]) -> Made:
    if not answer.get("PhysicalResourceId"):
        raise ResourceError("Invalid PhysicalResourceId")
    data = answer.get("Data") or {}
    is_secret = str(answer.get("NoEcho", False)).lower() == "true"
    secrets = frozenset(_texts(data)) if is_secret else frozenset[str]()
    return Made(str(answer["PhysicalResourceId"]), data, {"identity": identity}, secrets)


def _texts(value: Any) -> Iterator[str]:
    """The texts in an answer's data, and its numbers as texts."""
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts(each)
    elif value is not None and not isinstance(value, bool):
        yield str(value)


def _ask(
    aws: Aws,
    callbacks: Callbacks,
    request: str,
    identity: dict[str, str],
    properties: Properties,
    more: Properties | None = None,
) -> Properties:
    """Send a request to the function and wait for its answer.

    Raises:
        ResourceError: the function failed, refused or did not answer in time; a LeftBehind if it may have made
            something.
    """
    function = properties.get("ServiceToken", "")
    if ":lambda:" not in function and ":sns:" not in function:
        raise ResourceError(
            f"thawd can send requests to functions and topics, and ServiceToken is {function or 'missing'}"
        )
    handler = cdk_handlers.handler_of(function)
    if handler is not None:
        return handler(aws, request, properties, more or {})
    event = {
        **identity,
        **(more or {}),
        "RequestType": request,
        "RequestId": str(uuid.uuid4()),
        "ServiceToken": function,
        "ResourceProperties": properties,
    }
    if cdk_providers.is_provider(function):
        return cdk_providers.provide(aws, function, event)
    with callbacks.expect() as (url, answers):
        event["ResponseURL"] = url
        send = _invoke if ":lambda:" in function else _publish
        threading.Thread(target=send, args=(aws, function, event, answers), daemon=True).start()
        try:
            answer: Properties | Exception = answers.get(timeout=int(properties.get("ServiceTimeout", _TIMEOUT_S)))
        except queue.Empty:
            raise LeftBehind("CloudFormation did not receive a response from your Custom Resource") from None
    if isinstance(answer, Exception):
        raise answer
    if answer.get("Status") != "SUCCESS":
        message = f"Received response status [FAILED] from custom resource. {answer.get('Reason', '')}"
        kind = LeftBehind if "Status" in answer else _NoAnswerError
        raise kind(message, str(answer.get("PhysicalResourceId") or ""))
    return answer


def _invoke(aws: Aws, function: str, event: Properties, answers: queue.Queue[Properties | Exception]) -> None:
    """Invoke the function. If it fails without having sent an answer, the failure is the answer."""
    try:
        client = aws.client("lambda")
        ended = client.invoke(FunctionName=function, Payload=json.dumps(event, default=str).encode())
        if "FunctionError" in ended:
            error = json.loads(ended["Payload"].read())
            answers.put({"Reason": f"The function failed: {error.get('errorType')}: {error.get('errorMessage')}"})
    except Exception as error:  # whatever is wrong, the stack fails with it
        answers.put(error if is_unreachable(error) else {"Reason": f"The function could not be invoked: {error}"})


def _publish(aws: Aws, topic: str, event: Properties, answers: queue.Queue[Properties | Exception]) -> None:
    try:
        subject = "AWS CloudFormation custom resource request"
        aws.call("sns", "publish", {"TopicArn": topic, "Subject": subject, "Message": json.dumps(event, default=str)})
    except Exception as error:  # whatever is wrong, the stack fails with it
        answers.put(error if is_unreachable(error) else {"Reason": f"The request could not be published: {error}"})


def as_text(value: Any) -> Any:
    """Return the value with each number and boolean as text, as CloudFormation sends them."""
    if isinstance(value, dict):
        return {name: as_text(each) for name, each in value.items()}
    if isinstance(value, list):
        return [as_text(each) for each in value]
    return str(value).lower() if isinstance(value, bool) else str(value)
