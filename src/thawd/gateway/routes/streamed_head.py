"""Parses streamed HTTP answers: status, headers and cookies as JSON (the prelude), eight NUL bytes, then the body.

Source: AWS Lambda developer guide, "Response streaming for Lambda functions"; content type
``application/vnd.awslambda.http-integration-response``.
"""

from __future__ import annotations

from thawd.gateway.routes.payload_format_2 import head_of
from thawd.gateway.routes.payload_formats import WITHOUT_BODY, Headers, MalformedResponseError, Response, decode_answer
from thawd.streaming import HTTP_RESPONSE, SEPARATOR

_MAX_BYTES = 256 << 10


class Prelude:
    """Reads an answer part by part until its prelude is complete.

    Attributes:
        status: HTTP status, once `feed` has returned bytes.
        headers: as sent, once `feed` has returned bytes.
    """

    def __init__(self) -> None:
        self.status = 200
        self.headers: Headers = []
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
        if not any(name == b"content-type" for name, _ in self.headers):
            self.headers.append((b"content-type", b"application/octet-stream"))
        return bytes(self._read[at + len(SEPARATOR) :])


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
    return Response(prelude.status, prelude.headers, b"" if prelude.status in WITHOUT_BODY else body)
