"""Passes requests for AWS services other than Lambda and CloudWatch Logs on to moto, the AWS emulator.

So clients use thawd's port for all services. A request's signature names the service that the request is for. S3
requests for thawd's own buckets are not passed on. Changes in the emulator's buckets invoke the functions that were
configured through S3's notification API.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING
from urllib.parse import quote

from thawd.errors import InvalidParameterValueException, ResourceNotFoundException
from thawd.gateway.aws import caller_identity
from thawd.gateway.aws.apis import CustomDomains, EmulatedApis
from thawd.gateway.aws.bucket_notifications import BucketNotifications, is_bulk_delete
from thawd.gateway.aws.error_documents import ServiceError
from thawd.gateway.aws.refusals import refuse, service_of
from thawd.gateway.http import (
    READING,
    Budget,
    ClientGoneError,
    Headers,
    Message,
    Receive,
    Scope,
    Send,
    header,
    raw_path_of,
)
from thawd.gateway.role_keys import RoleKeys
from thawd.gateway.s3.read import INERT
from thawd.invocation import new_request_id

if TYPE_CHECKING:
    import httpx

# AWS services that thawd itself serves.
_OWN = ("lambda", "logs")
# Headers that belong to one connection and so are not passed on. Source: RFC 9110, 7.6.1.
_OF_CONNECTION = {b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"expect"}
# Headers of the emulator that are not passed on either: the server that answers has a date of its own. With two
# dates AWS's SDK for JavaScript computes no time for the next signature, and fails.
_OF_EMULATOR = {b"date", b"server"}
# The emulator may answer late: it runs functions for a stack or a state machine first.
_CONNECT_S, _ANSWER_S = 10.0, 1200.0
_MOST_CODE_BYTES = 262_144_000
# The Authorization header of thawd's own requests to the emulator. The emulator reads the service (s3) from the header
# and does not check the signature.
_UNSIGNED = b"AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"


class AwsProxy:
    """Passes requests on to the AWS emulator.

    Args:
        url: the emulator's URL.
        owns: returns whether a path belongs to one of thawd's own buckets.
        notifications: invokes functions when objects in the emulator's buckets change.
        keys: the keys with which functions sign; STS says who they are.
    """

    def __init__(
        self, url: str, *, owns: Callable[[str], bool], notifications: BucketNotifications, keys: RoleKeys
    ) -> None:
        import httpx

        self._keys = keys
        self._url = httpx.URL(url)
        self._owns = owns
        self._notifications = notifications
        timeout = httpx.Timeout(_ANSWER_S, connect=_CONNECT_S)
        # The URL has no TLS; without `verify`, httpx does not read the certificates of authorities, which takes long.
        self._client = httpx.AsyncClient(
            timeout=timeout, limits=httpx.Limits(max_connections=None), trust_env=False, verify=False
        )
        self._client.headers.clear()
        self._domains = CustomDomains(self._client, self._url)
        notifications.head = self._head

    def claims(self, scope: Scope) -> bool:
        """Whether a request is for the emulator."""
        service = service_of(scope)
        if service is None or service in _OWN:
            return False
        return service != "s3" or not self._owns(scope["path"])

    def apis(self, budget: Budget) -> EmulatedApis:
        """Serves requests to the emulator's APIs; `budget` limits the memory for their bodies."""
        return EmulatedApis(self._client, self._url, self._domains, keys=self._keys, budget=budget)

    async def close(self) -> None:
        """Close all connections to the emulator."""
        await self._client.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        import httpx

        service = service_of(scope)
        answered: list[bytes] = []
        is_bulk = service == "s3" and is_bulk_delete(scope)
        try:
            if service == "s3" and await self._notifications.serve(scope, receive, send, self._pass_bytes):
                return
            if service == "sts":
                await caller_identity.serve(scope, receive, send, keys=self._keys, pass_on=self._pass_bytes)
                return
            status = await self._pass_on(scope, _body(receive), _copying_body(send, answered) if is_bulk else send)
        except ClientGoneError:
            return
        except httpx.HTTPError as error:
            message = f"The AWS emulator (--aws) does not answer: {error!r}"
            await refuse(scope, send, ServiceError("ServiceUnavailable", message, 503, new_request_id()))
            return
        finally:
            if service == "apigateway" and scope["method"] not in READING:
                self._domains.changed()
        if service == "s3" and 200 <= status < 300:
            await self._notifications.request_succeeded(scope)
            if is_bulk:
                await self._notifications.objects_deleted(scope, b"".join(answered))

    async def read(self, bucket: str, key: str) -> bytes:
        """The contents of an object in the emulator.

        Raises:
            InvalidParameterValueException: the object is too large to be code (400).
            ResourceNotFoundException: there is no such bucket or object (404); ``reason`` is the error code of S3.
        """
        path = f"/{quote(bucket)}/{quote(key)}"
        headers = [(b"host", b"localhost"), (b"authorization", _UNSIGNED)]
        response = await self._client.send(
            self._client.build_request("GET", self._url.copy_with(raw_path=path.encode()), headers=headers), stream=True
        )
        try:
            if int(response.headers.get("content-length", 0)) > _MOST_CODE_BYTES:
                raise InvalidParameterValueException(f"Unzipped size must be smaller than {_MOST_CODE_BYTES} bytes")
            content = await response.aread()
            if response.status_code == 200:
                return content
            if b"<Code>NoSuchBucket</Code>" in content:
                raise ResourceNotFoundException("The specified bucket does not exist", reason="NoSuchBucket")
            raise ResourceNotFoundException("The specified key does not exist.", reason="NoSuchKey")
        finally:
            await response.aclose()

    async def _pass_bytes(self, scope: Scope, body: bytes, send: Send) -> int:
        async def whole() -> AsyncIterator[bytes]:
            yield body

        headers = [(name, value) for name, value in scope["headers"] if name != b"content-length"]
        changed = {**scope, "headers": [*headers, (b"content-length", str(len(body)).encode())]}
        return await self._pass_on(changed, whole(), send)

    async def _pass_on(self, scope: Scope, body: AsyncIterator[bytes], send: Send) -> int:
        """Pass a request on to the emulator and send the emulator's answer; returns the answer's status."""
        raw_path = raw_path_of(scope).encode("latin-1")
        query = scope["query_string"]
        target = self._url.copy_with(raw_path=raw_path + (b"?" + query if query else b""))
        headers = [(name, value) for name, value in scope["headers"] if name not in _OF_CONNECTION]
        has_body = any(name == b"content-length" and value != b"0" for name, value in headers)
        has_body = has_body or header(scope, b"transfer-encoding") is not None
        request = self._client.build_request(
            scope["method"], target, headers=headers, content=body if has_body else None
        )
        response = await self._client.send(request, stream=True)
        try:
            await _answer(response, send, INERT if service_of(scope) == "s3" else [])
        finally:
            await response.aclose()
        return response.status_code

    async def _head(self, path: str, scope: Scope) -> tuple[int, str] | None:
        """Size and ETag of an object in the emulator; None if there is no such object, or the emulator has ended."""
        import httpx

        headers = [(b"host", header(scope, b"host") or b""), (b"authorization", header(scope, b"authorization") or b"")]
        try:
            response = await self._client.head(self._url.copy_with(raw_path=path.encode("latin-1")), headers=headers)
        except httpx.HTTPError:  # the object was stored, so its event must not be lost
            return None
        if response.status_code != 200:
            return None
        return int(response.headers.get("content-length", 0)), response.headers.get("etag", "").strip('"')


def _copying_body(send: Send, answered: list[bytes]) -> Send:
    """Wrap `send` so that the body of the answer is also appended to `answered`."""

    async def copy_and_send(message: Message) -> None:
        answered.append(message.get("body", b""))
        await send(message)

    return copy_and_send


async def _body(receive: Receive) -> AsyncIterator[bytes]:
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        if message.get("body"):
            yield message["body"]
        more = message.get("more_body", False)


async def _answer(response: httpx.Response, send: Send, added: Headers) -> None:
    left_out = _OF_CONNECTION | _OF_EMULATOR
    headers: Headers = [(name.lower(), value) for name, value in response.headers.raw if name.lower() not in left_out]
    headers += added
    await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
    async for data in response.aiter_raw():
        await send({"type": "http.response.body", "body": data, "more_body": True})
    await send({"type": "http.response.body", "body": b""})
