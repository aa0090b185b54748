"""Publishing the functions of the configuration: what has changed, several at once, with a word to the operator."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping

from thawd.config import Settings
from thawd.environments.init_phase import InitError
from thawd.environments.version import Version
from thawd.errors import ResourceNotFoundException, StoreError, ThawdError, unexpected
from thawd.resources import Function
from thawd.server.compose.control import ControlSubsystem
from thawd.server.compose.execution import ExecutionSubsystem
from thawd.telemetry.console import complain, say


class Publications:
    """Publishes what the configuration declares.

    Args:
        execution: what runs functions.
        control: the control plane, which shows what was published.
        settings: the configuration in force.
    """

    def __init__(
        self, execution: ExecutionSubsystem, control: ControlSubsystem, *, settings: Callable[[], Settings]
    ) -> None:
        self._dispatcher = execution.dispatcher
        self._publisher = execution.publisher
        self._spawner = execution.spawner
        self._control = control
        self._settings = settings
        self._publishing = asyncio.Lock()

    async def publish_all(self, functions: Mapping[str, Function], *, retry: bool = False) -> None:
        """Publish what has changed, several at once as far as the cores go.

        What goes wrong with one function, whatever it is, is that function's: it is reported, and the others go on.

        Args:
            functions: as declared, by name.
            retry: publish again what has not changed but whose init or priming event failed last time.
        """
        slots = asyncio.Semaphore(os.cpu_count() or 1)

        async def one(function: Function) -> None:
            async with slots:
                await self._publish(function, retry=retry)

        async with self._publishing:
            async with asyncio.TaskGroup() as tasks:
                for function in functions.values():
                    tasks.create_task(one(function))
            try:
                versions = self._dispatcher.versions()
                await asyncio.to_thread(self._publisher.clean, versions, keep=self._control.packages)
                await self._control.remove_code()
                await self._spawner.evict()
            except StoreError as error:
                complain(f"thawd: old packages and snapshots could not be removed: {error}")
            except Exception as error:  # what is left over is in nobody's way
                complain(f"thawd: old packages and snapshots could not be removed: {unexpected(error)}")

    async def _publish(self, function: Function, *, retry: bool) -> None:
        """Publish one function; never raises."""
        try:
            version = await self._build(function)
            if self._publisher.is_published(version):
                if not (retry and self._dispatcher.may_fare_better(version)):
                    self._confirm(version)
                    return
                # A version is published once: the next try is one of its own.
                self._publisher.forget(function.name, version.number)
                version = await self._build(function)
            await self._serve(version)
        except ResourceNotFoundException:
            return  # a reload has removed it meanwhile
        except ThawdError as error:
            self._fail(function, error.message)
        except Exception as error:  # a mistake of ours, or a trouble that nobody foresaw: it is this function's alone
            self._fail(function, unexpected(error))

    async def _build(self, function: Function) -> Version:
        settings = self._settings()
        return await self._publisher.build(
            function,
            folder=settings.path.parent,
            buckets=settings.buckets,
            not_code=settings.not_code(),
            progress=lambda line: say(f"  {function.name}: {line}"),
        )

    def _confirm(self, version: Version) -> None:
        """It was published last: what was tried meanwhile and failed is not wanted any more."""
        entry = self._dispatcher.entry(version.function.name)
        if entry.state == "Active" and entry.pool is not None and entry.pool.version is version and entry.reason:
            entry.reason = None
            self._control.configured.published(version)

    async def _serve(self, version: Version) -> None:
        """Have the version serve.

        Raises:
            ThawdError: it cannot be started.
        """
        name = version.function.name
        self._control.configured.publishing(version)
        is_replacement = self._dispatcher.entry(name).pool is not None
        try:
            await self._dispatcher.publish(version)
        except InitError as error:
            if not error.from_outside:  # else another try may well succeed: SIGHUP has it tried again
                self._publisher.published(version)
            if is_replacement:
                self._control.configured.failed(version.function, str(error), code="FunctionError")
            else:
                # As on Lambda: the function is there, and its callers get the error.
                self._control.configured.published(version)
            complain(f"thawd: {name}: init failed: {error}\n  see: thawd logs {name}")
            return
        self._publisher.published(version)
        self._control.configured.published(version)
        if is_replacement:
            say(f"{name}: published anew")

    def _fail(self, function: Function, reason: str) -> None:
        """The function could not be published for `reason`; what it was before goes on serving."""
        name = function.name
        try:
            if name not in self._dispatcher.names():
                return
            self._dispatcher.fail(name, reason)
            self._control.configured.failed(function, reason)
        except Exception as error:  # its record is at fault: the operator is told all the same
            reason = f"{reason}; {unexpected(error)}"
        complain(f"thawd: {name} cannot be published: {reason}")
