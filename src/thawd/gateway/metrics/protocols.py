"""The three protocols of the CloudWatch API: CBOR (``rpc-v2-cbor``), JSON 1.0 and query. No side effects.

Current SDKs send CBOR, older ones query. Each protocol names the operation in its own way, and has its own form of
answers and errors.

Source: Smithy RPC v2 CBOR, AWS JSON 1.0 and AWS query protocols; "AWS Query-Compatible Trait".
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from thawd.errors import SerializationException
from thawd.gateway.http import Headers, Scope, header
from thawd.gateway.metrics import cbor
from thawd.gateway.metrics.cbor import Timestamp
from thawd.gateway.xml_text import xml_text

TARGET_PREFIX = "GraniteServiceVersion20100801."
_PATH = re.compile(r"/service/GraniteServiceVersion20100801/operation/(\w+)")
_XML_NAMESPACE = "http://monitoring.amazonaws.com/doc/2010-08-01/"
_MOST_FIELDS = 100_000
# The names of fields have fewer steps, such as those in ``MetricData.member.1.Dimensions.member.1.Name``.
_MOST_STEPS = 20
Shape = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class MetricsError:
    """An error as clients see it: its code, the name of its shape, its HTTP status, and its text."""

    code: str
    shape: str
    status: int
    message: str


class Protocol:
    """One protocol. The base class is AWS JSON 1.0."""

    content_type = b"application/x-amz-json-1.0"

    def operation(self, scope: Scope, body: bytes) -> str:
        """The operation that a request names; empty if it names none."""
        return (header(scope, b"x-amz-target") or b"").decode("latin-1").removeprefix(TARGET_PREFIX)

    def document(self, body: bytes, members: Mapping[str, Shape]) -> dict[str, Any]:
        """The input of a request.

        Raises:
            SerializationException: the body is not in the protocol's form (400).
        """
        try:
            document = json.loads(body or b"{}")
        except (ValueError, RecursionError) as error:
            raise SerializationException(str(error)) from None
        return _require_structure(document)

    def answer(self, operation: str, document: dict[str, Any] | None, request_id: str) -> tuple[Headers, bytes]:
        """Headers and body of an answer; the document is None if the operation has no output."""
        return self._headers(), msgspec.json.encode(document or {}, enc_hook=float)  # times are numbers of seconds

    def error(self, error: MetricsError, request_id: str) -> tuple[Headers, bytes]:
        """Headers and body of an error."""
        headers = [*self._headers(), (b"x-amzn-query-error", f"{error.code};{_fault(error)}".encode())]
        return headers, msgspec.json.encode({"__type": error.shape, "message": error.message})

    def _headers(self) -> Headers:
        return [(b"content-type", self.content_type)]


class CborProtocol(Protocol):
    """``rpc-v2-cbor``."""

    content_type = b"application/cbor"

    def operation(self, scope: Scope, body: bytes) -> str:
        """See `Protocol.operation`."""
        match = _PATH.fullmatch(scope["path"])
        return match[1] if match else ""

    def document(self, body: bytes, members: Mapping[str, Shape]) -> dict[str, Any]:
        """See `Protocol.document`."""
        try:
            return _require_structure(cbor.decode(body) if body else {})
        except cbor.CborError as error:
            raise SerializationException(str(error)) from None

    def answer(self, operation: str, document: dict[str, Any] | None, request_id: str) -> tuple[Headers, bytes]:
        """See `Protocol.answer`."""
        return self._headers(), cbor.encode(document or {})

    def error(self, error: MetricsError, request_id: str) -> tuple[Headers, bytes]:
        """See `Protocol.error`."""
        headers = [*self._headers(), (b"x-amzn-query-error", f"{error.code};{_fault(error)}".encode())]
        return headers, cbor.encode({"__type": f"com.amazonaws.cloudwatch#{error.shape}", "message": error.message})

    def _headers(self) -> Headers:
        return [(b"content-type", self.content_type), (b"smithy-protocol", b"rpc-v2-cbor")]


class QueryProtocol(Protocol):
    """AWS's query protocol: a form, answered with XML."""

    content_type = b"text/xml"

    def operation(self, scope: Scope, body: bytes) -> str:
        """See `Protocol.operation`."""
        return dict(_fields(scope, body)).get("Action", "")

    def document(self, body: bytes, members: Mapping[str, Shape]) -> dict[str, Any]:
        """See `Protocol.document`."""
        tree: dict[str, Any] = {}
        for name, value in _pairs(body):
            branch = tree
            *steps, last = name.split(".", _MOST_STEPS)
            for step in steps:
                branch = branch.setdefault(step, {})
                if not isinstance(branch, dict):
                    raise SerializationException(f"{name} is given twice")
            branch[last] = value
        return {name: _typed(shape, tree[name], name) for name, shape in members.items() if name in tree}

    def answer(self, operation: str, document: dict[str, Any] | None, request_id: str) -> tuple[Headers, bytes]:
        """See `Protocol.answer`."""
        result = "" if document is None else f"<{operation}Result>{_xml(document)}</{operation}Result>"
        text = (
            f'<{operation}Response xmlns="{_XML_NAMESPACE}">{result}<ResponseMetadata><RequestId>{request_id}'
            f"</RequestId></ResponseMetadata></{operation}Response>"
        )
        return self._headers(), text.encode()

    def error(self, error: MetricsError, request_id: str) -> tuple[Headers, bytes]:
        """See `Protocol.error`."""
        text = (
            f'<ErrorResponse xmlns="{_XML_NAMESPACE}"><Error><Type>{_fault(error)}</Type><Code>{error.code}</Code>'
            f"<Message>{xml_text(error.message)}</Message></Error><RequestId>{request_id}</RequestId></ErrorResponse>"
        )
        return self._headers(), text.encode()


def protocol_of(scope: Scope) -> Protocol:
    """The protocol of a request to the CloudWatch API."""
    if scope["path"].startswith("/service/"):
        return CborProtocol()
    return Protocol() if header(scope, b"x-amz-target") is not None else QueryProtocol()


def _fault(error: MetricsError) -> str:
    return "Sender" if error.status < 500 else "Receiver"


def _require_structure(document: Any) -> dict[str, Any]:
    if not isinstance(document, dict):
        raise SerializationException("Start of structure or map found where not expected")
    return document


def _fields(scope: Scope, body: bytes) -> list[tuple[str, str]]:
    return _pairs(body) or _pairs(scope["query_string"])


def _pairs(body: bytes) -> list[tuple[str, str]]:
    try:
        return parse_qsl(body.decode("latin-1"), keep_blank_values=True, max_num_fields=_MOST_FIELDS)
    except ValueError:
        raise SerializationException("The request has too many fields") from None


def _typed(shape: Shape, value: Any, name: str) -> Any:
    """Convert texts of a form to the types of their shapes."""
    kind = shape["type"]
    if kind == "list":
        members = value.get("member", {}) if isinstance(value, dict) else {}
        items = members if isinstance(members, dict) else {}
        numbered = sorted((int(index), item) for index, item in items.items() if re.fullmatch(r"\d{1,9}", index))
        return [_typed(shape["member"], item, f"{name}.{index}") for index, item in numbered]
    if kind == "structure":
        if not isinstance(value, dict):
            raise SerializationException(f"{name} must be a structure")
        members = shape["members"]
        return {each: _typed(members[each], item, f"{name}.{each}") for each, item in value.items() if each in members}
    if not isinstance(value, str):
        raise SerializationException(f"{name} must be a value")
    try:
        return _scalar(kind, value)
    except (ValueError, OverflowError):
        raise SerializationException(f"{value} is not a value for {name}") from None


def _scalar(kind: str, value: str) -> Any:
    if kind in ("integer", "long"):
        return int(value)
    if kind in ("double", "float"):
        return float(value)
    if kind == "boolean":
        return value.lower() == "true"
    if kind == "timestamp":
        at = datetime.fromisoformat(value.replace("Z", "+00:00"))
        return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp()
    return value


def _xml(value: Any) -> str:
    if isinstance(value, dict):
        return "".join(f"<{name}>{_xml(item)}</{name}>" for name, item in value.items())
    if isinstance(value, list):
        return "".join(f"<member>{_xml(item)}</member>" for item in value)
    if isinstance(value, Timestamp):
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(value))
    if isinstance(value, bool):
        return str(value).lower()
    return xml_text(str(value))
