"""S3's XML: error documents and the listing of a bucket. Pure.

Source: Amazon S3 API reference, "Error responses" and "ListObjectsV2".
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from urllib.parse import quote
from xml.sax.saxutils import escape

import msgspec

from thawd.state.objects import ObjectRecord

_HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n'
_NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"


class S3Error(Exception):
    """An answer that is an error: code, HTTP status and message, which says what happened and what to do."""

    def __init__(self, status: int, code: str, message: str, *, headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
        super().__init__(message)
        self.headers = headers
        self.status = status
        self.code = code
        self.message = message

    def document(self, *, resource: str, request_id: str) -> bytes:
        """The error as S3 sends it."""
        fields = {"Code": self.code, "Message": self.message, "Resource": resource, "RequestId": request_id}
        return (_HEAD + f"<Error>{_elements(fields)}</Error>").encode()


class Listing(msgspec.Struct, kw_only=True):
    """One page of a bucket's objects.

    Attributes:
        bucket: its name.
        prefix: the prefix asked for.
        delimiter: the delimiter asked for, or empty.
        max_keys: the most entries asked for.
        url_encoded: whether keys are sent URL-encoded; those that are no text always are then.
        objects: the objects of this page.
        prefixes: the common prefixes of this page.
        echoed: parameters of the request that the answer repeats.
        next_token: where the next page begins, or None when this is the last.
    """

    bucket: str
    prefix: bytes
    delimiter: bytes
    max_keys: int
    url_encoded: bool
    objects: Sequence[ObjectRecord]
    prefixes: Sequence[bytes]
    echoed: dict[str, str]
    next_token: str | None

    def document(self) -> bytes:
        """The page as S3 sends it."""
        fields = {
            "Name": self.bucket,
            "Prefix": self._text(self.prefix),
            "MaxKeys": str(self.max_keys),
            "KeyCount": str(len(self.objects) + len(self.prefixes)),
            "IsTruncated": "true" if self.next_token else "false",
            **self.echoed,
        }
        if self.delimiter:
            fields["Delimiter"] = self._text(self.delimiter)
        if self.url_encoded:
            fields["EncodingType"] = "url"
        if self.next_token:
            fields["NextContinuationToken"] = self.next_token
        parts = [_elements(fields)]
        parts += [f"<Contents>{_elements(self._entry(record))}</Contents>" for record in self.objects]
        parts += [
            f"<CommonPrefixes>{_elements({'Prefix': self._text(prefix)})}</CommonPrefixes>" for prefix in self.prefixes
        ]
        return (_HEAD + f'<ListBucketResult xmlns="{_NAMESPACE}">{"".join(parts)}</ListBucketResult>').encode()

    def _entry(self, record: ObjectRecord) -> dict[str, str]:
        at = datetime.fromtimestamp(record.mtime_ns / 1e9, UTC)
        return {
            "Key": self._text(record.key),
            "LastModified": at.isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z",
            "ETag": f'"{record.etag}"',
            "Size": str(record.size),
            "StorageClass": "STANDARD",
        }

    def _text(self, key: bytes) -> str:
        return quote(key, safe="/") if self.url_encoded else key.decode("utf-8", "replace")


def _elements(fields: dict[str, str]) -> str:
    return "".join(f"<{name}>{_xml_text(value)}</{name}>" for name, value in fields.items())


def _xml_text(value: str) -> str:
    """Escaped; characters that XML 1.0 cannot hold become U+FFFD."""
    clean = "".join(char if char >= " " or char in "\t\n\r" else "\ufffd" for char in value)
    return escape(clean, {"\r": "&#13;"}).encode("utf-8", "replace").decode()
