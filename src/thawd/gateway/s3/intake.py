"""Receives the bodies of S3 requests and checks their digests. Objects are written as they arrive, XML is parsed."""

from __future__ import annotations

import asyncio
import os
from xml.etree import ElementTree as ET

from thawd.errors import TooManyRequestsException
from thawd.gateway.http import Budget, ClientGoneError
from thawd.gateway.s3.checksums import Integrity
from thawd.gateway.s3.chunked_body import AwsChunked
from thawd.gateway.s3.files import Upload
from thawd.gateway.s3.request import S3Request
from thawd.gateway.s3.xml import S3Error, parse

# Source: Amazon S3 user guide, "Uploading objects" and "Multipart upload limits": at most 5 GB in a single PUT or part.
MAX_OBJECT_BYTES = 5 * 1024**3
# Largest XML document: enough for CompleteMultipartUpload with 10,000 parts and their checksums, and for DeleteObjects
# with 1,000 keys of 1,024 bytes, every byte escaped.
_MAX_DOCUMENT_BYTES = 8 * 1024**2
# Limits the total size of the documents that are being received or parsed. To parse a document, the parser needs about
# ten times the document's size.
_DOCUMENTS = Budget(16 * 1024**2)
_DOCUMENT_S = 60.0
_MOST_DIGITS = 18
_PIECE_BYTES = 256 * 1024
# Headers for properties of an object that S3 stores and thawd does not, with the properties' names for the error.
# Source: Amazon S3 API reference, "PutObject" and "CreateMultipartUpload".
_NOT_KEPT = {
    "x-amz-meta-": "Metadata",
    "x-amz-tagging": "Tagging",
    "x-amz-acl": "An ACL",
    "x-amz-grant-": "An ACL",
    "x-amz-server-side-encryption": "Server-side encryption",
    "x-amz-storage-class": "A storage class other than STANDARD",
    "x-amz-website-redirect-location": "A redirect",
    "x-amz-object-lock-": "An object lock",
    "x-amz-write-offset-bytes": "Appending",
    "content-encoding": "A content encoding",
    "content-disposition": "A content disposition",
    "content-language": "A content language",
}
# Header values that mean the same as no header, so they are not refused.
_DEFAULTS = {"x-amz-acl": "private", "x-amz-storage-class": "STANDARD"}


def check_properties(request: S3Request) -> None:
    """Refuse an upload whose headers ask for properties of the object that thawd does not store.

    Raises:
        S3Error: NotImplemented (501).
    """
    for name, value in {**request.headers, **request.asked}.items():
        meant = next((text for prefix, text in _NOT_KEPT.items() if name.startswith(prefix)), None)
        if meant is None or _DEFAULTS.get(name) == value:
            continue
        if name == "content-encoding" and not _encodings(value) - {"aws-chunked", "identity", ""}:
            continue
        raise S3Error(
            501,
            "NotImplemented",
            f"{meant} is not supported, and {name} asks for it; nothing was stored. Send the object without {name}",
        )


def check_conditions(request: S3Request) -> None:
    """Refuse a write with conditions that thawd does not evaluate.

    Raises:
        S3Error: NotImplemented (501).
    """
    if "if-match" in request.headers or request.headers.get("if-none-match", "*") != "*":
        raise S3Error(
            501, "NotImplemented", "The only condition that a write may have is If-None-Match: *; remove the others"
        )


class UploadBudget:
    """Limits on all uploads of one server together.

    Args:
        most: how many uploads may be in progress; each has an open file and unwritten data.
        memory_bytes: how much unwritten data all uploads may have together. While they have more, each upload writes
            its data as soon as the data arrives.
        disk_share: share of a file system that uploads leave free, from 0 to 1.
        disk_bytes: how much of a file system uploads leave free if `disk_share` of it is more than this.

    Attributes:
        most, memory_bytes, disk_share, disk_bytes: the arguments.
        count: uploads that have begun and not ended.
        held_bytes: size of the unwritten data of these uploads.
    """

    def __init__(
        self,
        *,
        most: int = 512,
        memory_bytes: int = 16 << 20,
        disk_share: float = 0.05,
        disk_bytes: int = 256 << 20,
    ) -> None:
        self.most = most
        self.memory_bytes = memory_bytes
        self.disk_share = disk_share
        self.disk_bytes = disk_bytes
        self.count = 0
        self.held_bytes = 0

    def begin(self) -> None:
        """Count an upload that begins.

        Raises:
            S3Error: too many uploads are in progress (503).
        """
        if self.count >= self.most:
            raise S3Error(503, "SlowDown", f"{self.count} uploads are in progress, which is the limit; try again later")
        self.count += 1

    def end(self) -> None:
        """Stop counting an upload that has ended."""
        self.count -= 1

    def keep(self, size: int) -> bool:
        """Add `size`, which may be negative, to `held_bytes`; False: they exceed the limit, so data must be written."""
        self.held_bytes += size
        return self.held_bytes <= self.memory_bytes

    def check_disk(self, folder: bytes) -> None:
        """Check that the disk has at least as much free space as uploads leave to other writes (the reserve). Blocks.

        Raises:
            S3Error: the free space is less than the reserve (503).
            OSError: the folder no longer exists.
        """
        found = os.statvfs(folder)
        kept_bytes = min(self.disk_bytes, int(found.f_blocks * found.f_frsize * self.disk_share))
        if found.f_bavail * found.f_frsize < kept_bytes:
            raise S3Error(
                503,
                "SlowDown",
                f"The disk of {os.fsdecode(folder)} is full except for a reserve that uploads leave free; free disk "
                "space, or try again later",
            )


class Intake:
    """Receives a request's body into an upload. Use it with ``with``: call `receive`, then `finish` in a thread.

    Args:
        request: the request; its headers declare the body's framing and digests.
        upload: the object that gets the body's bytes.
        budget: limits of all uploads together.
    """

    def __init__(self, request: S3Request, upload: Upload, budget: UploadBudget) -> None:
        self._request = request
        self._upload = upload
        self._budget = budget
        self._integrity = Integrity(request.headers)
        self._chunked = _decoder(request)
        self._rest = b""
        self._held_bytes = 0

    def __enter__(self) -> Intake:
        self._budget.begin()
        return self

    def __exit__(self, *_: object) -> None:
        self._budget.keep(-self._held_bytes)
        self._budget.end()

    async def receive(self) -> None:
        """Receive the body. Its pieces are written while it arrives; the last piece is kept for `finish`.

        Raises:
            ClientGoneError: the client closed the connection or stopped sending.
            S3Error: the body is too large or its framing is broken (400), or the disk is full (503).
            OSError: the body cannot be written.
        """
        _check_length(self._request)
        piece = bytearray()
        size = 0
        more = True
        while more:
            message = await self._request.receive()
            if message["type"] == "http.disconnect":
                raise ClientGoneError
            data: bytes = message.get("body", b"")
            more = message.get("more_body", False)
            data = self._chunked.feed(data) if self._chunked is not None else data
            piece += data
            size += len(data)
            self._held_bytes += len(data)
            may_wait = self._budget.keep(len(data))
            if size > MAX_OBJECT_BYTES:
                raise S3Error(400, "EntityTooLarge", f"The object has more than {MAX_OBJECT_BYTES} bytes")
            if more and piece and (len(piece) >= _PIECE_BYTES or not may_wait):
                await asyncio.to_thread(self._take_in, bytes(piece))
                self._held_bytes -= len(piece)
                self._budget.keep(-len(piece))
                piece.clear()
        self._rest = bytes(piece)

    def finish(self) -> str:
        """Write the last piece and check the whole body; returns its MD5 in hexadecimal digits. Blocks.

        Raises:
            S3Error: the body does not match its digests or its length (400), or the disk is full (503).
            OSError: the body cannot be written.
        """
        if self._chunked is not None:
            self._chunked.end()
        self._take_in(self._rest)
        return self._integrity.verify(self._chunked.trailers if self._chunked is not None else {})

    def _take_in(self, data: bytes) -> None:
        self._budget.check_disk(self._upload.root)
        self._integrity.update(data)
        self._upload.consume(data)


async def read_document(request: S3Request, *, root: str, own_checksums: bool = True) -> ET.Element:
    """The XML document in a request's body; its elements' names have no namespace.

    Args:
        request: the request.
        root: name that the document's root element must have.
        own_checksums: whether the request's ``x-amz-checksum-`` headers are checksums of the document. False: they are
            checksums of an object, so they are not checked.

    Raises:
        ClientGoneError: the client closed the connection.
        S3Error: the document is too large, arrives too slowly, does not match its digests, or has another root element
            (400); or the documents of other requests use too much memory (503).
    """
    try:
        with _DOCUMENTS.hold(request.scope, most_bytes=_MAX_DOCUMENT_BYTES):
            async with asyncio.timeout(_DOCUMENT_S):
                body = await _read_small(request, own_checksums=own_checksums)
            return await asyncio.to_thread(_parse, body, root)
    except TooManyRequestsException as error:
        raise S3Error(503, "SlowDown", error.message) from None
    except TimeoutError:
        raise S3Error(400, "RequestTimeout", f"The document did not arrive within {_DOCUMENT_S:.0f} s") from None


async def _read_small(request: S3Request, *, own_checksums: bool) -> bytes:
    headers = {name: value for name, value in request.headers.items() if own_checksums or "x-amz-checksum-" not in name}
    chunked = _decoder(request)
    body = bytearray()
    more = True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        data: bytes = message.get("body", b"")
        body += chunked.feed(data) if chunked is not None else data
        more = message.get("more_body", False)
        if len(body) > _MAX_DOCUMENT_BYTES:
            raise S3Error(400, "MalformedXML", f"The XML document has more than {_MAX_DOCUMENT_BYTES} bytes")
    if chunked is not None:
        chunked.end()
    integrity = Integrity(headers)
    integrity.update(bytes(body))
    integrity.verify(chunked.trailers if chunked is not None else {})
    return bytes(body)


def _parse(body: bytes, root: str) -> ET.Element:
    document = parse(body)
    for element in document.iter():
        element.tag = element.tag.rpartition("}")[2]
    if document.tag != root:
        raise S3Error(
            400, "MalformedXML", f"The root element of the XML document is {document.tag[:100]}; it must be {root}"
        )
    return document


def _check_length(request: S3Request) -> None:
    length = request.headers.get("x-amz-decoded-content-length") or request.headers.get("content-length", "0")
    # What is not a number is refused once the whole body has arrived, by `Integrity.verify`.
    if length.isascii() and length.isdigit() and (len(length) > _MOST_DIGITS or int(length) > MAX_OBJECT_BYTES):
        raise S3Error(
            400, "EntityTooLarge", f"The object has {length[:20]} bytes; at most {MAX_OBJECT_BYTES} are allowed"
        )


def _decoder(request: S3Request) -> AwsChunked | None:
    signed = request.headers.get("x-amz-content-sha256", "")
    framed = "aws-chunked" in _encodings(request.headers.get("content-encoding", ""))
    return AwsChunked() if framed or signed.startswith("STREAMING-") else None


def _encodings(value: str) -> set[str]:
    return {each.strip().lower() for each in value.split(",")}
