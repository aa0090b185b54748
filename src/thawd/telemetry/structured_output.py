"""What a server prints, for machines: a JSON object a line, or entries of systemd's journal.

Each record has a time, a level (``info``, ``warning`` or ``error``), a message of one line, and fields. `Sink` is where
records go. `capture` turns everything else into records that Python prints in this process: texts on the standard
streams, records of `logging`, exceptions that nobody has caught, and what child processes print on standard error.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import select
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TextIO

import msgspec

from thawd.telemetry.journal import Journal
from thawd.telemetry.line_writer import LineWriter

PRIORITIES = {"info": 6, "warning": 4, "error": 3}
"""Levels, with their priorities in syslog. Source: syslog(3)."""
_STOP_WITHIN_S = 2.0
_LONGEST_LINE = 1 << 16
_ASCII_CONTROLS = {code: f"\\u{code:04x}" for code in range(0x7F, 0xA0)}
_encode = msgspec.json.Encoder(enc_hook=str).encode


class Sink(Protocol):
    """Where records go. Its methods may be called from any thread, and raise nothing."""

    @property
    def has_room(self) -> bool:
        """Whether records may be added without which readers can do."""

    def write(
        self,
        level: str,
        message: str,
        fields: Mapping[str, Any],
        *,
        at_s: float | None = None,
        is_problem: bool = False,
    ) -> str | None:
        """Write a record. Return its text, or None if it was dropped.

        Args:
            level: ``info``, ``warning`` or ``error``.
            message: one line of text.
            fields: further values by name, in small letters with underscores. Those that are None are left out.
            at_s: the record's time, seconds since 1970; None: now.
            is_problem: whether it belongs on standard error rather than standard output.
        """

    def start(self) -> None:
        """From now on, delay no caller."""

    def stop(self) -> None:
        """Write what waits to be written."""


class JsonLines:
    """A JSON object a line.

    Args:
        stdout: descriptor of standard output.
        stderr: descriptor of standard error.
        writer: writes the lines.
    """

    def __init__(self, stdout: int, stderr: int, *, writer: LineWriter | None = None) -> None:
        self._stdout, self._stderr = stdout, stderr
        self._writer = writer or LineWriter()
        self._dropped = 0

    @property
    def has_room(self) -> bool:
        """See `Sink.has_room`."""
        return self._writer.has_room

    def write(
        self,
        level: str,
        message: str,
        fields: Mapping[str, Any],
        *,
        at_s: float | None = None,
        is_problem: bool = False,
    ) -> str | None:
        """See `Sink.write`."""
        if self._dropped and self._writer.has_room:
            dropped, self._dropped = self._dropped, 0
            lost = _json_line("warning", f"{dropped:,} lines were lost, because nobody read them", {"lines": dropped})
            self._writer.write(self._stderr, lost)
        line = _json_line(level, message, fields, at_s)
        if not self._writer.write(self._stderr if is_problem else self._stdout, line):
            self._dropped += 1
            return None
        return line[:-1].decode()

    def start(self) -> None:
        """See `Sink.start`."""
        self._writer.start()

    def stop(self) -> None:
        """See `Sink.stop`. Nobody may read: then the rest is dropped after two seconds."""
        self._writer.stop(_STOP_WITHIN_S)


class JournalEntries:
    """Entries of systemd's journal. While there is none, they go to standard error as text.

    Args:
        journal: the journal.
        stderr: descriptor of standard error.
    """

    has_room = True

    def __init__(self, journal: Journal, stderr: int) -> None:
        self._journal = journal
        self._stderr = stderr
        self._is_lost = False
        self._dropped = 0

    def write(
        self,
        level: str,
        message: str,
        fields: Mapping[str, Any],
        *,
        at_s: float | None = None,
        is_problem: bool = False,
    ) -> str | None:
        """See `Sink.write`. The traceback of a record is a part of its message, too, which is what journalctl shows."""
        whole = "\n".join(filter(None, (message, fields.get("details"), fields.get("traceback"))))
        entry = {"MESSAGE": whole, "PRIORITY": str(PRIORITIES[level]), "SYSLOG_IDENTIFIER": "thawd"}
        entry |= {f"THAWD_{name.upper()}": str(value) for name, value in fields.items() if value is not None}
        if at_s is not None:
            entry["THAWD_TIME"] = iso_time(at_s)
        if self._dropped:
            entry["THAWD_LOST_ENTRIES"] = str(self._dropped)
        try:
            self._journal.send(entry)
        except BlockingIOError:
            self._dropped += 1
            return None
        except OSError as error:
            return self._to_stderr(whole, error)
        self._dropped, self._is_lost = 0, False
        return whole

    def start(self) -> None:
        """See `Sink.start`."""

    def stop(self) -> None:
        """See `Sink.stop`."""

    def _to_stderr(self, text: str, error: OSError) -> str | None:
        if not self._is_lost:
            self._is_lost = True
            text = (
                f"thawd: systemd's journal takes no entries ({error.strerror}); they follow here until it does\n{text}"
            )
        with contextlib.suppress(OSError, ValueError):
            poll = select.poll()
            poll.register(self._stderr, select.POLLOUT)
            if poll.poll(0):
                os.write(self._stderr, f"{text}\n".encode("utf-8", "replace")[: select.PIPE_BUF])
                return text
        self._dropped += 1
        return None


def descriptor_of(stream: TextIO | None) -> int:
    """Return the descriptor of a standard stream; of one that does not exist, a descriptor that takes everything.

    The number of a missing stream may have become that of another file.
    """
    try:
        if stream is not None:
            return stream.fileno()
    except (OSError, ValueError):
        pass
    return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)


def iso_time(at_s: float) -> str:
    """Return a time, seconds since 1970, in the form of ISO 8601 with milliseconds, in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at_s)) + f".{int(at_s % 1 * 1000):03d}Z"


def _json_line(level: str, message: str, fields: Mapping[str, Any], at_s: float | None = None) -> bytes:
    record = {"time": iso_time(time.time() if at_s is None else at_s), "level": level, "message": message}
    record |= {name: value for name, value in fields.items() if value is not None}
    try:
        line = _encode(record)
    except UnicodeEncodeError:  # a text that stands for bytes that are no UTF-8, such as a file's name
        line = _encode({name: _encodable(value) for name, value in record.items()})
    if b"\x7f" in line or b"\xc2" in line:  # a terminal would obey these control characters
        line = line.decode().translate(_ASCII_CONTROLS).encode()
    return line + b"\n"


def _encodable(value: Any) -> Any:
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


Emit = Callable[[str, str, Mapping[str, Any]], object]
"""Writes a record: its level, its text, and its fields."""


class _CapturedStream(io.TextIOBase):
    """A standard stream whose texts become records: one for each call that ends a line."""

    def __init__(self, stream: TextIO | None, level: str, emit: Emit) -> None:
        super().__init__()
        self._stream, self._level, self._emit = stream, level, emit
        self._lock = threading.RLock()  # the garbage collector may print something meanwhile
        self._text = ""

    # click takes a stream as it is only if the stream has an encoding.
    encoding = "utf-8"
    errors = "backslashreplace"

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        if self._stream is None:
            raise OSError("there is no such stream")
        return self._stream.fileno()

    def write(self, text: str) -> int:
        with self._lock:
            whole, newline, self._text = (self._text + text).rpartition("\n")
        if newline and whole.strip():
            self._emit(self._level, whole, {})
        return len(text)

    def flush(self) -> None:
        with self._lock:
            text, self._text = self._text, ""
        if text.strip():
            self._emit(self._level, text, {})


class _RecordsOfLogging(logging.Handler):
    """Writes the records of `logging` that no other handler takes."""

    def __init__(self, emit: Emit) -> None:
        super().__init__(logging.WARNING)
        self._write = emit

    def emit(self, record: logging.LogRecord) -> None:
        try:
            trace = "".join(traceback.format_exception(*record.exc_info)).rstrip() if record.exc_info else None
            level = "warning" if record.levelno < logging.ERROR else "error"
            self._write(level, record.getMessage(), {"logger": record.name, "traceback": trace})
        except Exception:
            self.handleError(record)


def capture(emit: Emit) -> None:
    """Turn everything into records that Python prints in this process, until it ends.

    Args:
        emit: writes a record.
    """

    def report(what: str, kind: type[BaseException], error: BaseException | None, trace: Any) -> None:
        if not issubclass(kind, KeyboardInterrupt):
            text = "".join(traceback.format_exception(kind, error, trace)).rstrip()
            emit("error", f"{what}: {kind.__name__}: {error}", {"error_type": kind.__name__, "traceback": text})

    sys.stdout = _CapturedStream(sys.stdout, "info", emit)
    sys.stderr = _CapturedStream(sys.stderr, "error", emit)
    sys.excepthook = lambda kind, error, trace: report("something failed inside thawd", kind, error, trace)
    threading.excepthook = lambda each: report("a thread failed", each.exc_type, each.exc_value, each.exc_traceback)
    sys.unraisablehook = lambda each: report(
        each.err_msg or "an exception was ignored", each.exc_type, each.exc_value, each.exc_traceback
    )
    logging.getLogger().addHandler(_RecordsOfLogging(emit))


class ChildOutput:
    """A pipe for the standard error of child processes. Each line that they write becomes a record.

    Args:
        emit: writes a record.

    Attributes:
        descriptor: the pipe's end for child processes.
    """

    def __init__(self, emit: Emit) -> None:
        reading, self.descriptor = os.pipe()
        self._emit = emit
        self._thread = threading.Thread(target=self._run, args=(reading,), name="thawd-child-output", daemon=True)
        self._thread.start()

    def close(self, within_s: float) -> None:
        """Wait until what ended child processes have written is read, at most `within_s` seconds."""
        os.close(self.descriptor)
        self._thread.join(within_s)

    def _run(self, reading: int) -> None:
        with os.fdopen(reading, "rb") as lines:
            while line := lines.readline(_LONGEST_LINE):
                if line.strip():
                    self._emit("warning", line.decode("utf-8", "replace").rstrip("\n"), {})
