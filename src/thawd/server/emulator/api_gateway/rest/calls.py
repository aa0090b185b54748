"""A request to a method of a REST API, in the terms of API Gateway: parameters, ``$context``, headers. No side effects.

Source: API Gateway developer guide, "Variables for data transformations for API Gateway" and "Important notes" (headers
that API Gateway drops); the treatment of slashes and of the percent encoding was recorded on AWS.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass, field
from urllib.parse import parse_qsl

from thawd.gateway.aws.api_messages import ApiRequest
from thawd.gateway.routes.payload_formats import request_time
from thawd.invocation import new_request_id
from thawd.resources import ACCOUNT_ID, REGION
from thawd.server.emulator.api_gateway.rest.definitions import Fields, RestDefinition

# Headers that no integration and no mapping gets.
_DROPPED = frozenset(
    {
        "connection",
        "content-length",
        "content-md5",
        "expect",
        "max-forwards",
        "proxy-authenticate",
        "server",
        "te",
        "transfer-encoding",
        "trailer",
        "upgrade",
        "www-authenticate",
    }
)
_IDENTITY = (
    "cognitoIdentityPoolId",
    "accountId",
    "cognitoIdentityId",
    "caller",
    "principalOrgId",
    "accessKey",
    "cognitoAuthenticationType",
    "cognitoAuthenticationProvider",
    "userArn",
    "user",
)


@dataclass(frozen=True, slots=True)
class RestStage:
    """A stage of a REST API, and what it serves.

    Attributes:
        api_id: id of the API.
        name: name of the stage.
        deployment_id: id of the deployment that the stage serves.
        variables: stage variables.
        definition: the deployed definition.
    """

    api_id: str
    name: str
    deployment_id: str
    variables: dict[str, str]
    definition: RestDefinition


@dataclass(slots=True)
class RestCall:
    """A request to a REST API, while it is served.

    Attributes:
        request: as received.
        stage: the stage.
        base_path: path of the base path mapping of a custom domain, without slashes; None: the request has none.
        path: percent-encoded path after the stage.
        headers: values of each header, by its name as HTTP/1.1 clients usually write it.
        query: values of each parameter of the query string.
        resource: the resource that matched: ``path`` and ``methods``.
        method: the fields of the method that matched.
        path_parameters: percent-encoded, as on AWS.
        context: ``$context``.
    """

    request: ApiRequest
    stage: RestStage
    base_path: str | None
    path: str
    headers: dict[str, list[str]]
    query: dict[str, list[str]]
    context: Fields
    resource: Fields = field(default_factory=dict)
    method: Fields = field(default_factory=dict)
    path_parameters: dict[str, str] = field(default_factory=dict)

    @property
    def integration(self) -> Fields:
        """The method's integration."""
        found: Fields = self.method.get("methodIntegration") or {}
        return found

    @property
    def body_text(self) -> str:
        """The body as text."""
        return self.request.body.decode("utf-8", "replace")

    @property
    def content_type(self) -> str:
        """The body's media type, without parameters; JSON if the request names none."""
        return media_type(self.request.header("content-type") or "") or "application/json"

    def last_headers(self) -> dict[str, str]:
        """Return the last value of each header."""
        return {name: values[-1] for name, values in self.headers.items()}

    def last_query(self) -> dict[str, str]:
        """Return the last value of each parameter of the query string."""
        return {name: values[-1] for name, values in self.query.items()}

    def header(self, name: str) -> str | None:
        """Return the last value of a header, by its name in any case."""
        return self.request.header(name.lower())

    def method_arn(self) -> str:
        """Return the ARN of the method and path, for authorizers."""
        place = f"{self.stage.api_id}/{self.stage.name}/{self.request.method}/{self.path.strip('/')}"
        return f"arn:aws:execute-api:{REGION}:{ACCOUNT_ID}:{place}"


def call_of(request: ApiRequest, stage: RestStage, *, path: str, base_path: str | None, now_s: float) -> RestCall:
    """Return the call that a request is.

    Args:
        request: as received.
        stage: the stage.
        path: percent-encoded path after the stage, as sent.
        base_path: path of the base path mapping of a custom domain, without slashes; None: no custom domain is used.
        now_s: seconds since the epoch.
    """
    headers = headers_of(request)
    query: dict[str, list[str]] = {}
    for name, value in parse_qsl(request.query, keep_blank_values=True, errors="replace"):
        query.setdefault(name, []).append(value)
    shown = stage.name if base_path is None else base_path
    domain = domain_of(request, stage.api_id)
    request_id = new_request_id()
    identity: Fields = dict.fromkeys(_IDENTITY)
    identity |= {"sourceIp": request.source_ip, "userAgent": request.header("user-agent")}
    context: Fields = {
        "accountId": ACCOUNT_ID,
        "apiId": stage.api_id,
        "deploymentId": stage.deployment_id,
        "domainName": domain,
        "domainPrefix": domain.partition(".")[0],
        "extendedRequestId": extended_id(request_id),
        "httpMethod": request.method,
        "identity": identity,
        "path": f"/{shown}{path}" if shown else path or "/",
        "protocol": request.protocol,
        "requestId": request_id,
        "requestTime": request_time(now_s),
        "requestTimeEpoch": int(now_s * 1000),
        "stage": stage.name,
    }
    inner = "/" + path.lstrip("/")
    return RestCall(request, stage, base_path, inner, headers, query, context)


def headers_of(request: ApiRequest) -> dict[str, list[str]]:
    """Return the values of each header that an integration may get, by name as HTTP/1.1 clients usually write it."""
    values: dict[str, list[str]] = {}
    for name, value in request.headers:
        if name not in _DROPPED:
            values.setdefault(titled(name), []).append(value)
    port = (request.header("host") or "").rpartition(":")[2]
    values.setdefault("X-Forwarded-For", [request.source_ip])
    values.setdefault("X-Forwarded-Port", [port if port.isdigit() else "80"])
    values.setdefault("X-Forwarded-Proto", ["http"])
    return dict(sorted(values.items()))


def domain_of(request: ApiRequest, api_id: str) -> str:
    """Return the host name of an API: the one that the client used, or AWS's if the path named the API."""
    if request.in_host:
        return (request.header("host") or "").partition(":")[0].lower()
    return request.identifier if "." in request.identifier else f"{api_id}.execute-api.{REGION}.amazonaws.com"


def titled(name: str) -> str:
    """Return a header's name as HTTP/1.1 clients usually write it: ``content-type`` as ``Content-Type``."""
    return "-".join(part.capitalize() for part in name.split("-"))


def media_type(content_type: str) -> str:
    """Return the media type of a ``Content-Type``, in lower case and without parameters."""
    return content_type.partition(";")[0].strip().lower()


def is_binary(content_type: str | None, binary_types: list[str]) -> bool:
    """Return whether a media type is one of an API's binary media types."""
    kind = media_type(content_type or "")
    for one in binary_types:
        wanted = one.lower()
        if wanted in (kind, "*/*") or (kind and wanted.endswith("/*") and kind.startswith(wanted[:-1])):
            return True
    return False


def extended_id(request_id: str) -> str:
    """Return an extended request id, in the form of AWS's, that belongs to a request id."""
    return base64.b64encode(hashlib.sha256(request_id.encode()).digest()[:11]).decode()
