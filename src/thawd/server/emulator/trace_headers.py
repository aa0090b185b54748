"""Passes the trace header of a request on to the messages and invocations that the request causes.

A function's AWS SDK sends the trace header of its invocation with each request. With it, thawd counts how often a chain
of invocations comes back to a function (`thawd.grammar.lineage`). As on AWS, SQS keeps the header with the message, and
SNS passes it to its subscribers. EventBridge does not: loops through it are not stopped on AWS either. This module runs
in the emulator's own process.

Source: AWS Lambda developer guide, "Use Lambda recursive loop detection to prevent infinite loops"; Amazon SQS
developer guide, "Amazon SQS message metadata".
"""

from __future__ import annotations

from typing import Any

_HEADER = "X-Amzn-Trace-Id"
_SERVICES = ("sqs", "sns", "s3")


def install() -> None:
    """Change ``moto.sqs.models``: messages keep the trace headers of requests."""
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
    """The trace header of the request that this thread serves; None: it serves none, or one of another service."""
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
