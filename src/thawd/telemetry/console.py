"""Prints lines for the operator of the server. Never raises: a closed terminal must not end the server.

The lines are text for people, unless `use` selects another form. In that form a line is a record: a level, a message,
and fields by name.
"""

from __future__ import annotations

import os
import select
import shutil
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from thawd.telemetry.held_lines import HeldLines
    from thawd.telemetry.structured_output import ChildOutput, Sink

NARROW = 80
"""The width of a line of `fit`, in columns, unless the terminal is wider."""
PIPE_BYTES = 4096
"""Bytes that a pipe takes without waiting if it takes any."""
_CODES = {"red": 31, "green": 32, "yellow": 33, "cyan": 36, "dim": 2, "bold": 1}
# Those that can control a terminal; a tab cannot.
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if code != 0x09}
_CHILD_WAIT_S = 1.0
_is_quiet = False
_sink: Sink | None = None  # None: text
_redact: Callable[[str], str] = str
_child_output: ChildOutput | None = None
_shared: HeldLines | None = None
# The texts that were printed last, each with whether it was for standard error.
_printed: deque[tuple[bool, str]] = deque(maxlen=100)


def be_quiet(is_quiet: bool = True) -> None:
    """From now on, print only lines about problems."""
    global _is_quiet  # noqa: PLW0603 - a process has one console
    _is_quiet = is_quiet


def is_quiet() -> bool:
    """Whether only lines about problems are printed."""
    return _is_quiet


def use(log_format: str, *, journal: str | None = None) -> None:
    """Print in another form from now on, and whatever else this process prints, too.

    Args:
        log_format: ``text``, ``json``: a JSON object a line, or ``journald``: entries of systemd's journal. If there is
            no journal, text goes to standard error.
        journal: the journal's socket; None: that of this machine.
    """
    global _sink  # noqa: PLW0603 - a process has one console
    if log_format == "text" or _sink is not None:
        return
    # These imports are needed for these forms only.
    from thawd.telemetry.journal import SOCKET, Journal
    from thawd.telemetry.structured_output import JournalEntries, JsonLines, capture, descriptor_of

    if log_format == "journald":
        journal = journal or SOCKET
        entries = Journal(journal)
        if not entries.is_there():
            entries.close()
            sys.stdout = sys.stderr
            complain(f"thawd: there is no journal at {journal}; lines go to standard error as text")
            return
        _sink = JournalEntries(entries, descriptor_of(sys.stderr))
    else:
        _sink = JsonLines(descriptor_of(sys.stdout), descriptor_of(sys.stderr))
    capture(_record)


def is_structured() -> bool:
    """Whether lines are records rather than text."""
    return _sink is not None


def redact_with(redact: Callable[[str], str]) -> None:
    """From now on, replace secrets in the messages of records."""
    global _redact  # noqa: PLW0603 - a process has one console
    _redact = redact


@contextmanager
def in_background() -> Iterator[None]:
    """In the ``with`` block, let no record wait for its reader."""
    if _sink is None:
        yield
        return
    _sink.start()
    try:
        yield
    finally:
        end()


def share_terminal(path: str) -> None:
    """From now on, print nothing on a terminal while a debugged function has it for a prompt, but afterwards.

    Args:
        path: path of the terminal.
    """
    global _shared  # noqa: PLW0603 - a process has one console
    from thawd.telemetry.held_lines import HeldLines

    with suppress(OSError):
        _shared = HeldLines(path, _print)


def end_sharing() -> None:
    """Print what has been held back, and hold nothing back from now on: what comes must be seen."""
    if _shared is not None:
        _shared.end()


def end() -> None:
    """Print what waits to be printed. Call it when the server and its child processes have ended."""
    global _child_output  # noqa: PLW0603 - a process has one console
    if _child_output is not None:
        _child_output.close(_CHILD_WAIT_S)
        _child_output = None
    if _sink is not None:
        _sink.stop()


def stderr_of_children() -> int | None:
    """Return the descriptor for the standard error of child processes; None: this process's own."""
    global _child_output  # noqa: PLW0603 - a process has one console
    if _sink is None:
        return None
    if _child_output is None:
        from thawd.telemetry.structured_output import ChildOutput

        try:
            _child_output = ChildOutput(_record)
        except (OSError, RuntimeError):
            return None
    return _child_output.descriptor


def say(text: str, **fields: Any) -> None:
    """Print a line on standard output, unless the console is quiet.

    Args:
        text: the line.
        fields: further values of the record, if lines are records.
    """
    if not _is_quiet:
        if _sink is None:
            _write(sys.stdout, text)
        else:
            _record("info", text, fields)


def complain(text: str, *, level: str = "warning", **fields: Any) -> None:
    """Print a line about a problem on standard error.

    Args:
        text: the line.
        level: ``warning`` or ``error``, if lines are records.
        fields: further values of the record.
    """
    if _sink is None:
        _write(sys.stderr, text)
    else:
        _record(level, text, fields)


def write_record(level: str, message: str, fields: Mapping[str, Any], *, at_s: float | None = None) -> bool:
    """Write a record as it is on standard output. Return False if that would have to wait, or if lines are text.

    Args:
        level: ``info``, ``warning`` or ``error``.
        message: one line of text, without secrets.
        fields: further values by name, without secrets.
        at_s: the record's time, seconds since 1970; None: now.
    """
    if _sink is None or not _sink.has_room:
        return False
    written = _sink.write(level, message, fields, at_s=at_s)
    if written is not None:
        _printed.append((False, written))
    return written is not None


def _record(level: str, text: str, fields: Mapping[str, Any]) -> None:
    """Write a text as a record, whose message is the first line. The others become the field ``details``."""
    assert _sink is not None
    message, _, details = _redact(text.strip()).partition("\n")
    fields = {name: _redact(value) if isinstance(value, str) else value for name, value in fields.items()}
    if details:
        fields["details"] = details
    is_problem = level != "info"
    message = " ".join(message.removeprefix("thawd: ").split())
    written = _sink.write(level, message, fields, is_problem=is_problem)
    if written is not None:
        _printed.append((is_problem, written))


def has_printed(lines: str) -> bool:
    """Whether these lines, each with its line break, were printed lately, one after the other.

    Between them may be lines on standard error, as if only standard output were read.
    """
    printed = _printed.copy()
    return any(
        lines in "".join(f"{text}\n" for is_problem, text in printed if with_problems or not is_problem)
        for with_problems in (True, False)
    )


def coloured(text: str, colour: str) -> str:
    """Return `text` in a colour if standard output is a terminal that has colours; else unchanged.

    Source: no-color.org for ``NO_COLOR``; ``FORCE_COLOR`` asks for colours where there is no terminal.
    """
    return f"\x1b[{_CODES[colour]}m{text}\x1b[0m" if has_colours(sys.stdout) else text


def has_colours(stream: TextIO | None) -> bool:
    """Whether text on `stream` may be coloured."""
    if stream is None or os.environ.get("NO_COLOR") or _sink is not None:
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    try:
        return stream.isatty() and os.environ.get("TERM") != "dumb"
    except ValueError:
        return False  # the stream is closed


def is_terminal() -> bool:
    """Whether standard output is a terminal, on which somebody waits for what is slow."""
    try:
        return sys.stdout is not None and _sink is None and sys.stdout.isatty()
    except ValueError:
        return False  # the stream is closed


def fit(text: str) -> str:
    """Return `text` cut to the width of the terminal; to 80 columns if it is narrower, or if there is none."""
    width = max(NARROW, shutil.get_terminal_size((NARROW, 24)).columns)
    return text if len(text) <= width else text[: width - 1] + "…"


def harmless(text: str) -> str:
    """Return `text` with its control characters escaped: a client's text must not control the operator's terminal."""
    return text.translate(_CONTROLS)


def takes_lines() -> bool:
    """Whether `say` can print up to `PIPE_BYTES` now without waiting.

    It would wait while a terminal is stopped with Ctrl-S, or while the reader of a pipe does not read, as ``less``.

    Source: pipe(7), "PIPE_BUF"; poll(2), "POLLOUT".
    """
    try:
        looked = select.poll()
        looked.register(sys.stdout.fileno(), select.POLLOUT)
        return bool(looked.poll(0))
    except (AttributeError, OSError, ValueError):
        return True  # there is no descriptor, or it is closed: `say` does not wait


def _write(stream: TextIO | None, text: str) -> None:
    if stream is None:  # the process was started without standard streams
        return
    _printed.append((stream is sys.stderr, text))
    if _shared is None or not _shared.take(stream, text):
        _print(stream, text)


def _print(stream: TextIO, text: str) -> None:
    try:
        stream.write(f"{text}\n")  # in one call, so that lines of several threads do not mix
        stream.flush()
    except (OSError, ValueError):
        return
