"""Reads records of invocations, for pages and for the API: lists, and everything that belongs to one invocation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from thawd.errors import InvalidParameterValueException, ResourceNotFoundException
from thawd.recording.recorder import Recorder
from thawd.stores.invocations import handler_calls
from thawd.stores.invocations import record_queries as queries
from thawd.stores.invocations.handler_calls import Calls
from thawd.stores.invocations.record_file import RecordFile
from thawd.stores.invocations.record_queries import ErrorCount, Filter, Page
from thawd.stores.invocations.record_rows import CUT, REDACTED, BodyRow, CallRow, InvocationRow, StepRow

MOST_ROWS = 200
"""Most records of one page."""
_NOT_REPLAYABLE = {
    REDACTED: "values of its event were redacted when it was recorded (server.redact), so the handler would get others",
    CUT: "its event is too large to be recorded (64 KiB)",
}


_SPAN_IDS = ("handler", "span", "parent")


class Whole(NamedTuple):
    """Everything that is recorded about one request id.

    Attributes:
        attempts: the attempts, oldest first; a synchronous invocation has one.
        bodies: the event and the answer of each attempt; None: they are not stored.
        steps: what happened to an asynchronous event after its attempts.
        related: the other invocations of the same trace, oldest first.
    """

    attempts: list[InvocationRow]
    bodies: list[BodyRow | None]
    steps: list[StepRow]
    related: list[InvocationRow]

    @property
    def why_not_replayable(self) -> str | None:
        """Why the event cannot be sent again; None: it can."""
        body = self.bodies[-1]
        return "its event is not recorded" if body is None else _NOT_REPLAYABLE.get(body.event_state)


class Records:
    """The records of one server.

    Args:
        file: the file with the records.
        recorder: writes records; what waits is written before records are read.
    """

    def __init__(self, file: RecordFile, recorder: Recorder) -> None:
        self._file = file
        self._recorder = recorder

    async def page(self, wanted: Filter, *, before: int | None = None, limit: int = 50) -> Page:
        """Return a page of records, newest first; see `thawd.stores.invocations.record_queries.page`.

        Raises:
            StoreError: the records cannot be read (500).
        """
        if before is None:
            await self._recorder.write()
        return await self._file.read(queries.page(wanted, before=before, limit=max(1, min(limit, MOST_ROWS))))

    async def whole(self, request_id: str) -> Whole:
        """Return everything that is recorded about a request id.

        Raises:
            ResourceNotFoundException: nothing is recorded about it (404).
            StoreError: the records cannot be read (500).
        """
        await self._recorder.write()
        attempts = await self._file.read(queries.attempts(request_id))
        if not attempts:
            raise ResourceNotFoundException(
                f"no invocation with the request id {request_id[:80]} is recorded; of a busy function only some "
                "successes are recorded (server.record_per_s), and old records are removed (server.record_days)"
            )
        bodies = [await self._file.read(queries.body(attempt.id)) for attempt in attempts]
        steps = await self._file.read(queries.steps(request_id))
        trace = attempts[-1].trace
        of_trace = await self._file.read(queries.of_trace(trace)) if trace else []
        return Whole(attempts, bodies, steps, [row for row in of_trace if row.request_id != request_id])

    async def calls(self, number: int) -> Calls | None:
        """Return what the handler called in the invocation with the record `number`; None: it was not traced.

        Raises:
            StoreError: the records cannot be read (500).
        """
        return await self._file.read(handler_calls.of_record(number))

    async def beginning_with(self, prefix: str) -> list[InvocationRow]:
        """Return the last attempt of each request id that begins with `prefix`, newest first, at most `MOST_BEGINNING`.

        If there is a request id that equals `prefix`, it is the only one.

        Raises:
            StoreError: the records cannot be read (500).
        """
        await self._recorder.write()
        found = await self._file.read(queries.beginning_with(prefix))
        return [row for row in found if row.request_id == prefix] or found

    def redacted_in(self, number: int) -> frozenset[str] | None:
        """Return the values that were redacted in the event of a record; None: they are unknown."""
        return self._recorder.redacted_in(number)

    async def last_errors(self, request_ids: Sequence[str]) -> dict[str, str]:
        """Return the last recorded error, type and message without secrets, of those request ids that have one.

        Raises:
            StoreError: the records cannot be read (500).
        """
        found = {}
        for request_id in request_ids:
            rows = await self._file.read(queries.attempts(request_id))
            if rows and rows[-1].failed:
                found[request_id] = f"{rows[-1].error_type}: {rows[-1].error}"
        return found

    async def errors(self, function: str | None, *, since_ms: int) -> list[ErrorCount]:
        """Return the kinds of failures since a time, the most frequent first.

        Raises:
            StoreError: the records cannot be read (500).
        """
        return await self._file.read(queries.errors(function, since_ms=since_ms))

    async def minutes(self, function: str | None, *, since: int, until: int) -> list[tuple[str, int, bytes]]:
        """Return counts by minute; see `thawd.stores.invocations.record_queries.minutes`.

        Raises:
            StoreError: the records cannot be read (500).
        """
        await self._recorder.write(counts=True)
        return await self._file.read(queries.minutes(function, since=since, until=until))

    async def list_document(self, wanted: Filter, *, before: int | None, limit: int) -> dict[str, Any]:
        """Return the JSON document of a page: ``invocations``, and ``next``, the cursor of the next page or null."""
        page = await self.page(wanted, before=before, limit=limit)
        return {"invocations": [row._asdict() for row in page.rows], "next": page.next, "is_cut": page.is_cut}

    async def document(self, request_id: str) -> dict[str, Any]:
        """Return the JSON document of one request id. Event, answer and calls are those of the last attempt."""
        whole = await self.whole(request_id)
        body = whole.bodies[-1]
        calls = await self.calls(whole.attempts[-1].id)
        return {
            "attempts": [row._asdict() for row in whole.attempts],
            "steps": [step._asdict() for step in whole.steps],
            "related": [row._asdict() for row in whole.related],
            "event": None if body is None else _json_or_text(body.event),
            "event_state": None if body is None else body.event_state,
            "answer": None if body is None else _json_or_text(body.answer),
            "answer_state": None if body is None else body.answer_state,
            "why_not_replayable": whole.why_not_replayable,
            "calls": None if calls is None else _calls_document(calls.rows),
            "calls_left_out": 0 if calls is None else calls.left_out,
        }


def filter_from(query: dict[str, str]) -> Filter:
    """Return the filter that query parameters describe. An empty parameter restricts nothing.

    Args:
        query: ``function``, ``error``, ``text``, ``start``, ``failed`` (1 or 0), ``since`` and ``until`` (seconds
            since 1970).

    Raises:
        InvalidParameterValueException: a parameter has an impossible value (400).
    """
    failed = query.get("failed", "")
    if failed not in ("", "0", "1"):
        raise InvalidParameterValueException(f"failed must be 0 or 1, not {failed[:40]!r}")
    return Filter(
        function=query.get("function") or None,
        failed=None if failed == "" else failed == "1",
        error_type=query.get("error") or None,
        since_ms=_milliseconds(query, "since"),
        until_ms=_milliseconds(query, "until"),
        text=query.get("text") or None,
        start_kind=query.get("start") or None,
    )


def _milliseconds(query: dict[str, str], name: str) -> int | None:
    text = query.get(name)
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 1e11:
        raise InvalidParameterValueException(f"{name} must be a time in seconds since 1970, not {text[:40]!r}")
    return int(seconds * 1000)


def _calls_document(rows: Sequence[CallRow]) -> list[dict[str, Any]]:
    """Return calls for the API: ``parent`` is the place of another one in the list, or null.

    The ids of spans are left out: who knows one may add spans below it (`thawd.recording.open_traces`).
    """
    places = {row.span: place for place, row in enumerate(rows)}
    return [
        {name: value for name, value in row._asdict().items() if name not in _SPAN_IDS}
        | {"parent": places.get(row.parent)}
        for row in rows
    ]


def _json_or_text(body: bytes) -> Any:
    if not body:
        return None
    try:
        msgspec.json.decode(body)
        body.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return body.decode("utf-8", "replace")
    return msgspec.Raw(body)
