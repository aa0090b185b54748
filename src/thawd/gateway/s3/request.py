"""A request of an S3 client, parsed into bucket, key, parameters and headers, and the answers to it."""

from __future__ import annotations

from urllib.parse import parse_qsl, unquote_to_bytes

from thawd.gateway.http import Headers, Receive, Scope, Send, raw_path_of, respond
from thawd.gateway.s3.xml import S3Error
from thawd.gateway.sigv4 import claimed_service
from thawd.invocation import new_request_id

XML = (b"content-type", b"application/xml")
# Parameters of a presigned URL that do not belong to the operation: those of a signature (version 4 or 2), and headers
# that the URL contains as parameters because they are signed.
_OF_HEADERS = "x-amz-"
_OF_SIGNATURES = {"awsaccesskeyid", "signature", "expires", "content-type", "content-md5"}
# A parameter with the operation's name, which some SDKs add for the server's logs.
_HINT = "x-id"


class S3Request:
    """One request in S3's path style, in which the URL's path is ``/{bucket}/{key}``.

    Attributes:
        method: in upper case.
        bucket: first part of the path, decoded.
        key: the rest of the path, decoded to bytes; empty if the request is for the bucket itself.
        query: query parameters without those of the signature, ``x-amz-`` and ``x-id``; bytes that are not
            UTF-8 become surrogates.
        headers: by name in lower case; of several headers with one name, only the last.
        scope: the request's ASGI scope.
        asked: all ``x-amz-`` headers and parameters (a presigned URL has headers as parameters); names in lower case.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw = raw_path_of(scope).encode("latin-1")
        bucket, _, key = raw.removeprefix(b"/").partition(b"/")
        self.method: str = scope["method"]
        self.bucket = unquote_to_bytes(bucket).decode("utf-8", "replace")
        self.key = unquote_to_bytes(key)
        pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True, errors="surrogateescape")
        self.query = {name: value for name, value in pairs if is_of_operation(name.lower())}
        self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        given = [*((name.lower(), value) for name, value in pairs), *self.headers.items()]
        self.asked = {name: value for name, value in given if name.startswith(_OF_HEADERS)}
        self.scope = scope
        self.send = send
        self.receive = receive
        self._request_id = new_request_id().replace("-", "")[:16].upper()
        self._resource = raw.decode("latin-1")

    def require_only(self, allowed: set[str]) -> None:
        """Refuse a request with parameters not in `allowed`: they ask for an operation that thawd does not support.

        Raises:
            S3Error: NotImplemented (501).
        """
        unknown = sorted(set(self.query) - allowed)
        if unknown:
            raise S3Error(501, "NotImplemented", f"This operation is not supported: {self.method} with ?{unknown[0]}")

    def common_headers(self) -> Headers:
        """The headers that every answer has."""
        return [(b"x-amz-request-id", self._request_id.encode())]

    async def answer(self, status: int, headers: Headers | None = None, body: bytes = b"") -> None:
        """Send a complete answer."""
        await respond(self.send, status, [*self.common_headers(), *(headers or [])], body)

    async def refuse(self, error: S3Error) -> None:
        """Send an error as S3 does; the connection discards the rest of the request's body."""
        headers = [XML, *error.headers]
        if error.status == 503:
            headers.append((b"retry-after", b"1"))
        body = b"" if self.method == "HEAD" or error.status == 304 else self.error_document(error)
        await self.answer(error.status, headers, body)

    def error_document(self, error: S3Error) -> bytes:
        """The XML document of an error."""
        return error.document(resource=self._resource, request_id=self._request_id)


def is_of_operation(parameter: str) -> bool:
    """Whether a query parameter, in lower case, belongs to the operation, and not to a signature."""
    return not (parameter.startswith(_OF_HEADERS) or parameter in _OF_SIGNATURES or parameter == _HINT)


def speaks_s3(scope: Scope) -> bool:
    """Whether a request is recognisably meant for S3, whatever its path.

    Such a request is signed for the service ``s3`` (version 4), or has a version 2 signature, which only S3 accepts.
    The signature is in a header or in the URL. An unsigned request is meant for S3 if it has the header
    ``x-amz-content-sha256``, in which S3 clients send the digest of the body.
    """
    headers = {name: value for name, value in scope["headers"] if name in (b"authorization", b"x-amz-content-sha256")}
    signature: str = headers.get(b"authorization", b"").decode("latin-1").strip()
    if signature.startswith("AWS4-"):
        return claimed_service(signature, "") == "s3"
    if signature:
        return signature.startswith("AWS ")
    if b"x-amz-content-sha256" in headers:
        return True
    if b"=" not in scope["query_string"]:
        return False
    query = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
    return "/s3/aws4_request" in query.get("X-Amz-Credential", "") or {"AWSAccessKeyId", "Signature"} <= query.keys()
