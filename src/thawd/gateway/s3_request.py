"""A request of an S3 client, taken apart: bucket, key, parameters, headers; and how it is answered."""

from __future__ import annotations

from urllib.parse import parse_qsl, unquote_to_bytes

from thawd.gateway.http import Headers, Message, Receive, Scope, Send, respond
from thawd.gateway.s3_xml import S3Error
from thawd.invocation import new_request_id

XML = (b"content-type", b"application/xml")
# Signatures in the query, and a hint some SDKs add for the server's logs.
_IGNORED_PARAMETERS = ("x-amz-", "x-id")
_DRAINED_BYTES = 64 * 1024 * 1024
_OF_MULTIPART = {"uploads", "uploadId", "partNumber"}


class S3Request:
    """One request, path style.

    Attributes:
        method: in upper case.
        bucket: first part of the path, decoded.
        key: the rest of it, decoded to the bytes of a file name; empty for the bucket itself.
        query: parameters, without those of signatures; bytes that are no UTF-8 as surrogates.
        headers: names in lower case; the last of several wins.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw = (scope.get("raw_path") or scope["path"].encode()).split(b"?", 1)[0]
        bucket, _, key = raw.removeprefix(b"/").partition(b"/")
        self.method: str = scope["method"]
        self.bucket = unquote_to_bytes(bucket).decode("utf-8", "replace")
        self.key = unquote_to_bytes(key)
        pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True, errors="surrogateescape")
        self.query = {name: value for name, value in pairs if not name.lower().startswith(_IGNORED_PARAMETERS)}
        self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        self.send = send
        self._receive = receive
        self._begun = False
        self._ended = self.method not in ("PUT", "POST")
        self._request_id = new_request_id().replace("-", "")[:16].upper()
        self._resource = raw.decode("latin-1")

    def require_only(self, allowed: set[str]) -> None:
        """Refuse an operation that is asked for by a parameter nobody looks at.

        Raises:
            S3Error: NotImplemented (501).
        """
        unknown = sorted(set(self.query) - allowed)
        if not unknown:
            return
        if _OF_MULTIPART & set(unknown):
            raise S3Error(
                501,
                "NotImplemented",
                "Multipart uploads are not offered: send the object in one PUT, up to 5 GiB "
                "(with boto3: TransferConfig(multipart_threshold=5 * 1024**3))",
            )
        raise S3Error(501, "NotImplemented", f"This operation is not offered: {self.method} with ?{unknown[0]}")

    def common_headers(self) -> Headers:
        """Headers of every answer."""
        return [(b"x-amz-request-id", self._request_id.encode())]

    async def receive(self) -> Message:
        """The next message of the client."""
        self._begun = True
        message = await self._receive()
        self._ended = message["type"] != "http.request" or not message.get("more_body", False)
        return message

    async def answer(self, status: int, headers: Headers | None = None, body: bytes = b"") -> None:
        """Send a whole answer."""
        await respond(self.send, status, [*self.common_headers(), *(headers or [])], body)

    async def refuse(self, error: S3Error) -> None:
        """Send an error as S3 does."""
        headers = [XML, *error.headers]
        if error.status == 503:
            headers.append((b"retry-after", b"1"))
        if not await self._drain():
            headers.append((b"connection", b"close"))
        document = error.document(resource=self._resource, request_id=self._request_id)
        await self.answer(error.status, headers, b"" if self.method == "HEAD" or error.status == 304 else document)

    async def _drain(self) -> bool:
        """Read what is left of the body, so that the connection can go on; False when it cannot.

        A client that waits for leave to send its body is not given it: it may keep the body to itself.
        """
        if not self._begun and "expect" in self.headers:
            return self._ended
        left_bytes = _DRAINED_BYTES
        while not self._ended and left_bytes > 0:
            left_bytes -= len((await self.receive()).get("body", b""))
        return self._ended
