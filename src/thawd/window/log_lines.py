"""Finds the log lines of one invocation: those that its environment wrote between its start and its report."""

from __future__ import annotations

from pathlib import Path

from thawd.stores.invocations.record_rows import InvocationRow
from thawd.telemetry.logs.events import LogEvents
from thawd.telemetry.logs.groups import path_of_group

MOST_LINES = 500
# At most this many lines of the log are looked at. Lines of other environments stand between those that are looked for.
_MOST_SEEN = 50_000
_BEFORE_MS = 200
_AFTER_MS = 2000


def lines_of(row: InvocationRow, logs: Path, group: str) -> list[tuple[int, str]] | None:
    """Return time (milliseconds since 1970) and text of each line; None if the log no longer has them. Blocks.

    If several invocations ran in the environment at the same time, the lines of all of them are returned.

    Args:
        row: the invocation.
        logs: folder of the logs.
        group: name of the function's log group.

    Raises:
        OSError: the log cannot be read.
    """
    if not row.log_stream:
        return None
    stream, request_id = row.log_stream.encode(), row.request_id.encode()
    ended_ms = row.id // 1000
    found: list[tuple[int, str]] = []
    is_inside = False
    with LogEvents(path_of_group(logs, group)) as events:
        for number, event in enumerate(events.forward(start_ms=row.began_ms - _BEFORE_MS)):
            if number > _MOST_SEEN or event.time_ms > ended_ms + _AFTER_MS or len(found) >= MOST_LINES:
                break
            if event.stream != stream or event.time_ms < row.began_ms - _BEFORE_MS:
                continue
            names_it = request_id in event.message
            is_inside = is_inside or names_it
            if not is_inside:
                continue
            found.append((event.time_ms, event.message.decode("utf-8", "replace")))
            if names_it and (event.message.startswith(b"REPORT") or b'"platform.report"' in event.message):
                break
    return found or None
