"""The CloudWatch metrics API over HTTP, in its three protocols.

Operations that thawd does not have, such as those on alarms, are passed on to the emulator, if there is one.
"""

from __future__ import annotations

import zlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from thawd.cloudwatch.metrics.history import MetricHistory
from thawd.cloudwatch.metrics.recorder import MetricRecorder
from thawd.errors import RequestTooLargeException, SerializationException, ThawdError, ValidationException
from thawd.gateway.http import ClientGoneError, Message, Receive, Scope, Send, header, read_body, respond
from thawd.gateway.lambda_api import inputs
from thawd.gateway.metrics.errors import MetricsApiError
from thawd.gateway.metrics.operations import MetricOperations
from thawd.gateway.metrics.protocols import TARGET_PREFIX, MetricsError, Protocol, protocol_of
from thawd.gateway.sigv4 import claimed_service
from thawd.invocation import new_request_id
from thawd.telemetry.console import complain

_MAX_BODY_BYTES = 4 << 20
_SERVICE = "monitoring"
_PATH_PREFIX = "/service/GraniteServiceVersion20100801/"

Elsewhere = Callable[[Scope, Receive, Send], Awaitable[None]]


def is_metrics_request(scope: Scope) -> bool:
    """Whether a request is for the CloudWatch metrics API."""
    if scope["path"].startswith(_PATH_PREFIX):
        return True
    if scope["path"] != "/" or scope["method"] not in ("POST", "GET"):
        return False
    target = header(scope, b"x-amz-target")
    if target is not None:
        return target.startswith(TARGET_PREFIX.encode())
    authorization = (header(scope, b"authorization") or b"").decode("latin-1")
    return claimed_service(authorization, scope["query_string"].decode("latin-1")) == _SERVICE


class MetricsApi:
    """Serves metrics.

    Args:
        history: reads the history.
        recorder: writes the history.
        elsewhere: serves a request for another operation; None: such a request is refused.
    """

    def __init__(self, history: MetricHistory, recorder: MetricRecorder, *, elsewhere: Elsewhere | None) -> None:
        self._inputs = inputs.inputs("thawd.gateway.metrics", "metrics_operations.json")
        self._elsewhere = elsewhere
        operations = MetricOperations(history, recorder)
        self._operations: dict[str, Callable[[Mapping[str, Any]], Awaitable[dict[str, Any] | None]]] = {
            "GetMetricData": operations.get_metric_data,
            "GetMetricStatistics": operations.get_metric_statistics,
            "ListMetrics": operations.list_metrics,
            "PutMetricData": operations.put_metric_data,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; errors are answered, not raised."""
        request_id = new_request_id()
        protocol = protocol_of(scope)
        status = 200
        try:
            body = await read_body(scope, receive, limit_bytes=_MAX_BODY_BYTES, operation="CloudWatch")
            name = protocol.operation(scope, body)
            if name not in self._operations and self._elsewhere is not None:
                await self._elsewhere(scope, _replay(body, receive), send)
                return
            document = await self._document(protocol, name, _plain(scope, body))
            headers, content = protocol.answer(name, document, request_id)
        except ThawdError as error:
            status = error.status
            headers, content = protocol.error(_shown(error), request_id)
        except ClientGoneError:
            return
        except Exception as error:  # a bug in thawd
            text = f"The request failed inside thawd: {type(error).__name__}"
            complain(f"thawd: CloudWatch metrics API: {text}")
            status = 500
            failure = MetricsError("InternalServiceError", "InternalServiceFault", status, text)
            headers, content = protocol.error(failure, request_id)
        await respond(send, status, [*headers, (b"x-amzn-requestid", request_id.encode())], content)

    async def _document(self, protocol: Protocol, name: str, body: bytes) -> dict[str, Any] | None:
        operation = self._operations.get(name)
        if operation is None:
            raise InvalidAction(
                f"thawd does not support the operation {name}; `thawd up --aws` passes it on to an emulator of AWS"
            )
        members = self._inputs[name]
        return await operation(inputs.read_document(members, protocol.document(body, members)))


class InvalidAction(MetricsApiError):
    """The operation is not supported (HTTP 400)."""

    code = "InvalidAction"
    type = "UnknownOperationException"
    status = 400
    retryable = False


def _shown(error: ThawdError) -> MetricsError:
    if isinstance(error, MetricsApiError):
        return MetricsError(error.code, error.type, error.status, error.message)
    if isinstance(error, ValidationException):
        return MetricsError("ValidationError", "ValidationError", error.status, error.message)
    if isinstance(error, SerializationException | RequestTooLargeException):
        return MetricsError(error.type, error.type, error.status, error.message)
    return MetricsError("InternalServiceError", "InternalServiceFault", 500, error.message)


def _plain(scope: Scope, body: bytes) -> bytes:
    """The body without the compression of ``Content-Encoding: gzip``, which SDKs use for large requests.

    Raises:
        SerializationException: the body is not compressed, or is too large (400).
    """
    if (header(scope, b"content-encoding") or b"").lower() != b"gzip":
        return body
    decompressor = zlib.decompressobj(wbits=31)
    try:
        plain = decompressor.decompress(body, _MAX_BODY_BYTES)
    except zlib.error as error:
        raise SerializationException(f"The body is not compressed by gzip: {error}") from None
    if decompressor.unconsumed_tail or not decompressor.eof:
        raise SerializationException(f"The body must have at most {_MAX_BODY_BYTES} bytes when it is decompressed")
    return plain


def _replay(body: bytes, receive: Receive) -> Receive:
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return waiting.pop() if waiting else await receive()

    return receive_again
