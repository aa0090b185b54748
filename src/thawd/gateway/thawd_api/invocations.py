"""Recorded invocations over HTTP: ``GET /_thawd/invocations`` and ``GET /_thawd/invocations/REQUEST_ID``, as JSON."""

from __future__ import annotations

from urllib.parse import parse_qsl, unquote

from thawd.errors import InvalidParameterValueException, MethodNotAllowedException, StoreError
from thawd.gateway.http import READING, Scope, Send, respond_json
from thawd.recording.records import Records, filter_from

PATH = "/_thawd/invocations"
_DEFAULT_ROWS = 50


class InvocationsApi:
    """Serves lists of recorded invocations, and single ones.

    Args:
        records: the records; None: no invocation is recorded.
        why_none: why no invocation is recorded.
    """

    def __init__(self, records: Records | None, *, why_none: str) -> None:
        self._records = records
        self._why_none = why_none

    def claims(self, path: str) -> bool:
        """Whether a request with this path is for recorded invocations."""
        return path == PATH or path.startswith(f"{PATH}/")

    async def __call__(self, scope: Scope, send: Send) -> None:
        """Serve one request.

        Raises:
            ResourceNotFoundException: no such request id is recorded (404).
            InvalidParameterValueException: a parameter has an impossible value (400).
            MethodNotAllowedException: the request does not only read (405).
            StoreError: the records cannot be read (500), or no invocation is recorded.
        """
        path: str = scope["path"]
        if scope["method"] not in READING:
            raise MethodNotAllowedException(f"{path} accepts GET, not {scope['method']}", allowed=READING)
        if self._records is None:
            raise StoreError(f"invocations are not recorded: {self._why_none}")
        if path != PATH:
            await respond_json(send, 200, await self._records.document(unquote(path.removeprefix(f"{PATH}/"))))
            return
        query = dict(parse_qsl(scope["query_string"].decode("latin-1")))
        before = query.get("before")
        limit = query.get("limit", str(_DEFAULT_ROWS))
        for name, text in (("before", before or "0"), ("limit", limit)):
            if not (text.isascii() and text.isdigit() and len(text) <= 18):
                raise InvalidParameterValueException(f"{name} must be a whole number, not {text[:40]!r}")
        document = await self._records.list_document(
            filter_from(query), before=int(before) if before else None, limit=int(limit)
        )
        await respond_json(send, 200, document)
