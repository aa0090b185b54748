"""Multipart uploads on the disk: each upload has a hidden folder with a file for each part. All functions block.

Nothing else is stored about an upload, so a multipart upload survives a restart of the server. The name of a part's
file consists of the part's number and the MD5 of its content. A file gets this name only after all its data has been
synced to the disk.
"""
# Paths are bytes here, which pathlib does not accept.
# ruff: noqa: PTH102, PTH118

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Sequence
from typing import NamedTuple

from thawd.gateway.s3.files import PARTS_OF, Upload, make_staging, remove_parts
from thawd.gateway.s3.xml import S3Error
from thawd.stores.objects.folder import STAGING

MAX_PARTS = 10_000
"""Source: Amazon S3 user guide, "Multipart upload limits"."""
_KEY = b"key"
_UPLOAD_ID = re.compile(r"[0-9a-f]{32}")
_PART = re.compile(rb"(\d{5})-([0-9a-f]{32})")
_PIECE_BYTES = 1024 * 1024


class Part(NamedTuple):
    """A part that has arrived.

    Attributes:
        number: from 1 to `MAX_PARTS`.
        etag: MD5 of its content in hexadecimal digits.
        size: bytes.
        mtime_ns: when it arrived, nanoseconds since the epoch.
    """

    number: int
    etag: str
    size: int
    mtime_ns: int


def begin(root: bytes, key: bytes) -> str:
    """Begin a multipart upload for `key` in the bucket whose folder is `root`; returns the upload's id.

    Raises:
        OSError: the folder cannot be written.
    """
    upload_id = secrets.token_hex(16)
    folder = _folder(root, upload_id)
    make_staging(root)
    os.mkdir(folder, 0o700)
    try:
        with open(os.path.join(folder, _KEY), "xb") as file:
            file.write(key)
    except BaseException:
        remove_parts(folder)
        raise
    return upload_id


class PartFolder:
    """The parts of one multipart upload.

    Args:
        root: the bucket's folder.
        upload_id: the upload's id, as a client sent it.
        key: the key that the upload is for.

    Raises:
        S3Error: there is no upload with this id and key (404).
        OSError: the folder cannot be read.
    """

    def __init__(self, root: bytes, upload_id: str, *, key: bytes) -> None:
        # The id is checked before it becomes part of a path.
        if not _UPLOAD_ID.fullmatch(upload_id):
            raise _no_such_upload()
        self._folder = _folder(root, upload_id)
        try:
            with open(os.path.join(self._folder, _KEY), "rb") as file:
                found = file.read()
        except FileNotFoundError:
            raise _no_such_upload() from None
        if found != key:
            raise _no_such_upload()

    def keep(self, upload: Upload, *, number: int, etag: str) -> None:
        """Store the uploaded data as the part `number`; the part is durable when this returns.

        Raises:
            S3Error: the multipart upload ended meanwhile (404).
            OSError: the part cannot be written.
        """
        try:
            upload.move(self._path(number, etag))
        except FileNotFoundError:
            raise _no_such_upload() from None

    def parts(self) -> list[Part]:
        """The parts in the order of their numbers; of several parts with one number, only the one that arrived last.

        Raises:
            S3Error: the multipart upload ended meanwhile (404).
            OSError: the folder cannot be read.
        """
        found: dict[int, Part] = {}
        try:
            with os.scandir(self._folder) as entries:
                for entry in entries:
                    match = _PART.fullmatch(entry.name)
                    if match is not None:
                        stat = entry.stat(follow_symlinks=False)
                        part = Part(int(match[1]), match[2].decode(), stat.st_size, stat.st_mtime_ns)
                        if part.number not in found or found[part.number].mtime_ns <= part.mtime_ns:
                            found[part.number] = part
        except FileNotFoundError:
            raise _no_such_upload() from None
        return [found[number] for number in sorted(found)]

    def join(self, wanted: Sequence[tuple[int, str]], upload: Upload) -> str:
        """Copy the parts, one after the other, into the file of the object.

        Args:
            wanted: number and ETag of each part, in ascending order of the numbers.
            upload: the object that gets the parts' bytes.

        Returns:
            MD5 of the joined object in hexadecimal digits.

        Raises:
            S3Error: a part does not exist (400).
            OSError: a part cannot be read, or the object cannot be written.
        """
        for number, etag in wanted:
            if not os.path.lexists(self._path(number, etag)):
                raise _no_such_part(number, etag)
        digest = hashlib.md5(usedforsecurity=False)
        for number, etag in wanted:
            try:
                file = open(self._path(number, etag), "rb", buffering=0)  # noqa: SIM115
            except FileNotFoundError:
                raise _no_such_part(number, etag) from None
            with file:
                while piece := file.read(_PIECE_BYTES):
                    digest.update(piece)
                    upload.consume(piece)
        return digest.hexdigest()

    def remove(self) -> None:
        """End the multipart upload; a part that is still being received is then refused. Never raises."""
        remove_parts(self._folder)

    def _path(self, number: int, etag: str) -> bytes:
        return os.path.join(self._folder, b"%05d-%s" % (number, etag.encode()))


def joined_etag(etags: Sequence[str]) -> str:
    """The ETag that S3 gives an object made of parts: the MD5 of the parts' MD5s, a hyphen, and the number of parts."""
    return f"{hashlib.md5(bytes.fromhex(''.join(etags)), usedforsecurity=False).hexdigest()}-{len(etags)}"


def _folder(root: bytes, upload_id: str) -> bytes:
    return os.path.join(root, STAGING, PARTS_OF + upload_id.encode())


def _no_such_upload() -> S3Error:
    return S3Error(
        404,
        "NoSuchUpload",
        "There is no multipart upload with this id and key. Check both; if they are correct, the upload was completed, "
        "aborted, or removed because no part arrived for a day",
    )


def _no_such_part(number: int, etag: str) -> S3Error:
    return S3Error(
        400,
        "InvalidPart",
        f"Part {number} with the ETag {etag} has not been uploaded; upload it, or check with ListParts",
    )
