"""If access keys are configured, checks the signatures of requests to the Lambda, Logs, CloudWatch and queue APIs.

Source: AWS Lambda API reference, "Common Errors".
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

import msgspec

from thawd.errors import ThawdError
from thawd.gateway.http import (
    JSON,
    Budget,
    ClientGoneError,
    Message,
    Receive,
    Scope,
    Send,
    raw_path_of,
    read_body,
    respond,
    respond_error,
)
from thawd.gateway.lambda_api.control import MAX_BODY_BYTES
from thawd.gateway.logs.endpoint import is_logs_request
from thawd.gateway.metrics.endpoint import is_metrics_request
from thawd.gateway.sigv4 import SignatureError, SignedRequest, check_claim, verify
from thawd.invocation import new_request_id


class Gate:
    """Admits correctly signed requests and refuses all others.

    Args:
        keys: secrets by access key id.
        budget: limits the memory for request bodies.
    """

    def __init__(self, keys: Mapping[str, str], *, budget: Budget) -> None:
        self._keys = keys
        self._budget = budget

    async def admit(self, scope: Scope, receive: Receive, send: Send) -> Receive | None:
        """Check a request's signature.

        Returns:
            The ASGI callable that gives the request's body; None if the request has been refused and answered.
        """
        request_id = new_request_id()
        service = "logs" if is_logs_request(scope) else "monitoring" if is_metrics_request(scope) else "lambda"
        request = SignedRequest(
            method=scope["method"],
            raw_path=raw_path_of(scope),
            query=scope["query_string"].decode("latin-1"),
            headers=scope["headers"],
            body=b"",
        )
        try:
            # What does not depend on the body (key id, service, date) is checked before the body is read, so that
            # requests that do not name a configured key use no memory. The signature itself is verified afterwards.
            check_claim(request, self._keys, now_s=time.time(), service=service)
            with self._budget.hold(scope, most_bytes=MAX_BODY_BYTES):
                body = await read_body(scope, receive, limit_bytes=MAX_BODY_BYTES, operation="signed")
                verify(replace(request, body=body), self._keys, now_s=time.time(), service=service)
        except SignatureError as error:
            await _refuse(send, error, request_id)
        except ThawdError as error:
            await respond_error(send, error, request_id=request_id)
        except ClientGoneError:
            pass
        else:
            return _replay(body, receive)
        return None


def _replay(body: bytes, receive: Receive) -> Receive:
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return waiting.pop() if waiting else await receive()

    return receive_again


async def _refuse(send: Send, error: SignatureError, request_id: str) -> None:
    headers = [JSON, (b"x-amzn-errortype", error.code.encode()), (b"x-amzn-requestid", request_id.encode())]
    # Some of AWS's services spell this field with a capital M, others do not. thawd sends both spellings.
    document = {"__type": error.code, "message": error.message, "Message": error.message}
    await respond(send, 403, headers, msgspec.json.encode(document))
