"""Publishing the functions of the configuration: what has changed, several at once, with a word to the operator."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping

from thawd.composition.control import ControlSubsystem
from thawd.composition.execution import ExecutionSubsystem
from thawd.config import Settings
from thawd.control.records import Settled
from thawd.errors import EnvironmentBuildError, ResourceNotFoundException, ServiceException, StoreError
from thawd.execution.init_phase import InitError
from thawd.execution.version import Version
from thawd.resources import Function
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

    async def _build(self, function: Function) -> Version:
        settings = self._settings()
        return await self._publisher.build(
            function,
            folder=settings.path.parent,
            buckets=settings.buckets,
            not_code=settings.not_code(),
            progress=lambda line: say(f"  {function.name}: {line}"),
        )

    async def _publish(self, function: Function, *, retry: bool) -> None:
        name = function.name
        try:
            version = await self._build(function)
            if self._publisher.is_published(version):
                if not (retry and self._dispatcher.may_fare_better(version)):
                    return
                # A version is published once: the next try is one of its own.
                self._publisher.forget(name, version.number)
                version = await self._build(function)
            self._control.configured.published(version, Settled("Pending"))
            is_replacement = self._dispatcher.entry(name).pool is not None
            await self._dispatcher.publish(version)
        except InitError as error:
            self._publisher.published(version)
            self._control.configured.published(version, Settled("Active"))
            complain(f"thawd: {name}: init failed: {error}\n  see: thawd logs {name}")
        except ResourceNotFoundException:
            return  # a reload has removed it meanwhile
        except (EnvironmentBuildError, StoreError, ServiceException) as error:
            if name not in self._dispatcher.names():
                return
            self._dispatcher.fail(name, error.message)
            self._control.configured.failed(function, error.message)
            complain(f"thawd: {name} cannot be published: {error.message}")
        else:
            self._publisher.published(version)
            self._control.configured.published(version, Settled("Active"))
            if is_replacement:
                say(f"{name}: published anew")
