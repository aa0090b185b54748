"""Requests made from AWS's service model without boto3, so that a case sees what is sent and what comes back.

Source: the service model that AWS publishes with botocore (`lambda/2015-03-31`).
"""

from __future__ import annotations

import base64
import functools
import http.client
import json
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

from botocore.model import OperationModel, ServiceModel
from botocore.session import get_session


@functools.cache
def model() -> ServiceModel:
    """Return AWS's model of the Lambda API."""
    return get_session().get_service_model("lambda")


@functools.cache
def operation(name: str) -> OperationModel:
    """Return an operation of the model."""
    return model().operation_model(name)


class Answer(NamedTuple):
    """An HTTP answer.

    Attributes:
        status: HTTP status.
        headers: by name in lower case.
        body: the body.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        """Return the body as JSON; an empty object if there is none."""
        return json.loads(self.body) if self.body else {}

    @property
    def code(self) -> str:
        """Return the error code; empty for an answer that is no error."""
        return self.headers.get("x-amzn-errortype", "")

    @property
    def message(self) -> str:
        """Return the error's message."""
        document = self.document
        return str(document.get("message", document.get("Message", "")))


class Request(NamedTuple):
    """An HTTP request: its method, path with query, and body."""

    method: str
    target: str
    body: bytes


def request_of(name: str, parameters: Mapping[str, Any]) -> Request:
    """Return the request of an operation; members may have any values, also such as the model does not allow."""
    described = operation(name)
    target, query, body = str(described.http["requestUri"]), [], {}
    members = {} if described.input_shape is None else described.input_shape.members
    for member, value in parameters.items():
        shape = members.get(member)
        where = None if shape is None else shape.serialization.get("location")
        wire_name = member if shape is None else shape.serialization.get("name", member)
        if where == "uri":
            target = target.replace(f"{{{wire_name}}}", quote(_text(value), safe=""))
        elif where == "querystring":
            query += [(wire_name, _text(item)) for item in (value if isinstance(value, list) else [value])]
        elif where is None:
            body[wire_name] = value
    if query:
        target += ("&" if "?" in target else "?") + urlencode(query)
    encoded = json.dumps(body, default=_plain).encode() if body or described.http["method"] in ("POST", "PUT") else b""
    return Request(described.http["method"], target, encoded)


def _text(value: Any) -> bytes:
    return (str(value).lower() if isinstance(value, bool) else str(value)).encode("utf-8", "surrogatepass")


def _plain(value: Any) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(type(value).__name__)


class Wire:
    """One connection to a server, opened again when the server closes it.

    Args:
        url: the server's URL.
        timeout_s: longest time for one answer, seconds.
    """

    def __init__(self, url: str, *, timeout_s: float = 60.0) -> None:
        self._host = urlsplit(url).netloc
        self._timeout_s = timeout_s
        self._connection: http.client.HTTPConnection | None = None

    def call(self, name: str, parameters: Mapping[str, Any]) -> Answer:
        """Call an operation."""
        return self.send(request_of(name, parameters))

    def send(self, request: Request, headers: Mapping[str, str] = {}) -> Answer:
        """Send a request; a connection that the server has closed is opened again, once."""
        given = {"content-type": "application/json", **headers}
        for is_last in (False, True):
            connection = self._connection
            if connection is None:
                connection = self._connection = http.client.HTTPConnection(self._host, timeout=self._timeout_s)
            try:
                connection.request(request.method, request.target, body=request.body or None, headers=given)
                answer = connection.getresponse()
                body = answer.read()
            except (http.client.RemoteDisconnected, ConnectionError):
                self.close()
                if is_last:
                    raise
                continue
            if answer.will_close:
                self.close()
            return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, body)
        raise AssertionError("unreachable")

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
