"""Builds the control plane of a server: what creates, changes and publishes functions and event source mappings.

Resources that were created through the Lambda API are stored in the catalog, a table of the state file (``thawd.db`` in
the data folder), and are restored from it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from thawd.config import Settings
from thawd.control.declared import DeclaredFunctions
from thawd.control.deployments import Deployments
from thawd.control.event_source_mappings import Mappings
from thawd.control.functions import FindNetwork
from thawd.control.quotas import aws_quotas, machine_quotas
from thawd.control.registry import Registry
from thawd.environments.version import Version
from thawd.errors import ResourceNotFoundException, StoreError, unexpected
from thawd.gateway.function_urls.table import PATH_PREFIX, UrlTable, described, settings_of, url_id
from thawd.gateway.http import Budget
from thawd.gateway.lambda_api.control import CodeLinks, ControlApi
from thawd.gateway.lambda_api.operations import ControlParts, assemble
from thawd.publishing.build import BuildContext
from thawd.publishing.publisher import InitRun, Publisher
from thawd.resources import LATEST
from thawd.server.assembly.execution import ExecutionSubsystem
from thawd.stores.control_documents import Catalog
from thawd.stores.database import Database
from thawd.stores.objects.folder import BucketFolder
from thawd.stores.uploaded_code import CodeStore
from thawd.telemetry.console import complain, say


class ControlSubsystem:
    """The control plane of one server.

    Args:
        state: the state file.
        execution: runs functions.
        settings: returns the current configuration.
        url: returns the URL of the server.
        urls: function URLs.
        budget: limits the memory that request bodies take.
        elsewhere: reads a function's code from an object in a bucket of the emulator that ``--aws`` starts; None: there
            is no emulator.
        find_network: finds the network of subnets and security groups.

    Attributes:
        api: the Lambda API over HTTP; `open` sets it and the other attributes, except `registry`.
        configured: the functions of the configuration.
        deployments: all functions, with the versions that they should serve.
        mappings: event source mappings.
        registry: functions, versions, aliases and layers.
    """

    api: ControlApi
    configured: DeclaredFunctions
    deployments: Deployments
    mappings: Mappings

    def __init__(  # noqa: PLR0913 - the parts that this one connects
        self,
        state: Database,
        execution: ExecutionSubsystem,
        *,
        settings: Callable[[], Settings],
        url: Callable[[], str],
        urls: UrlTable,
        budget: Budget,
        elsewhere: Callable[[str, str], Awaitable[bytes]] | None = None,
        find_network: FindNetwork,
    ) -> None:
        self._execution = execution
        self._settings = settings
        self._url = url
        self._urls = urls
        self._budget = budget
        self._elsewhere = elsewhere
        self._find_network = find_network
        data = settings().server.data
        self._quotas = (
            aws_quotas() if settings().server.limits == "aws" else machine_quotas(lambda: shutil.disk_usage(data).free)
        )
        self._code = CodeStore(data, most_bytes=self._quotas.unzipped_bytes)
        self.registry = Registry(Catalog(state))
        self._publisher = Publisher(
            execution.builder,
            execution.dispatcher,
            self._code,
            context=self._build_context,
            say=say,
            init_of=self._init_of,
        )
        self._cleaning = asyncio.Lock()
        self._is_clean = False  # True: files were removed by `_clean`, and no publication has begun since then

    def _init_of(self, version: Version) -> InitRun:
        """How the init of a version ran."""
        origin = self._execution.spawner.origin(version)
        found = origin.frozen is not None and origin.frozen.found
        return InitRun(origin.init_ms, origin.start, snapshot_reused=found)

    async def open(self) -> None:
        """Restore the resources that were created through the API. Make all functions known to the dispatcher.

        Raises:
            StoreError: the catalog cannot be read.
        """
        await self.registry.load()
        execution = self._execution
        publisher = self._publisher
        self.deployments = Deployments(
            execution.dispatcher,
            publisher,
            execution.room,
            execution.spawner,
            spawn_task=execution.spawn_task,
            complain=complain,
        )
        self.deployments.thaws_all = self._settings().server.snapshots == "all"
        self.configured = DeclaredFunctions(self.registry, self.deployments, publisher, complain=complain, say=say)
        links = CodeLinks(self._code.zip_path, self._url)
        plane = assemble(
            ControlParts(
                registry=self.registry,
                code=self._code,
                deployments=self.deployments,
                read_object=self._read_object,
                serve_url=self._serve_url,
                declared_url=self._declared_url,
                in_background=execution.spawn_task,
                locate=links.make,
                quotas=self._quotas,
                find_network=self._find_network,
            )
        )
        self.mappings = plane.mappings
        self.api = ControlApi(plane, links=links, budget=self._budget, complain=complain)
        execution.dispatcher.on_awaited = self.configured.request
        execution.dispatcher.may_loop = self.may_loop
        self.configured.declare(self._settings().functions)
        self.deployments.declare(*(family for family in self.registry.families.values() if not family.declared))
        plane.functions.resume()
        plane.urls.restore()

    def may_loop(self, name: str) -> bool:
        """Whether events that the function `name` caused may invoke it again, as its setting ``RecursiveLoop`` says."""
        family = self.registry.families.get(name)
        return family is not None and family.recursion == "Allow"

    def begin_unpacking(self, content: bytes) -> None:
        """Unpack a zip file of code in the background, because a request with it will follow. May run in any thread."""
        self._code.begin(content)

    async def publish(self, *, retry: bool = False) -> None:
        """Publish the configured functions that have changed, then remove files that no version needs any more.

        Args:
            retry: also republish unchanged functions whose init or priming event failed last time.
        """
        async with self._cleaning:
            self._is_clean = False
            self.configured.begin(retry=retry)
        await self.configured.published()
        async with self._cleaning:
            if self._is_clean or self.configured.is_publishing or self.configured.is_stopped:
                return  # another call of this method has removed the files, or will remove them, or the next start
            self._is_clean = True
            await self._clean()

    def stop_publishing(self) -> None:
        """Begin no more publications, because the server stops."""
        self.configured.stop()

    async def publications_ended(self, patience_s: float) -> None:
        """After `stop_publishing`: wait until all publications have ended, at most `patience_s` seconds."""
        await self.configured.ended(patience_s)
        await self._publisher.ended(patience_s)

    async def _clean(self) -> None:
        """Remove files that no version needs any more. Must not be called while declared functions are published."""
        try:
            await self._publisher.clean(keep=self._packages)
            await self._code.remove_except(self._packages)
            await self._execution.spawner.evict()
        except Exception as error:  # the server goes on: files that are not removed only use disk space
            reason = error.message if isinstance(error, StoreError) else unexpected(error)
            complain(f"thawd: old packages and snapshots could not be removed: {reason}")

    def _packages(self) -> set[str]:
        """Names of the deployment packages that versions use or that were uploaded recently."""
        return self.registry.packages() | self._code.recent()

    def _serve_url(self, name: str, qualifier: str | None, config: Mapping[str, Any] | None) -> str:
        """Serve a function URL that was created through the API, or remove it if `config` is None; returns the URL."""
        if config is None:
            self._urls.remove(name, qualifier or LATEST)
            return ""
        # The URL has its identifier in the path, not in the host name as on AWS, because not every resolver knows host
        # names under ``localhost``. Requests with the host name are served, too.
        return f"{self._url()}{PATH_PREFIX}{self._urls.set(name, qualifier or LATEST, settings_of(config))}/"

    def _declared_url(self, name: str) -> Mapping[str, Any] | None:
        """The function URL that the configuration declares, with the Lambda API's fields; None: it declares none."""
        settings = self._settings().urls.get(name)
        if settings is None:
            return None
        return {**described(settings), "Url": f"{self._url()}{PATH_PREFIX}{url_id(name)}/"}

    def _build_context(self) -> BuildContext:
        settings = self._settings()
        return BuildContext(settings.path.parent, settings.buckets, settings.not_code())

    async def _read_object(self, bucket: str, key: str) -> bytes:
        known = self._settings().buckets.get(bucket)
        if known is None:
            if self._elsewhere is not None:
                return await self._elsewhere(bucket, key)
            raise ResourceNotFoundException("The specified bucket does not exist", reason="NoSuchBucket")
        path = BucketFolder(os.fsencode(known.path)).path(os.fsencode(key))
        try:
            return await asyncio.to_thread(Path(os.fsdecode(path or b"")).read_bytes)
        except OSError:
            raise ResourceNotFoundException("The specified key does not exist.", reason="NoSuchKey") from None
