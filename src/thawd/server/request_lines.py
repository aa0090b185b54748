"""Prints a line for each invocation while `thawd up` runs, and the traceback of one that failed.

``13:04:31 f GET /d 500 5 ms ValueError: bad pixel count``. The dispatcher reports invocations to this module as it does
to the recording of invocations: all that failed or waited for a start, and a sample of the others if there are many.
Lines are made and written a moment later, so that a request costs a few hundred nanoseconds.

While standard output takes no lines, because its terminal is stopped or nobody reads its pipe, none are printed:
requests must not wait for it.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from thawd.environments.user_paths import as_user_knows
from thawd.environments.version import Version
from thawd.errors import ThawdError
from thawd.invocation import in_a_line
from thawd.recording.event_sources import UNKNOWN, source_of
from thawd.recording.record_making import ending_of
from thawd.scheduling.ended_invocations import EndedInvocation, Reporting
from thawd.telemetry.console import PIPE_BYTES, coloured, fit, harmless, say, takes_lines
from thawd.telemetry.logs.events import LogEvents
from thawd.telemetry.logs.groups import DEFAULT_PREFIX, path_of_group

if TYPE_CHECKING:
    from thawd.server.assembly.platform import Platform

# The lines of a function are written to its log every 50 ms; those of a failed invocation are read after that.
_SOON_S = 0.08
# How long a line waits for what its invocation has logged, which another thread writes.
_MOST_WAIT_S = 2.0
_MOST_A_SECOND = 50
_MOST_LOG_LINES = 40
_ERROR_LINE = b"[ERROR]"
# Between the lines of an invocation, there may be those of other environments.
_MOST_LOG_EVENTS = 800
_MOST_LOG_BYTES = 1 << 20
# A character has up to 4 bytes, so that a line fits into a pipe.
_MOST_COLUMNS = PIPE_BYTES // 4 - 1
_IS_HTTP = re.compile(r"[A-Z]+ /")
_PLATFORM_LINE = re.compile(rb'(START|END|REPORT) RequestId|\{.*"type":"platform\.([a-z]+)')


class _Error(msgspec.Struct):
    errorType: str = ""  # noqa: N815 - Lambda's name
    errorMessage: Any = ""  # noqa: N815
    stackTrace: list[str] = []  # noqa: N815


class RequestLines:
    """Prints lines about invocations.

    Args:
        version_of: returns the version that serves a function, for the paths of its files; None: there is none.
        log_of: returns the path of a function's log.
        write: prints a text of at most `PIPE_BYTES`.
        may_write: whether `write` prints without waiting.
        runs_again: whether an event that ends now runs again after the next start; asked when it ends.
    """

    def __init__(
        self,
        version_of: Callable[[str], Version | None],
        log_of: Callable[[str], Path],
        *,
        write: Callable[[str], None] = say,
        may_write: Callable[[], bool] = takes_lines,
        runs_again: Callable[[EndedInvocation], bool] = lambda _: False,
    ) -> None:
        self._version_of = version_of
        self._log_of = log_of
        self._write = write
        self._may_write = may_write
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
            words = (time.strftime("%H:%M:%S"), method, path, str(status), reason)
            if not self._print([coloured(_fitted(words), "yellow")]):
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
        # Lines that cannot be printed are not made.
        lines = self._lines(ended, is_last_try=is_last_try) if self._may_write() else []
        if lines is None:
            if not self._ended:
                asyncio.get_running_loop().call_later(_SOON_S, self._begin)
            self._ended.append(ended)
        elif not lines or not self._print(lines):
            self._skipped += 1

    def _show_skipped(self) -> None:
        more = f"         and {self._skipped:,} invocations more; `thawd status` counts all"
        if self._skipped and self._print([more]):
            self._skipped = 0

    def _print(self, lines: list[str]) -> bool:
        """Print lines, as far as that is possible without waiting. Return whether all were printed."""
        for text in _pieces(lines):
            if not self._may_write():
                return False
            self._write(text)
        return True

    def _lines(self, ended: EndedInvocation, *, is_last_try: bool) -> list[str] | None:
        invocation, result = ended.invocation, ended.result
        source = source_of(invocation.payload, asynchronous=invocation.asynchronous)
        is_http = _IS_HTTP.match(source) is not None
        error = _Error()
        if result is not None and result.function_error is not None:
            error = _decoded(result.payload) or error
        status = _status(ended, is_http=is_http)
        words = [
            time.strftime("%H:%M:%S", time.localtime(ended.ended_at)),
            invocation.function,
            *([] if source == UNKNOWN else [source]),
            status,
            *(["(runs again after the next start)"] if invocation.request_id in self._again else []),
            f"{(ended.ended_s - ended.asked_s) * 1000:,.0f} ms",
        ]
        if result is not None and result.init_ms is not None:
            words.append(f"({result.start_kind} {result.init_ms:,.0f} ms)")
        if ended.stands_for > 1:
            words.append(f"(one of {ended.stands_for:,})")
        words.append(_reason(ended, error))
        line = _fitted(filter(None, words))
        if status.startswith("5") or status == "failed":
            trace = self._trace(ended, error, is_last_try=is_last_try)
            return None if trace is None else [coloured(line, "red"), *trace]
        return [coloured(line, "yellow") if status.startswith("4") else line]

    def _trace(self, ended: EndedInvocation, error: _Error, *, is_last_try: bool) -> list[str] | None:
        """The traceback of a failed invocation; what it has logged if the answer has none; None: try again later."""
        function = ended.invocation.function
        text = "".join(error.stackTrace)
        if not text and ended.result is not None and not error.errorType:
            logged = self._logged(function, ended.invocation.request_id.encode(), ended.result.log_stream.encode())
            if logged is None and not is_last_try:
                return None
            text = "".join(f"  {line}\n" for line in (logged or "").splitlines())
        version = self._version_of(function)
        if version is not None:
            text = as_user_knows(text, version)
        return [harmless(line)[:_MOST_COLUMNS] for line in text.rstrip("\n").splitlines()]

    def _logged(self, function: str, request_id: bytes, stream: bytes) -> str | None:
        """The last lines that an environment wrote between an invocation's start and its report, and all errors.

        None: the report is still to be written.
        """
        found: list[bytes] = []
        is_complete = False
        try:
            with LogEvents(self._log_of(function)) as events:
                for number, event in enumerate(events.backward()):
                    if number > _MOST_LOG_EVENTS or events.read_bytes > _MOST_LOG_BYTES:
                        break
                    if event.stream != stream:
                        continue
                    kind = _PLATFORM_LINE.match(event.message)
                    if kind is None:
                        found.append(event.message)
                    elif request_id in event.message:
                        if kind[kind.lastindex or 0].lower() == b"start":
                            break
                        is_complete = True
                        found.clear()  # the environment wrote these lines later
        except OSError:
            return None
        if not is_complete:
            return None
        # The error itself is before its traceback, of which web frameworks make more lines than are printed.
        errors = [line for line in found[_MOST_LOG_LINES:] if line.startswith(_ERROR_LINE)]
        return b"\n".join([*errors[::-1], *found[:_MOST_LOG_LINES][::-1]]).decode(errors="replace")


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


def _status(ended: EndedInvocation, *, is_http: bool) -> str:
    """The HTTP status of the answer; of an invocation that no HTTP request made, ``ok`` or ``failed``."""
    if ended.error is not None:
        return str(ended.error.status) if isinstance(ended.error, ThawdError) else "gone"
    ending = ending_of(ended, is_http=is_http)
    return str(ending.status) if is_http else "failed" if ended.result is None or ended.result.function_error else "ok"


def _reason(ended: EndedInvocation, error: _Error) -> str:
    if ended.error is not None:
        if isinstance(ended.error, ThawdError):
            return ended.error.message
        return "the client has gone" if isinstance(ended.error, asyncio.CancelledError) else repr(ended.error)
    if not error.errorType and ended.result is not None and ended.outcome == "failed" and ended.result.logged:
        return ": ".join(filter(None, ended.result.logged))
    message = str(error.errorMessage)
    return f"{error.errorType}: {message}" if error.errorType and message else error.errorType or ""


def _decoded(payload: bytes) -> _Error | None:
    try:
        return msgspec.json.decode(payload, type=_Error)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


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

    lines = RequestLines(version_of, log_of, write=lambda text: say(redactor.text(text)), runs_again=runs_again)
    reporting = dispatcher.reporting
    if reporting is None:
        dispatcher.reporting = Reporting(lines.add, per_s=_MOST_A_SECOND)
    else:
        reporting.also_to(lines.add, per_s=_MOST_A_SECOND)
    platform.application.on_unserved = lambda scope, status, reason: lines.unserved(
        scope["method"], scope["path"], status, reason
    )
    return lines.flush
