"""Stores, finds and removes what the handlers of traced invocations called. Functions of a connection.

A call is stored only if the record of its invocation is stored, and is removed with it. So the limits of the file, in
days and bytes, hold for calls, too.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import NamedTuple

from thawd.stores.invocations.record_rows import Batch, CallRow, HandlerRow

MOST_CALLS = 200
"""Most calls that are stored of one invocation."""
_COLUMNS = ", ".join(CallRow._fields)
# The calls that are read; more than `MOST_CALLS` are there only if another version of thawd has stored more.
_MOST_READ = 1000
_ASKED_AT_ONCE = 500

InsertRows = Callable[[sqlite3.Connection, str, Sequence[tuple[object, ...]]], None]
"""Inserts rows into a table."""


class Calls(NamedTuple):
    """What a handler called.

    Attributes:
        began_us: when the handler began, microseconds since 1970.
        rows: its calls, in the order of their beginnings.
        left_out: how many further calls are not stored.
    """

    began_us: int
    rows: list[CallRow]
    left_out: int


def insert(connection: sqlite3.Connection, batch: Batch, insert_rows: InsertRows) -> None:
    """Store the handlers of a batch, and those of its calls whose record is stored.

    Args:
        connection: of the file.
        batch: its records were inserted before, in the same transaction.
        insert_rows: inserts rows into a table.
    """
    insert_rows(connection, "handlers", batch.handlers)
    named = {call.handler for call in batch.calls} - {row.handler for row in batch.handlers}
    stored = {row.handler for row in batch.handlers} | _known(connection, sorted(named))
    # None: SQLite chooses the next id.
    insert_rows(connection, "calls", [(None, *call) for call in batch.calls if call.handler in stored])
    connection.executemany(
        "UPDATE handlers SET left_out = ? WHERE handler = ?",
        [(count, handler) for handler, count in batch.left_out.items()],
    )


def _known(connection: sqlite3.Connection, handlers: Sequence[str]) -> set[str]:
    found: set[str] = set()
    for start in range(0, len(handlers), _ASKED_AT_ONCE):
        some = handlers[start : start + _ASKED_AT_ONCE]
        marks = ", ".join("?" * len(some))
        found.update(h for (h,) in connection.execute(f"SELECT handler FROM handlers WHERE handler IN ({marks})", some))
    return found


def remove_of(connection: sqlite3.Connection, ids: Sequence[int]) -> None:
    """Remove the handlers and the calls of records that are being removed."""
    if not ids or connection.execute("SELECT 1 FROM handlers WHERE id <= ? LIMIT 1", (max(ids),)).fetchone() is None:
        return
    numbers = [(number,) for number in ids]
    connection.executemany("DELETE FROM calls WHERE handler = (SELECT handler FROM handlers WHERE id = ?)", numbers)
    connection.executemany("DELETE FROM handlers WHERE id = ?", numbers)


def of_record(number: int) -> Callable[[sqlite3.Connection], Calls | None]:
    """Return a query for what the handler of the record `number` called; it finds None if that was not recorded."""

    def read(connection: sqlite3.Connection) -> Calls | None:
        found = connection.execute("SELECT * FROM handlers WHERE id = ?", (number,)).fetchone()
        if found is None:
            return None
        row = HandlerRow(*found)
        calls = connection.execute(
            f"SELECT {_COLUMNS} FROM calls WHERE handler = ? ORDER BY began_us, id LIMIT ?", (row.handler, _MOST_READ)
        )
        return Calls(row.began_us, [CallRow(*call) for call in calls], row.left_out)

    return read
