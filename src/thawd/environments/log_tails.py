"""The log tails of invocations.

A log tail is the end of an invocation's log, at most 4 KiB, which its caller can ask for with ``X-Amz-Log-Type: Tail``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from thawd.invocation import LOG_TAIL_BYTES, Invocation
from thawd.telemetry.logs.writer import LogStream, LogTail


class OwnTail:
    """The tail of one invocation, while others may run in the same environment.

    The output of invocations that run at the same time cannot be divided among them, so the tail contains all that is
    written from now on.

    Args:
        stream: the environment's log.
    """

    def __init__(self, stream: LogStream) -> None:
        self._stream = stream
        self._tail = stream.begin_tail(LOG_TAIL_BYTES)

    def finish(self, invocation: Invocation, write: Callable[[], None]) -> bytes:
        """Have `write` write the last lines of `invocation`, and return the log tail."""
        self._stream.end()
        write()
        return self._tail.end()


class LogTails:
    """Collects the tail of each invocation: the platform's lines about it, and all that the function writes meanwhile.

    The output of a handler that takes lists cannot be divided among the items, so each item's tail contains all of it.
    Make this object only if at least one of the callers wants a tail.

    Args:
        stream: the environment's log.
        invocations: the invocations that run together.
    """

    def __init__(self, stream: LogStream, invocations: Sequence[Invocation]) -> None:
        self._stream = stream
        self._invocations = invocations
        self._starts: dict[int, bytes] = {}  # the first lines of each invocation, by its id()
        self._tail: LogTail | None = None
        self._output = b""

    def start(self, write: Callable[[Invocation], None]) -> None:
        """Have `write` write the first lines of each invocation. From now on, keep the function's output."""
        for invocation in self._invocations:
            start = self._kept(functools.partial(write, invocation))
            if invocation.want_log_tail:
                self._starts[id(invocation)] = start
        self._tail = self._stream.begin_tail(LOG_TAIL_BYTES)

    def end_output(self) -> None:
        """Stop keeping the function's output: the invocations have ended, and the output is complete."""
        self._stream.end()
        assert self._tail is not None
        self._output = self._tail.end()

    def finish(self, invocation: Invocation, write: Callable[[], None]) -> bytes:
        """Have `write` write the last lines of `invocation`. Return the log tail, empty if the caller wants none."""
        last = self._kept(write)
        if not invocation.want_log_tail:
            return b""
        return (self._starts[id(invocation)] + self._output + last)[-LOG_TAIL_BYTES:]

    def _kept(self, write: Callable[[], None]) -> bytes:
        """Call `write` and return what it writes to the log."""
        tail = self._stream.begin_tail(LOG_TAIL_BYTES)
        write()
        return tail.end()
