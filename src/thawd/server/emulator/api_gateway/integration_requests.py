"""Sends the requests of integrations: to HTTP endpoints, and to AWS services through thawd's port."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from thawd.gateway.aws.api_messages import Headers
from thawd.resources import ACCOUNT_ID

# Services whose name in an integration's URI is not the name of botocore's model.
_MODELS = {"states": "stepfunctions"}
_BODILESS = ("GET", "HEAD", "OPTIONS")
_MOST_BYTES = 10 * 1024**2
_API = re.compile(r"https?://(?P<id>[a-z0-9]+)\.execute-api\.[a-z0-9-]+\.amazonaws\.com(?::443)?(?P<path>/.*)?")


class EndpointFailed(Exception):
    """The endpoint cannot be reached, or its answer is too large; the message says why."""


class EndpointTimeout(Exception):
    """The endpoint has not answered in time."""


@dataclass(slots=True)
class OutgoingRequest:
    """A request to an endpoint.

    Attributes:
        method: in upper case.
        url: URL without a query string.
        query: values of each parameter of the query string.
        headers: as sent.
        body: as sent; not sent with GET, HEAD and OPTIONS.
    """

    method: str
    url: str
    query: dict[str, list[str]] = field(default_factory=dict)
    headers: Headers = field(default_factory=list)
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class EndpointAnswer:
    """The answer of an endpoint.

    Attributes:
        status: HTTP status.
        headers: as received.
        body: as received; a content encoding is not removed.
    """

    status: int
    headers: Headers
    body: bytes

    def by_name(self) -> dict[str, list[str]]:
        """Return the values of each header, by its name in lower case."""
        values: dict[str, list[str]] = {}
        for name, value in self.headers:
            values.setdefault(name.lower(), []).append(value)
        return values


def send(request: OutgoingRequest, *, timeout_s: float) -> EndpointAnswer:
    """Send a request and wait for the whole answer. Redirections are not followed.

    Raises:
        EndpointFailed: the endpoint cannot be reached, or its answer has more than 10 MB.
        EndpointTimeout: it has not answered in time.
    """
    import httpx

    content = None if request.method in _BODILESS else request.body
    with httpx.Client(timeout=timeout_s, trust_env=False, follow_redirects=False) as client:
        client.headers.clear()
        try:
            url = httpx.URL(request.url)
            if request.query:
                url = url.copy_merge_params({name: list(values) for name, values in request.query.items()})
            made = client.build_request(request.method, url, headers=request.headers, content=content)
            answer = client.send(made, stream=True)
            body = bytearray()
            for part in answer.iter_raw():
                body += part
                if len(body) > _MOST_BYTES:
                    raise EndpointFailed(f"the answer of {request.url} has more than {_MOST_BYTES} bytes")
            answer.close()
        except httpx.TimeoutException as error:
            raise EndpointTimeout(f"{request.url} has not answered within {timeout_s:g} s") from error
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            raise EndpointFailed(f"{request.url} cannot be reached: {error}") from error
    headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in answer.headers.raw]
    return EndpointAnswer(answer.status_code, headers, bytes(body))


def local_request(request: OutgoingRequest, connection: Callable[[], Mapping[str, str]]) -> OutgoingRequest:
    """The request, addressed to thawd's port if it is for an API that the emulator has; others stay as they are.

    Args:
        request: the request.
        connection: returns the ``url`` of thawd's port.
    """
    found = _API.fullmatch(request.url)
    if found is None or not _is_emulated(found["id"]):
        return request
    return replace(
        request, url=f"{connection()['url'].rstrip('/')}/_aws/execute-api/{found['id']}{found['path'] or '/'}"
    )


def _is_emulated(identifier: str) -> bool:
    from moto.apigateway.models import apigateway_backends
    from moto.apigatewayv2.models import apigatewayv2_backends

    rest, http = apigateway_backends[ACCOUNT_ID].values(), apigatewayv2_backends[ACCOUNT_ID].values()
    return any(identifier in each.apis for each in rest) or any(identifier in each.apis for each in http)


def service_request(uri: str, request: OutgoingRequest, connection: Mapping[str, str]) -> OutgoingRequest:
    """Return the request to an AWS service that an integration's URI names, signed and addressed to thawd's port.

    Args:
        uri: ``arn:aws:apigateway:REGION:SERVICE:path/PATH`` or ``...:action/NAME``.
        request: method, query string, headers and body that the integration has made; its URL is ignored.
        connection: ``url`` of thawd's port, ``access_key`` and ``secret``.

    Raises:
        ValueError: the URI has another form, or AWS has no such service.
    """
    import botocore.session
    from botocore.auth import S3SigV4Auth, SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials
    from botocore.exceptions import BotoCoreError

    place, slash, rest = uri.partition("/")
    parts = place.split(":")
    if len(parts) != 6 or not slash or parts[5] not in ("path", "action"):
        raise ValueError(f"{uri} is no URI of an AWS service")
    region, service, kind = parts[3], parts[4], parts[5]
    headers = [(name, value) for name, value in request.headers if name.lower() not in ("host", "authorization")]
    query = dict(request.query)
    path = f"/{rest}" if kind == "path" else "/"
    if kind == "action":
        try:
            model = botocore.session.get_session().get_service_model(_MODELS.get(service, service))
        except BotoCoreError as error:
            raise ValueError(f"AWS has no service {service}") from error
        _address_action(model, rest, headers, query)
    url = connection["url"].rstrip("/") + path
    signed = AWSRequest(request.method, url, dict(headers), request.body, params=_flat(query))
    auth: Any = S3SigV4Auth if service == "s3" else SigV4Auth
    auth(Credentials(connection["access_key"], connection["secret"]), service, region).add_auth(signed)
    return OutgoingRequest(request.method, url, query, list(signed.headers.items()), request.body)


def _address_action(model: Any, action: str, headers: Headers, query: dict[str, list[str]]) -> None:
    """Add what names the action, as the service's protocol has it."""
    names = {name.lower() for name, _ in headers}
    prefix = model.metadata.get("targetPrefix")
    if prefix:
        if "x-amz-target" not in names:
            headers.append(("X-Amz-Target", f"{prefix}.{action}"))
        version = model.metadata.get("jsonVersion", "1.0")
        kept = [(name, value) for name, value in headers if name.lower() != "content-type"]
        headers[:] = [*kept, ("Content-Type", f"application/x-amz-json-{version}")]
    else:
        query.setdefault("Action", [action])
        query.setdefault("Version", [model.metadata["apiVersion"]])


def _flat(query: Mapping[str, list[str]]) -> dict[str, str]:
    return {name: values[-1] for name, values in query.items()}
