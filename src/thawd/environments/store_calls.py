"""Answers the calls that handlers make through ``import thawd``: operations on tables and on remote buckets."""

from __future__ import annotations

from typing import Any

import msgspec

from thawd.errors import ResourceNotFoundException, ThawdError
from thawd.stores.objects.remote import BucketStore, BucketStores
from thawd.stores.tables.access import Tables
from thawd.telemetry.console import complain
from thawd.wire.frames import MAX_BODY_BYTES

PAGE_ITEMS = 200
Reply = tuple[dict[str, Any], bytes]


class TableServices:
    """Serves ``thawd.table`` and ``thawd.bucket`` calls. An error is sent as a reply, and raised in the handler.

    Attributes:
        tables: all tables.
        buckets: the remote buckets. A handler accesses local buckets, which are folders, directly.
    """

    def __init__(self, tables: Tables, buckets: BucketStores | None = None) -> None:
        self.tables = tables
        self.buckets = buckets or BucketStores({})

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
        if operation == "bucket.find":
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
