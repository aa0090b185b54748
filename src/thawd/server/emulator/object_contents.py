"""Limits the memory that moto, the emulator, uses for S3 objects. Runs in the emulator's own process.

- moto never frees the instances of many of its classes, not even those of deleted S3 objects. Here they are freed.
- moto keeps the parts of a multipart upload beside the complete object. Here they are freed when the upload ends.
- moto reads a whole object for each range of it, and a download of a large object requests many ranges at the same
  time. Here only the range is read.

In addition, a request with ``partNumber`` gets that part of the object. moto would answer with the whole object.
"""

from __future__ import annotations

import ctypes
import threading
from http import HTTPStatus
from typing import Any

_M_MMAP_THRESHOLD = -3
_LARGE_BYTES = 1 << 20


_freed: list[type] = []
"""moto's classes whose instances can be freed without a change in the state of a service."""


def return_memory() -> None:
    """Make the C library return large freed blocks, such as parts of objects, to the kernel.

    Source: mallopt(3), M_MMAP_THRESHOLD: otherwise, glibc raises the threshold to the size of the freed blocks.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)


def keep_no_lists() -> None:
    """Change ``moto.core.common_models``: free instances, except those that change a service's state when freed."""
    from moto.core.common_models import BaseModel

    def new(cls: Any, *given: Any, **named: Any) -> Any:
        made = super(BaseModel, cls).__new__(cls)
        if hasattr(cls, "__del__") and not issubclass(cls, tuple(_freed)):
            cls.instances_tracked.append(made)
        return made

    setattr(BaseModel, "__new__", new)  # noqa: B010 - mypy forbids to assign to a method


class _Contents:
    """The contents of an S3 object, read range by range.

    Args:
        key: moto's object.
    """

    def __init__(self, key: Any) -> None:
        self._key = key

    def __len__(self) -> int:
        return int(self._key.contentsize)

    def __getitem__(self, part: slice) -> bytes:
        begin, end, _ = part.indices(len(self))
        return _read(self._key, begin, end)

    @property
    def count(self) -> str:
        """The number of parts in which the object was uploaded."""
        return str(len(self._key.multipart.parts))

    def part(self, number: str) -> slice | None:
        """Return the range of a part; None: the object was not uploaded in parts, or has no such part."""
        if not number.isdecimal() or self._key.multipart is None:
            return None
        sizes = {part_id: part.contentsize for part_id, part in sorted(self._key.multipart.parts.items())}
        # The completion of an upload may leave out parts. Then the parts' sizes do not add up to the object's size.
        if int(number) not in sizes or sum(sizes.values()) != len(self):
            return None
        begin = sum(size for part_id, size in sizes.items() if part_id < int(number))
        return slice(begin, begin + sizes[int(number)])


class _Request(threading.local):
    """Whether this thread serves a request for a range or a part of an object."""

    is_for_range = False


_request = _Request()


def _read(key: Any, begin: int, end: int) -> bytes:
    """Read a range of an object's contents."""
    with key.lock:
        key._value_buffer.seek(begin)
        return bytes(key._value_buffer.read(max(0, end - begin)))


def change_responses() -> None:
    """Change ``moto.s3.responses``: read only the requested range, and answer requests for one part of an object."""
    from moto.s3.responses import S3Response

    respond = S3Response.key_response

    def key_response(response: Any, request: Any, full_url: str, headers: Any) -> Any:
        number = request.args.get("partNumber", "") if request.method == "GET" else ""
        _request.is_for_range = request.method == "GET" and bool(request.headers.get("range") or number)
        try:
            status, answered, body = respond(response, request, full_url, headers)
        finally:
            _request.is_for_range = False
        if not isinstance(body, _Contents):
            return status, answered, body
        part = body.part(number) if status == HTTPStatus.OK else None
        if part is None:
            return status, answered, body[:]
        content = body[part]
        place = f"bytes {part.start}-{part.stop - 1}/{len(body)}"
        shown = {"content-range": place, "content-length": str(len(content)), "x-amz-mp-parts-count": body.count}
        return HTTPStatus.PARTIAL_CONTENT, {**answered, **shown}, content

    setattr(S3Response, "key_response", key_response)  # noqa: B010 - mypy forbids to assign to a method


def change_models() -> None:
    """Change ``moto.s3.models``: free objects and the parts of uploads, and read only the requested range."""
    from moto.s3.models import FakeKey

    _freed.append(FakeKey)
    _read_ranges()
    _free_parts()


def _read_ranges() -> None:
    from moto.s3.models import FakeKey, S3Backend

    setter: Any = vars(FakeKey)["value"].fset
    copy_part = S3Backend.upload_part_copy

    def value(key: Any) -> Any:
        contents = _Contents(key)
        return contents if _request.is_for_range else contents[:]

    def copy_range(backend: Any, *given: Any, **named: Any) -> Any:
        _request.is_for_range = named.get("start_byte") is not None
        try:
            return copy_part(backend, *given, **named)
        finally:
            _request.is_for_range = False

    setattr(FakeKey, "value", property(value, setter))  # noqa: B010
    setattr(S3Backend, "upload_part_copy", copy_range)  # noqa: B010


def _free_parts() -> None:
    """Free the contents of an upload's parts when the upload is complete."""
    from moto.s3.models import S3Backend

    complete = S3Backend.complete_multipart_upload

    def complete_and_free(backend: Any, bucket_name: str, multipart_id: str, body: Any) -> Any:
        key = complete(backend, bucket_name, multipart_id, body)
        if key is not None and key.multipart is not None:
            key.multipart.dispose()
        return key

    setattr(S3Backend, "complete_multipart_upload", complete_and_free)  # noqa: B010
