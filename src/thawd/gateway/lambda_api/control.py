"""The control plane of the Lambda API over HTTP: finds a request's operation, checks its input, answers as AWS does."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qs

import msgspec

from thawd.errors import (
    AccessDeniedException,
    RequestEntityTooLargeException,
    RequestTooLargeException,
    ResourceNotFoundException,
    ServiceException,
    ThawdError,
)
from thawd.gateway.http import (
    JSON,
    Budget,
    ClientGoneError,
    Receive,
    Scope,
    Send,
    raw_path_of,
    read_body,
    respond,
    respond_error,
)
from thawd.gateway.lambda_api import inputs
from thawd.gateway.lambda_api.operations import ControlPlane
from thawd.invocation import new_request_id

# Source: the limit that AWS Lambda's error names if a CreateFunction request is too large. The limit leaves room for a
# zip file of 50 MB in Base64 and for the other fields of the request.
MAX_BODY_BYTES = 70_167_211
CODE_PREFIX = "/_thawd/code/"
CODE_VALID_S = 600
# Each path of the Lambda API begins with a date. These are the dates of the control plane's paths.
_DATES = (
    "2015-03-31 2016-08-19 2017-03-31 2017-10-31 2018-10-31 2019-09-25 2019-09-30 2020-04-22 2020-06-30 2021-07-20 "
    "2021-10-31 2024-08-31 2025-11-30"
)
_PREFIXES = tuple(f"/{date}/" for date in _DATES.split())
# Operations whose requests can contain a zip file. A request for any other operation has at most `_SMALL_BYTES`.
_LARGE = ("CreateFunction", "UpdateFunctionCode", "PublishLayerVersion")
_SMALL_BYTES = 1 << 20


class CodeLinks:
    """Makes and opens links to uploaded code. As on AWS, whoever has a link can use it for ten minutes, without a key.

    Args:
        zip_path: returns the path of the zip file of a package (the code of a function or layer).
        url: returns the server's URL.
    """

    def __init__(self, zip_path: Callable[[str], Path], url: Callable[[], str]) -> None:
        self._zip_path = zip_path
        self._url = url
        self._secret = secrets.token_bytes(32)

    def make(self, package: str) -> str:
        """A link to the zip file of a package."""
        expires = int(time.time()) + CODE_VALID_S
        return f"{self._url()}{CODE_PREFIX}{package}.zip?Expires={expires}&Signature={self._sign(package, expires)}"

    def _sign(self, package: str, expires: int) -> str:
        return hmac.new(self._secret, f"{package} {expires}".encode(), hashlib.sha256).hexdigest()

    def open(self, scope: Scope) -> bytes:
        """The contents of the zip file that a link refers to. Blocks.

        Raises:
            AccessDeniedException: the link has a wrong signature or has expired (403).
            ResourceNotFoundException: the code cannot be read, for example because it was deleted (404).
        """
        package = scope["path"].removeprefix(CODE_PREFIX).removesuffix(".zip")
        query = parse_qs(scope["query_string"].decode("latin-1"))
        expires = query.get("Expires", ["0"])[0]
        signature = query.get("Signature", [""])[0]
        is_ours = re.fullmatch("[0-9]{1,12}", expires) is not None and hmac.compare_digest(
            self._sign(package, int(expires)).encode(), signature.encode("latin-1", "replace")
        )
        if not is_ours or int(expires) < time.time():
            raise AccessDeniedException(
                "The link has expired, or its signature is wrong; call GetFunction or GetLayerVersion for a new link"
            )
        try:
            return self._zip_path(package).read_bytes()
        except OSError as error:
            raise ResourceNotFoundException(
                f"The code that this link refers to cannot be read: {error.strerror}; it may have been deleted"
            ) from None


class ControlApi:
    """Serves the control plane.

    Args:
        plane: carries out the operations.
        links: makes and opens links to uploaded code.
        budget: limits the memory for request bodies.
        complain: reports a problem to the operator.
    """

    def __init__(
        self, plane: ControlPlane, *, links: CodeLinks, budget: Budget, complain: Callable[[str], None]
    ) -> None:
        self._plane = plane
        self._known = frozenset(plane.operations())
        self._links = links
        self._budget = budget
        self._complain = complain

    def claims(self, path: str) -> bool:
        """Whether a request with this path is for the control plane."""
        return path.startswith(_PREFIXES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; errors are answered, not raised."""
        request_id = new_request_id()
        try:
            await self._serve(scope, receive, send, request_id)
        except ThawdError as error:
            await respond_error(send, error, request_id=request_id)
        except ClientGoneError:
            return
        except Exception as error:  # a bug in thawd: answered with ServiceException, AWS's error for its own failures
            # The error's text is omitted, since it can contain secrets from the request.
            failure = f"failed inside thawd: {type(error).__name__}"
            self._complain(f"thawd: {scope['method']} {scope['path']} {failure}")
            await respond_error(send, ServiceException(f"The request {failure}"), request_id=request_id)

    async def _serve(self, scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
        raw_path = raw_path_of(scope)
        query = scope["query_string"].decode("latin-1")
        operation, in_path = inputs.find(scope["method"], raw_path, query)
        if operation.name not in self._known:
            raise ResourceNotFoundException(f"thawd does not support the operation {operation.name}")
        limit_bytes = MAX_BODY_BYTES if operation.name in _LARGE else _SMALL_BYTES
        with self._budget.hold(scope, most_bytes=limit_bytes):
            try:
                body = await read_body(scope, receive, limit_bytes=limit_bytes, operation=operation.name)
            except RequestTooLargeException as error:
                raise RequestEntityTooLargeException(error.message) from None
            parameters = inputs.read(operation, in_path=in_path, query=query, body=body)
            changes = operation.method != "GET"
            document = await self._plane.carry_out(operation.name, parameters, changes=changes)
        id_header = (b"x-amzn-requestid", request_id.encode())
        if document is None:
            await respond(send, 204, [id_header])
        else:
            await respond(send, operation.status, [JSON, id_header], msgspec.json.encode(document))

    async def code(self, scope: Scope, send: Send) -> None:
        """Answer a request for a link that `CodeLinks` made: send the zip file."""
        try:
            content = await asyncio.to_thread(self._links.open, scope)
        except ThawdError as error:
            await respond_error(send, error, request_id=new_request_id())
        else:
            await respond(send, 200, [(b"content-type", b"application/zip")], content)
