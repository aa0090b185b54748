"""Serves the configured buckets to S3 clients: objects, multipart uploads and listings, at ``/{bucket}/{key}``.

When a PUT is answered with 200, the object is on the disk under its name. Before the answer, the object is recorded in
the state file and its events are queued. If the state file cannot be written at that time, the PUT still succeeds; the
object is recorded, and its events are queued, as soon as the state file can be written. Requests that ask for versions,
copies, ACLs or metadata, which thawd does not support, are refused with NotImplemented. Signatures of requests are not
verified. This module does not watch buckets: it notifies an `ObjectSink` of each change that it makes.
"""

from __future__ import annotations

import asyncio
import os
import time
import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Protocol

from thawd.errors import StoreError
from thawd.gateway.http import ClientGoneError, Receive, Scope, Send, trace_of
from thawd.gateway.s3.delete import delete_objects
from thawd.gateway.s3.files import Upload, check_key, clear_staging, explained, remove_object
from thawd.gateway.s3.intake import Intake, UploadBudget, check_conditions, check_properties
from thawd.gateway.s3.listing import send_buckets, send_listing
from thawd.gateway.s3.multipart import MultipartApi
from thawd.gateway.s3.read import send_object
from thawd.gateway.s3.request import S3Request, speaks_s3
from thawd.gateway.s3.xml import S3Error
from thawd.resources import REGION, Bucket
from thawd.stores.objects.catalog import ObjectRecord

# Shortest time between two searches for abandoned multipart uploads.
_TIDY_S = 3600.0
# In place of a key for `ObjectApi._lock`; no key has a NUL byte.
_OF_TIDYING = b"\0"


class ObjectSink(Protocol):
    """Records the objects of a bucket and queues their events."""

    async def ingest(
        self, key: bytes, *, stat: os.stat_result | None = None, etag: str | None = None, trace_id: str | None = None
    ) -> None:
        """Record that the object under `key` was just written or removed; returns once the change is recorded.

        If the state file cannot be written, this returns without an error, and the change is recorded later.

        Args:
            key: the object's key.
            stat: result of `os.fstat` for the written file, from before the file was renamed to its key; None: the
                object was removed.
            etag: MD5 of the file's content in hexadecimal digits; None: the object was removed.
            trace_id: X-Ray trace header of the request; None: it had none.
        """

    async def lookup(self, key: bytes) -> ObjectRecord | None:
        """The object's record, or None.

        Raises:
            StoreError: the catalog cannot be read.
        """

    async def listing(self, *, prefix: bytes = b"", start: bytes = b"", limit: int = 1000) -> Sequence[ObjectRecord]:
        """Recorded objects whose keys begin with `prefix`, from `start` on, in the order of their keys' bytes.

        Raises:
            StoreError: the catalog cannot be read.
        """


class ObjectApi:
    """The ASGI application for the buckets.

    Args:
        buckets: the buckets that are served here, by name.
        sinks: the sink of each bucket, by the bucket's name.
        elsewhere: URLs of the buckets that are in other object stores, by the bucket's name.
        uploads: limits of all uploads together.

    Attributes:
        uploads: the argument, or the default limits.
    """

    def __init__(
        self,
        buckets: Mapping[str, Bucket],
        sinks: Mapping[str, ObjectSink],
        *,
        elsewhere: Mapping[str, str] | None = None,
        uploads: UploadBudget | None = None,
    ) -> None:
        self._buckets = buckets
        self._elsewhere = elsewhere or {}
        self._sinks = sinks
        self._locks: weakref.WeakValueDictionary[tuple[str, bytes], asyncio.Lock] = weakref.WeakValueDictionary()
        self._cleared: dict[str, float] = {}
        self.uploads = uploads or UploadBudget()
        self._multipart = MultipartApi(publish=self._publish, lock=self._lock, uploads=self.uploads)

    def owns(self, path: str) -> bool:
        """Whether a request's decoded path names a bucket or an object in one."""
        name = path.removeprefix("/").partition("/")[0]
        return name in self._buckets or name in self._elsewhere

    @staticmethod
    def claims(scope: Scope) -> bool:
        """Whether a request is recognisably meant for S3, even if its path belongs to a route or to nothing."""
        return speaks_s3(scope)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = S3Request(scope, receive, send)
        try:
            await self._answer(request)
        except S3Error as error:
            await request.refuse(error)
        except ClientGoneError:
            return

    async def _answer(self, request: S3Request) -> None:
        if not request.bucket and not request.key:
            await send_buckets(request, list(self._buckets.values()))
            return
        bucket = self._buckets.get(request.bucket)
        if bucket is None and request.bucket in self._elsewhere:
            where = self._elsewhere[request.bucket]
            raise S3Error(501, "NotImplemented", f"Bucket {request.bucket} is at {where}; send requests to that store")
        if bucket is None:
            known = ", ".join(sorted(self._buckets)) or "none"
            raise S3Error(404, "NoSuchBucket", f"There is no bucket {request.bucket!r}; buckets of thawd.toml: {known}")
        try:
            if request.key:
                await self._object(request, bucket)
            else:
                await self._bucket(request, bucket)
        except OSError as error:
            raise explained(error, bucket) from error
        except StoreError as error:
            raise S3Error(error.status, "InternalError", error.message) from error

    async def _bucket(self, request: S3Request, bucket: Bucket) -> None:
        if request.method == "HEAD":
            await asyncio.to_thread(bucket.path.stat)
            await request.answer(200, [(b"x-amz-bucket-region", REGION.encode())])
        elif request.method == "GET":
            await send_listing(request, read=self._sinks[bucket.name].listing)
        elif request.method == "POST" and "delete" in request.query:
            await delete_objects(request, partial(self._delete_or_explain, bucket))
        elif request.method in ("PUT", "DELETE") and not request.query:
            raise S3Error(
                409,
                "BucketAlreadyOwnedByYou" if request.method == "PUT" else "OperationAborted",
                f"Bucket {bucket.name} is declared in thawd.toml; buckets can be created and removed only there",
            )
        else:
            raise S3Error(501, "NotImplemented", f"This operation is not supported: {request.method} of a bucket")

    async def _object(self, request: S3Request, bucket: Bucket) -> None:
        check_key(request.key)
        if self._multipart.concerns(request):
            await self._tidy(bucket)
            await self._multipart(request, bucket)
        elif request.method in ("GET", "HEAD"):
            request.require_only(set())
            record = await self._sinks[bucket.name].lookup(request.key)
            await send_object(request, root=os.fsencode(bucket.path), record=record)
        elif request.method == "PUT":
            await self._put(request, bucket)
        elif request.method == "DELETE":
            request.require_only(set())
            if any("if-match" in name for name in (*request.headers, *request.asked)):
                raise S3Error(501, "NotImplemented", "A DELETE with conditions is not supported; nothing was removed")
            await self._delete(bucket, request.key)
            await request.answer(204)
        else:
            request.require_only(set())
            raise S3Error(405, "MethodNotAllowed", f"{request.method} is not supported for an object")

    async def _put(self, request: S3Request, bucket: Bucket) -> None:
        request.require_only(set())
        if "x-amz-copy-source" in request.asked:
            raise S3Error(
                501, "NotImplemented", "CopyObject is not supported: GET the object and PUT it, or copy the file"
            )
        check_conditions(request)
        check_properties(request)
        await self._tidy(bucket)
        upload = Upload(os.fsencode(bucket.path))
        try:
            with Intake(request, upload, self.uploads) as intake:
                await intake.receive()
                etag = await asyncio.to_thread(intake.finish)
            await self._publish(request, bucket, upload, etag=etag)
        finally:
            await asyncio.to_thread(upload.discard)
        await request.answer(200, [(b"etag", f'"{etag}"'.encode())])

    async def _publish(self, request: S3Request, bucket: Bucket, upload: Upload, *, etag: str) -> None:
        """Rename an upload to its key and record the object."""
        exclusive = "if-none-match" in request.headers
        # One lock covers the rename and the record. Otherwise, a second PUT of the same key could replace the file
        # before the first object is recorded, and the two PUTs together would cause only one event.
        async with self._lock(bucket.name, request.key):
            found = await asyncio.to_thread(upload.publish, request.key, exclusive=exclusive)
            await self._sinks[bucket.name].ingest(request.key, stat=found, etag=etag, trace_id=trace_of(request.scope))

    async def _delete(self, bucket: Bucket, key: bytes) -> None:
        async with self._lock(bucket.name, key):
            await asyncio.to_thread(remove_object, os.fsencode(bucket.path), key)
            await self._sinks[bucket.name].ingest(key)

    async def _delete_or_explain(self, bucket: Bucket, key: bytes) -> None:
        try:
            await self._delete(bucket, key)
        except OSError as error:
            raise explained(error, bucket) from error

    async def _tidy(self, bucket: Bucket) -> None:
        """Remove abandoned multipart uploads, at most once an hour for each bucket.

        The first call for a bucket comes before the server's first write, and also removes files of crashed servers.
        """
        now = time.monotonic()
        last = self._cleared.get(bucket.name)
        if last is None:
            async with self._lock(bucket.name, _OF_TIDYING):  # no upload may begin before
                if bucket.name not in self._cleared:
                    await asyncio.to_thread(clear_staging, os.fsencode(bucket.path), files=True)
                    self._cleared[bucket.name] = now
        elif now - last > _TIDY_S:
            self._cleared[bucket.name] = now
            await asyncio.to_thread(clear_staging, os.fsencode(bucket.path), files=False)

    def _lock(self, bucket: str, key: bytes) -> asyncio.Lock:
        return self._locks.setdefault((bucket, key), asyncio.Lock())
