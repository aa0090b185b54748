"""S3's XML: makes error documents and parts of other documents; parses documents. No side effects.

Source: Amazon S3 API reference, "Error responses".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from xml.etree import ElementTree

from thawd.gateway.xml_text import xml_text

XML_HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n'
_NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"


class S3Error(Exception):
    """An error answer: code, HTTP status, and a message that says what happened and what to do."""

    def __init__(self, status: int, code: str, message: str, *, headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
        super().__init__(message)
        self.headers = headers
        self.status = status
        self.code = code
        self.message = message

    def document(self, *, resource: str, request_id: str) -> bytes:
        """The error as S3 sends it."""
        fields = {"Code": self.code, "Message": self.message, "Resource": resource, "RequestId": request_id}
        return (XML_HEAD + f"<Error>{elements(fields)}</Error>").encode()


def elements(fields: Mapping[str, str | bytes]) -> str:
    """Encode each field as one XML element; a value of type bytes is a key or a part of one."""
    return "".join(f"<{name}>{xml_text(text_of(value))}</{name}>" for name, value in fields.items())


def document(name: str, inner: str) -> bytes:
    """A complete document: the root element `name`, which has S3's namespace and contains `inner`."""
    return (XML_HEAD + f'<{name} xmlns="{_NAMESPACE}">{inner}</{name}>').encode()


def parse(body: bytes) -> ElementTree.Element:
    """Parse a document that a client sent.

    Raises:
        S3Error: the document is not XML in UTF-8, or has parts that can declare entities (400).
    """
    try:
        # The document is searched for "<!" below. expat, the parser, ignores the declared encoding of a str, but takes
        # a str that begins with "<\0" or "\0<" for UTF-16, so it would parse "<\0!", which the search does not find.
        # XML 1.0 allows no NUL, so a document with one is refused. Source: expat, xmltok_ns.c, initScan.
        text = body.decode("utf-8")
        if "\0" in text:
            raise S3Error(400, "MalformedXML", "The XML document contains a NUL character; send XML in UTF-8")
        # A DOCTYPE can declare entities. S3 clients send none, but attackers may.
        if "<!" in text:
            raise S3Error(
                400, "MalformedXML", "The XML document contains a DOCTYPE, a comment or CDATA; send it without these"
            )
        return ElementTree.fromstring(text)
    except (UnicodeDecodeError, ElementTree.ParseError) as error:
        raise S3Error(400, "MalformedXML", f"The XML document cannot be parsed: {error}; send XML in UTF-8") from None


def xml_time(at_s: float) -> str:
    """A time, seconds since the epoch, as S3 writes it."""
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def text_of(value: str | bytes) -> str:
    """`value` as text; bytes are a key or a part of one."""
    return value if isinstance(value, str) else value.decode("utf-8", "replace")
