"""The code that Invoke and InvokeWithResponseStream share: checks a request and makes an invocation from it.

Source: AWS Lambda API reference, "Invoke", "InvokeWithResponseStream"; limits from "Lambda quotas".
"""

from __future__ import annotations

import abc
import base64
import binascii
import functools
import re
import time
from collections.abc import Mapping
from typing import ClassVar
from urllib.parse import parse_qs, unquote

import msgspec

from thawd.control.names import check_place, not_found
from thawd.errors import (
    InvalidParameterValueException,
    InvalidRequestContentException,
    ResourceNotFoundException,
    ThawdError,
)
from thawd.gateway.http import (
    ARRIVED,
    Budget,
    ClientGoneError,
    Receive,
    Scope,
    Send,
    headers_by_name,
    read_body,
    respond_error,
    trace_of,
)
from thawd.gateway.lambda_api import inputs, payload_errors
from thawd.gateway.tenants import checked_tenant
from thawd.invocation import MAX_ASYNC_PAYLOAD_BYTES, MAX_PAYLOAD_BYTES, Invocation, new_request_id
from thawd.resources import LATEST
from thawd.scheduling.dispatcher import Dispatcher

# Source: API reference, Invoke, X-Amz-Client-Context: "up to 3,583 bytes of base64-encoded data".
MAX_CLIENT_CONTEXT_BYTES = 3583
# Source: API reference, Invoke, FunctionName: name, partial ARN, full ARN, each with an optional qualifier.
_NAME = re.compile(
    r"(?:arn:(?:aws[a-zA-Z-]*)?:lambda:)?(?:(?P<region>[a-z]{2}(?:-[a-z]+)+-\d):)?(?:(?P<account>\d{12}):)?(?:function:)?"
    r"(?P<name>[a-zA-Z0-9-_]{1,64})(?::(?P<qualifier>\$LATEST|[a-zA-Z0-9-_]+))?"
)
# Source: AWS's service model, Invoke, Qualifier.
_QUALIFIER = re.compile(r"[a-zA-Z0-9-_$]{1,128}")
_LOG_TYPES = ("None", "Tail")
_decode_raw = msgspec.json.Decoder(msgspec.Raw).decode


class InvokeOperation(abc.ABC):
    """An operation of the Lambda API that invokes a function; the class attributes describe the operation.

    Args:
        dispatcher: finds functions by name and runs invocations.
        queue_timeout_s: how long an invocation may wait for an environment, seconds.
        budget: limits the memory for request bodies.

    Attributes:
        title: name of the operation, for error messages.
        prefix: the path before the function's name.
        suffix: the path after the function's name.
        kinds: the invocation types that the operation accepts, the default first.
        has_qualifier: whether the operation has the parameter ``Qualifier``.
    """

    title: ClassVar[str]
    prefix: ClassVar[str]
    suffix: ClassVar[str]
    kinds: ClassVar[tuple[str, ...]]
    has_qualifier: ClassVar[bool] = True

    def __init__(self, dispatcher: Dispatcher, *, queue_timeout_s: float, budget: Budget) -> None:
        self._dispatcher = dispatcher
        self._queue_timeout_s = queue_timeout_s
        self._budget = budget

    @classmethod
    def claims(cls, path: str) -> bool:
        """Whether a request with this path is for the operation."""
        is_long_enough = len(path) >= len(cls.prefix) + len(cls.suffix)  # there can be a function called invocations
        return path.startswith(cls.prefix) and path.endswith(cls.suffix) and is_long_enough

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; errors are answered, not raised."""
        request_id = new_request_id()
        try:
            if scope["method"] != "POST":
                raise ResourceNotFoundException(f"{self.title} accepts POST, not {scope['method']}")
            encoded = scope["path"][len(self.prefix) : -len(self.suffix)]
            function, qualifier = resolve(scope["query_string"] if self.has_qualifier else b"", encoded)
            headers = headers_by_name(scope)
            kind = one_of(headers, b"x-amz-invocation-type", "invocationType", self.kinds)
            log_type = one_of(headers, b"x-amz-log-type", "logType", _LOG_TYPES)
            tenant_id = checked_tenant(scope, self._dispatcher, function, qualifier)
            limit_bytes = MAX_ASYNC_PAYLOAD_BYTES if kind == "Event" else MAX_PAYLOAD_BYTES
            with self._budget.hold(scope, most_bytes=limit_bytes):
                body = await read_body(scope, receive, limit_bytes=limit_bytes, operation=self.title)
                invocation = Invocation(
                    function,
                    check_json(body) if body else b"{}",
                    time.monotonic() + self._queue_timeout_s,
                    request_id,
                    client_context(headers),
                    trace_of(scope),
                    want_log_tail=log_type == "Tail" and kind == "RequestResponse",
                    asynchronous=kind == "Event",
                    qualifier=qualifier,
                    tenant_id=tenant_id,
                    arrived_s=scope.get(ARRIVED, 0.0),
                )
                await self._run(scope, send, invocation, kind)
        except ThawdError as error:
            await respond_error(send, self._answered(error), request_id=request_id)
        except ClientGoneError:
            return

    def _answered(self, error: ThawdError) -> ThawdError:
        """The error that is answered for `error`."""
        return error

    @abc.abstractmethod
    async def _run(self, scope: Scope, send: Send, invocation: Invocation, kind: str) -> None:
        """Run the invocation and answer the request."""


def one_of(headers: Mapping[bytes, bytes], name: bytes, field: str, allowed: tuple[str, ...]) -> str:
    """The value of the header `name`, which must be one of `allowed`; the first of `allowed` if the header is missing.

    Raises:
        InvalidParameterValueException: the header has another value (400).
    """
    text = headers.get(name)
    if text is None:
        return allowed[0]
    value = text.decode("latin-1")
    if value in allowed:
        return value
    raise InvalidParameterValueException(
        f"1 validation error detected: Value '{value}' at '{field}' failed to satisfy constraint: "
        f"Member must satisfy enum value set: [{', '.join(allowed)}]"
    )


def resolve(query: bytes, encoded: str) -> tuple[str, str | None]:
    """The function's name and the qualifier, if any, from the path segment `encoded` and the parameter ``Qualifier``.

    Raises:
        AccessDeniedException: the ARN names another account (403).
        InvalidParameterValueException: the qualifier in `encoded` differs from the parameter (400).
        ResourceNotFoundException: the ARN names another region (404).
        ValidationException: `encoded` is not a function's name or ARN, or the parameter is not a qualifier (400).
    """
    return _resolve(query, encoded) if query else _resolve_without_query(encoded)


@functools.lru_cache(maxsize=1024)
def _resolve_without_query(encoded: str) -> tuple[str, str | None]:
    """The result depends on `encoded` alone. Errors are not remembered, and other segments are short."""
    return _resolve(b"", encoded)


def _resolve(query: bytes, encoded: str) -> tuple[str, str | None]:
    reference = unquote(encoded)
    match = _NAME.fullmatch(reference)
    asked = None
    if query:
        asked = parse_qs(query.decode("latin-1")).get("Qualifier", [None])[-1]
    if match is None or (asked is not None and not _QUALIFIER.fullmatch(asked)):
        # GetFunction has the same two parameters, and is in the file of operations.
        values = {"FunctionName": reference} if asked is None else {"FunctionName": reference, "Qualifier": asked}
        inputs.check("GetFunction", values)
        raise not_found(reference, asked or LATEST)
    qualifier = match["qualifier"]
    if asked and qualifier and asked != qualifier:
        raise InvalidParameterValueException(
            "The derived qualifier from the function name does not match the specified qualifier."
        )
    name: str = match["name"]
    if match["region"] or match["account"]:
        check_place(match["region"], match["account"])
    return name, asked or qualifier


def check_json(body: bytes) -> bytes:
    """Return `body` after checking that it is JSON text in UTF-8.

    Raises:
        InvalidRequestContentException: `body` is not JSON (400).
    """
    try:
        body.decode()
        _decode_raw(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        found = payload_errors.describe(body, otherwise=str(error))
        raise InvalidRequestContentException(
            f"Could not parse request body into json: Could not parse payload into json: {found}"
        ) from None
    return body


def client_context(headers: Mapping[bytes, bytes]) -> str | None:
    """The caller's client context as JSON text, or None.

    Raises:
        InvalidRequestContentException: the header is not Base64 of a JSON object, or is too large (400).
    """
    encoded = headers.get(b"x-amz-client-context")
    if encoded is None:
        return None
    try:
        if len(encoded) > MAX_CLIENT_CONTEXT_BYTES:
            raise InvalidRequestContentException(f"Client context must be at most {MAX_CLIENT_CONTEXT_BYTES} bytes.")
        text = base64.b64decode(encoded, validate=True).decode()
        msgspec.json.decode(text, type=dict)
    except (binascii.Error, UnicodeDecodeError, msgspec.MsgspecError, RecursionError):
        raise InvalidRequestContentException("Client context must be a valid Base64-encoded JSON object.") from None
    return text
