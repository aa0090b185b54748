"""Runs a coroutine without an asyncio task for as long as it waits only for `InlineFuture`s.

An asyncio task begins and continues in a later turn of the event loop. For a request that takes a tenth of a
millisecond, these turns, the task and its callbacks are a good part of the work. A coroutine that `run_inline` runs
begins within the call, and continues within the call that sets the result of the `InlineFuture` that it waits for. When
it waits for anything else, for example an `asyncio.Future`, the rest of it runs in an ordinary task.

Guarantees:
- while a coroutine runs inline, no task is current. So `asyncio.timeout` and `asyncio.TaskGroup` refuse to work,
  instead of acting on another task. A coroutine that needs one of them first awaits `in_task`;
- an error never continues a coroutine within the call that sets it, but in the event loop's next turn;
- at most `_DEPTH` coroutines are nested; further ones continue in the event loop's next turn;
- if no task can be made for the rest of a coroutine, because the task group is ending, the coroutine ends there.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_DEPTH = 8
_PENDING, _DONE, _FAILED, _CANCELLED = range(4)


class InlineFuture(Generic[T]):
    """A result that one coroutine waits for, inline or in a task. It is set once, on the event loop's thread.

    For a task, this is an asyncio future.

    Source: docs.python.org, asyncio.isfuture; CPython, `_asyncio.Task`, for the methods that a task calls.
    """

    __slots__ = ("_asyncio_future_blocking", "_error", "_loop", "_result", "_state", "_waiter", "_wake")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._asyncio_future_blocking = False  # a task checks and clears it when it begins to wait
        self._loop = loop
        self._state = _PENDING
        self._result: T
        self._error: BaseException | None = None
        self._waiter: _InlineRun | None = None
        self._wake: tuple[Callable[[Any], object], contextvars.Context | None] | None = None

    def done(self) -> bool:
        """Return whether the result or an error is set, or the task that waited was cancelled."""
        return self._state != _PENDING

    def cancelled(self) -> bool:
        """Return whether the task that waited for the result was cancelled before the result was set."""
        return self._state == _CANCELLED

    def result(self) -> T:
        """Return the result, or raise the error that was set."""
        if self._state == _DONE:
            return self._result
        if self._state == _CANCELLED:
            raise asyncio.CancelledError
        if self._error is not None:
            raise self._error
        raise asyncio.InvalidStateError("the result is not set")

    def exception(self) -> BaseException | None:
        """Return the error that was set; None: there is none."""
        return self._error

    def set_result(self, result: T) -> None:
        """Set the result.

        A coroutine that waits inline continues within this call if another coroutine runs inline now. Otherwise it
        continues in the event loop's next turn, because a task may be running.

        Raises:
            asyncio.InvalidStateError: a result or an error is set already, or the task that waited was cancelled.
        """
        waiter = self._end(_DONE)
        self._result = result
        if waiter is not None:
            if _now.running is not None:
                waiter.proceed()
            else:
                self._loop.call_soon(waiter.proceed)

    def set_result_now(self, result: T) -> None:
        """Like `set_result`, but a coroutine that waits inline continues within this call.

        Call this only in a callback of the event loop, and not while a task runs.
        """
        waiter = self._end(_DONE)
        self._result = result
        if waiter is not None:
            waiter.proceed()

    def set_result_soon(self, result: T) -> None:
        """Like `set_result`, but a coroutine that waits continues in the event loop's next turn."""
        waiter = self._end(_DONE)
        self._result = result
        if waiter is not None:
            self._loop.call_soon(waiter.proceed)

    def set_exception(self, error: BaseException) -> None:
        """Set an error. A coroutine that waits continues in the event loop's next turn.

        Raises:
            asyncio.InvalidStateError: a result or an error is set already, or the task that waited was cancelled.
        """
        waiter = self._end(_FAILED)
        self._error = error
        if waiter is not None:
            self._loop.call_soon(waiter.proceed)

    def _end(self, state: int) -> _InlineRun | None:
        """Set the state and wake a task that waits. Return the coroutine that waits inline, if there is one."""
        if self._state != _PENDING:
            raise asyncio.InvalidStateError("the result is set already, or the task that waited was cancelled")
        self._state = state
        if self._wake is not None:
            callback, context = self._wake
            self._loop.call_soon(callback, self, context=context)
        return self._waiter

    # The methods that a task calls.

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Return the event loop."""
        return self._loop

    def add_done_callback(
        self, callback: Callable[[Any], object], *, context: contextvars.Context | None = None
    ) -> None:
        """Have `callback` called in the event loop's next turn after the end. There is one callback at most."""
        assert self._wake is None, "only one coroutine can wait for an InlineFuture"
        if self._state == _PENDING:
            self._wake = callback, context
        else:
            self._loop.call_soon(callback, self, context=context)

    def cancel(self, msg: object = None) -> bool:
        """Wake the task that waits, because it is cancelled. Return False if the end has come already."""
        if self._state != _PENDING:
            return False
        self._end(_CANCELLED)
        return True

    def __await__(self) -> Generator[Any, None, T]:
        if self._state == _PENDING:
            self._waiter = _now.running
            self._asyncio_future_blocking = self._waiter is None
            yield self
        return self.result()


class _Now(threading.local):
    """What runs inline at this moment in this thread: a program may run an event loop in each of several threads.

    Attributes:
        running: the coroutine that runs inline; None: none does.
        depth: how many are nested.
    """

    running: _InlineRun | None = None
    depth = 0


_now = _Now()


class _InlineRun:
    """A coroutine that runs inline.

    Args:
        work: the coroutine.
        spawn: makes a task that runs the rest of the coroutine.
    """

    __slots__ = ("_loop", "_spawn", "_work")

    def __init__(
        self,
        work: Coroutine[Any, Any, None],
        loop: asyncio.AbstractEventLoop,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._work = work
        self._loop = loop
        self._spawn = spawn

    def proceed(self) -> None:
        """Continue the coroutine."""
        if _now.depth >= _DEPTH:
            self._loop.call_soon(self.proceed)
            return
        outer, _now.running = _now.running, self
        _now.depth += 1
        try:
            awaited = self._work.send(None)
        except StopIteration:
            return
        except asyncio.CancelledError:
            return
        except BaseException as error:
            self._report(error)
            return
        finally:
            _now.depth -= 1
            _now.running = outer
        if not isinstance(awaited, InlineFuture):
            self._continue_in_task(awaited)

    def _continue_in_task(self, awaited: Any) -> None:
        rest = _rest(self._work, awaited)
        try:
            self._spawn(rest)
        except RuntimeError:
            # A task group that is ending takes no more tasks. The coroutine ends as if its task were cancelled. This
            # must not raise: the caller has set a result, and perhaps has others to set.
            rest.close()
            try:
                self._work.close()
            except RuntimeError:
                pass  # the coroutine awaits something as it ends
            except BaseException as error:
                self._report(error)

    def _report(self, error: BaseException) -> None:
        report = {"message": "A coroutine that ran inline has failed", "exception": error}
        self._loop.call_exception_handler(report)


async def _rest(work: Coroutine[Any, Any, None], awaited: Any) -> None:
    await _steps(work, awaited)  # since Python 3.12, a task takes no generator


@types.coroutine
def _steps(work: Coroutine[Any, Any, None], awaited: Any) -> Generator[Any, Any, None]:
    """Wait for `awaited`, which `work` waits for, and then run the rest of `work`."""
    while True:
        go_on: Callable[[Any], Any]
        try:
            argument = yield awaited
        except BaseException as error:
            go_on, argument = work.throw, error
        else:
            go_on = work.send
        try:
            awaited = go_on(argument)
        except StopIteration:
            return


def run_inline(work: Coroutine[Any, Any, None], spawn: Callable[[Coroutine[Any, Any, None]], object]) -> None:
    """Run a coroutine within this call, until it waits.

    Call this only in a callback of the event loop and not in a task, or if `can_run_inline` returns True.

    The coroutine should handle all its exceptions. Others go to the event loop's exception handler.

    Args:
        work: the coroutine.
        spawn: makes a task that runs the rest of the coroutine once it waits for something other than an
            `InlineFuture`.
    """
    _InlineRun(work, asyncio.get_running_loop(), spawn).proceed()


def runs_inline() -> bool:
    """Whether the code that calls this runs inline, and not in a task."""
    return _now.running is not None


def can_run_inline() -> bool:
    """Whether a coroutine runs inline now, and another one may run inline within it."""
    return _now.running is not None and _now.depth < _DEPTH


class _InTask:
    __slots__ = ()

    def __await__(self) -> Generator[None, None, None]:
        if _now.running is not None:
            yield


def in_task() -> _InTask:
    """Awaited: from here on, the coroutine that awaits this runs in a task. Does nothing if it runs in one already."""
    return _InTask()
