"""DeleteObjects: removes many objects in one request and reports for each whether it was removed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from xml.etree import ElementTree as ET

from thawd.gateway.s3.files import check_key
from thawd.gateway.s3.intake import read_document
from thawd.gateway.s3.request import XML, S3Request
from thawd.gateway.s3.xml import S3Error, document, elements

# Source: Amazon S3 API reference, "DeleteObjects".
MAX_KEYS = 1000
# At most this many removals run at the same time. Such removals can be recorded in a common transaction.
_TOGETHER = 16
_CONDITIONS = ("VersionId", "ETag", "LastModifiedTime", "Size")

Remove = Callable[[bytes], Awaitable[None]]


async def delete_objects(request: S3Request, remove: Remove) -> None:
    """Answer a DeleteObjects.

    Args:
        request: the request.
        remove: removes an object and records its removal; a missing object is not an error. May raise S3Error.

    Raises:
        ClientGoneError: the client closed the connection before it had sent all keys.
        S3Error: the whole request is refused, and nothing was removed.
    """
    request.require_only({"delete"})
    asked = await read_document(request, root="Delete")
    entries = asked.findall("Object")
    if not 1 <= len(entries) <= MAX_KEYS:
        raise S3Error(400, "MalformedXML", f"The document names {len(entries)} objects; name 1 to {MAX_KEYS}")
    quiet = (asked.findtext("Quiet") or "").strip().lower() == "true"
    answers: list[str] = [""] * len(entries)
    places = iter(range(len(entries)))

    async def work() -> None:
        for place in places:
            answers[place] = await _delete(entries[place], remove, quiet=quiet)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(_TOGETHER, len(entries))):
            group.create_task(work())
    await request.answer(200, [XML], document("DeleteResult", "".join(answers)))


async def _delete(entry: ET.Element, remove: Remove, *, quiet: bool) -> str:
    """Remove the object that `entry` names; returns the answer's element for it, or "" for a success if `quiet`."""
    key = (entry.findtext("Key") or "").encode()
    try:
        _check(entry, key)
        await remove(key)
    except S3Error as error:
        return f"<Error>{elements({'Key': key, 'Code': error.code, 'Message': error.message})}</Error>"
    return "" if quiet else f"<Deleted>{elements({'Key': key})}</Deleted>"


def _check(entry: ET.Element, key: bytes) -> None:
    for name in _CONDITIONS:
        value = (entry.findtext(name) or "").strip()
        if value and (name, value) != ("VersionId", "null"):
            raise S3Error(501, "NotImplemented", f"{name} is not supported; the object was not removed")
    if not key:
        raise S3Error(400, "UserKeyMustBeSpecified", "An Object element has no Key; give it one")
    check_key(key)
