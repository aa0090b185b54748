"""Finds records of invocations. Each query is a function of a connection, for `RecordFile.read`.

Lists are pages in the order of time, newest first, with the id of the last record as the cursor. A search for a text
looks at a limited number of records for each page, and says how far it got, so that no page takes long.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from thawd.stores.invocations.record_rows import BodyRow, InvocationRow, StepRow

MOST_SCANNED = 10_000
"""Most records that a search for a text looks at for one page."""
MOST_COUNTED = 5_000
"""Most failures that are counted by kind, the newest."""
MOST_BEGINNING = 20
"""Most request ids that a search for the beginning of one finds."""
_FIELDS = ", ".join(InvocationRow._fields)


@dataclass(frozen=True, slots=True)
class Filter:
    """Which records a list contains; a field that is None restricts nothing.

    Attributes:
        function: the function's name.
        failed: only failures (True) or only successes (False).
        error_type: the type of the error; only failures have one.
        since_ms: ended at this time or later, milliseconds since 1970.
        until_ms: ended before this time.
        text: the error message or the source contains this text; case does not matter for ASCII letters.
        start_kind: how the environment was started.
    """

    function: str | None = None
    failed: bool | None = None
    error_type: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    text: str | None = None
    start_kind: str | None = None


class Page(NamedTuple):
    """A page of a list.

    Attributes:
        rows: the records, newest first.
        next: cursor of the next page; None: this is the last page.
        is_cut: whether the search for a text stopped before the page was full; `next` continues it.
    """

    rows: list[InvocationRow]
    next: int | None
    is_cut: bool = False


class ErrorCount(NamedTuple):
    """How often a kind of failure occurs: the last one's id and time come with it."""

    function: str
    error_type: str
    times: int
    last_id: int
    error: str


def page(wanted: Filter, *, before: int | None = None, limit: int = 50) -> Callable[[sqlite3.Connection], Page]:
    """Return a query for a page of records.

    Args:
        wanted: which records.
        before: only records with a smaller id; None: from the newest.
        limit: most records of the page.
    """
    where, values = _conditions(wanted, before)
    needs_scan = wanted.text is not None or wanted.start_kind is not None

    def read(connection: sqlite3.Connection) -> Page:
        if not needs_scan:
            found = connection.execute(
                f"SELECT {_FIELDS} FROM invocations WHERE {where} ORDER BY id DESC LIMIT ?", (*values, limit + 1)
            )
            rows = [InvocationRow(*row) for row in found]
            return Page(rows[:limit], rows[limit - 1].id if len(rows) > limit else None)
        return _scan(connection, where, values, wanted, limit)

    return read


def _scan(connection: sqlite3.Connection, where: str, values: list[object], wanted: Filter, limit: int) -> Page:
    """Look at `MOST_SCANNED` records at most."""
    rows: list[InvocationRow] = []
    seen, last = 0, None
    text = None if wanted.text is None else wanted.text.lower()
    cursor = connection.execute(
        f"SELECT id, start_kind, error, source, error_type FROM invocations WHERE {where} ORDER BY id DESC LIMIT ?",
        (*values, MOST_SCANNED + 1),
    )
    ids: list[int] = []
    for number, kind, error, source, error_type in cursor:
        if len(ids) == limit or seen == MOST_SCANNED:
            break
        seen, last = seen + 1, number
        if wanted.start_kind is not None and kind != wanted.start_kind:
            continue
        if text is None or text in error.lower() or text in source.lower() or text in error_type.lower():
            ids.append(number)
    else:
        last = None
    for number in ids:
        found = connection.execute(f"SELECT {_FIELDS} FROM invocations WHERE id = ?", (number,)).fetchone()
        rows.append(InvocationRow(*found))
    return Page(rows, last, is_cut=last is not None and len(rows) < limit)


def _conditions(wanted: Filter, before: int | None) -> tuple[str, list[object]]:
    conditions, values = ["1"], list[object]()
    if wanted.function is not None:
        conditions.append("function = ?")
        values.append(wanted.function)
    if wanted.failed is not None or wanted.error_type is not None:
        # A literal, not a parameter: otherwise SQLite would not use the indexes of failures only.
        conditions.append("failed = 0" if wanted.failed is False and wanted.error_type is None else "failed = 1")
    if wanted.failed is False and wanted.error_type is not None:
        conditions.append("0")  # no success has an error type
    if wanted.error_type is not None:
        conditions.append("error_type = ?")
        values.append(wanted.error_type)
    if before is not None:
        conditions.append("id < ?")
        values.append(before)
    if wanted.since_ms is not None:
        conditions.append("id >= ?")
        values.append(wanted.since_ms * 1000)
    if wanted.until_ms is not None:
        conditions.append("id < ?")
        values.append(wanted.until_ms * 1000)
    return " AND ".join(conditions), values


def attempts(request_id: str, *, limit: int = 100) -> Callable[[sqlite3.Connection], list[InvocationRow]]:
    """Return a query for all records of a request id, oldest first: the attempts of an asynchronous event."""

    def read(connection: sqlite3.Connection) -> list[InvocationRow]:
        found = connection.execute(
            f"SELECT {_FIELDS} FROM invocations WHERE request_id = ? ORDER BY id LIMIT ?", (request_id, limit)
        )
        return [InvocationRow(*row) for row in found]

    return read


def beginning_with(prefix: str, *, limit: int = MOST_BEGINNING) -> Callable[[sqlite3.Connection], list[InvocationRow]]:
    """Return a query for the last record of each request id that begins with `prefix`, newest first.

    If there are more than `limit` request ids, they are the first in the order of the alphabet; one that equals
    `prefix` is among them.
    """

    def read(connection: sqlite3.Connection) -> list[InvocationRow]:
        found = connection.execute(
            f"SELECT {_FIELDS} FROM invocations WHERE id IN (SELECT max(id) FROM invocations "
            "WHERE request_id >= ? AND request_id < ? GROUP BY request_id LIMIT ?) ORDER BY id DESC",
            (prefix, prefix + chr(0x10FFFF), limit),
        )
        return [InvocationRow(*row) for row in found]

    return read


def of_trace(trace: str, *, limit: int = 50) -> Callable[[sqlite3.Connection], list[InvocationRow]]:
    """Return a query for the records of a trace, oldest first: what belongs together across functions and queues.

    If there are more than `limit`, they are those that ended first. In this order, the index has them.
    """

    def read(connection: sqlite3.Connection) -> list[InvocationRow]:
        found = connection.execute(
            f"SELECT {_FIELDS} FROM invocations WHERE trace = ? ORDER BY id LIMIT ?", (trace, limit)
        )
        return sorted((InvocationRow(*row) for row in found), key=lambda row: row.began_ms)

    return read


def body(number: int) -> Callable[[sqlite3.Connection], BodyRow | None]:
    """Return a query for the event and the answer of the record `number`."""

    def read(connection: sqlite3.Connection) -> BodyRow | None:
        found = connection.execute("SELECT * FROM bodies WHERE id = ?", (number,)).fetchone()
        return None if found is None else BodyRow(*found)

    return read


def steps(request_id: str) -> Callable[[sqlite3.Connection], list[StepRow]]:
    """Return a query for what happened to an asynchronous event, oldest first."""

    def read(connection: sqlite3.Connection) -> list[StepRow]:
        found = connection.execute(
            "SELECT at_ms, request_id, kind, detail FROM steps WHERE request_id = ? ORDER BY id LIMIT 200",
            (request_id,),
        )
        return [StepRow(*row) for row in found]

    return read


def errors(
    function: str | None, *, since_ms: int, most: int = MOST_COUNTED
) -> Callable[[sqlite3.Connection], list[ErrorCount]]:
    """Return a query for the kinds of failures since a time, the most frequent first.

    Args:
        function: only of this function; None: of all.
        since_ms: only failures that ended at this time or later, milliseconds since 1970.
        most: most failures that are looked at, the newest.
    """
    where, values = _conditions(Filter(function=function, failed=True, since_ms=since_ms), None)

    def read(connection: sqlite3.Connection) -> list[ErrorCount]:
        found = connection.execute(
            "SELECT function, error_type, sum(stands_for), max(id), error FROM "
            f"(SELECT * FROM invocations WHERE {where} ORDER BY id DESC LIMIT ?) "
            "GROUP BY function, error_type ORDER BY 3 DESC, 4 DESC LIMIT 50",
            (*values, most),
        )
        return [ErrorCount(*row) for row in found]

    return read


def minutes(
    function: str | None, *, since: int, until: int
) -> Callable[[sqlite3.Connection], list[tuple[str, int, bytes]]]:
    """Return a query for counts by minute, as function, minute and document, in the order of time.

    Args:
        function: only of this function; None: of all.
        since: first minute, counted since 1970.
        until: the minute after the last.
    """

    def read(connection: sqlite3.Connection) -> list[tuple[str, int, bytes]]:
        if function is None:
            query, values = "minute >= ? AND minute < ?", (since, until)
        else:
            query, values = "minute >= ? AND minute < ? AND function = ?", (since, until, function)  # type: ignore[assignment]
        found = connection.execute(
            f"SELECT function, minute, document FROM minutes WHERE {query} ORDER BY minute", values
        )
        return [tuple(row) for row in found]

    return read
