"""ListObjectsV2: pages of a bucket's recorded objects, with prefix and delimiter.

The cost of a page grows with its entries, not with the bucket: the catalog is read from where the page begins, and
what a common prefix covers is leapt over.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable, Sequence
from typing import Protocol

from thawd.gateway.s3_request import XML, S3Request
from thawd.gateway.s3_xml import Listing, S3Error
from thawd.state.objects import ObjectRecord, successor

MAX_KEYS = 1000
_PARAMETERS = {
    "list-type",
    "prefix",
    "delimiter",
    "max-keys",
    "continuation-token",
    "start-after",
    "encoding-type",
    "fetch-owner",
}


class Lister(Protocol):
    """Reads recorded objects in the order of their keys."""

    def __call__(self, *, prefix: bytes, start: bytes, limit: int) -> Awaitable[Sequence[ObjectRecord]]: ...


async def send_listing(request: S3Request, *, read: Lister) -> None:
    """Answer a ListObjectsV2.

    Raises:
        S3Error: a parameter is wrong (400) or not offered (501).
        StoreError: the catalog cannot be read.
    """
    query = request.query
    if query.get("list-type") != "2":
        raise S3Error(501, "NotImplemented", "Of the listings only ListObjectsV2 is offered: add list-type=2")
    request.require_only(_PARAMETERS)
    if query.get("encoding-type", "url") != "url":
        raise S3Error(400, "InvalidArgument", f"encoding-type is {query['encoding-type']!r}; allowed: url")
    prefix = _bytes(query.get("prefix", ""))
    delimiter = _bytes(query.get("delimiter", ""))
    max_keys = _max_keys(query.get("max-keys"))
    start = _start(query)
    objects, prefixes, following = await _page(read, prefix, delimiter, start, max_keys)
    listing = Listing(
        bucket=request.bucket,
        prefix=prefix,
        delimiter=delimiter,
        max_keys=max_keys,
        url_encoded="encoding-type" in query,
        objects=objects,
        prefixes=prefixes,
        echoed=_echoed(query),
        next_token=None if following is None else base64.urlsafe_b64encode(following).decode(),
    )
    await request.answer(200, [XML], listing.document())


async def _page(
    read: Lister, prefix: bytes, delimiter: bytes, start: bytes, max_keys: int
) -> tuple[list[ObjectRecord], list[bytes], bytes | None]:
    """Objects, common prefixes, and where the next page begins (None: nowhere)."""
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
    """The key up to and with the first delimiter after the prefix; empty when there is none."""
    if not delimiter:
        return b""
    at = key.find(delimiter, len(prefix))
    return b"" if at < 0 else key[: at + len(delimiter)]


def _start(query: dict[str, str]) -> bytes:
    token = query.get("continuation-token")
    if token is not None:
        try:
            return base64.b64decode(token.encode("latin-1", "replace"), altchars=b"-_", validate=True)
        except binascii.Error:
            raise S3Error(400, "InvalidArgument", "The continuation token is none that thawd gave out") from None
    after = query.get("start-after")
    return _bytes(after) + b"\0" if after else b""


def _max_keys(value: str | None) -> int:
    if value is None:
        return MAX_KEYS
    if not value.isascii() or not value.isdigit() or len(value) > 9:
        raise S3Error(400, "InvalidArgument", f"max-keys is {value!r}; allowed: a whole number from 0 to {MAX_KEYS}")
    return min(int(value), MAX_KEYS)


def _echoed(query: dict[str, str]) -> dict[str, str]:
    names = {"continuation-token": "ContinuationToken", "start-after": "StartAfter"}
    return {shown: query[name] for name, shown in names.items() if name in query}


def _bytes(value: str) -> bytes:
    return value.encode("utf-8", "surrogateescape")
