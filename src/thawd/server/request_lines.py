"""Prints a line for each invocation while `thawd up` runs, and the traceback of one that failed.

``13:04:31 f GET /d 500 5 ms ValueError: bad pixel count``. The dispatcher reports invocations to this module as it does
to the recording of invocations: all that failed or waited for a start, and a sample of the others if there are many.
Lines are made and written a moment later, so that a request costs a few hundred nanoseconds. With
`server.log_format` ``json`` or ``journald``, each invocation is a record instead.

While standard output takes no lines, because its terminal is stopped or nobody reads its pipe, none are printed:
requests must not wait for it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from thawd.environments.version import Version
from thawd.errors import ThawdError
from thawd.invocation import in_a_line
from thawd.recording.redaction import Redactor
from thawd.scheduling.ended_invocations import EndedInvocation, Reporting
from thawd.server.invocation_descriptions import Description, InvocationDescriptions
from thawd.telemetry.console import (
    PIPE_BYTES,
    coloured,
    fit,
    harmless,
    is_structured,
    say,
    takes_lines,
    write_record,
)
from thawd.telemetry.logs.groups import DEFAULT_PREFIX, path_of_group

if TYPE_CHECKING:
    from thawd.server.assembly.platform import Platform

# The lines of a function are written to its log every 50 ms; those of a failed invocation are read after that.
_SOON_S = 0.08
# How long a line waits for what its invocation has logged, which another thread writes.
_MOST_WAIT_S = 2.0
_MOST_A_SECOND = 50
# A character has up to 4 bytes, so that a line fits into a pipe.
_MOST_COLUMNS = PIPE_BYTES // 4 - 1
_NO_REDACTION = Redactor(())


class RequestLines:
    """Prints lines about invocations.

    Args:
        version_of: returns the version that serves a function, for the paths of its files; None: there is none.
        log_of: returns the path of a function's log.
        redactor: replaces secrets in the lines.
        write: prints a text of at most `PIPE_BYTES`.
        may_write: whether `write` prints without waiting.
        as_records: whether to write records in place of texts.
        runs_again: whether an event that ends now runs again after the next start; asked when it ends.
    """

    def __init__(  # noqa: PLR0913
        self,
        version_of: Callable[[str], Version | None],
        log_of: Callable[[str], Path],
        *,
        redactor: Redactor = _NO_REDACTION,
        write: Callable[[str], None] = say,
        may_write: Callable[[], bool] = takes_lines,
        as_records: bool = False,
        runs_again: Callable[[EndedInvocation], bool] = lambda _: False,
    ) -> None:
        self._descriptions = InvocationDescriptions(version_of, log_of, redactor)
        self._redactor = redactor
        self._write = write
        self._may_write = may_write
        self._as_records = as_records
        self._runs_again = runs_again
        self._again: set[str] = set()  # request ids of events that ended while the server was stopping
        self._ended: list[EndedInvocation] = []
        self._due: deque[EndedInvocation] = deque()
        self._second = 0
        self._left = _MOST_A_SECOND
        self._skipped = 0

    def add(self, ended: EndedInvocation) -> None:
        """Print an invocation soon, unless many were printed in this second."""
        if self._may_print(ended.ended_s):
            if not self._ended:
                asyncio.get_running_loop().call_later(_SOON_S, self._begin)
            if self._runs_again(ended):
                self._again.add(ended.invocation.request_id)
            self._ended.append(ended)

    def unserved(self, method: str, path: str, status: int, reason: str) -> None:
        """Print a request for which nothing is served, unless many lines were printed in this second."""
        if self._may_print(time.monotonic()):
            named = f"{method} {path}"
            words = self._redactor.text(f"{named} {status} {reason}")
            if self._as_records:
                fields = {"event": "request", "source": self._redactor.text(named), "status": status}
                is_printed = write_record("info", harmless(in_a_line(words)), fields)
            else:
                is_printed = self._print([coloured(_fitted((time.strftime("%H:%M:%S"), words)), "yellow")])
            if not is_printed:
                self._skipped += 1

    def _may_print(self, now_s: float) -> bool:
        second = int(now_s)
        if second != self._second:
            self._second, self._left = second, _MOST_A_SECOND
        if not self._left:
            self._skipped += 1
            return False
        self._left -= 1
        return True

    def flush(self) -> None:
        """Print the invocations that were added."""
        due = [*self._due, *self._ended]
        self._due.clear()
        self._ended = []
        for ended in due:
            self._show(ended, is_last_try=True)
        self._show_skipped()

    def _begin(self) -> None:
        self._due += self._ended
        self._ended = []
        self._go_on()

    def _go_on(self) -> None:
        """Print one invocation, whose log may be read for that, and the others after what else the loop has to do."""
        if self._due:
            ended = self._due.popleft()
            self._show(ended, is_last_try=time.monotonic() > ended.ended_s + _MOST_WAIT_S)
        if self._due:
            asyncio.get_running_loop().call_soon(self._go_on)
        else:
            self._show_skipped()

    def _show(self, ended: EndedInvocation, *, is_last_try: bool) -> None:
        """Print an invocation; unless this is the last try, put it off if its log is still to be written."""
        if not self._as_records and not self._may_write():
            self._skipped += 1  # lines that cannot be printed are not made
            return
        runs_again = ended.invocation.request_id in self._again
        description = self._descriptions.describe(ended, runs_again=runs_again, is_last_try=is_last_try)
        if description is None:
            if not self._ended:
                asyncio.get_running_loop().call_later(_SOON_S, self._begin)
            self._ended.append(ended)
        elif not (_recorded(ended, description) if self._as_records else self._print(_lines(ended, description))):
            self._skipped += 1

    def _show_skipped(self) -> None:
        if not self._skipped:
            return
        more = f"and {self._skipped:,} invocations more; `thawd status` counts all"
        if self._as_records:
            is_printed = write_record("info", more, {"event": "skipped", "invocations": self._skipped})
        else:
            is_printed = self._print([f"         {more}"])
        if is_printed:
            self._skipped = 0

    def _print(self, lines: list[str]) -> bool:
        """Print lines, as far as that is possible without waiting. Return whether all were printed."""
        for text in _pieces(lines):
            if not self._may_write():
                return False
            self._write(text)
        return True


def _lines(ended: EndedInvocation, description: Description) -> list[str]:
    line = _fitted((time.strftime("%H:%M:%S", time.localtime(ended.ended_at)), *description.words))
    if description.has_failed:
        return [coloured(line, "red"), *(each[:_MOST_COLUMNS] for each in description.trace)]
    return [coloured(line, "yellow") if description.status.startswith("4") else line]


def _recorded(ended: EndedInvocation, description: Description) -> bool:
    """Write the record of an invocation. Return whether it was written."""
    trace = "\n".join(description.trace) or None
    level = "error" if description.has_failed else "info"
    fields = {**description.fields, "traceback": trace}
    return write_record(level, " ".join(description.words), fields, at_s=ended.ended_at)


def _pieces(lines: Iterable[str]) -> Iterator[str]:
    """Join lines to texts of at most `PIPE_BYTES` each, with the line break that follows."""
    text = ""
    for line in lines:
        joined = f"{text}\n{line}" if text else line
        if text and len(joined.encode(errors="replace")) >= PIPE_BYTES:
            yield text
            joined = line
        text = joined
    if text:
        yield text


def _fitted(words: Iterable[str]) -> str:
    return fit(harmless(in_a_line(" ".join(words))))


def show_requests(platform: Platform) -> Callable[[], None]:
    """Print a line for each invocation that the dispatcher of a server reports, in addition to recording it.

    Returns a function that prints what is not printed yet.
    """
    execution = platform.execution
    dispatcher, redactor = execution.dispatcher, platform.recording.redactor

    def version_of(function: str) -> Version | None:
        try:
            pool = dispatcher.entry(function).pool
        except ThawdError:
            return None
        return None if pool is None else pool.version

    def log_of(function: str) -> Path:
        version = version_of(function)
        group = DEFAULT_PREFIX + function if version is None else version.function.log_group_name
        return path_of_group(platform.settings.server.data / "logs", group)

    def runs_again(ended: EndedInvocation) -> bool:
        # The rule of `thawd.queue.invoker`: the failure may have its cause in the stop alone.
        is_failed = ended.result is not None and ended.result.function_error is not None
        return is_failed and ended.invocation.asynchronous and platform.events.invoker.stopping

    lines = RequestLines(version_of, log_of, redactor=redactor, as_records=is_structured(), runs_again=runs_again)
    reporting = dispatcher.reporting
    if reporting is None:
        dispatcher.reporting = Reporting(lines.add, per_s=_MOST_A_SECOND)
    else:
        reporting.also_to(lines.add, per_s=_MOST_A_SECOND)
    platform.application.on_unserved = lambda scope, status, reason: lines.unserved(
        scope["method"], scope["path"], status, reason
    )
    return lines.flush
