"""Buckets over HTTP, as S3 clients speak it: PUT, GET, HEAD, DELETE of objects and ListObjectsV2, path style.

``/{bucket}/{key}`` for the configured buckets. A 200 to a PUT means that the object is on the disk under its name;
recording it and queueing its events follow at once, or as soon as the state file can be written. What is not offered
(multipart uploads, versions, copies, ACLs) is refused with NotImplemented, never passed over. Request signatures are
not verified. Knows nothing of how buckets are watched: it tells an `ObjectSink`.
"""

from __future__ import annotations

import asyncio
import errno
import os
import weakref
from collections.abc import Mapping, Sequence
from typing import Protocol

from thawd.errors import StoreError
from thawd.gateway.http import ClientGoneError, Receive, Scope, Send
from thawd.gateway.object_body import AwsChunked, Integrity
from thawd.gateway.object_list import send_listing
from thawd.gateway.object_read import send_object
from thawd.gateway.object_store import Upload, check_key, clear_staging, remove_object
from thawd.gateway.s3_request import S3Request
from thawd.gateway.s3_xml import S3Error
from thawd.resources import REGION, Bucket
from thawd.state.objects import ObjectRecord

# Source: Amazon S3 user guide, "Uploading objects": at most 5 GB in a single PUT.
MAX_OBJECT_BYTES = 5 * 1024**3
_PIECE_BYTES = 1024 * 1024


class ObjectSink(Protocol):
    """Who records the objects of a bucket and queues their events."""

    async def ingest(self, key: bytes, *, stat: os.stat_result | None = None, etag: str | None = None) -> None:
        """The object under `key` was just written or removed; returns when that is recorded.

        Args:
            key: the key.
            stat: of the file written, before it got its name.
            etag: MD5 of its content in hexadecimal digits.
        """

    async def lookup(self, key: bytes) -> ObjectRecord | None:
        """The object's record, or None.

        Raises:
            StoreError: the catalog cannot be read.
        """

    async def listing(self, *, prefix: bytes = b"", start: bytes = b"", limit: int = 1000) -> Sequence[ObjectRecord]:
        """Recorded objects in the order of their keys' bytes: those that begin with `prefix`, from `start` on.

        Raises:
            StoreError: the catalog cannot be read.
        """


class ObjectApi:
    """The ASGI application for the buckets.

    Args:
        buckets: by name.
        sinks: by the bucket's name, one for each.
    """

    def __init__(self, buckets: Mapping[str, Bucket], sinks: Mapping[str, ObjectSink]) -> None:
        self._buckets = buckets
        self._sinks = sinks
        self._locks: weakref.WeakValueDictionary[tuple[str, bytes], asyncio.Lock] = weakref.WeakValueDictionary()
        self._cleared: set[str] = set()

    def owns(self, path: str) -> bool:
        """Whether the path of a request, decoded, is that of a bucket or of something in one."""
        return path.removeprefix("/").partition("/")[0] in self._buckets

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = S3Request(scope, receive, send)
        try:
            await self._answer(request)
        except S3Error as error:
            await request.refuse(error)
        except ClientGoneError:
            return

    async def _answer(self, request: S3Request) -> None:
        bucket = self._buckets.get(request.bucket)
        if bucket is None:
            known = ", ".join(sorted(self._buckets)) or "none"
            raise S3Error(404, "NoSuchBucket", f"There is no bucket {request.bucket!r}; there are: {known}")
        try:
            if request.key:
                await self._object(request, bucket)
            else:
                await self._bucket(request, bucket)
        except OSError as error:
            raise _explained(error, bucket) from error
        except StoreError as error:
            raise S3Error(error.status, "InternalError", error.message) from error

    async def _bucket(self, request: S3Request, bucket: Bucket) -> None:
        if request.method == "HEAD":
            await asyncio.to_thread(bucket.path.stat)
            await request.answer(200, [(b"x-amz-bucket-region", REGION.encode())])
        elif request.method == "GET":
            await send_listing(request, read=self._sinks[bucket.name].listing)
        elif request.method in ("PUT", "DELETE") and not request.query:
            raise S3Error(
                409,
                "BucketAlreadyOwnedByYou" if request.method == "PUT" else "OperationAborted",
                f"Buckets are made and removed in thawd.toml; {bucket.name} is there",
            )
        else:
            raise S3Error(501, "NotImplemented", f"This operation is not offered: {request.method} of a bucket")

    async def _object(self, request: S3Request, bucket: Bucket) -> None:
        check_key(request.key)
        if request.method in ("GET", "HEAD"):
            request.require_only(set())
            record = await self._sinks[bucket.name].lookup(request.key)
            await send_object(request, root=os.fsencode(bucket.path), record=record)
        elif request.method == "PUT":
            await self._put(request, bucket)
        elif request.method == "DELETE":
            request.require_only(set())
            async with self._lock(request):
                await asyncio.to_thread(remove_object, os.fsencode(bucket.path), request.key)
                await self._sinks[bucket.name].ingest(request.key)
            await request.answer(204)
        else:
            request.require_only(set())
            raise S3Error(405, "MethodNotAllowed", f"{request.method} is not offered for an object")

    async def _put(self, request: S3Request, bucket: Bucket) -> None:
        _check_put(request)
        root = os.fsencode(bucket.path)
        if bucket.name not in self._cleared:
            self._cleared.add(bucket.name)
            await asyncio.to_thread(clear_staging, root)
        upload = Upload(root)
        integrity = Integrity(request.headers)
        chunked = AwsChunked() if _is_chunked(request) else None
        try:
            rest = await _receive(request, upload, integrity, chunked)
            # From name to record under a lock: a second PUT of the key is a second event, not one for both.
            async with self._lock(request):
                etag, found = await asyncio.to_thread(_finish, request, upload, integrity, chunked, rest)
                await self._sinks[bucket.name].ingest(request.key, stat=found, etag=etag)
        finally:
            await asyncio.to_thread(upload.discard)
        await request.answer(200, [(b"etag", f'"{etag}"'.encode())])

    def _lock(self, request: S3Request) -> asyncio.Lock:
        return self._locks.setdefault((request.bucket, request.key), asyncio.Lock())


def _check_put(request: S3Request) -> None:
    request.require_only(set())
    if "x-amz-copy-source" in request.headers:
        raise S3Error(501, "NotImplemented", "CopyObject is not offered: GET the object and PUT it, or copy the file")
    if "if-match" in request.headers or request.headers.get("if-none-match", "*") != "*":
        raise S3Error(501, "NotImplemented", "Of the conditions of a PUT only If-None-Match: * is offered")
    length = request.headers.get("x-amz-decoded-content-length") or request.headers.get("content-length", "0")
    if length.isdigit() and int(length) > MAX_OBJECT_BYTES:
        raise S3Error(400, "EntityTooLarge", f"The object has {length} bytes; allowed are {MAX_OBJECT_BYTES}")


def _is_chunked(request: S3Request) -> bool:
    encodings = [each.strip() for each in request.headers.get("content-encoding", "").split(",")]
    return "aws-chunked" in encodings or request.headers.get("x-amz-content-sha256", "").startswith("STREAMING-")


async def _receive(request: S3Request, upload: Upload, integrity: Integrity, chunked: AwsChunked | None) -> bytes:
    """Take in the body; pieces go to the disk as they come, the last one is returned.

    Raises:
        ClientGoneError: the client went away.
        S3Error: the body is too large or its framing broken.
        OSError: it cannot be written.
    """
    piece = bytearray()
    size = 0
    more = True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        data: bytes = message.get("body", b"")
        more = message.get("more_body", False)
        data = chunked.feed(data) if chunked is not None else data
        piece += data
        size += len(data)
        if size > MAX_OBJECT_BYTES:
            raise S3Error(400, "EntityTooLarge", f"The object has more than {MAX_OBJECT_BYTES} bytes")
        if more and len(piece) >= _PIECE_BYTES:
            await asyncio.to_thread(_take_in, upload, integrity, bytes(piece))
            piece.clear()
    return bytes(piece)


def _take_in(upload: Upload, integrity: Integrity, data: bytes) -> None:
    integrity.update(data)
    upload.consume(data)


def _finish(
    request: S3Request, upload: Upload, integrity: Integrity, chunked: AwsChunked | None, rest: bytes
) -> tuple[str, os.stat_result]:
    """Check the whole object and give it its name; its ETag and its stat before. Blocks."""
    if chunked is not None:
        chunked.end()
    _take_in(upload, integrity, rest)
    etag = integrity.verify(chunked.trailers if chunked is not None else {})
    return etag, upload.publish(request.key, exclusive="if-none-match" in request.headers)


def _explained(error: OSError, bucket: Bucket) -> S3Error:
    """What the operating system said, as S3 would say it."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return S3Error(
            503, "SlowDown", f"The disk of bucket {bucket.name} ({bucket.path}) is full; nothing was stored. Free space"
        )
    if error.errno == errno.ENAMETOOLONG:
        return S3Error(400, "KeyTooLongError", "A part of the key is longer than a file name may be (255 bytes)")
    if error.errno in (errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY):
        return S3Error(
            409,
            "OperationAborted",
            "The key and another one exclude each other: one names a file, the other a folder of that name",
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return S3Error(
            403, "AccessDenied", f"thawd may not do that in {bucket.path} ({error.strerror}); mend its rights"
        )
    if error.errno == errno.ENOENT:
        return S3Error(404, "NoSuchBucket", f"The folder of bucket {bucket.name} ({bucket.path}) is not there")
    return S3Error(500, "InternalError", f"{bucket.path}: {error.strerror or error}")
