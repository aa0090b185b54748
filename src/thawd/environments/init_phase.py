"""Waiting until a process that has been started says it is ready, within limits of time and memory."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import time
from collections.abc import Callable
from typing import Annotated, Any

import msgspec

from thawd.environments.children import Child
from thawd.environments.sandbox.memory import MemoryLimit

_LOOK_S = 0.1
# What execve(2) says of the file that it is given.
_NOT_EXECUTABLE = (errno.ENOEXEC, errno.ENOENT, errno.EACCES, errno.ENOTDIR, errno.ELIBBAD, errno.ETXTBSY)
_encode = msgspec.json.Encoder().encode


_Milliseconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]


class ReadyHead(msgspec.Struct):
    """The head of a READY, checked: user code can write to the descriptor.

    Attributes:
        init_ms: how long init took in the process that ran it, or the fork, milliseconds.
        fork_refused: why a copy of it by fork would not work; None when it would.
        restored: whether it is a copy of a process in which the before-snapshot hooks have run.
        restore_ms: of a thawed one, from the entry of thaw to the return of freeze.
        renew_ms: what the repairs of a copy took.
        hooks_ms: what the after-restore hooks took.
        dropped: connections that a copy finds ended.
        changed: of a probe, a file that is not as it was when the image was made; None when all are.
    """

    init_ms: _Milliseconds = 0.0
    fork_refused: str | None = None
    restored: bool = False
    restore_ms: _Milliseconds = 0.0
    renew_ms: _Milliseconds = 0.0
    hooks_ms: _Milliseconds = 0.0
    dropped: list[str] = []
    changed: str | None = None


class _Typed(msgspec.Struct, rename={"error_type": "errorType"}):
    error_type: str


class InitError(Exception):
    """The function's init phase failed, or one of its snapshot hooks.

    Attributes:
        document: the error document that its callers get.
        from_outside: whether the process was killed by somebody else, so that another try may well succeed.
        told: whether the function itself failed and the process told so; else the process ended without a word.
    """

    def __init__(self, message: str, document: bytes, *, from_outside: bool = False, told: bool = False) -> None:
        super().__init__(message)
        self.document = document
        self.from_outside = from_outside
        self.told = told

    @property
    def type(self) -> str:
        """The error type in the document."""
        try:
            return msgspec.json.decode(self.document, type=_Typed).error_type
        except msgspec.MsgspecError:
            return "Runtime.Unknown"

    @classmethod
    def of_exit(cls, child: Child | None) -> InitError:
        """For a process that ended before it had said how init went."""
        status = child.ended.result() if child is not None else None
        message = describe_exit(status)
        killed = status is not None and os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        return cls(
            message,
            error_document("Runtime.ExitError", f"Error: {message}"),
            from_outside=killed and child is not None and not child.killed,
        )

    @classmethod
    def of_launch(cls, error_type: str, error: OSError) -> InitError:
        """For a program that could not be executed.

        Raises:
            OSError: it is the machine that lacks something, not the program.
        """
        if error.errno not in _NOT_EXECUTABLE:
            raise error
        message = f"{error.filename} could not be executed: {(error.strerror or str(error)).lower()}"
        return cls(message, error_document(error_type, f"Error: {message}"), told=True)

    @classmethod
    def of_time_out(cls, limit_s: float) -> InitError:
        """For a process that was not ready in time."""
        message = f"Init timed out after {limit_s} seconds"
        return cls(message, error_document("Sandbox.Timedout", message))


async def init_ends(
    ready: asyncio.Future[Any],
    *,
    child: Child,
    limit: MemoryLimit,
    until_s: Callable[[], float],
    timed_out: Callable[[], Exception],
) -> None:
    """Wait until the process is ready; kill it when it takes too long or too much memory.

    Args:
        ready: done when it is; gets the error when it is not in time.
        child: the process.
        limit: of its memory.
        until_s: how long to wait, ``time.monotonic()`` seconds; asked anew as time passes.
        timed_out: the error to raise when that has passed.

    Raises:
        InitError: init failed, or the process ended.
    """
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle

    def look() -> None:
        nonlocal timer
        left_s = until_s() - time.monotonic()
        if ready.done():
            return
        if left_s <= 0:
            child.kill()
            ready.set_exception(timed_out())
        elif not limit.check():
            child.kill()
        timer = loop.call_later(max(0.0, min(_LOOK_S, left_s)), look)

    timer = loop.call_later(_LOOK_S, look)
    try:
        # Not by `asyncio.wait` with a time-out: this wakes up two turns of the loop earlier.
        await ready
    finally:
        timer.cancel()


def error_document(error_type: str, message: str) -> bytes:
    """Lambda's document for a failure that is not an exception of the handler's, JSON text."""
    return _encode({"errorType": error_type, "errorMessage": message})


def describe_exit(status: int | None) -> str:
    """Lambda's words for a wait status."""
    if status is None:
        return "Runtime exited without providing a reason"
    if os.WIFSIGNALED(status):
        return f"Runtime exited with error: signal: {_SIGNALS.get(os.WTERMSIG(status), os.WTERMSIG(status))}"
    code = os.WEXITSTATUS(status)
    if code == 0:
        return "Runtime exited without providing a reason"
    return f"Runtime exited with error: exit status {code}"


# Go's names of signals, which Lambda prints.
_SIGNALS = {
    2: "interrupt",
    4: "illegal instruction",
    6: "aborted",
    7: "bus error",
    8: "floating point exception",
    9: "killed",
    11: "segmentation fault",
    13: "broken pipe",
    15: "terminated",
}
