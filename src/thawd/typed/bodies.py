"""Parses bodies with several named fields: ``multipart/form-data`` and ``application/x-www-form-urlencoded``.

Source: RFC 7578, "Returning Values from Forms: multipart/form-data"; RFC 2046, 5.1.
"""

import re
from typing import Dict, List, NamedTuple, Optional
from urllib.parse import parse_qsl, unquote

_PARAMETER = re.compile(r';\s*([\w*-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^;]*))')
_MOST_PARTS = 1000


class BodyError(Exception):
    """A body cannot be parsed; the message says why."""


class Part(NamedTuple):
    """A field of a form.

    Attributes:
        data: its contents.
        filename: the file's name; None: it is no file.
        content_type: as the client says; empty if it says nothing.
    """

    data: bytes
    filename: Optional[str]
    content_type: str


def parameters_of(header: str) -> Dict[str, str]:
    """The parameters of a header's value, such as ``boundary`` of a content type; names in lower case."""
    found = {}
    for name, quoted, bare in _PARAMETER.findall(header):
        # Browsers escape a quotation mark as %22. A backslash is part of a file's name, unless it escapes one.
        found[name.lower()] = re.sub(r'\\(["\\])', r"\1", quoted) if quoted else bare.strip()
    return found


def urlencoded(body: bytes) -> Dict[str, List[Part]]:
    """The fields of a body that is encoded like a query string."""
    fields: Dict[str, List[Part]] = {}
    for name, value in parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True):
        fields.setdefault(name, []).append(Part(value.encode(), None, ""))
    return fields


def multipart(body: bytes, content_type: str) -> Dict[str, List[Part]]:
    """The fields of a multipart body.

    Raises:
        BodyError: the body is not what its content type says.
    """
    boundary = parameters_of(content_type).get("boundary", "").encode("latin-1", "replace")
    if not boundary:
        raise BodyError("the content type multipart/form-data has no boundary")
    delimiter = b"\r\n--" + boundary
    pieces = (b"\r\n" + body).split(delimiter)
    if len(pieces) < 2 or not pieces[-1].startswith(b"--"):
        raise BodyError("the multipart body does not end with its boundary")
    if len(pieces) > _MOST_PARTS:
        raise BodyError("the multipart body has more than %d parts" % _MOST_PARTS)
    fields: Dict[str, List[Part]] = {}
    for piece in pieces[1:-1]:
        head, separator, data = piece.partition(b"\r\n\r\n")
        if not separator:
            raise BodyError("a part of the multipart body has no end of its headers")
        headers = _headers(head)
        named = parameters_of(headers.get("content-disposition", ""))
        if "name" not in named:
            raise BodyError("a part of the multipart body has no name")
        filename = named.get("filename")
        if "filename*" in named:
            filename = unquote(named["filename*"].rpartition("'")[2])
        fields.setdefault(named["name"], []).append(Part(data, filename, headers.get("content-type", "")))
    return fields


def _headers(head: bytes) -> Dict[str, str]:
    headers = {}
    for line in head.decode("utf-8", "replace").split("\r\n"):
        name, colon, value = line.partition(":")
        if colon:
            headers[name.strip().lower()] = value.strip()
    return headers
