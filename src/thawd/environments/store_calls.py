"""Answers the calls that handlers make through ``import thawd``: operations on tables and on remote buckets."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import msgspec

from thawd.environments.store_call_channel import ServiceHandler
from thawd.environments.version import Version
from thawd.errors import ResourceNotFoundException, ThawdError
from thawd.resources import Function
from thawd.stores.objects.remote import BucketStore, BucketStores
from thawd.stores.tables.access import Tables
from thawd.telemetry.console import complain
from thawd.wire.frames import MAX_BODY_BYTES

PAGE_ITEMS = 200
Reply = tuple[dict[str, Any], bytes]
_LOOKUP = "bucket.find"
_LONGEST_NAME = 100


class NotedCall(NamedTuple):
    """A call that was answered.

    Attributes:
        name: the operation and the table or bucket, such as ``table put labels``; no key.
        began_at: when it arrived, seconds since 1970.
        ended_at: when it was answered, the same clock.
        failed: whether it failed, or the object was missing.
    """

    name: str
    began_at: float
    ended_at: float
    failed: bool


Note = Callable[[NotedCall], None]
"""Notes a call of one environment."""
NoteOf = Callable[[Function, str], Note | None]
"""Returns what notes the calls of an environment, by its function and its log stream; None: nothing."""


class TableServices:
    """Serves ``thawd.table`` and ``thawd.bucket`` calls. An error is sent as a reply, and raised in the handler.

    Attributes:
        tables: all tables.
        buckets: the remote buckets. A handler accesses local buckets, which are folders, directly.
        note_of: returns what notes the calls of an environment, by its function and its log stream; None: nothing.
    """

    def __init__(self, tables: Tables, buckets: BucketStores | None = None) -> None:
        self.tables = tables
        self.buckets = buckets or BucketStores({})
        self.note_of: NoteOf = lambda function, stream: None

    async def __call__(self, head: dict[str, Any], body: bytes) -> Reply:
        """Answer one call. The call's `head` contains the operation (``op``), the table or bucket, and the key."""
        try:
            return await self._serve(head, body)
        except ThawdError as error:
            return {"error": error.message}, b""
        except (KeyError, TypeError, AttributeError) as error:
            return {"error": f"the call is malformed: {error!r}"}, b""
        except Exception as error:  # whatever fails, the call must get a reply, because the handler waits for it
            complain(f"thawd: a call that a function made through `import thawd` failed: {error!r}")
            return {"error": f"thawd failed: {error!r}"}, b""

    async def noted(self, note: Note, head: dict[str, Any], body: bytes) -> Reply:
        """Answer one call, and note it."""
        began_at = time.time()
        reply = await self(head, body)
        if head.get("op") != _LOOKUP:
            failed = "error" in reply[0] or "missing" in reply[0]
            note(NotedCall(_name_of(head), began_at, time.time(), failed))
        return reply

    async def _serve(self, head: dict[str, Any], body: bytes) -> Reply:
        operation = head["op"]
        if operation.startswith("bucket."):
            return await self._bucket(operation, head, body)
        table = await self.tables.get(head["table"])
        if operation == "table.put":
            await table.put(head["key"], body)
            return {}, b""
        if operation == "table.get":
            item = await table.get(head["key"])
            return {"found": item is not None}, item or b""
        if operation == "table.delete":
            await table.delete(head["key"])
            return {}, b""
        if operation == "table.scan":
            page = await table.scan(after=head["after"] or "", limit=PAGE_ITEMS)
            rows = [(key, msgspec.Raw(item)) for key, item in page]
            return {"more": len(page) == PAGE_ITEMS}, msgspec.json.encode(rows)
        return {"error": f"there is no operation {operation!r}"}, b""

    async def _bucket(self, operation: str, head: dict[str, Any], body: bytes) -> Reply:
        bucket = self._find(head["bucket"])
        if operation == _LOOKUP:
            return {"url": str(bucket.bucket.url)}, b""
        if operation == "bucket.read":
            try:
                return {}, await bucket.read(head["key"], limit_bytes=MAX_BODY_BYTES)
            except ResourceNotFoundException as error:
                return {"missing": error.message}, b""
        if operation == "bucket.write":
            await bucket.write(head["key"], body)
            return {}, b""
        return {"error": f"there is no operation {operation!r}"}, b""

    def _find(self, name: str) -> BucketStore:
        bucket = self.buckets.get(name)
        if bucket is None:
            raise ResourceNotFoundException(f"there is no bucket {name!r}")
        return bucket


def services_of(services: ServiceHandler, version: Version, stream: str) -> ServiceHandler:
    """Return what answers the calls of one environment: `services`, which note them if somebody wants to know.

    If an environment runs several invocations at the same time, it is not known which of them makes a call.

    Args:
        services: answers calls.
        version: the version that the environment runs.
        stream: name of its log stream.
    """
    if not isinstance(services, TableServices) or version.function.most_in_environment > 1:
        return services
    note = services.note_of(version.function, stream)
    return services if note is None else partial(services.noted, note)


def _name_of(head: dict[str, Any]) -> str:
    operation, place = head.get("op"), head.get("table") or head.get("bucket")
    kind = operation.replace(".", " ") if isinstance(operation, str) else "call"
    return (f"{kind} {place}" if isinstance(place, str) else kind)[:_LONGEST_NAME]
