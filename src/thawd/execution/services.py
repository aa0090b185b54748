"""Answers what handlers ask of the platform through ``import thawd``: operations on tables."""

from __future__ import annotations

from typing import Any

import msgspec

from thawd.errors import ThawdError
from thawd.state.tables import Tables
from thawd.telemetry.console import complain

PAGE_ITEMS = 200
Reply = tuple[dict[str, Any], bytes]


class TableServices:
    """Serves ``thawd.table`` calls; an error becomes a reply, so that it is raised in the handler."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables

    async def __call__(self, head: dict[str, Any], body: bytes) -> Reply:
        """One call: its head names the operation ``op``, the table and the key."""
        try:
            return await self._serve(head, body)
        except ThawdError as error:
            return {"error": error.message}, b""
        except (KeyError, TypeError, AttributeError) as error:
            return {"error": f"the call is malformed: {error!r}"}, b""
        except Exception as error:  # the border to user code: whatever fails here must not leave it waiting
            complain(f"thawd: a call of a function failed: {error!r}")
            return {"error": f"thawd failed: {error!r}"}, b""

    async def _serve(self, head: dict[str, Any], body: bytes) -> Reply:
        table = await self.tables.get(head["table"])
        operation = head["op"]
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
