"""Runs one invocation: calls the handler with the event, and makes the answer from its return value or exception."""

import json
import os
import sys
from typing import Any, Callable, Optional, Tuple

from thawd.runtime import faults, logs, process, sdk
from thawd.runtime.context import context_of
from thawd.runtime.faults import Fault
from thawd.runtime.handler import Handler

# Source: Lambda quotas, "Invocation payload (request and response)".
MAX_RESPONSE_BYTES = 6_291_556


def invoke(
    handler: Handler, head: Any, event: bytes, *, now_s: float, encode: Optional[Callable[[Any], bytes]] = None
) -> Tuple[bytes, bool]:
    """Run the handler on one event; returns the answer, and whether the answer is an error document.

    Args:
        handler: the function's handler.
        head: head of the INVOKE frame: ``id``, ``arn``, ``left_ms``, and optionally ``trace``, ``client`` and
            ``tenant``.
        event: JSON text.
        now_s: when the invocation began, ``time.monotonic()`` seconds.
        encode: makes the answer from the handler's return value; None: the answer is JSON text.

    Raises:
        SystemExit: the handler called ``sys.exit``.
    """
    request_id = head["id"]
    logs.set_request_id(request_id)
    trace_id = head.get("trace")
    if trace_id:
        os.environ["_X_AMZN_TRACE_ID"] = trace_id
    else:
        os.environ.pop("_X_AMZN_TRACE_ID", None)
    try:
        answer = handler(unmarshal(event), context_of(head, now_s=now_s))
        if hasattr(type(answer), "__await__"):
            answer = finished(answer)
        return (encode or marshal)(answer), False
    except SystemExit as error:
        write_exit(error, request_id)
        raise
    except BaseException as error:  # an exception of user code must not end the loop
        return failed(error, request_id)


def finished(answer: Any) -> Any:
    """The result of an awaitable that the handler has returned, because it is ``async def``."""
    from thawd.runtime import coroutines  # imported only for asynchronous handlers, to keep other starts fast

    return coroutines.finish(answer)


def failed(error: BaseException, request_id: str, *, names_request: bool = False) -> Tuple[bytes, bool]:
    """Write the failure of an invocation to the log; returns the error document, and that it is one.

    Args:
        error: the exception that the handler raised.
        request_id: the invocation's request id.
        names_request: whether the text in the log names the request id, because other invocations run, too.
    """
    report = faults.report(error, request_id)
    write_failure(report, error, names_request=names_request)
    return report.document, True


def write_exit(error: SystemExit, request_id: str) -> None:
    """Write to the log that the handler has called ``sys.exit``."""
    fault = Fault("Runtime.ExitError", "the handler called sys.exit(%r)" % error.code, error)
    write_failure(faults.report(fault, request_id), fault)


def write_failure(report: faults.Report, error: BaseException, *, names_request: bool = False) -> None:
    """Write a failure to the function's log, after all output of the handler.

    Args:
        report: the report of the failure.
        error: the exception.
        names_request: whether the text names the request id, because other items or invocations are in the log, too.
    """
    process.flush_output()
    faults.write_log(report.text_for_item if names_request else report.text)
    if hint := sdk.hint(error):
        faults.write_log("thawd: %s\n" % hint)


def unmarshal(event: bytes) -> Any:
    """The event, from its JSON text.

    Raises:
        Fault: the text is not JSON.
    """
    try:
        return json.loads(event.decode())
    except ValueError as error:
        raise Fault("Runtime.UnmarshalError", "Unable to unmarshal input: %s" % error) from None


def marshal(response: Any) -> bytes:
    """A handler's return value as JSON text.

    Raises:
        Fault: JSON cannot represent the value, or the text is larger than `MAX_RESPONSE_BYTES`.
    """
    try:
        body = _encode(response)
    except (TypeError, ValueError, RecursionError) as error:
        raise Fault("Runtime.MarshalError", "Unable to marshal response: %s" % error) from None
    if len(body) > MAX_RESPONSE_BYTES:
        raise Fault(
            faults.TOO_LARGE,
            "Response payload size exceeded maximum allowed payload size (%d bytes)." % MAX_RESPONSE_BYTES,
        )
    return body


def _encode(response: Any) -> bytes:
    # Observed on AWS Lambda: runtimes up to Python 3.11 escape characters beyond ASCII; those from 3.12 on do not.
    if sys.version_info >= (3, 12):
        try:
            return _as_is(response).encode()
        except UnicodeEncodeError:
            pass  # a lone surrogate has no UTF-8 encoding and must be escaped
    return _escaped(response).encode()


def _plain(value: Any) -> Any:
    """Convert a Decimal, boto3's type for DynamoDB's numbers. Lambda's runtime converts no other type for JSON."""
    decimal = sys.modules.get("decimal")
    if decimal is not None and isinstance(value, decimal.Decimal):
        return float(value)
    raise TypeError("Object of type %s is not JSON serializable" % type(value).__name__)


# json.dumps would make an encoder for each call.
_as_is = json.JSONEncoder(default=_plain, ensure_ascii=False).encode
_escaped = json.JSONEncoder(default=_plain).encode
