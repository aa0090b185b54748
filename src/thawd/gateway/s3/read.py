"""Answers GET and HEAD of an object or of a range of it. All bytes of an answer come from one version of the object."""

from __future__ import annotations

import asyncio
import contextlib
import mimetypes
import os
import re
from email.utils import formatdate, parsedate_to_datetime

from thawd.gateway.http import Headers
from thawd.gateway.s3.files import open_object
from thawd.gateway.s3.request import S3Request
from thawd.gateway.s3.xml import S3Error
from thawd.stores.objects.catalog import ObjectRecord

_PIECE_BYTES = 256 * 1024
# Headers of each answer with an object. A browser treats an HTML page in a bucket as a page of thawd's origin, so
# scripts in the page could call every API of the server. These headers prevent such scripts from running.
INERT: Headers = [
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'; sandbox"),
]
_RANGE = re.compile(r"bytes=([0-9]*)-([0-9]*)")
_MOST_DIGITS = 18
_LONGEST_DATE = 64


async def send_object(request: S3Request, *, root: bytes, record: ObjectRecord | None) -> None:
    """Answer a GET or HEAD of an object.

    The ETag is the MD5 if the catalog's record matches the file. Otherwise it is made from the file's modification time
    and size, and contains a ``-``, like every ETag of S3 that is not an MD5.

    Raises:
        S3Error: there is no such object (404), it does not meet a condition of the request (304, 412), or it ends
            before the requested range (416).
        OSError: the object cannot be read.
    """
    fd, found = await asyncio.to_thread(open_object, root, request.key)
    try:
        etag = _etag(found, record)
        changed_s = int(found.st_mtime)
        _check_conditions(request, etag, changed_s)
        headers: Headers = [
            *request.common_headers(),
            (b"etag", etag.encode()),
            (b"last-modified", formatdate(changed_s, usegmt=True).encode()),
            (b"accept-ranges", b"bytes"),
            (b"content-type", _content_type(request.key)),
            *INERT,
        ]
        span = None
        if _is_same_version(request.headers.get("if-range"), etag, changed_s):
            span = _range(request.headers.get("range"), found.st_size)
        start, end = span or (0, found.st_size)
        if span is not None:
            headers.append((b"content-range", f"bytes {start}-{end - 1}/{found.st_size}".encode()))
        headers.append((b"content-length", str(end - start).encode()))
        await request.send({"type": "http.response.start", "status": 200 if span is None else 206, "headers": headers})
        if request.method == "HEAD" or start == end:
            await request.send({"type": "http.response.body", "body": b""})
        else:
            await _send_body(request, fd, start, end)
    finally:
        os.close(fd)


async def _send_body(request: S3Request, fd: int, start: int, end: int) -> None:
    """Send the bytes from `start` up to `end` (exclusive); stop if the client disconnects."""
    async with asyncio.TaskGroup() as group:
        gone = group.create_task(_until_gone(request))
        # If a read fails, it is too late for an error answer, because the head has been sent. The body is cut off. The
        # client notices this, because the body is shorter than announced.
        with contextlib.suppress(OSError):
            while start < end and not gone.done():
                piece = await asyncio.to_thread(os.pread, fd, min(_PIECE_BYTES, end - start), start)
                start += len(piece)
                if not piece:
                    break
                await request.send({"type": "http.response.body", "body": piece, "more_body": start < end})
        gone.cancel()


async def _until_gone(request: S3Request) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        while (await request.receive())["type"] != "http.disconnect":
            pass


def _etag(found: os.stat_result, record: ObjectRecord | None) -> str:
    if record is not None and (found.st_ino, found.st_size, found.st_mtime_ns) == (
        record.inode,
        record.size,
        record.mtime_ns,
    ):
        return f'"{record.etag}"'
    return f'"{found.st_mtime_ns:x}-{found.st_size:x}"'


def _check_conditions(request: S3Request, etag: str, changed_s: int) -> None:
    """Check the conditions of a request; those on ETags take precedence over those on times.

    Source: RFC 9110, 13.2.2, "Precedence of Preconditions"; Amazon S3 API reference, "GetObject".

    Raises:
        S3Error: a condition is not met (304, 412).
    """
    wanted, since = request.headers.get("if-match"), _seconds(request.headers.get("if-unmodified-since"))
    if wanted is not None and not _matches(wanted, etag):
        raise S3Error(412, "PreconditionFailed", f"The object's ETag is {etag}, not {wanted}")
    if wanted is None and since is not None and changed_s > since:
        raise S3Error(412, "PreconditionFailed", "The object has changed since the time in If-Unmodified-Since")
    unwanted, since = request.headers.get("if-none-match"), _seconds(request.headers.get("if-modified-since"))
    is_unchanged = since is not None and changed_s <= since if unwanted is None else _matches(unwanted, etag)
    if is_unchanged:
        raise S3Error(304, "NotModified", "The object is unchanged", headers=[(b"etag", etag.encode())])


def _is_same_version(if_range: str | None, etag: str, changed_s: int) -> bool:
    """Whether a client that already has a part of the object in the version `if_range` gets another part of it."""
    return if_range is None or if_range.strip() == etag or _seconds(if_range) == changed_s


def _seconds(date: str | None) -> int | None:
    """A date in a header, seconds since the epoch; None: there is none, or it is not a date, and so it is ignored."""
    try:
        return None if date is None else int(parsedate_to_datetime(date[:_LONGEST_DATE]).timestamp())
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def _matches(condition: str, etag: str) -> bool:
    tags = [tag.strip().removeprefix("W/").strip('"') for tag in condition.split(",")]
    return "*" in tags or etag.strip('"') in tags


def _range(value: str | None, size: int) -> tuple[int, int] | None:
    """Start and exclusive end of the range in a ``Range`` header, in bytes; None for the whole object.

    As in S3, a header that asks for several ranges or is malformed is ignored.

    Raises:
        S3Error: the object ends before the range begins (416).
    """
    match = _RANGE.fullmatch(value.strip()) if value else None
    if match is None or match[0] == "bytes=-":
        return None
    first, last = (_number(digits) for digits in match.groups())
    if not match[1]:
        start, end = max(0, size - last), size
    else:
        start = first
        end = min(size, last + 1) if match[2] else size
        if match[2] and last < start:
            return None
    if start >= size:
        raise S3Error(
            416,
            "InvalidRange",
            f"The object has {size} bytes; the range {match[0][:60]} is not in it",
            headers=[(b"content-range", f"bytes */{size}".encode())],
        )
    return start, end


def _number(digits: str) -> int:
    """The number that digits write, 0 if there are none; of very large numbers, only that they are large."""
    return 10**_MOST_DIGITS if len(digits) > _MOST_DIGITS else int(digits or 0)


def _content_type(key: bytes) -> bytes:
    guessed, encoding = mimetypes.guess_type(key.rsplit(b"/", 1)[-1].decode("utf-8", "replace"))
    return (guessed if guessed and not encoding else "application/octet-stream").encode()
