"""Starts the external extensions of an environment before its program, and ends them after the program.

An external extension is a process that runs beside the program. No caller and no start waits until extensions have
ended: as soon as the program has ended, the caller gets the answer, and another environment can be started. Extensions
that have registered for the SHUTDOWN event are killed if they still run two seconds later; the others are killed
immediately.

Source: AWS Lambda developer guide, "Using the Lambda Extensions API to create extensions": an environment without
extensions is ended immediately, one with internal extensions gets 500 ms, one with external extensions 2,000 ms.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from thawd.environments.child_processes import Child
from thawd.environments.init_phase import InitError, error_document
from thawd.environments.runtime_api.endpoint import RuntimeApi
from thawd.environments.starts.launcher import Launcher, Start
from thawd.environments.starts.program_execution import execute_program
from thawd.environments.version import Version

_INTERNAL_GRACE_S = 0.5
_EXTERNAL_GRACE_S = 2.0
# Environment variables that only the runtime gets, not extensions. Source: the page that the module docstring names,
# "Environment variables".
_RUNTIME_ONLY = ("_HANDLER", "AWS_EXECUTION_ENV", "LAMBDA_RUNTIME_DIR", "AWS_LAMBDA_LOG_GROUP_NAME")


class Extensions:
    """The external extensions of one environment. Closes the environment's Runtime API endpoint when all have ended.

    Attributes:
        on_fault: called with error type and message when an extension has failed; the environment must then end.
    """

    def __init__(self, api: RuntimeApi, launcher: Launcher) -> None:
        self.on_fault: Callable[[str, str], None] = lambda error_type, message: None
        self._api = api
        self._launcher = launcher
        self._children: dict[str, Child] = {}
        self._is_ending = False
        self._on_end: Callable[[], None] = lambda: None
        self._lifeline = -1
        self._registered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        api.extensions.on_registered = self._check_registered
        api.extensions.on_fault = self._failed

    def start(self, paths: Sequence[Path], version: Version, start: Start) -> None:
        """Start all extensions.

        Raises:
            InitError: an extension cannot be executed.
            OSError: there is no memory, descriptor or process left.
        """
        variables = {name: value for name, value in version.variables.items() if name not in _RUNTIME_ONLY}
        variables |= start.variables | {"AWS_LAMBDA_RUNTIME_API": self._api.address}
        variables.pop("AWS_LAMBDA_LOG_STREAM_NAME", None)
        if paths:
            lifeline, self._lifeline = os.pipe()
            try:
                for path in paths:
                    self._children[path.name] = self._start(path, variables, start, lifeline)
            except OSError as error:
                raise InitError.of_launch("Extension.LaunchError", error) from error
            finally:
                os.close(lifeline)
        self._check_registered()

    def _start(self, path: Path, variables: Mapping[str, str], start: Start, lifeline: int) -> Child:
        # Open the lifeline's read end separately for each extension: when the write end closes, the kernel kills only
        # one process group for each open file.
        reopened = os.open(f"/proc/self/fd/{lifeline}", os.O_RDONLY | os.O_NONBLOCK)
        try:
            pid = execute_program(
                self._launcher.confined(start, [str(path)]),
                variables,
                cwd="/" if start.in_root else str(path.parent.parent),
                lifeline=reopened,
                output=start.channels.process_ends[3],
            )
        finally:
            os.close(reopened)
        child = self._launcher.children.watch(pid)
        child.ended.add_done_callback(lambda ended: self._ended(path.name, ended.result()))
        return child

    def groups(self) -> list[int]:
        """Return the process groups of live extensions."""
        return [child.pid for child in self._children.values() if not child.ended.done()]

    async def registered(self, *, within_s: float) -> None:
        """Wait until all extensions have registered.

        Raises:
            InitError: an extension has failed, or took too long.
        """
        try:
            async with asyncio.timeout(within_s):
                await self._registered
        except TimeoutError:
            raise InitError.of_time_out(within_s) from None

    def _check_registered(self) -> None:
        if not self._registered.done() and self._api.extensions.all_registered():
            self._registered.set_result(None)

    def _ended(self, name: str, status: int | None) -> None:
        """An extension has ended. Unless the environment is ending, this is a failure of the environment."""
        if self._is_ending:
            self._close_when_all_ended()
        elif status is not None and os.WIFSIGNALED(status):
            self._failed("Extension.Crash", f"exit code unavailable: signal {os.WTERMSIG(status)} ({name})")
        else:
            code = "unknown" if status is None else os.WEXITSTATUS(status)
            self._failed("Extension.Crash", f"exit status {code} ({name})")

    def _failed(self, error_type: str, message: str) -> None:
        if not self._registered.done():
            document = error_document(error_type, f"Error: {message}")
            self._registered.set_exception(InitError(message, document, by_function=True))
            self._registered.exception()  # marks it as retrieved: asyncio logs an exception that nobody retrieves
        self.on_fault(error_type, message)

    def wind_down(self, runtime: Child) -> bool:
        """End an idle program that has extensions: send SIGTERM, and half a second later SIGKILL if it still runs.

        When the program has ended, the environment calls `finish`.

        Returns:
            False when the environment has no extensions; in this case nothing was done.
        """
        if not self._api.extensions.all():
            return False
        if runtime.leaving or runtime.ended.done():
            return True
        runtime.killed = runtime.leaving = True
        for child in self._children.values():
            child.leaving = True
        try:
            os.kill(runtime.pid, signal.SIGTERM)
        except ProcessLookupError:
            return True
        asyncio.get_running_loop().call_later(_INTERNAL_GRACE_S, runtime.kill)
        return True

    def finish(self, reason: str, *, on_end: Callable[[], None]) -> None:
        """End the extensions, because the program has ended or was not started.

        Extensions that have registered for the SHUTDOWN event get it, and are killed if they still run two seconds
        later. The others are killed immediately.

        Further calls do nothing.

        Args:
            reason: ``spindown``, ``timeout`` or ``failure``.
            on_end: called when all extensions have ended.
        """
        if self._is_ending:
            return
        self._is_ending = True
        self._on_end = on_end
        deadline_ms = int((time.time() + _EXTERNAL_GRACE_S) * 1000)
        self._api.extensions.shut_down(reason, deadline_ms=deadline_ms)
        notified = {extension.name for extension in self._api.extensions.all() if "SHUTDOWN" in extension.events}
        for name, child in self._children.items():
            child.leaving = True
            if name not in notified:
                child.kill()
        if self._children:
            asyncio.get_running_loop().call_later(_EXTERNAL_GRACE_S, self._end_all)
        self._close_when_all_ended()

    def _end_all(self) -> None:
        for child in self._children.values():
            child.kill()

    def _close_when_all_ended(self) -> None:
        if all(child.ended.done() for child in self._children.values()):
            self._api.close()
            on_end, self._on_end = self._on_end, lambda: None
            on_end()
            if self._lifeline >= 0:
                os.close(self._lifeline)
                self._lifeline = -1
