"""Waits until a started process reports that it is ready, within time and memory limits; defines the errors of init."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import time
from collections.abc import Callable
from typing import Annotated, Any

import msgspec

from thawd.environments.child_processes import Child
from thawd.environments.sandbox.memory import MemoryLimit

_LOOK_S = 0.1
# The errors of execve(2) whose cause is the file that was to be executed, and not a lack of resources.
_NOT_EXECUTABLE = (errno.ENOEXEC, errno.ENOENT, errno.EACCES, errno.ENOTDIR, errno.ELIBBAD, errno.ETXTBSY)
_encode = msgspec.json.Encoder().encode
_UNDECODABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


_Milliseconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]


class PackagesHead(msgspec.Struct):
    """The report of a process of a package base; see `thawd.runtime.package_base`.

    Attributes:
        refused: why a base must not hold the packages; None when it may.
        missing: first parts of the names of modules that the packages looked for and did not find.
    """

    refused: str | None = None
    missing: list[str] = []


class ReadyHead(msgspec.Struct):
    """The head of a READY frame. It is checked, because user code can write to the process's end of the channel.

    Attributes:
        init_ms: how long init took, milliseconds; in a forked environment, how long the fork took.
        fork_refused: why a fork of the process would not work; None when it would.
        restored: whether the process is a copy, or a fork, of one in which the before-snapshot hooks have run.
        restore_ms: for a thawed process, time from the start of the thaw until the process's own code ran again.
        renew_ms: for a copy, time to renew state that must differ between copies, such as random numbers.
        hooks_ms: time that the after-restore hooks took.
        dropped: descriptions of the network connections that init left open; in each copy they have ended.
        changed: a file that has changed since the image was made; None when none has. Reported by a copy of a base, and
            by a probe: a copy that is thawed only to find out whether the image can still be used.
        before_init: the process's state before init. Two kinds of processes report it: a copy of a base, and a process
            of mode ``bare``, which is started without a base, only to compare the two states. None: another process.
        after_init: the process's state after init, if the platform wanted to compare it; else None.
        packages: the report of a process of a package base; None: another process.
        closes: whether the process wants to run an application's shutdown when its channel ends.
    """

    init_ms: _Milliseconds = 0.0
    fork_refused: str | None = None
    restored: bool = False
    restore_ms: _Milliseconds = 0.0
    renew_ms: _Milliseconds = 0.0
    hooks_ms: _Milliseconds = 0.0
    dropped: list[str] = []
    changed: str | None = None
    before_init: dict[str, Any] | None = None
    after_init: dict[str, Any] | None = None
    packages: PackagesHead | None = None
    closes: bool = False


class _Typed(msgspec.Struct, rename={"error_type": "errorType"}):
    error_type: str


class _Failure(
    msgspec.Struct, rename={"error_type": "errorType", "message": "errorMessage"}, forbid_unknown_fields=True
):
    """An error document with nothing but type and message."""

    error_type: str
    message: str


# The beginning of a message of the platform itself.
_BY_PLATFORM = "Error: "


def _type_in(document: bytes) -> str:
    try:
        return msgspec.json.decode(document, type=_Typed).error_type
    except _UNDECODABLE:
        return "Runtime.Unknown"


class InitError(Exception):
    """The function's init phase or one of its snapshot hooks failed.

    Attributes:
        document: the error document that callers get.
        from_outside: whether something other than the platform killed the process, so that another attempt may succeed.
        by_function: whether the function is known to be the cause, for example because its code raised an exception, or
            an extension crashed. False: the process ended, or was not ready in time, without a report of the cause.
    """

    def __init__(self, message: str, document: bytes, *, from_outside: bool = False, by_function: bool = False) -> None:
        super().__init__(message)
        self.document = document
        self.from_outside = from_outside
        self.by_function = by_function

    @property
    def type(self) -> str:
        """The error type in the document."""
        return _type_in(self.document)

    def document_for(self, request_id: str) -> bytes:
        """Return the error document for an invocation that waited for init.

        If the process did not report what went wrong, for example because it ended, the message begins with the
        request id, as on AWS.
        """
        try:
            found = msgspec.json.decode(self.document, type=_Failure)
        except _UNDECODABLE:
            return self.document  # a program has reported something else
        if self.by_function and not found.message.startswith(_BY_PLATFORM):
            return self.document
        message = found.message.removeprefix(_BY_PLATFORM)
        return error_document(found.error_type, f"RequestId: {request_id} Error: {message}")

    @classmethod
    def reported(cls, message: str, document: bytes) -> InitError:
        """Return the error that the process has reported. The text begins with the error's type.

        A message alone may say little: that of a ``KeyError`` is only the key.
        """
        return cls(f"{_type_in(document)}: {message}", document, by_function=True)

    @classmethod
    def of_exit(cls, child: Child | None) -> InitError:
        """Return the error for a process that ended before it had reported the result of init."""
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
        """Return the error for a program that could not be executed.

        Raises:
            OSError: the machine lacks a resource, for example memory; the program is not at fault.
        """
        if error.errno not in _NOT_EXECUTABLE:
            raise error
        message = f"{error.filename} could not be executed: {(error.strerror or str(error)).lower()}"
        return cls(message, error_document(error_type, f"Error: {message}"), by_function=True)

    @classmethod
    def of_time_out(cls, limit_s: float) -> InitError:
        """Return the error for a process that was not ready in time."""
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
    """Wait until the process is ready; kill it if it takes too long or uses too much memory.

    Args:
        ready: done when the process is ready; this function sets an exception on it when the deadline has passed.
        child: the process to wait for.
        limit: the memory limit of the process.
        until_s: returns the current deadline, ``time.monotonic()`` seconds; called repeatedly.
        timed_out: makes the exception for a process that is not ready in time.

    Raises:
        InitError: init failed, or the process ended.
        Exception: the deadline has passed; `timed_out` decides the type.
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
        # `asyncio.wait` with a time-out would wake up two iterations of the event loop later than a plain await, and so
        # delay every start.
        await ready
    finally:
        timer.cancel()


def error_document(error_type: str, message: str) -> bytes:
    """Lambda's error document for a failure that is not an exception of the handler, as JSON text."""
    return _encode({"errorType": error_type, "errorMessage": message})


def describe_exit(status: int | None) -> str:
    """Return how a process ended, in Lambda's words. `status` is its wait status; None: unknown."""
    if status is None:
        return "Runtime exited without providing a reason"
    if os.WIFSIGNALED(status):
        return f"Runtime exited with error: signal: {_SIGNALS.get(os.WTERMSIG(status), os.WTERMSIG(status))}"
    code = os.WEXITSTATUS(status)
    if code == 0:
        return "Runtime exited without providing a reason"
    return f"Runtime exited with error: exit status {code}"


# Lambda prints signals by the names that Go gives them.
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
