"""Parses streamed HTTP answers: status, headers and cookies as JSON (the prelude), eight NUL bytes, then the body.

Source: AWS Lambda developer guide, "Response streaming for Lambda functions"; content type
``application/vnd.awslambda.http-integration-response``.
"""

from __future__ import annotations

from typing import Any

from thawd.gateway.routes.payload_format_2 import head_of
from thawd.gateway.routes.payload_formats import (
    WITHOUT_BODY,
    Headers,
    MalformedResponseError,
    Response,
    decode_answer,
    multi_headers,
    wire_header,
)
from thawd.streaming import HTTP_RESPONSE, SEPARATOR

_MAX_BYTES = 256 << 10


class Prelude:
    """Reads an answer part by part until its prelude is complete.

    Attributes:
        status: HTTP status, once `feed` has returned bytes.
        headers: as sent, once `feed` has returned bytes.
        body_bytes: size of the body that the handler announces in ``content-length``; None: it announces none.
    """

    def __init__(self) -> None:
        self.status = 200
        self.headers: Headers = []
        self.body_bytes: int | None = None
        self._read = bytearray()

    def feed(self, data: bytes) -> bytes | None:
        """Read the next part of the answer.

        Returns:
            None: the prelude is still incomplete. Otherwise the bytes, perhaps none, that follow the prelude in `data`;
            they belong to the body.

        Raises:
            MalformedResponseError: the answer does not begin with a valid prelude.
        """
        searched = max(0, len(self._read) - len(SEPARATOR))
        self._read += data
        at = self._read.find(SEPARATOR, searched)
        if at < 0:
            if len(self._read) > _MAX_BYTES:
                raise MalformedResponseError(f"the prelude does not end with eight NUL bytes within {_MAX_BYTES} bytes")
            return None
        answer = decode_answer(bytes(self._read[:at]))
        if not isinstance(answer, dict):
            raise MalformedResponseError("the prelude is not a JSON object")
        self.status, self.headers = head_of({"statusCode": 200, **answer})
        self.headers += _repeated(answer.get("multiValueHeaders") or {})
        self.body_bytes = _announced(answer.get("headers"))
        if not any(name.lower() == "content-type" for name in answer.get("headers") or {}):
            self.headers.append((b"content-type", b"application/octet-stream"))
        return bytes(self._read[at + len(SEPARATOR) :])


def _repeated(values: Any) -> Headers:
    return [wire_header(name, text) for name, texts in multi_headers(values) for text in texts]


def _announced(headers: Any) -> int | None:
    """The body's size by ``content-length``."""
    for name, value in headers.items() if isinstance(headers, dict) else ():
        if name.lower() == "content-length" and str(value).isascii() and str(value).isdigit():
            return int(value)
    return None


def whole(content_type: str, payload: bytes) -> Response:
    """The response for a streaming handler's answer, if thawd has the whole answer before it sends any of it.

    Raises:
        MalformedResponseError: the content type announces a prelude, and the answer has none or a malformed one.
    """
    if content_type != HTTP_RESPONSE:
        return Response(200, [(b"content-type", content_type.encode())], payload)
    prelude = Prelude()
    body = prelude.feed(payload)
    if body is None:
        raise MalformedResponseError("the prelude does not end with eight NUL bytes")
    body = b"" if prelude.status in WITHOUT_BODY else body
    return Response(prelude.status, prelude.headers, body, prelude.body_bytes)
