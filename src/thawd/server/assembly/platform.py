"""Builds all subsystems of one server, in the order of their dependencies.

The subsystems are the stores, the execution of functions, the emulator of other AWS services, asynchronous events,
bucket watchers, the control plane, event sources, and the HTTP application, which passes requests to the others.
`thawd.server.serving` decides when they start and stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from thawd import config
from thawd.cluster.credentials import Credentials
from thawd.cluster.forwarding import ClusterDispatcher
from thawd.cluster.local_settings import localized
from thawd.config import ClusterSettings, Settings
from thawd.destinations.delivery import DestinationContext, Destinations
from thawd.environments.store_calls import TableServices
from thawd.gateway.api_signatures import Gate
from thawd.gateway.application import Application, GatewayParts
from thawd.gateway.aws.proxy import AwsProxy
from thawd.gateway.function_urls.endpoint import LOCAL_KEYS, Access, FunctionUrlApi
from thawd.gateway.function_urls.table import UrlTable
from thawd.gateway.hosts import Hosts
from thawd.gateway.http import BUDGET_BYTES, Budget
from thawd.gateway.lambda_api.invoke import InvokeApi, InvokeAsyncApi
from thawd.gateway.lambda_api.invoke_stream import InvokeStreamApi
from thawd.gateway.role_keys import RoleKeys
from thawd.gateway.routes.endpoint import RoutesApi
from thawd.gateway.s3.endpoint import ObjectApi
from thawd.gateway.thawd_api.cluster import ClusterApi
from thawd.gateway.thawd_api.invocations import InvocationsApi
from thawd.gateway.thawd_api.probes import READINESS
from thawd.gateway.thawd_api.queue import QueueApi
from thawd.gateway.thawd_api.sources import SourcesApi
from thawd.invocation import Invocation
from thawd.server.assembly.cloudwatch import CloudWatchSubsystem
from thawd.server.assembly.cluster import ClusterSubsystem, text_of
from thawd.server.assembly.control import ControlSubsystem
from thawd.server.assembly.drain import Drain
from thawd.server.assembly.events import EventSubsystem
from thawd.server.assembly.execution import ExecutionSubsystem, SpawnTask, add_memory
from thawd.server.assembly.machines import MachineInputs, MachinesSubsystem
from thawd.server.assembly.networks import Networks
from thawd.server.assembly.recording import PageInputs, RecordingSubsystem
from thawd.server.assembly.sources import SourceStores, SourceSubsystem
from thawd.server.assembly.stores import StoreSubsystem
from thawd.server.backup import require_whole
from thawd.server.emulator.spawning import EmulatorProcess
from thawd.server.emulator.starting import Emulator, EmulatorCallbacks, local_variables, proxy, real_variables
from thawd.server.port_and_folder_locks import StartError, bind
from thawd.sources.aws_calls import Endpoint
from thawd.sources.buckets.remote_sources import RemoteSources
from thawd.sources.buckets.remote_stores import WatcherStores
from thawd.sources.buckets.watcher import BucketWatcher
from thawd.stores.objects.listings import Listings
from thawd.stores.schedules import ScheduleStore
from thawd.stores.stream_positions import StreamPositions
from thawd.telemetry.console import complain
from thawd.telemetry.exposition import exposition
from thawd.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from thawd.resources import StoreUrl
    from thawd.server.assembly.cluster_state import ClusterState
    from thawd.server.assembly.registered import Registered
    from thawd.stores.cluster.copier import EventCopier

# The status document is made for this many functions at a time. That takes a few milliseconds, and between two such
# steps, the event loop can serve requests.
_AT_A_TIME = 100


class Platform:
    """All subsystems of one server.

    Args:
        settings: the configuration.
        url: URL of the server.
        environ: the platform's environment variables.
        spawn_task: runs a coroutine in the background.
        closing: closes open resources when the server ends.

    Attributes:
        settings: the current configuration.
        url: URL of the server.
        phase: ``starting`` until all functions are published, then `READINESS`, then ``stopping``.
        stores: the state file, tables and remote buckets.
        execution: runs functions.
        recording: records invocations.
        cluster_state: what machines share in a database; None: this machine shares nothing.
        emulated: passes requests on to the emulator of other AWS services; None: they are not emulated.
        events: asynchronous events; `open` sets this attribute and those below.
        watchers: the watchers of the buckets that are folders, by the bucket's name; a watcher notices changes in a
            bucket.
        control: the control plane.
        cloudwatch: log groups and metrics.
        sources: event sources.
        cluster: connections to other machines; None: this machine runs alone.
        urls: function URLs.
        application: the HTTP application.

    Raises:
        StartError: the server cannot start; the message says why.
        StoreError: a store cannot be used.
    """

    events: EventSubsystem
    watchers: dict[str, BucketWatcher]
    control: ControlSubsystem
    cloudwatch: CloudWatchSubsystem
    sources: SourceSubsystem
    application: Application
    cluster: ClusterSubsystem | None = None

    def __init__(
        self,
        settings: Settings,
        url: str,
        *,
        environ: Mapping[str, str],
        spawn_task: SpawnTask,
        closing: contextlib.ExitStack,
    ) -> None:
        self.settings = settings = localized(settings)
        self.url = url
        self.phase = "starting"
        self.urls = UrlTable()
        self.cluster_state: ClusterState | None = None
        self._registered: Registered | None = None
        self._copier: EventCopier | None = None
        self._drain: Drain | None = None
        self._machines: MachinesSubsystem | None = None
        self.emulated: AwsProxy | None = None
        self._emulator: Emulator | None = None
        self._aws_endpoint: str | None = None
        self._environ = environ
        self._keys = RoleKeys(
            settings.server.access_keys or (LOCAL_KEYS if config.is_loopback(settings.server.host) else {}),
            role_of=self._role_of,
        )
        self._closing = closing
        self._metrics = Metrics()
        self._budget = Budget(BUDGET_BYTES)
        require_whole(settings.server.data)
        self.stores = StoreSubsystem(settings, closing=closing)
        self.execution = ExecutionSubsystem(
            settings,
            environ=environ,
            services=TableServices(self.stores.tables, self.stores.buckets),
            metrics=self._metrics,
            spawn_task=spawn_task,
            closing=closing,
        )
        self.recording = RecordingSubsystem(
            settings.server,
            self.execution.dispatcher,
            self._metrics,
            port=urlsplit(url).port or 0,
            spawn_task=spawn_task,
        )
        self.execution.trace_by(self.recording.targets_of, self.recording.note_of)

    def _role_of(self, function: str) -> str:
        return self.control.registry.role(function)

    async def open(self, *, aws: str, emulator: EmulatorProcess | None, stopping: asyncio.Event) -> None:
        """Build the subsystems that `__init__` did not build.

        Args:
            aws: which other AWS services functions use: ``none``, ``local`` (emulated), ``real`` (the user's account),
                or the URL of a server that emulates them; the platform's environment variables have its credentials.
            emulator: the emulator's process, if it was started before.
            stopping: set when the server stops. An end of the emulator before that is reported as a failure.

        Raises:
            StartError: the server cannot start; the message says why.
            StoreError: a store cannot be used.
        """
        await self.execution.open()
        if self.settings.server.state is not None:
            self._registered = await self._open_cluster_state(self.settings.server.state)
        if aws == "real":
            self.execution.builder.aws = real_variables(self._environ)
        elif aws == "local":
            await self._emulate_aws(emulator, stopping)
        elif aws != "none":
            self.execution.builder.aws = local_variables(aws)
            keys = {name: self._environ[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
            self.execution.launcher.keys = lambda function: keys
        self.events = self._compose_events()
        self.events.invoker.without_secrets = self.recording.redactor.error
        if self.recording.recorder is not None:
            self.events.invoker.on_step = self.recording.recorder.step
            self._destinations.on_outcome = self.recording.recorder.delivered
        self.watchers = {
            name: BucketWatcher(
                bucket,
                objects=self.stores.objects,
                log=complain,
                on_events=self.events.invoker.wake,
                is_full=self.events.is_full,
            )
            for name, bucket in self.settings.buckets.items()
        }
        # One for all reloads, which do not change buckets: uploads in progress and later ones exclude each other.
        self._objects = ObjectApi(
            self.settings.buckets,
            self.watchers,
            elsewhere={name: str(bucket.url) for name, bucket in self.settings.remote_buckets.items()},
        )
        self.control = ControlSubsystem(
            self.stores.state,
            self.execution,
            settings=lambda: self.settings,
            url=lambda: self.url,
            urls=self.urls,
            budget=self._budget,
            elsewhere=None if self.emulated is None else self.emulated.read,
            find_network=Networks(None if self._aws_endpoint is None else Endpoint(self._aws_endpoint)).find,
        )
        await self.control.open()
        for record in self.control.registry.all_records():  # so that the first invocation is traced, too
            self.recording.targets_of(record.function)
        self.cloudwatch = CloudWatchSubsystem(
            self.stores.state,
            self.settings.server,
            execution=self.execution,
            events=self.events,
            metrics=self._metrics,
            emulated=None
            if self.emulated is None or self._aws_endpoint is None
            else (self._aws_endpoint, self.emulated),
        )
        await self.cloudwatch.open()
        self.sources = self._compose_sources()
        self.cloudwatch.stream_ages = self.sources.stream_ages
        if self.settings.cluster is not None:
            await self._open_cluster(self.settings.cluster, stop=stopping.set)
        self.application = Application(self._parts(), self.recording.followed)
        await self.events.recover()

    async def _open_cluster(self, settings: ClusterSettings, *, stop: Callable[[], None]) -> None:
        dispatcher = self.execution.dispatcher
        cluster = self.cluster = ClusterSubsystem(settings, dispatcher, self._registered)
        self._closing.callback(cluster.close)
        view, records = self.events.operator_view, self.recording.records
        inputs = MachineInputs(self.url, view, records, self._status, lambda: self.settings)
        self._machines = MachinesSubsystem(cluster, self.execution, inputs)
        await cluster.open()
        if self._registered is not None:
            notice_s, events = self.settings.server.drain_s, self.events
            self._drain = Drain(cluster, self._registered, dispatcher, events=events, stop=stop, notice_s=notice_s)

    async def _open_cluster_state(self, state: StoreUrl) -> Registered | None:
        """Become a member of the cluster; returns None if machines do not find each other in its database.

        Raises:
            StartError: another process has this machine's name, or the address for other machines cannot be used.
            CredentialsError: this machine has no credentials of the cluster.
            StoreError: the database cannot be used.
        """
        from thawd.server.assembly.cluster_state import ClusterState  # most servers do not need it
        from thawd.server.assembly.registered import Registered

        data, cluster = self.settings.server.data, self.settings.cluster
        if cluster is None or cluster.machines:
            self.cluster_state = ClusterState(state, data, address=self.url)
            await self.cluster_state.open(closing=self._closing)
            return None
        issuer = None if cluster.key else Credentials(data)
        port = self._closing.enter_context(bind(*cluster.address))
        host, number = port.getsockname()[:2]
        self.cluster_state = ClusterState(state, data, address=text_of((host, number)), name=cluster.name)
        await self.cluster_state.open(closing=self._closing)
        if issuer is not None:
            await self.cluster_state.require_authority(issuer.fingerprint)
        registered = Registered(self.cluster_state, port, issuer)
        dispatcher = self.execution.dispatcher
        assert isinstance(dispatcher, ClusterDispatcher)
        dispatcher.member = registered.member
        return registered

    async def _emulate_aws(self, spawned: EmulatorProcess | None, stopping: asyncio.Event) -> None:
        """Start the emulator of other AWS services, for functions and for thawd's own clients.

        Raises:
            StartError: other machines could reach the emulator, or it does not start.
        """
        server = self.settings.server
        if server.key is not None or server.tls is not None or not config.is_loopback(server.host):
            raise StartError(
                "--aws is only for development on this machine: use it without server.key and server.tls, and listen "
                "on a loopback address"
            )

        def lost() -> None:
            if not stopping.is_set():
                complain("thawd: the emulator of --aws has ended; restart thawd")

        folder = server.data / "aws"
        children = self.execution.launcher.children
        emulator = self._emulator = await Emulator.start(
            folder, environ=self._environ, spawned=spawned, children=children, lost=lost
        )
        self._closing.callback(emulator.stop)
        self._aws_endpoint = emulator.url
        emulator.connect(self.url, server.access_keys)
        self.execution.builder.aws = local_variables(self.url)
        self.execution.launcher.keys = lambda function: self._keys.credentials(function).variables()
        self.stores.use_aws(emulator.access)
        self.emulated = proxy(
            emulator,
            EmulatorCallbacks(
                accept=self._accept,
                exists=self.execution.dispatcher.entry,
                owns=lambda path: path.lstrip("/").partition("/")[0] in self.settings.buckets,
            ),
            folder=folder,
            keys=self._keys,
        )

    async def stop_aws(self) -> None:
        """Stop the emulator after it has saved its state. Call this when no function needs the emulator any more."""
        if self._emulator is not None:
            await self._emulator.stopped()

    async def _accept(self, invocation: Invocation) -> None:
        if self.cluster is not None:
            self.cluster.require_accepting()
        await self.recording.accept(invocation, self.events.invoker.accept)

    def _may_loop(self, function: str) -> bool:
        return self.control.may_loop(function)

    def _compose_events(self) -> EventSubsystem:
        server = self.settings.server
        context = DestinationContext(
            exists=self.execution.dispatcher.entry,
            may_loop=self._may_loop,
            bucket=self.stores.buckets.get,
            aws_endpoint=self._aws_endpoint,
            webhook_secret=server.webhook_secret,
            metrics=self._metrics,
            on_delivery=self.recording.delivered,
        )
        self._destinations = Destinations(self.stores.tables, self.settings.buckets, context)
        if self.cluster_state is not None and server.durability == "cluster":
            self._copier = self.cluster_state.copier(self.stores.state)
        return EventSubsystem(
            self.stores.state,
            server,
            dispatcher=self.execution.dispatcher,
            destinations=self._destinations,
            copier=self._copier,
            closing=self._closing,
        )

    def _compose_sources(self) -> SourceSubsystem:
        wake = self.events.invoker.wake
        return SourceSubsystem(
            self.control.mappings,
            self.control.registry,
            self.execution.dispatcher,
            self._source_stores(),
            settings=lambda: self.settings,
            wake=wake,
            aws=self._aws_endpoint,
            destinations=self._destinations,
            buckets=RemoteSources(
                self.settings.remote_buckets.values(),
                self.stores.buckets,
                WatcherStores(self.stores.objects, Listings(self.stores.state), self.events.is_full),
                sqs=self._aws_endpoint,
                log=complain,
                wake=wake,
            ),
        )

    def _source_stores(self) -> SourceStores:
        state, cluster, registered = self.stores.state, self.cluster_state, self._registered
        if cluster is None or registered is None:
            return SourceStores(ScheduleStore(state), StreamPositions(state))
        from thawd.stores.cluster.leader_state import ClusterPositions, ClusterSchedules

        positions = ClusterPositions(cluster.database, registered.leading)
        if self._copier is None:  # then there are no schedules
            return SourceStores(ScheduleStore(state), positions)
        return SourceStores(ClusterSchedules(cluster.database, self._copier, registered.leading), positions)

    async def run_sources(self) -> None:
        """Run event sources until cancelled; in a cluster, whenever this machine is its leader."""
        if self._registered is None:
            await self.sources.run()
        else:
            await self._registered.lead(self._run_new_sources)

    async def _run_new_sources(self) -> None:
        # Another machine may have led in the meantime, so nothing that is known about sources holds any more.
        self.sources = self._compose_sources()
        self.cloudwatch.stream_ages = self.sources.stream_ages
        self.application.parts = self._parts()
        await self.sources.run()

    def take_over(self, settings: Settings) -> None:
        """Use another configuration for requests. The caller must then publish that configuration's functions."""
        self.settings = settings
        self.execution.builder.runtimes = settings.runtimes
        self.control.configured.declare(settings.functions)
        self.application.parts = self._parts()

    def _parts(self) -> GatewayParts:
        settings = self.settings
        server = settings.server
        dispatcher = self.execution.dispatcher
        accept, flush = self._accept, self.execution.launcher.flush_logs
        wait_s = server.queue_timeout_s
        self.urls.declare(settings.urls)
        return GatewayParts(
            invoke=InvokeApi(dispatcher, accept=accept, queue_timeout_s=wait_s, budget=self._budget),
            invoke_async=InvokeAsyncApi(dispatcher, accept=accept, queue_timeout_s=wait_s, budget=self._budget),
            invoke_stream=InvokeStreamApi(dispatcher, queue_timeout_s=wait_s, budget=self._budget),
            routes=RoutesApi(
                settings.routes,
                dispatcher,
                queue_timeout_s=wait_s,
                budget=self._budget,
                http=settings.http,
                accept=accept,
                key=server.key,
            ),
            objects=self._objects,
            logs=self.cloudwatch.logs,
            cloudwatch=self.cloudwatch.metrics,
            status=self._status,
            count_table=self.stores.count_table,
            metrics=self._exposition,
            readiness=self._readiness,
            control=self.control.api,
            queue=QueueApi(
                self.events.operator_view, None if self._machines is None else self._machines.change_dead_letters
            ),
            window=self.recording.pages(
                PageInputs(self._status, self.events.operator_view, flush, wait_s, self._budget, self._machines)
            ),
            invocations=InvocationsApi(self.recording.records, why_none=self.recording.why_none),
            hosts=Hosts((server.host, *server.names)) if server.key is None else None,
            aws=self.emulated,
            apis=None if self.emulated is None else self.emulated.apis(self._budget),
            sources=SourcesApi(self.sources),
            cluster=None if self._drain is None else ClusterApi(self._drain.operations),
            machines=None if self._machines is None else self._machines.api,
            key=server.key,
            gate=Gate(self._keys, budget=self._budget) if server.access_keys else None,
            urls=FunctionUrlApi(
                self.urls,
                dispatcher,
                Access(
                    keys=self._keys,
                    is_local=server.key is None,
                    key=server.key,
                    identify=self._keys.identity,
                ),
                queue_timeout_s=wait_s,
                budget=self._budget,
            ),
        )

    async def _status(self, *, memory: bool = False) -> dict[str, Any]:
        dispatcher = self.execution.dispatcher
        functions: dict[str, Any] = {}
        names = dispatcher.names()
        for start in range(0, len(names), _AT_A_TIME):
            functions |= dispatcher.status_of(names[start : start + _AT_A_TIME])
            await asyncio.sleep(0)  # lets other tasks serve requests
        await self.events.add_status(functions)
        if memory:
            await asyncio.to_thread(add_memory, functions)
        status = {"url": self.url, "pid": os.getpid(), **self.execution.limits, "functions": functions}
        return status if self.cluster is None else {**status, "cluster": self.cluster.describe()}

    def _readiness(self) -> str:
        if self.phase == READINESS and self.stores.state.misplaced() is not None:
            return "nothing can be stored, because the state file was moved or removed"
        if self.phase == READINESS and self.cluster is not None and (why := self.cluster.why_not_ready) is not None:
            return why
        return self.phase

    async def _exposition(self, content_type: str) -> bytes:
        self.execution.measure(self._metrics)
        await self.events.measure(self._metrics)
        self.sources.measure(self._metrics)
        return await exposition(self._metrics, content_type)
