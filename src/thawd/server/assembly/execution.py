"""Builds the subsystem that runs functions: limits, processes, snapshots, building of versions, dispatcher."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

from thawd import __file__ as package_file
from thawd import config
from thawd.cluster.forwarding import ClusterDispatcher
from thawd.config import Settings
from thawd.environments import boto3_for_functions
from thawd.environments.processor_time import can_measure
from thawd.environments.sandbox import cpu, memory, process_limit
from thawd.environments.sandbox.capabilities import find_rights, notice
from thawd.environments.sandbox.storage import StorageWatch
from thawd.environments.starts.engine_files import Engine, NoEngineError
from thawd.environments.starts.fastest_start import Spawner
from thawd.environments.starts.launcher import Launcher
from thawd.environments.store_calls import NoteOf, TableServices
from thawd.environments.trace_variables import TargetsOf
from thawd.errors import unexpected
from thawd.publishing.build import Builder
from thawd.resources import RemoteBucket
from thawd.scheduling.core_admission import Cores, processor_cores
from thawd.scheduling.dispatcher import Dispatcher
from thawd.scheduling.room import Room, default_max_environments, default_memory_mb
from thawd.server.port_and_folder_locks import StartError
from thawd.snapshot.disk.temporary_folders import Disks
from thawd.snapshot.store.images import Snapshot, SnapshotStore
from thawd.system.retry import SayOnce
from thawd.telemetry.console import complain
from thawd.telemetry.metrics import Metrics
from thawd.transfer import chunk_cache
from thawd.transfer.exchange import SnapshotExchange
from thawd.transfer.sender_process import Task, send_apart
from thawd.transfer.store_layout import KEY_FILE, missing_library, place_at

_WATCH_AGAIN_S = 1.0

SpawnTask = Callable[[Coroutine[None, None, None]], object]
"""A function that runs a coroutine in the background."""


class ExecutionSubsystem:
    """Runs the functions of one server: dispatches invocations, and starts and watches processes.

    Args:
        settings: the configuration.
        environ: the platform's environment variables.
        services: answers calls from functions to the platform, such as those of `thawd.table`.
        metrics: the server's metrics.
        spawn_task: runs a coroutine in the background.
        closing: closes open resources when the server ends.

    Attributes:
        launcher: starts and watches processes.
        spawner: starts environments.
        room: accounts for the memory and the number of environments on this machine.
        dispatcher: runs invocations.
        builder: builds versions: copies their code and installs their requirements.
        spawn_task: runs a coroutine in the background.

    Raises:
        StartError: the configuration needs more environments than the machine can run.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        environ: Mapping[str, str],
        services: TableServices,
        metrics: Metrics,
        spawn_task: SpawnTask,
        closing: contextlib.ExitStack,
    ) -> None:
        server = settings.server
        limiter = _find_limiter(cpu_limits=server.cpu_limits)
        closing.callback(limiter.close)
        self._limiter_kind = limiter.kind
        engine = _find_engine()
        program = None if isinstance(engine, str) else engine.program
        self._disks = Disks(
            server.data / "tmp",
            program=program,
            needed=_needed(settings, program),
            as_on_lambda=server.paths == "lambda",
        )
        self.launcher = Launcher(
            log_folder=server.data / "logs", log_max_bytes=server.log_max_mb << 20, disks=self._disks, program=program
        )
        self._services = services
        self.spawner = Spawner(self.launcher, limiter=limiter, services=services, metrics=metrics, report=complain)
        self._capabilities = server.capabilities
        if isinstance(limiter, process_limit.CountingLimiter):
            limiter.orphans = self.launcher.children.orphans
        if server.snapshots != "off":
            self._set_up_snapshots(engine, settings, closing)
        self.room = _room(settings, self.spawner)
        self.spawner.on_spawned = self.room.cores.spawned
        self.spawn_task = spawn_task
        kind = Dispatcher if settings.cluster is None else ClusterDispatcher
        self.dispatcher = kind(self.room, self.spawner, metrics, max_waiting=server.max_waiting, spawn_task=spawn_task)
        self.builder = Builder(server.data, own=environ)
        self.builder.spare_own_programs = self.launcher.spare_own_programs
        self.builder.runtimes = settings.runtimes
        self.builder.why_real = self.launcher.why_real
        self.builder.images.host = self.launcher

    def trace_by(self, targets_of: TargetsOf, note_of: NoteOf) -> None:
        """From now on, ask where functions send what they trace, and what notes their operations on tables and buckets.

        Args:
            targets_of: see `Builder.traces`.
            note_of: see `TableServices.note_of`.
        """
        self.builder.traces, self._services.note_of = targets_of, note_of

    def _set_up_snapshots(self, engine: Engine | str, settings: Settings, closing: contextlib.ExitStack) -> None:
        """Enable snapshots in the spawner, or tell it why there are none.

        Args:
            engine: the snapshot engine, or the reason why there is none.
            settings: the configuration.
        """
        server = settings.server
        if isinstance(engine, str):
            self.spawner.refuse_snapshots(engine)
            return
        store = SnapshotStore(
            server.data / "snapshots",
            max_bytes=server.snapshots_max_mb << 20,
            max_age_s=server.snapshots_max_age_s,
            report=complain,
        )
        exchange = _exchange(server, store, engine.program, self.launcher)
        if exchange is not None:
            closing.callback(exchange.close)
        self.spawner.use_snapshots(engine, store, bases=server.bases != "off", exchange=exchange)

    async def open(self) -> None:
        """Prepare temporary folders and permissions; call it before the first process is started."""
        await asyncio.to_thread(self._disks.clean)
        await asyncio.to_thread(self._disks.confine)
        rights = await asyncio.to_thread(find_rights, self.launcher.program, capabilities=self._capabilities)
        self.launcher.rights = rights
        if (text := notice(rights)) is not None:
            complain(text)

    async def watch_limits(self) -> None:
        """Enforce memory and temporary storage limits until cancelled."""
        storage = StorageWatch(self._disks)
        self.room.storage = storage
        async with asyncio.TaskGroup() as watches:
            watches.create_task(_keep_watching("memory", self.room.watch_memory))
            watches.create_task(_keep_watching("temporary storage", storage.run))

    @property
    def limits(self) -> dict[str, Any]:
        """Limits that all environments share, with the present load of the cores, for the status document."""
        return {
            "max_environments": self.room.max_environments,
            "memory_mb": self.room.memory_mb,
            "memory_limit": self._limiter_kind,
            "admission": self.room.cores.describe(),
        }

    @property
    def shared_tmp(self) -> str:
        """Why functions share the machine's /tmp although private folders are configured; empty if they do not."""
        return self._disks.shared_tmp or ""

    def measure(self, metrics: Metrics) -> None:
        """Copy the numbers of environments and of waiting requests, by function, into `metrics`."""
        for name, counts, waiting in self.dispatcher.load():
            for state, count in counts.items():
                metrics.set_gauge("environments", function=name, state=state, value=count)
            metrics.set_gauge("waiting", function=name, value=waiting)

    async def end(self, patience_s: float) -> None:
        """Start no more processes, kill the running ones, and wait `patience_s` seconds at most for their exit."""
        self.dispatcher.stopping = True
        self.dispatcher.declare({})
        self.launcher.children.kill_all(and_later=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await self.launcher.children.all_ended()
        await self.launcher.sweep_out()


async def _keep_watching(what: str, watch: Callable[[], Coroutine[None, None, None]]) -> None:
    """Keep a watch running until cancelled. An error in one of its checks ends neither the watch nor the server.

    Args:
        what: name of the watched resource, for messages.
        watch: checks environments until it is cancelled.
    """
    reports = SayOnce(complain)
    while True:
        try:
            await watch()
        except Exception as error:
            reports.say(f"thawd: the {what} of environments could not be checked: {unexpected(error)}")
        await asyncio.sleep(_WATCH_AGAIN_S)


def _exchange(
    server: config.ServerSettings, store: SnapshotStore, program: Path, launcher: Launcher
) -> SnapshotExchange | None:
    """Return what shares snapshots with other machines; None if it is not configured, or cannot work, with a line."""
    where = server.snapshot_store
    if where is None:
        chunk_cache.remove(server.data)
        return None
    if (why := missing_library(where)) is not None:
        complain(f"thawd: server.snapshot_store is not used: {why}")
        return None
    folder, bucket = (None, where) if isinstance(where, RemoteBucket) else (str(where), None)
    key = server.data / KEY_FILE

    def send(snapshot: Snapshot) -> None:
        with launcher.spare_own_programs():
            send_apart(Task(str(store.folder), snapshot.sha256, folder, bucket, str(key)))

    exchange = SnapshotExchange(store, place_at(where), key=key, program=program, send=send, report=complain)
    exchange.cache = chunk_cache.cache_for(where, server.data, limit_bytes=server.chunk_cache_max_mb << 20)
    if exchange.cache is None:
        chunk_cache.remove(server.data)
    exchange.lazy = server.lazy_snapshots
    return exchange


def _find_limiter(*, cpu_limits: bool) -> memory.MemoryLimiter:
    limiter = memory.find_limiter()
    cpu_limiter = cpu.with_cpu_limits(limiter) if cpu_limits else None
    if cpu_limits and cpu_limiter is None:
        complain(
            "thawd: cpu_limits is set, but environments have no CPU limit, because there is no writable cgroup with "
            "the cpu controller; run thawd as root, or in a systemd service with Delegate=yes"
        )
    return process_limit.with_process_limits(cpu_limiter or limiter)


def _find_engine() -> Engine | str:
    """The snapshot engine, or why there is none."""
    try:
        return Engine.find()
    except NoEngineError as error:
        return str(error)


def _needed(settings: Settings, program: Path | None) -> list[Path] | None:
    """Paths that functions' processes need besides their code and interpreter; None if `private_tmp` is false.

    If one of these paths is in ``/tmp``, functions share the machine's ``/tmp`` in spite of `private_tmp`, because a
    private ``/tmp`` would hide the path from them.
    """
    if not settings.server.private_tmp:
        return None
    own = [Path(package_file).parent, *([program] if program is not None else []), *boto3_for_functions.folders()]
    return [*own, *(bucket.path for bucket in settings.buckets.values())]


def _room(settings: Settings, spawner: Spawner) -> Room:
    """Create the object that accounts for the machine's memory and number of environments.

    Raises:
        StartError: the machine can run fewer environments than the configuration needs.
    """
    server = settings.server
    found = Room(
        spawner,
        functions=settings.functions,
        memory_mb=server.memory_mb or default_memory_mb(),
        max_environments=server.max_environments or default_max_environments(),
        spares=server.spares,
        cores=Cores(processor_cores if server.admission == "cores" and can_measure() else None),
    )
    required = config.required_environments(settings)
    if required > found.max_environments:
        raise StartError(
            f"the configuration needs {required} environments (reserved, provisioned, and some for the other "
            f"functions), but this machine runs only {found.max_environments} by default: lower reserved_concurrency "
            "or provisioned_concurrency, or set server.max_environments"
        )
    return found


def add_memory(functions: dict[str, Any]) -> None:
    """Measure the memory of the processes of each version in a status document, and add it as ``memory_bytes``. Blocks.

    The value of a function is that of ``$LATEST``, as that of its ``processes``. See `memory.proportional_bytes`.
    """
    for function in functions.values():
        for version in (function, *function.get("versions", {}).values()):
            version["memory_bytes"] = memory.proportional_bytes(version["processes"])
