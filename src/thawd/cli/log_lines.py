"""Prints lines of functions' logs, whole, short, as JSON, or only their messages."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

_STREAM_DIGITS = 4


class Layout(Enum):
    """How a line is printed."""

    LONG = "time, log stream and message"
    SHORT = "time of day, the stream's first digits, message"
    RAW = "message"
    JSON = "a JSON object"


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of a log.

    Attributes:
        time: when it was written, as text: ``2026-11-20T10:00:00.000Z``.
        stream: name of its log stream.
        message: the message.
        request_id: the invocation that it belongs to; empty if it belongs to none.
        machine: the machine of a cluster where it was written; empty if only one machine is shown.
    """

    time: bytes
    stream: bytes
    message: bytes
    request_id: bytes = b""
    machine: str = ""

    @classmethod
    def at(cls, time_ms: int, stream: bytes, message: bytes, request_id: bytes, machine: str = "") -> LogLine:
        """Make a line that was written `time_ms` milliseconds after the beginning of 1970."""
        text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time_ms // 1000)) + f".{time_ms % 1000:03d}Z"
        return cls(text.encode(), stream, message, request_id, machine)

    @property
    def text(self) -> bytes:
        """The line as the log's file has it."""
        return b"\t".join([self.time, self.stream, self.message])

    def shown(self, layout: Layout) -> str:
        """Return the line as it is printed. Escape sequences that functions wrote, as for colours, stay in it."""
        message = self.message.decode(errors="replace")
        if layout is Layout.RAW:
            return message
        written, stream = self.time.decode(errors="replace"), self.stream.decode(errors="replace")
        if layout is Layout.JSON:
            fields = {"time": written, "stream": stream, "message": message}
            if self.machine:
                fields["machine"] = self.machine
            if self.request_id:
                fields["requestId"] = self.request_id.decode()
            return json.dumps(fields, ensure_ascii=False)
        machine = f"{self.machine} " if self.machine else ""
        if layout is Layout.SHORT:
            return f"{written[11:19]} {machine}{stream.rpartition(']')[2][:_STREAM_DIGITS]} {message}"
        return f"{written} {machine}{stream} {message}" if written else message


def print_lines(lines: Iterable[LogLine], layout: Layout) -> None:
    """Print lines on standard output."""
    sys.stdout.writelines(f"{line.shown(layout)}\n" for line in lines)
    sys.stdout.flush()
