"""Events for functions behind REST APIs (``AWS_PROXY`` and authorizers), and responses from functions' answers.

Payload format 1.0 of HTTP APIs uses the same events, with a field ``version``. No side effects.

Source: API Gateway developer guide, "Lambda proxy integrations in API Gateway" (input and output format) and "Input to
an API Gateway Lambda authorizer". Details were recorded on AWS: path parameters are not decoded, an unknown field of an
answer makes it malformed, a missing status means 200.
"""

from __future__ import annotations

import base64
from typing import Any

from thawd.gateway.aws.api_messages import ApiResponse, Headers
from thawd.gateway.routes.payload_formats import (
    WITHOUT_BODY,
    MalformedResponseError,
    checked_name,
    decode_answer,
    header_text,
)
from thawd.server.emulator.api_gateway.rest.calls import RestCall, is_binary
from thawd.server.emulator.api_gateway.rest.definitions import Fields

_ANSWER_FIELDS = frozenset({"statusCode", "headers", "multiValueHeaders", "body", "isBase64Encoded"})
# The fields of $context that the event's requestContext does not have.
_NOT_IN_EVENT = frozenset({"error", "requestOverride", "responseOverride"})


def proxy_event(call: RestCall) -> Fields:
    """Return the event for a function behind a proxy integration."""
    body, is_base64 = event_body(call)
    query = call.last_query()
    return {
        "resource": call.resource["path"],
        "path": shown_path(call),
        "httpMethod": call.request.method,
        "headers": call.last_headers(),
        "multiValueHeaders": call.headers,
        "queryStringParameters": query or None,
        "multiValueQueryStringParameters": call.query or None,
        "pathParameters": call.path_parameters or None,
        "stageVariables": call.stage.variables or None,
        "requestContext": {name: value for name, value in call.context.items() if name not in _NOT_IN_EVENT},
        "body": body,
        "isBase64Encoded": is_base64,
    }


def request_authorizer_event(call: RestCall) -> Fields:
    """Return the event for an authorizer of the type ``REQUEST``.

    Empty fields are objects, and the body is not in it.
    """
    event = proxy_event(call)
    del event["body"], event["isBase64Encoded"]
    for name in (
        "queryStringParameters",
        "multiValueQueryStringParameters",
        "pathParameters",
        "stageVariables",
    ):
        event[name] = event[name] or {}
    return {"type": "REQUEST", "methodArn": call.method_arn(), **event}


def shown_path(call: RestCall) -> str:
    """Return the event's ``path``: with the base path of a custom domain, without the stage."""
    return f"/{call.base_path}{call.path}" if call.base_path else call.path


def event_body(call: RestCall) -> tuple[str | None, bool]:
    """Return the event's ``body`` and ``isBase64Encoded``."""
    if not call.request.body:
        return None, False
    if is_binary(call.header("content-type"), call.stage.definition.binary_types):
        return base64.b64encode(call.request.body).decode(), True
    return call.body_text, False


def proxy_response(payload: bytes, *, accept: str | None, binary_types: list[str]) -> ApiResponse:
    """Return the response for the answer of a function behind a proxy integration.

    Args:
        payload: the answer.
        accept: the request's ``Accept``.
        binary_types: the API's binary media types. A Base64 body is decoded only if the first type that the request
            accepts is one of them.

    Raises:
        MalformedResponseError: API Gateway does not accept the answer.
    """
    answer = decode_answer(payload)
    if not isinstance(answer, dict) or not answer:
        raise MalformedResponseError("the function's answer is not an object with a statusCode")
    if unknown := answer.keys() - _ANSWER_FIELDS:
        raise MalformedResponseError(f"the function's answer has an unknown field {min(unknown)!r}")
    status = _status(answer.get("statusCode", 200))
    headers = answer_headers(answer)
    if not any(name.lower() == "content-type" for name, _ in headers):
        headers.append(("Content-Type", "application/json"))
    body = answer.get("body")
    if body is not None and not isinstance(body, str):
        raise MalformedResponseError(f"body is a {type(body).__name__}; it must be a string (use json.dumps)")
    content = (body or "").encode("utf-8", "replace")
    first = (accept or "").partition(",")[0]
    if answer.get("isBase64Encoded") and is_binary(first, binary_types):
        try:
            content = base64.b64decode(content, validate=True)
        except ValueError:
            raise MalformedResponseError("isBase64Encoded is true, but body is not valid Base64") from None
    return ApiResponse(status, headers, b"" if status in WITHOUT_BODY else content)


def answer_headers(answer: Fields) -> Headers:
    """Return the headers of an answer: ``multiValueHeaders``, then those of ``headers`` that are not among them.

    Raises:
        MalformedResponseError: the headers cannot be sent.
    """
    single, several = answer.get("headers") or {}, answer.get("multiValueHeaders") or {}
    if not isinstance(single, dict) or not isinstance(several, dict):
        raise MalformedResponseError("headers and multiValueHeaders must be JSON objects")
    if not all(isinstance(listed, list) for listed in several.values()):
        raise MalformedResponseError("multiValueHeaders must have a list for each header")
    names = {name.lower(): name for name in several}
    pairs = [(name, value) for name, listed in several.items() for value in listed]
    pairs += [(names.get(name.lower(), name), value) for name, value in single.items()]
    made: Headers = []
    for name, value in pairs:
        checked_name(name)
        if value is not None and name.lower() not in _OF_CONNECTION:
            pair = (name, header_text(value))
            if pair not in made:
                made.append(pair)
    return made


_OF_CONNECTION = ("connection", "content-length", "transfer-encoding")


def _status(value: Any) -> int:
    try:
        status = int(value)
    except (TypeError, ValueError):
        raise MalformedResponseError(f"statusCode is {value!r}; it must be a number") from None
    if isinstance(value, bool) or not 200 <= status <= 599:
        raise MalformedResponseError(f"statusCode is {value!r}; it must be from 200 to 599")
    return status
