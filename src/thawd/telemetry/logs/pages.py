"""Reads a log page by page for another machine or process, which continues each time where it stopped.

A page has at most `MOST_BYTES` of messages, so neither side needs much memory for a large log.
"""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from thawd.errors import InvalidParameterValueException
from thawd.telemetry.logs.events import LogEvent, LogEvents, LogPosition

MOST_BYTES = 1 << 20
MOST_LINES = 10_000


class LogPage(msgspec.Struct, kw_only=True):
    """Some lines of a log.

    Attributes:
        exists: whether there is such a log.
        lines: time (milliseconds since 1970), log stream and message of each line, oldest first. Each character of a
            stream or a message stands for one byte, because functions may print anything (Latin-1).
        next: where the next page begins.
        is_last: whether the page ends at the end of the log; of `last_page`, whether it has all lines that were wanted.
        read_ms: a time on this machine's clock: all lines that were written before it are in this page or an earlier
            one. Milliseconds since 1970.
    """

    exists: bool
    lines: list[tuple[int, str, str]]
    next: str
    is_last: bool
    read_ms: int


def last_page(path: Path, count: int) -> LogPage:
    """Return the last `count` lines of a log, fewer if they have more than `MOST_BYTES` or `MOST_LINES`. Blocks.

    Args:
        path: the newest file of the log.
        count: number of lines; 0 finds the end only.

    Raises:
        OSError: the log cannot be read.
    """
    read_ms = _now_ms()
    found: list[LogEvent] = []
    end: LogPosition | None = None
    read_bytes, is_whole = 0, True
    with LogEvents(path) as events:
        for event in events.backward():
            end = end or event.end
            read_bytes += len(event.message)
            if len(found) >= count:
                break
            if len(found) >= MOST_LINES or read_bytes > MOST_BYTES:
                is_whole = False
                break
            found.append(event)
        return LogPage(
            exists=events.stored_bytes > 0 or path.exists(),
            lines=[_line(event) for event in reversed(found)],
            next=_token(end),
            is_last=is_whole,
            read_ms=read_ms,
        )


def next_page(path: Path, after: str, *, since_ms: int = 0) -> LogPage:
    """Return the lines from a place on. Blocks.

    Args:
        path: the newest file of the log.
        after: `LogPage.next` of the page before; empty: the beginning of the log.
        since_ms: lines from before this time, milliseconds since 1970, are left out where that saves reading them.

    Raises:
        InvalidParameterValueException: `after` is no such place (400).
        OSError: the log cannot be read.
    """
    place = _place(after)
    read_ms = _now_ms()
    lines: list[tuple[int, str, str]] = []
    read_bytes, is_last = 0, True
    with LogEvents(path) as events:
        for event in events.forward(place, start_ms=since_ms):
            read_bytes += len(event.message)
            if len(lines) >= MOST_LINES or (lines and read_bytes > MOST_BYTES):
                is_last, read_ms = False, lines[-1][0]
                break
            lines.append(_line(event))
            place = event.end
        exists = events.stored_bytes > 0 or path.exists()
    return LogPage(exists=exists, lines=lines, next=_token(place), is_last=is_last, read_ms=read_ms)


def _line(event: LogEvent) -> tuple[int, str, str]:
    return event.time_ms, event.stream.decode("latin-1"), event.message.decode("latin-1")


def _token(place: LogPosition | None) -> str:
    return "" if place is None else f"{place.file}.{place.offset}"


def _place(token: str) -> LogPosition | None:
    if not token:
        return None
    file, dot, offset = token.partition(".")
    if not dot or not all(part.isascii() and part.isdigit() and len(part) <= 20 for part in (file, offset)):
        raise InvalidParameterValueException(f"after must be the `next` of a page, not {token[:60]!r}")
    return LogPosition(int(file), int(offset))


def _now_ms() -> int:
    return int(time.time() * 1000)
