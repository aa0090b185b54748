"""Error documents in the protocols of AWS's services. No side effects.

A request shows its protocol in its headers; only whether a REST service answers in XML must be known by its name.

====================  ============================================================================================
protocol              how a request is recognised
====================  ============================================================================================
rpc-v2-cbor           header ``smithy-protocol``
json-1.0, json-1.1    header ``x-amz-target``; with ``application/x-amz-cbor-1.1`` the document is CBOR, too
query, ec2            a form as the body, or ``Action=`` in the query string
rest-xml              S3, CloudFront, Route 53
rest-json             every other request
====================  ============================================================================================

Source: Smithy specification, "AWS protocols"; Amazon S3, Amazon EC2 and AWS Query API references, "Error responses".
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus

from thawd.gateway.xml_text import xml_text

_JSON, _XML, _CBOR = "application/json", "text/xml", "application/cbor"
_REST_XML = ("s3", "cloudfront", "route53")
_LONGEST_SHORT = 23


@dataclass(frozen=True, slots=True)
class ServiceError:
    """An error.

    Attributes:
        code: AWS's error code.
        message: text for people.
        status: HTTP status of the answer.
        request_id: the request's id.
    """

    code: str
    message: str
    status: int
    request_id: str

    @property
    def fault(self) -> str:
        """Who is to blame, in AWS's words."""
        return "Sender" if self.status < HTTPStatus.INTERNAL_SERVER_ERROR else "Receiver"


@dataclass(frozen=True, slots=True)
class ProtocolOf:
    """The protocol of a request.

    Attributes:
        name: ``json``, ``cbor``, ``query``, ``ec2``, ``s3``, ``rest-xml`` or ``rest-json``.
        content_type: content type of its error documents.
    """

    name: str
    content_type: str

    def reads(self, body: bytes) -> bool:
        """Whether a client with this protocol can read `body` as the document of an error."""
        if self.content_type == _CBOR or "cbor" in self.content_type:
            return body[:1] >= b"\xa0" and not body.lstrip().startswith((b"{", b"<"))
        start = body.lstrip()[:64].lower()
        if self.content_type == _XML:
            return start.startswith(b"<") and not start.startswith((b"<!doctype", b"<html"))
        try:
            return isinstance(json.loads(body), dict)
        except ValueError:
            return False


def protocol_of(header: Callable[[str], str | None], *, service: str | None, query: str) -> ProtocolOf:
    """Return the protocol of a request.

    Args:
        header: returns a header by its name in lower case; None: the request has no such header.
        service: the service that the request's signature names; None: the request is unsigned.
        query: the query string.
    """
    content_type = (header("content-type") or "").partition(";")[0].strip().lower()
    if header("smithy-protocol") == "rpc-v2-cbor":
        return ProtocolOf("cbor", _CBOR)
    if header("x-amz-target"):
        if "cbor" in content_type:
            return ProtocolOf("json", content_type)
        return ProtocolOf("json", content_type if "json" in content_type else "application/x-amz-json-1.1")
    if content_type == "application/x-www-form-urlencoded" or query.startswith("Action=") or "&Action=" in query:
        return ProtocolOf("ec2" if service == "ec2" else "query", _XML)
    if service in _REST_XML:
        return ProtocolOf("s3" if service == "s3" else "rest-xml", _XML)
    return ProtocolOf("rest-json", _JSON)


def document(protocol: ProtocolOf, error: ServiceError) -> bytes:
    """Return the document of an error, for a request with this protocol."""
    if "cbor" in protocol.content_type:
        fields = {"__type": error.code, "message": error.message}
        return bytes([0xA0 + len(fields)]) + b"".join(_cbor_text(n) + _cbor_text(v) for n, v in fields.items())
    if protocol.content_type != _XML:
        return json.dumps({"__type": error.code, "message": error.message}).encode()
    said = f"<Code>{xml_text(error.code)}</Code><Message>{xml_text(error.message)}</Message>"
    identifier = xml_text(error.request_id)
    if protocol.name == "s3":
        text = f"<Error>{said}<RequestId>{identifier}</RequestId></Error>"
    elif protocol.name == "ec2":
        text = f"<Response><Errors><Error>{said}</Error></Errors><RequestID>{identifier}</RequestID></Response>"
    else:
        said = f"<Error><Type>{error.fault}</Type>{said}</Error>"
        text = f"<ErrorResponse>{said}<RequestId>{identifier}</RequestId></ErrorResponse>"
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}'.encode()


def headers(protocol: ProtocolOf, error: ServiceError) -> list[tuple[str, str]]:
    """Return the headers of an error's answer, for a request with this protocol."""
    made = [("Content-Type", protocol.content_type), ("x-amzn-RequestId", error.request_id)]
    made.append(("x-amzn-ErrorType", error.code))
    if protocol.name == "json":  # for services whose older clients expect the codes of the query protocol
        made.append(("x-amzn-query-error", f"{error.code};{error.fault}"))
    if protocol.name == "cbor":
        made.append(("smithy-protocol", "rpc-v2-cbor"))
    if protocol.name == "s3":
        made.append(("x-amz-request-id", error.request_id))
    return made


def _cbor_text(text: str) -> bytes:
    """Encode a text. Source: RFC 8949, 3.1, major type 3."""
    encoded = text.encode()
    if len(encoded) <= _LONGEST_SHORT:
        return bytes([0x60 + len(encoded)]) + encoded
    if len(encoded) <= 0xFF:
        return b"\x78" + bytes([len(encoded)]) + encoded
    return b"\x79" + len(encoded[:0xFFFF]).to_bytes(2, "big") + encoded[:0xFFFF]
