"""Passes requests to emulated APIs of API Gateway on to the emulator, which serves them.

As on AWS, the API itself decides who may call it, by its authorizers and API keys. thawd adds one rule, because with
``--aws`` it has no key: a web page of another site may call only APIs whose CORS settings allow that site.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from thawd.errors import RequestTooLargeException, ThawdError
from thawd.gateway.aws.api_messages import (
    DOMAINS_PATH,
    EXECUTE_PATH,
    INTERNAL_HEADER,
    ApiAddress,
    ApiRequest,
    api_of,
    decoded_response,
    encoded,
)
from thawd.gateway.function_urls.events_and_responses import Caller
from thawd.gateway.hosts import is_loopback_name, may_ask, name_in
from thawd.gateway.http import (
    Budget,
    ClientGoneError,
    Receive,
    Scope,
    Send,
    header,
    raw_path_of,
    read_body,
    respond,
    respond_error,
    respond_json,
    trace_of,
)
from thawd.gateway.role_keys import RoleKeys
from thawd.gateway.sigv4 import SignatureError, SignedRequest, is_signed, verify
from thawd.invocation import new_request_id

if TYPE_CHECKING:
    import httpx

MAX_BODY_BYTES = 10 * 1024**2
"""Size of the largest request body. Source: API Gateway developer guide, "Quotas", payload size."""
# Longer than the longest integration time-out that API Gateway allows, five minutes, and an authorizer before it.
_ANSWER_S = 400.0
_INTERNAL = {INTERNAL_HEADER: "1"}


class CustomDomains:
    """The custom domain names of emulated APIs.

    The emulator is asked for the names when a request has a host name that nothing else explains. They are kept until a
    request may have changed them: every request to API Gateway's own API passes through thawd, also those for stacks.

    Args:
        client: HTTP client.
        url: URL of the emulator.
    """

    def __init__(self, client: httpx.AsyncClient, url: httpx.URL) -> None:
        self._client = client
        self._url = url.copy_with(raw_path=DOMAINS_PATH.encode())
        self._names: frozenset[str] | None = None
        self._changes = 0

    def changed(self) -> None:
        """Record that the names may have changed."""
        self._changes += 1
        self._names = None

    async def has(self, name: str) -> bool:
        """Whether the host name `name` is a custom domain name."""
        import httpx

        names = self._names
        if names is None:
            changes = self._changes
            try:
                response = await self._client.get(self._url, headers=_INTERNAL)
                names = frozenset(response.raise_for_status().json())
            except httpx.HTTPError:  # without the emulator there are no APIs
                return False
            if changes == self._changes:
                self._names = names
        return name in names


class EmulatedApis:
    """Serves requests to emulated APIs.

    Args:
        client: HTTP client for the emulator.
        url: URL of the emulator.
        domains: the custom domain names.
        keys: the access keys with which requests may be signed.
        budget: limits the memory for request bodies.
    """

    def __init__(
        self, client: httpx.AsyncClient, url: httpx.URL, domains: CustomDomains, *, keys: RoleKeys, budget: Budget
    ) -> None:
        self._client = client
        self._url = url.copy_with(raw_path=EXECUTE_PATH.encode())
        self._domains = domains
        self._keys = keys
        self._budget = budget

    def may_be_addressed(self, scope: Scope) -> bool:
        """Whether a request may be for an API; if not, `addressed` returns None for it."""
        host = (header(scope, b"host") or b"").decode("latin-1")
        return _may_be_domain(name_in(host)) or api_of(host, raw_path_of(scope)) is not None

    async def addressed(self, scope: Scope) -> ApiAddress | None:
        """The API that a request is for; None: it is for no API. An API with this id need not exist."""
        host = (header(scope, b"host") or b"").decode("latin-1")
        raw_path = raw_path_of(scope)
        found = api_of(host, raw_path)
        name = name_in(host)
        if found is None and _may_be_domain(name) and await self._domains.has(name):
            return ApiAddress(name, raw_path, in_host=True)
        return found

    async def __call__(self, scope: Scope, receive: Receive, send: Send, *, address: ApiAddress) -> None:
        """Serve one request; errors are answered, not raised."""
        import httpx

        try:
            with self._budget.hold(scope, most_bytes=MAX_BODY_BYTES):
                body = await read_body(scope, receive, limit_bytes=MAX_BODY_BYTES, operation="execute-api")
                passed = encoded(_request(scope, address, body, self._keys))
                response = await self._client.post(self._url, content=passed, headers=_INTERNAL, timeout=_ANSWER_S)
                made = decoded_response(response.raise_for_status().content)
        except RequestTooLargeException:
            message = f"HTTP content length exceeded {MAX_BODY_BYTES} bytes."
            await respond_json(send, 413, {"message": message})
        except ThawdError as error:
            await respond_error(send, error, request_id=new_request_id())
        except httpx.HTTPError as error:
            await respond_json(send, 502, {"message": f"The AWS emulator (--aws) does not answer: {error!r}"})
        except ClientGoneError:
            return
        else:
            headers = [(name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in made.headers]
            await respond(send, made.status, headers, made.body)


def _may_be_domain(name: str) -> bool:
    return bool(name) and (name.endswith(".localhost") or not is_loopback_name(name))


def _request(scope: Scope, address: ApiAddress, body: bytes, keys: RoleKeys) -> ApiRequest:
    headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
    if header(scope, b"x-amzn-trace-id") is None:
        headers.append(("x-amzn-trace-id", trace_of(scope).partition(";")[0]))
    origin = (header(scope, b"origin") or b"null").decode("latin-1")
    return ApiRequest(
        identifier=address.identifier,
        in_host=address.in_host,
        method=scope["method"],
        path=address.path,
        sent_path=raw_path_of(scope),
        query=scope["query_string"].decode("latin-1"),
        headers=headers,
        source_ip=(scope.get("client") or ("127.0.0.1", 0))[0],
        protocol=f"HTTP/{scope.get('http_version', '1.1')}",
        foreign_origin="" if may_ask(scope, allows=lambda _: False) else origin,
        signer=_signer(scope, body, keys),
        body=body,
    )


def _signer(scope: Scope, body: bytes, keys: RoleKeys) -> dict[str, Any]:
    """The signer of a request, as `ApiRequest.signer` has it."""
    signed = SignedRequest(
        scope["method"], raw_path_of(scope), scope["query_string"].decode("latin-1"), scope["headers"], body
    )
    if not is_signed(signed):
        return {}
    try:
        access_key = verify(signed, keys, now_s=time.time(), service="execute-api")
    except SignatureError as error:
        return {"error": str(error) or error.code}
    return Caller(access_key, keys.identity(access_key)).described()
