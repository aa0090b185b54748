"""ListObjectsV2 and ListObjects (pages of a bucket's recorded objects, by prefix and delimiter), and ListBuckets.

The time for a page depends on the number of its entries, not on the size of the bucket. The catalog is read from the
key at which the page begins, about 1,000 records at a time. If the last of these records belongs to a common prefix,
the other keys with this prefix are skipped.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Awaitable, Mapping, Sequence
from typing import Protocol
from urllib.parse import quote

import msgspec

from thawd.gateway.s3.request import XML, S3Request
from thawd.gateway.s3.xml import S3Error, document, elements, text_of, xml_time
from thawd.resources import ACCOUNT_ID, Bucket
from thawd.stores.objects.catalog import ObjectRecord, successor

MAX_KEYS = 1000
_PARAMETERS = {"prefix", "delimiter", "max-keys", "encoding-type"}
_OF_VERSION_1 = _PARAMETERS | {"marker"}
_OF_VERSION_2 = _PARAMETERS | {"list-type", "continuation-token", "start-after", "fetch-owner"}


class Listing(msgspec.Struct, kw_only=True):
    """One page of a bucket's objects.

    Attributes:
        bucket: the bucket's name.
        prefix: the requested prefix.
        delimiter: the requested delimiter, or empty.
        max_keys: the requested limit on entries.
        url_encoded: whether all keys are sent URL-encoded.
        objects: the objects of this page.
        prefixes: the common prefixes of this page.
        echoed: parameters of the request that the answer repeats; a value of type bytes is a key.
        following: name and value of the element that says where the next page begins; empty if this is the last page.
        counted: whether the document contains the number of entries, as in an answer to ListObjectsV2.
    """

    bucket: str
    prefix: bytes
    delimiter: bytes
    max_keys: int
    url_encoded: bool
    objects: Sequence[ObjectRecord]
    prefixes: Sequence[bytes]
    echoed: Mapping[str, str | bytes]
    following: Mapping[str, str | bytes]
    counted: bool

    def document(self) -> bytes:
        """The page as S3 sends it."""
        fields = {
            "Name": self.bucket,
            "Prefix": self._text(self.prefix),
            "MaxKeys": str(self.max_keys),
            "IsTruncated": "true" if self.following else "false",
            **{name: self._text(value) for name, value in (*self.echoed.items(), *self.following.items())},
        }
        if self.counted:
            fields["KeyCount"] = str(len(self.objects) + len(self.prefixes))
        if self.delimiter:
            fields["Delimiter"] = self._text(self.delimiter)
        if self.url_encoded:
            fields["EncodingType"] = "url"
        parts = [elements(fields)]
        parts += [f"<Contents>{elements(self._entry(record))}</Contents>" for record in self.objects]
        parts += [
            f"<CommonPrefixes>{elements({'Prefix': self._text(prefix)})}</CommonPrefixes>" for prefix in self.prefixes
        ]
        return document("ListBucketResult", "".join(parts))

    def _entry(self, record: ObjectRecord) -> dict[str, str]:
        return {
            "Key": self._text(record.key),
            "LastModified": xml_time(record.mtime_ns / 1e9),
            "ETag": f'"{record.etag}"',
            "Size": str(record.size),
            "StorageClass": "STANDARD",
        }

    def _text(self, value: str | bytes) -> str:
        """`value` as text. Bytes are a key or a part of one; they are URL-encoded if the client asked for that."""
        if isinstance(value, bytes) and self.url_encoded:
            return quote(value, safe="/")
        return text_of(value)


class Lister(Protocol):
    """Reads recorded objects in the order of their keys."""

    def __call__(self, *, prefix: bytes, start: bytes, limit: int) -> Awaitable[Sequence[ObjectRecord]]: ...


async def send_listing(request: S3Request, *, read: Lister) -> None:
    """Answer a ListObjectsV2 or a ListObjects.

    Raises:
        S3Error: a parameter is wrong (400) or not supported (501).
        StoreError: the catalog cannot be read.
    """
    query = request.query
    second = query.get("list-type") == "2"
    request.require_only(_OF_VERSION_2 if second else _OF_VERSION_1)
    if query.get("encoding-type", "url") != "url":
        raise S3Error(400, "InvalidArgument", f"encoding-type is {query['encoding-type']!r}; allowed: url")
    prefix = _bytes(query.get("prefix", ""))
    delimiter = _bytes(query.get("delimiter", ""))
    max_keys = _max_keys(query.get("max-keys"))
    marker = _bytes(query.get("marker", ""))
    start = _start_version_2(query) if second else _start_after(marker, prefix, delimiter)
    objects, prefixes, next_key = await _page(read, prefix, delimiter, start, max_keys)
    following: dict[str, str | bytes] = {}
    if next_key is not None and second:
        following["NextContinuationToken"] = base64.urlsafe_b64encode(next_key).decode()
    elif next_key is not None:
        following["NextMarker"] = max([record.key for record in objects[-1:]] + prefixes[-1:])
    listing = Listing(
        bucket=request.bucket,
        prefix=prefix,
        delimiter=delimiter,
        max_keys=max_keys,
        url_encoded="encoding-type" in query,
        objects=objects,
        prefixes=prefixes,
        echoed=_echoed(query) if second else {"Marker": marker},
        following=following,
        counted=second,
    )
    await request.answer(200, [XML], listing.document())


async def send_buckets(request: S3Request, buckets: Sequence[Bucket]) -> None:
    """Answer a ListBuckets: all buckets of the configuration, even if their folders do not exist.

    Raises:
        S3Error: the request is for another operation (405, 501).
    """
    if request.method != "GET":
        raise S3Error(405, "MethodNotAllowed", f"{request.method} is not supported for the list of buckets")
    request.require_only({"prefix"})
    prefix = request.query.get("prefix", "")
    named = sorted((bucket for bucket in buckets if bucket.name.startswith(prefix)), key=lambda bucket: bucket.name)
    changed = await asyncio.to_thread(lambda: [_changed_s(bucket) for bucket in named])
    entries = [
        f"<Bucket>{elements({'Name': bucket.name, 'CreationDate': xml_time(at_s)})}</Bucket>"
        for bucket, at_s in zip(named, changed, strict=True)
    ]
    owner = elements({"ID": ACCOUNT_ID, "DisplayName": "thawd"})
    inner = f"<Owner>{owner}</Owner><Buckets>{''.join(entries)}</Buckets>"
    await request.answer(200, [XML], document("ListAllMyBucketsResult", inner))


def _changed_s(bucket: Bucket) -> float:
    """The time of the last change of the bucket's folder, seconds since the epoch; 0 if the folder does not exist.

    It is sent as CreationDate, because stat does not report when a folder was created.
    """
    try:
        return bucket.path.stat().st_mtime
    except OSError:
        return 0.0


async def _page(
    read: Lister, prefix: bytes, delimiter: bytes, start: bytes, max_keys: int
) -> tuple[list[ObjectRecord], list[bytes], bytes | None]:
    """The objects and the common prefixes of a page, and the next page's first key (None: this is the last page)."""
    objects: list[ObjectRecord] = []
    prefixes: list[bytes] = []
    if max_keys == 0:
        return objects, prefixes, None
    at: bytes | None = start
    while at is not None:
        records = await read(prefix=prefix, start=at, limit=MAX_KEYS + 1)
        at = None
        for record in records:
            common = _common_prefix(record.key, prefix, delimiter)
            if common and prefixes and prefixes[-1] == common:
                continue
            if len(objects) + len(prefixes) == max_keys:
                return objects, prefixes, record.key
            if common:
                prefixes.append(common)
            else:
                objects.append(record)
        if len(records) > MAX_KEYS:
            common = _common_prefix(records[-1].key, prefix, delimiter)
            at = successor(common) if common else records[-1].key + b"\0"
    return objects, prefixes, None


def _common_prefix(key: bytes, prefix: bytes, delimiter: bytes) -> bytes:
    """The key up to and including the first delimiter after the prefix; empty if the key has no delimiter there."""
    if not delimiter:
        return b""
    at = key.find(delimiter, len(prefix))
    return b"" if at < 0 else key[: at + len(delimiter)]


def _start_version_2(query: dict[str, str]) -> bytes:
    token = query.get("continuation-token")
    if token is not None:
        try:
            return base64.b64decode(token.encode("latin-1", "replace"), altchars=b"-_", validate=True)
        except binascii.Error:
            raise S3Error(400, "InvalidArgument", "The continuation token was not issued by thawd") from None
    after = query.get("start-after")
    return _bytes(after) + b"\0" if after else b""


def _start_after(marker: bytes, prefix: bytes, delimiter: bytes) -> bytes:
    """The key at which the page after `marker` begins; `marker` is a key or a common prefix."""
    if not marker:
        return b""
    common = _common_prefix(marker, prefix, delimiter) if marker.startswith(prefix) else b""
    return (successor(common) or common) if common else marker + b"\0"


def _max_keys(value: str | None) -> int:
    if value is None:
        return MAX_KEYS
    if not value.isascii() or not value.isdigit() or len(value) > 9:
        raise S3Error(400, "InvalidArgument", f"max-keys is {value!r}; allowed: a whole number from 0 to {MAX_KEYS}")
    return min(int(value), MAX_KEYS)


def _echoed(query: dict[str, str]) -> dict[str, str | bytes]:
    echoed: dict[str, str | bytes] = {}
    if "continuation-token" in query:
        echoed["ContinuationToken"] = query["continuation-token"]
    if "start-after" in query:
        echoed["StartAfter"] = _bytes(query["start-after"])
    return echoed


def _bytes(value: str) -> bytes:
    return value.encode("utf-8", "surrogateescape")
