"""SnapStart's runtime hooks: runs the functions registered with ``snapshot_restore_py``, as on Lambda.

A hook is a function of the user; it runs before the freeze (before-snapshot hook) or in each copy (after-restore hook).
This module decides the order, the time limit and the errors of the hooks. It also provides ``snapshot_restore_py`` to a
function whose packages do not include it. It stores no hooks: they are in the module ``snapshot_restore_py``, which is
either thawd's or the one that the function brings. `run_before` runs at the end of init, before the freeze. `run_after`
runs in each copy, after `thawd.snapshot.uniqueness` and before the first invocation.

Standard library only, Python 3.9 and later. Modules other than `os` and `sys` are imported only if a function has
imported ``snapshot_restore_py``, so that other functions start faster.

Source: AWS Lambda developer guide, "Lambda SnapStart runtime hooks for Python"; order, error types and exit statuses as
observed with ``awslambdaric`` 4.2.2 and ``snapshot-restore-py`` 1.0.0.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

MODULE = "snapshot_restore_py"
BEFORE_ERROR = "Runtime.BeforeSnapshotError"
AFTER_ERROR = "Runtime.AfterRestoreError"
BEFORE_EXIT_STATUS = 64
AFTER_EXIT_STATUS = 65
# Time limit for all after-restore hooks together. If it passes, Lambda reports a SnapStartTimeoutException.
# Source: AWS Lambda developer guide, "Lambda SnapStart runtime hooks for Python".
AFTER_LIMIT_S = 10.0

_FILE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "runtime", MODULE + ".py")


class HookError(Exception):
    """A hook raised an exception or took too long.

    If it was a before-snapshot hook, this process must not be frozen. If it was an after-restore hook, this copy must
    not answer invocations.

    Attributes:
        error_type: `BEFORE_ERROR` or `AFTER_ERROR`.
        exit_status: the process's exit status, as on Lambda.
        message: the hook's name, and what the hook raised or that the time limit has passed.
        cause: the exception; its traceback shows where the hook raised, or where it was at the time limit.
        timed_out: whether the time limit ended the hook.
    """

    def __init__(
        self, message: str, *, error_type: str, exit_status: int, cause: BaseException, timed_out: bool = False
    ) -> None:
        super().__init__(message)
        self.message = message
        self.error_type = error_type
        self.exit_status = exit_status
        self.cause = cause
        self.timed_out = timed_out


class TimeLimit(BaseException):
    """Raised inside a hook at the time limit. A BaseException, so that ``except Exception`` does not catch it."""


def install() -> None:
    """Provide ``snapshot_restore_py`` if no such package is installed. A second call changes nothing."""
    if _Finder not in sys.meta_path:
        # Appended last, so that an installed package takes precedence and its registry is used.
        sys.meta_path.append(_Finder)


class _Finder:
    """Finds ``snapshot_restore_py`` only. Source: Python language reference, 5.3.1, "Finders and loaders"."""

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> Any:
        if name != MODULE:
            return None
        import importlib.util

        return importlib.util.spec_from_file_location(MODULE, _FILE)


def run_before() -> int:
    """Run each before-snapshot hook once, the last registered first; a hook may register further hooks.

    The hooks are part of the init phase and share its time limit, which the platform enforces.

    Returns:
        How many hooks were run.

    Raises:
        HookError: a hook raised an exception; the hooks registered before it were not run.
    """
    return _run(_pop_all, None, BEFORE_ERROR, BEFORE_EXIT_STATUS)


def run_after(*, limit_s: float = AFTER_LIMIT_S) -> int:
    """Run the after-restore hooks in the order of registration. Call it in the main thread.

    Args:
        limit_s: time limit for all hooks together, seconds. A signal handler in Python enforces the limit. It cannot
            run during native code, so a hook that hangs there continues until the platform ends the process.

    Returns:
        How many hooks were run.

    Raises:
        HookError: a hook raised an exception or exceeded the limit; the hooks after it were not run.
    """
    return _run(_walk, limit_s, AFTER_ERROR, AFTER_EXIT_STATUS)


def _pop_all(module: Any) -> Any:
    registered = module.get_before_snapshot()
    while registered:
        yield registered.pop()


def _walk(module: Any) -> Any:
    yield from module.get_after_restore()


def _run(hooks: Callable[[Any], Any], limit_s: float | None, error_type: str, exit_status: int) -> int:
    module = sys.modules.get(MODULE)
    if module is None:
        return 0  # The module was never imported, so no hook is registered.
    limit = _Limit()
    name = ""
    count = 0

    def run_all() -> None:
        nonlocal name, count
        for function, arguments, keywords in hooks(module):
            name = _name(function)
            function(*arguments, **keywords)
            limit.check()
            count += 1

    when = "before-snapshot" if error_type == BEFORE_ERROR else "after-restore"
    try:
        if limit_s is None:
            run_all()
        else:
            limit.run(run_all, limit_s)
    except BaseException as error:  # a user's hook may raise anything; as on Lambda, sys.exit in a hook is an error
        if limit.expired is None:
            message = f"the {when} hook {name} raised {type(error).__name__}: {_text(error)}"
        else:
            message = f"the {when} hooks took longer than {limit_s:g} s; {name} was running"
        raise HookError(
            message,
            error_type=error_type,
            exit_status=exit_status,
            cause=limit.expired or error,
            timed_out=limit.expired is not None,
        ) from error
    return count


def _name(function: Any) -> str:
    """The hook's name, for example ``app.connect``; never raises."""
    try:
        return f"{function.__module__}.{function.__qualname__}"
    except Exception:  # partials have no name, and a user's object may raise an exception
        return f"of type {type(function).__name__}"


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as failure:  # a user's __str__ may itself fail
        return f"<no message: __str__ raised {type(failure).__name__}>"


class _Limit:
    """Ends a call at its time limit: the handler of SIGALRM raises an exception inside the call.

    Attributes:
        expired: the exception, once the limit has passed; its traceback shows where the call was. None before.
    """

    def __init__(self) -> None:
        self.expired: TimeLimit | None = None
        self._armed = False

    def check(self) -> None:
        """Raise the `TimeLimit` again if the limit has passed, in case a hook has caught it.

        Raises:
            TimeLimit: the limit has passed.
        """
        if self.expired is not None:
            raise self.expired

    def run(self, call: Callable[[], None], limit_s: float) -> None:
        """Run `call` for at most `limit_s` seconds; then restore the previous handler and timer of SIGALRM.

        Raises:
            TimeLimit: the limit has passed.
        """
        import signal
        import threading

        handler = signal.getsignal(signal.SIGALRM)
        if handler is None or threading.current_thread() is not threading.main_thread():
            # C code handles SIGALRM, or this is not the main thread (Python handles signals only in the main thread).
            # So the limit cannot be enforced here; only the platform's limit applies.
            call()
            return
        left_s = interval_s = 0.0
        signal.signal(signal.SIGALRM, self._expire)
        try:
            try:
                self._armed = True
                left_s, interval_s = signal.setitimer(signal.ITIMER_REAL, limit_s)
                call()
            finally:
                # From here on a signal has no effect. If one arrived just before, `_expire` has raised the exception,
                # and `expired` holds it.
                self._armed = False
        finally:
            spent_s = limit_s - signal.setitimer(signal.ITIMER_REAL, 0)[0]
            signal.signal(signal.SIGALRM, handler)
            if left_s:
                signal.setitimer(signal.ITIMER_REAL, max(left_s - spent_s, 1e-6), interval_s)
        self.check()

    def _expire(self, signum: int, frame: Any) -> None:
        if self._armed:
            self._armed = False
            self.expired = TimeLimit("the time limit of the hooks has passed")
            raise self.expired
