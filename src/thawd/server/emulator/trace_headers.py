"""Passes the trace header of a request on to the messages and invocations that the request causes.

The AWS SDK in a function sends the trace header of the invocation with each request. From the header, thawd counts how
often a chain of invocations returns to the same function (`thawd.grammar.lineage`). As on AWS, SQS stores the header
with the message, and SNS passes it to the subscribers. EventBridge drops it: AWS does not stop loops through
EventBridge either. This module runs in the emulator's own process.

Source: AWS Lambda developer guide, "Use Lambda recursive loop detection to prevent infinite loops"; Amazon SQS
developer guide, "Amazon SQS message metadata".
"""

from __future__ import annotations

from typing import Any

_HEADER = "X-Amzn-Trace-Id"
_SERVICES = ("sqs", "sns", "s3")


def install() -> None:
    """Change ``moto.sqs.models``: store the trace header of a request with its message."""
    from moto.sqs.models import SQSBackend

    send = SQSBackend.send_message

    def send_with_trace(backend: Any, *given: Any, **named: Any) -> Any:
        trace = current()
        if trace is not None:
            value = {"DataType": "String", "StringValue": trace}
            named["system_attributes"] = {"AWSTraceHeader": value, **(named.get("system_attributes") or {})}
        return send(backend, *given, **named)

    setattr(SQSBackend, "send_message", send_with_trace)  # noqa: B010 - mypy forbids to assign to a method


def current() -> str | None:
    """Return the trace header of the request that this thread serves.

    None if the thread serves no request, or the request is for a service other than SQS, SNS and S3.
    """
    import flask

    if not flask.has_request_context():
        return None
    scope = flask.request.headers.get("Authorization", "").partition("Credential=")[2].partition(",")[0].split("/")
    return flask.request.headers.get(_HEADER) if len(scope) > 2 and scope[-2] in _SERVICES else None


def add_to(params: dict[str, Any], **_: Any) -> None:
    """Add the trace header to a request of boto3: a handler for the event ``before-call``."""
    trace = current()
    if trace is not None:
        params["headers"][_HEADER] = trace
