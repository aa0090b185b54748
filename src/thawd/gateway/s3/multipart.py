"""The operations on multipart uploads: begin one, upload a part, list the parts, complete or abort the upload.

A part has at most 5 GiB, like the object of a PUT. As with a PUT, the completed object appears in one step and causes
one event. The ETag in the object's record is the MD5 of the whole content, as for all objects. Only the answer that
completes the upload contains the ETag that S3 gives objects made of parts.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable
from typing import Protocol

from thawd.gateway.s3 import parts as object_parts
from thawd.gateway.s3.files import Upload, explained
from thawd.gateway.s3.intake import Intake, UploadBudget, check_conditions, check_properties, read_document
from thawd.gateway.s3.parts import MAX_PARTS, PartFolder
from thawd.gateway.s3.request import XML, S3Request
from thawd.gateway.s3.xml import XML_HEAD, S3Error, document, elements, xml_time
from thawd.resources import Bucket

# Source: Amazon S3 user guide, "Multipart upload limits".
MAX_JOINED_BYTES = 5 * 1024**4
_PAGE_PARTS = 1000
_MD5 = re.compile(r"[0-9a-f]{32}")
# Joining the parts takes some seconds per GB. After this many seconds thawd begins the answer. Until the parts are
# joined, thawd sends a space character at this interval, as S3 does, so that the client does not time out.
PATIENCE_S = 10.0

Wanted = list[tuple[int, str]]
"""Number and ETag of each part that a CompleteMultipartUpload names."""


class Publish(Protocol):
    """Renames an upload to its key and records the object."""

    def __call__(self, request: S3Request, bucket: Bucket, upload: Upload, *, etag: str) -> Awaitable[None]: ...


class MultipartApi:
    """The operations on multipart uploads.

    Args:
        publish: renames an upload to its key and records the object.
        lock: returns a lock, by bucket and key.
        uploads: limits of all uploads together.
    """

    def __init__(self, *, publish: Publish, lock: Callable[[str, bytes], asyncio.Lock], uploads: UploadBudget) -> None:
        self._publish = publish
        self._lock = lock
        self._uploads = uploads

    @staticmethod
    def concerns(request: S3Request) -> bool:
        """Whether a request for an object is a multipart operation."""
        return bool({"uploads", "uploadId"} & request.query.keys())

    async def __call__(self, request: S3Request, bucket: Bucket) -> None:
        """Answer one request.

        Raises:
            ClientGoneError: the client closed the connection.
            S3Error: the request is refused.
            OSError: a file cannot be read or written.
        """
        query = request.query
        if request.method == "POST" and "uploads" in query:
            request.require_only({"uploads"})
            await self._begin(request, bucket)
        elif request.method == "PUT" and "partNumber" in query:
            request.require_only({"uploadId", "partNumber"})
            await self._part(request, bucket)
        elif request.method == "POST" and "uploadId" in query:
            request.require_only({"uploadId"})
            await self._complete(request, bucket)
        elif request.method == "GET" and "uploadId" in query:
            request.require_only({"uploadId", "max-parts", "part-number-marker", "encoding-type"})
            await self._list(request, bucket)
        elif request.method == "DELETE" and "uploadId" in query:
            request.require_only({"uploadId"})
            parts = await self._folder(request, bucket)
            await asyncio.to_thread(parts.remove)
            await request.answer(204)
        else:
            raise S3Error(
                501, "NotImplemented", f"This operation is not supported: {request.method} with ?{'&'.join(query)}"
            )

    async def _begin(self, request: S3Request, bucket: Bucket) -> None:
        check_properties(request)
        upload_id = await asyncio.to_thread(object_parts.begin, os.fsencode(bucket.path), request.key)
        fields = elements({"Bucket": bucket.name, "Key": request.key, "UploadId": upload_id})
        await request.answer(200, [XML], document("InitiateMultipartUploadResult", fields))

    async def _part(self, request: S3Request, bucket: Bucket) -> None:
        if "x-amz-copy-source" in request.asked:
            raise S3Error(
                501, "NotImplemented", "UploadPartCopy is not supported: GET the bytes of the part and upload them"
            )
        number = _number(request.query["partNumber"], "partNumber", least=1, most=MAX_PARTS)
        parts = await self._folder(request, bucket)
        upload = Upload(os.fsencode(bucket.path))
        try:
            with Intake(request, upload, self._uploads) as intake:
                await intake.receive()

                def finish() -> str:
                    etag = intake.finish()
                    parts.keep(upload, number=number, etag=etag)
                    return etag

                etag = await asyncio.to_thread(finish)
        finally:
            await asyncio.to_thread(upload.discard)
        await request.answer(200, [(b"etag", f'"{etag}"'.encode())])

    async def _list(self, request: S3Request, bucket: Bucket) -> None:
        most = _number(request.query.get("max-parts", str(_PAGE_PARTS)), "max-parts", least=0, most=10**9)
        marker = _number(request.query.get("part-number-marker", "0"), "part-number-marker", least=0, most=10**9)
        most = min(most, _PAGE_PARTS)
        found = await asyncio.to_thread((await self._folder(request, bucket)).parts)
        rest = [part for part in found if part.number > marker]
        page = rest[:most]
        fields = {
            "Bucket": bucket.name,
            "Key": request.key,
            "UploadId": request.query["uploadId"],
            "PartNumberMarker": str(marker),
            "NextPartNumberMarker": str(page[-1].number if page else marker),
            "MaxParts": str(most),
            "IsTruncated": "true" if len(rest) > len(page) > 0 else "false",
            "StorageClass": "STANDARD",
        }
        inner = [elements(fields)]
        for part in page:
            shown = {
                "PartNumber": str(part.number),
                "LastModified": xml_time(part.mtime_ns / 1e9),
                "ETag": f'"{part.etag}"',
                "Size": str(part.size),
            }
            inner.append(f"<Part>{elements(shown)}</Part>")
        await request.answer(200, [XML], document("ListPartsResult", "".join(inner)))

    async def _complete(self, request: S3Request, bucket: Bucket) -> None:
        check_conditions(request)
        wanted = await _read_wanted(request)
        begun = False
        async with asyncio.TaskGroup() as group:
            task = group.create_task(self._outcome(request, bucket, wanted))
            while not (await asyncio.wait([task], timeout=PATIENCE_S))[0]:
                part = b" "
                if not begun:
                    begun = True
                    # In XML, blanks are allowed after the XML declaration, but not before it.
                    part = XML_HEAD.encode()
                    headers = [*request.common_headers(), XML]
                    await request.send({"type": "http.response.start", "status": 200, "headers": headers})
                await request.send({"type": "http.response.body", "body": part, "more_body": True})
        outcome = task.result()
        if not begun and isinstance(outcome, S3Error):
            raise outcome
        answer = request.error_document(outcome) if isinstance(outcome, S3Error) else outcome
        if begun:
            await request.send({"type": "http.response.body", "body": answer.removeprefix(XML_HEAD.encode())})
        else:
            await request.answer(200, [XML], answer)

    async def _outcome(self, request: S3Request, bucket: Bucket, wanted: Wanted) -> bytes | S3Error:
        """Join the parts and publish the object; returns the answer's XML document, or the error to send."""
        try:
            # Two requests that complete the same upload run one after the other. If the first one succeeds, the second
            # one finds no upload.
            async with self._lock(bucket.name, b"\0" + request.query["uploadId"].encode()):
                parts = await self._folder(request, bucket)
                await asyncio.to_thread(_check_size, parts, wanted, request.asked.get("x-amz-mp-object-size"))
                upload = Upload(os.fsencode(bucket.path))
                try:
                    etag = await asyncio.to_thread(parts.join, wanted, upload)
                    await self._publish(request, bucket, upload, etag=etag)
                finally:
                    await asyncio.to_thread(upload.discard)
                await asyncio.to_thread(parts.remove)
        except S3Error as error:
            return error
        except OSError as error:
            return explained(error, bucket)
        fields: dict[str, str | bytes] = {
            "Location": f"/{bucket.name}/{request.key.decode('utf-8', 'replace')}",
            "Bucket": bucket.name,
            "Key": request.key,
            "ETag": f'"{object_parts.joined_etag([etag for _, etag in wanted])}"',
        }
        return document("CompleteMultipartUploadResult", elements(fields))

    async def _folder(self, request: S3Request, bucket: Bucket) -> PartFolder:
        root = os.fsencode(bucket.path)
        return await asyncio.to_thread(lambda: PartFolder(root, request.query["uploadId"], key=request.key))


async def _read_wanted(request: S3Request) -> Wanted:
    """Number and ETag of each part that a CompleteMultipartUpload names."""
    wanted: Wanted = []
    listed = await read_document(request, root="CompleteMultipartUpload", own_checksums=False)
    for part in listed.findall("Part"):
        number = _number((part.findtext("PartNumber") or "").strip(), "PartNumber", least=1, most=MAX_PARTS)
        etag = (part.findtext("ETag") or "").strip().strip('"').lower()
        if wanted and number <= wanted[-1][0]:
            raise S3Error(
                400, "InvalidPartOrder", f"Part {number} follows part {wanted[-1][0]}; list parts in ascending order"
            )
        if not _MD5.fullmatch(etag):
            raise S3Error(
                400,
                "InvalidPart",
                f"The ETag of part {number} is {etag[:100]!r}; send the ETag that the upload of the part returned",
            )
        wanted.append((number, etag))
    if not wanted:
        raise S3Error(400, "MalformedXML", "The XML document names no parts; name all parts of the object")
    return wanted


def _check_size(parts: PartFolder, wanted: Wanted, promised: str | None) -> None:
    sizes = {part.number: part.size for part in parts.parts()}
    total_bytes = sum(sizes.get(number, 0) for number, _ in wanted)
    if total_bytes > MAX_JOINED_BYTES:
        raise S3Error(
            400, "EntityTooLarge", f"The object would have {total_bytes} bytes; at most {MAX_JOINED_BYTES} are allowed"
        )
    if promised not in (None, str(total_bytes)):
        raise S3Error(
            400,
            "InvalidRequest",
            f"The parts have {total_bytes} bytes together, but x-amz-mp-object-size is {promised}; correct the header",
        )


def _number(value: str, name: str, *, least: int, most: int) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", value) or not least <= int(value) <= most:
        raise S3Error(400, "InvalidArgument", f"{name} is {value[:100]!r}; allowed: a whole number, {least} to {most}")
    return int(value)
