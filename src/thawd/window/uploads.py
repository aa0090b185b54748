"""Reads forms, also those with a file, and makes an HTTP event of a file. No side effects.

Source: RFC 7578, "multipart/form-data"; WHATWG URL, "application/x-www-form-urlencoded".
"""

from __future__ import annotations

import email.message
import email.parser
import email.policy
import time
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, quote

import msgspec

from thawd.errors import InvalidParameterValueException
from thawd.gateway.routes import payload_format_2
from thawd.gateway.routes.payload_formats import IntegrationRequest

_MOST_FIELDS = 50


@dataclass(slots=True)
class Form:
    """A form that a browser has sent.

    Attributes:
        fields: values by name.
        file: content of the file; None: there is none.
        file_type: content type of the file.
    """

    fields: dict[str, str] = field(default_factory=dict)
    file: bytes | None = None
    file_type: str = "application/octet-stream"


def form_of(content_type: str, body: bytes) -> Form:
    """Return the form in a request's body.

    Args:
        content_type: header of the request.
        body: body of the request.

    Raises:
        InvalidParameterValueException: the body is no form (400).
    """
    if not content_type.lower().startswith("multipart/form-data"):
        try:
            pairs = parse_qsl(body.decode("latin-1"), keep_blank_values=True, max_num_fields=_MOST_FIELDS)
        except ValueError:
            raise _no_form() from None
        return Form(dict(pairs))
    boundary = _headers(f"content-type: {content_type}".encode("latin-1")).get_boundary()
    if boundary is None:
        raise _no_form()
    # The email package would read a file of type message/rfc822, too, and needs much memory for a file of short lines.
    separator = b"\r\n--" + boundary.encode("latin-1", "replace")
    pieces = (b"\r\n" + body).split(separator, _MOST_FIELDS + 1)  # what precedes the first part, parts, the end
    if len(pieces) < 3 or not pieces[-1].startswith(b"--"):
        raise _no_form()
    form = Form()
    for part in pieces[1:-1]:
        head, _, content = part.partition(b"\r\n\r\n")
        headers = _headers(head.partition(b"\r\n")[2])
        name = headers.get_param("name", header="content-disposition")
        if not isinstance(name, str):
            continue
        if headers.get_filename() is None:
            form.fields[name] = content.decode("utf-8", "replace")
        elif content or headers.get_filename():
            form.file, form.file_type = content, headers.get_content_type()
    return form


def _headers(head: bytes) -> email.message.Message:
    return email.parser.BytesHeaderParser(policy=email.policy.HTTP).parsebytes(head + b"\r\n\r\n")


def _no_form() -> InvalidParameterValueException:
    return InvalidParameterValueException("The body of the request is no form that a browser sends")


def http_event(file: bytes, file_type: str, path: str) -> bytes:
    """Return the event of an HTTP request that posts a file, in payload format 2.0.

    Args:
        file: the body of the request.
        file_type: its content type.
        path: the request's path.
    """
    request = IntegrationRequest(
        method="POST",
        raw_path=quote(f"/{path.lstrip('/')}"),
        query="",
        headers=[(b"content-type", file_type.encode("latin-1", "replace")), (b"host", b"localhost")],
        body=file,
        source_ip="127.0.0.1",
        protocol="HTTP/1.1",
        route_key="$default",
        path_parameters={},
    )
    return msgspec.json.encode(payload_format_2.event(request, now_s=time.time()))
