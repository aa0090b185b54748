"""The composition root: builds all parts from the settings, starts them, reloads, drains and stops them.

Order of a start: configuration, stores (a broken one is told before anything runs), the port (taken: told at once),
functions, buckets, then the word that all is served. A stop goes the other way: no new work, wait for what runs at most
the grace period, end the environments, close the stores.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import msgspec
import uvicorn

from thawd import config, control_room, folders, greeting
from thawd.backup import require_whole
from thawd.claims import Lock, StartError, bind, lock, raise_descriptor_limit
from thawd.code_watch import CodeWatcher
from thawd.config import Settings
from thawd.control_room import ControlRoom
from thawd.emulator import Emulator, Surroundings, local_variables, proxy, real_variables
from thawd.errors import (
    ConfigurationError,
)
from thawd.event_room import EventRoom
from thawd.events.buckets import BucketWatcher
from thawd.events.destinations import Destinations, Outside, missing_extras
from thawd.events.object_file import install_lease_signal_handler
from thawd.events.remote_books import Books
from thawd.events.remote_sources import RemoteSources
from thawd.execution import cpu, memory, node
from thawd.execution.children import kill_left_over
from thawd.execution.dispatcher import Dispatcher
from thawd.execution.publisher import Publisher
from thawd.execution.services import TableServices
from thawd.execution.snapshots import Engine, NoEngineError
from thawd.execution.spawner import Spawner
from thawd.execution.storage import StorageWatch
from thawd.gateway.application import Application, Parts
from thawd.gateway.aws_proxy import AwsProxy
from thawd.gateway.function_url import LOCAL_KEYS, Access, FunctionUrlApi
from thawd.gateway.http import BUDGET_BYTES, Budget
from thawd.gateway.invoke import InvokeApi
from thawd.gateway.invoke_stream import InvokeStreamApi
from thawd.gateway.logs_api import LogsApi
from thawd.gateway.objects import ObjectApi
from thawd.gateway.queue_api import QueueApi
from thawd.gateway.routes import RoutesApi
from thawd.gateway.signed_api import Gate
from thawd.gateway.sources_api import SourcesApi
from thawd.gateway.url_table import PATH_PREFIX, UrlTable
from thawd.invocation import Invocation
from thawd.publication import Publications
from thawd.snapshot.disk import Disks
from thawd.snapshot.store import SnapshotStore
from thawd.sources_room import SourcesRoom
from thawd.state.bucket_store import BucketStores, require_library
from thawd.state.listings import Listings
from thawd.state.objects import ObjectCatalog
from thawd.state.schema import open_state
from thawd.state.tables import Tables, require_libraries
from thawd.telemetry.console import complain, say
from thawd.telemetry.metrics import Metrics
from thawd.web import configured, quieten_uvicorn

ADDRESS_FILE = "address.json"
"""In the data folder: host and port of the server that uses it, for the command line."""

_KILL_WAIT_S = 10.0
_GUARD_S = 1.0
# How long a stop waits for the outcomes of events to be stored, once nothing runs any more.
_SETTLE_S = 2.0
# How long the loop may keep the store's threads from going on after each step of SQLite; Python's own 5 ms would halve
# the rate of durable events.
_SWITCH_S = 0.0001
# Place among the background tasks of the one that publishes at the start; those before it end last.
_BEGINNING = 4


class Server:
    """A running thawd.

    Attributes:
        settings: the configuration in force.
        url: where it serves.
    """

    def __init__(self, settings: Settings, *, environ: Mapping[str, str], aws: str = "none") -> None:
        self.settings = settings
        self._aws_mode = aws
        self._aws_proxy: AwsProxy | None = None
        self._aws_endpoint: str | None = None
        self.url = ""
        self._environ = environ
        self._metrics = Metrics()
        self._stop = asyncio.Event()
        self._failed = False
        self._budget = Budget(BUDGET_BYTES)
        self._urls = UrlTable()
        self._told: str | None = None
        self._lock: Lock
        self._closing = contextlib.ExitStack()

    async def run(self, *, watch: bool = False, ready_file: Path | None = None) -> None:
        """Serve until SIGTERM or SIGINT.

        Args:
            watch: publish a function anew when a file of its code changes.
            ready_file: gets a JSON document with ``url`` and ``pid`` once everything is served.

        Raises:
            StartError: something is in the way of the start.
            StoreError: a store cannot be used.
        """
        server = self.settings.server
        raise_descriptor_limit()
        with lock(server.data) as self._lock, self._closing:
            left_over = kill_left_over(server.data / "packages")
            if left_over:
                complain(f"thawd: ended {left_over} processes that functions of an earlier server had left behind")
            listener = bind(server.host, server.port)
            host, port = listener.getsockname()[:2]
            self.url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
            address = server.data / ADDRESS_FILE
            address.write_bytes(msgspec.json.encode((host, port)))
            try:
                self._open_stores()
                await self._serve(listener, watch=watch, ready_file=ready_file)
            finally:
                address.unlink(missing_ok=True)
                listener.close()

    def _open_stores(self) -> None:
        server = self.settings.server
        require_whole(server.data)
        for folder in (server.data / "logs", server.data / "tables", *(b.path for b in self.settings.buckets.values())):
            try:
                folders.make(folder)
            except OSError as error:
                raise StartError(f"the folder {folder} cannot be made: {error.strerror}") from error
        self._state = open_state(server.data / "thawd.db")
        self._closing.callback(self._state.close)
        self._objects = ObjectCatalog(self._state)
        require_libraries(self.settings.tables)
        self._tables = Tables(self.settings.tables)
        self._closing.callback(self._tables.close)
        require_library(self.settings.remote_buckets)
        self._stores = BucketStores(self.settings.remote_buckets)
        self._closing.callback(self._stores.close)

    async def _serve(self, listener: socket.socket, *, watch: bool, ready_file: Path | None) -> None:
        async with asyncio.TaskGroup() as tasks:
            background = await self._build(tasks)
            web = configured(self._application)
            serving = tasks.create_task(web.serve(sockets=[listener]))
            self._handle_signals()
            background.append(tasks.create_task(self._begin(tasks, background, watch=watch, ready_file=ready_file)))
            await self._stop.wait()
            await self._shut_down(web, serving, background)

    async def _begin(
        self,
        tasks: asyncio.TaskGroup,
        background: list[asyncio.Task[Any]],
        *,
        watch: bool,
        ready_file: Path | None,
    ) -> None:
        """Publish everything, then let the buckets in, then say so; cancelled by a stop that comes meanwhile."""
        await self._publications.publish_all(self.settings.functions)
        install_lease_signal_handler()
        background.append(tasks.create_task(self._sources.run()))
        background += [tasks.create_task(watcher.run()) for watcher in self._watchers.values()]
        if watch:
            background.append(tasks.create_task(CodeWatcher(lambda: self.settings, self.catch_up).run()))
        self._announce(ready_file)

    async def _build(self, tasks: asyncio.TaskGroup) -> list[asyncio.Task[Any]]:
        server = self.settings.server

        def spawn(work: Coroutine[None, None, None]) -> None:
            tasks.create_task(_guarded(work))

        self._spawn_task: Callable[[Coroutine[None, None, None]], object] = spawn
        limiter = self._find_limiter()
        engine = _find_engine()
        program = None if isinstance(engine, str) else engine.program
        self._disks = disks = Disks(server.data / "tmp", program=program, needed=self._needed(program))
        await asyncio.to_thread(disks.clean)
        await asyncio.to_thread(disks.confine)
        self._services = TableServices(self._tables, self._stores)
        self._spawner = Spawner(
            limiter=limiter,
            services=self._services,
            metrics=self._metrics,
            log_folder=server.data / "logs",
            log_max_bytes=server.log_max_mb << 20,
            report=complain,
        )
        self._spawner.use_disks(disks)
        self._set_up_snapshots(engine)
        self._node = node.LocalNode(
            self._spawner,
            functions=self.settings.functions,
            memory_mb=server.memory_mb or node.default_memory_mb(),
            max_environments=server.max_environments or node.default_max_environments(),
        )
        required = config.required_environments(self.settings)
        if required > self._node.max_environments:
            raise StartError(
                f"{required} environments are reserved, provisioned or left for the other functions, and this "
                f"machine carries {self._node.max_environments} by default: lower reserved_concurrency or "
                "provisioned_concurrency, or set server.max_environments"
            )
        self._limiter_kind = limiter.kind
        self._closing.callback(limiter.close)
        self._dispatcher = Dispatcher(
            self._node, self._metrics, max_waiting=server.max_waiting, spawn_task=self._spawn_task
        )
        self._publisher = Publisher(server.data, own=self._environ)
        self._publisher.helped = self._spawner.helped
        self._publisher.runtimes = self.settings.runtimes
        await self._set_up_aws()
        self._events = EventRoom(
            self._state,
            server,
            dispatcher=self._dispatcher,
            destinations=Destinations(
                self._tables,
                self.settings.buckets,
                Outside(
                    exists=self._dispatcher.entry,
                    may_loop=self._may_loop,
                    bucket=self._stores.get,
                    aws_endpoint=self._aws_endpoint,
                    webhook_secret=server.webhook_secret,
                    metrics=self._metrics,
                ),
            ),
            closing=self._closing,
        )
        self._invoker = self._events.invoker
        self._watchers = {
            name: BucketWatcher(
                bucket,
                objects=self._objects,
                log=complain,
                on_events=self._invoker.wake,
                is_full=self._events.is_full,
            )
            for name, bucket in self.settings.buckets.items()
        }
        engine_room = control_room.Engine(self._dispatcher, self._publisher, self._node, self._spawn_task)
        self._room = ControlRoom(
            self._state,
            engine_room,
            settings=lambda: self.settings,
            url=lambda: self.url,
            urls=self._urls,
            budget=self._budget,
            elsewhere=None if self._aws_proxy is None else self._aws_proxy.read,
        )
        await self._room.open()
        self._sources = SourcesRoom(
            self._room.mappings,
            self._room.registry,
            self._dispatcher,
            self._state,
            settings=lambda: self.settings,
            wake=self._invoker.wake,
            sqs=self._aws_endpoint,
            buckets=RemoteSources(
                self.settings.remote_buckets.values(),
                self._stores,
                Books(self._objects, Listings(self._state), self._events.is_full),
                sqs=self._aws_endpoint,
                log=complain,
                wake=self._invoker.wake,
            ),
        )
        self._publications = Publications(engine_room, self._spawner, self._room, settings=lambda: self.settings)
        self._application = Application(self._parts())
        await self._events.recover()
        started = asyncio.Event()
        background = [
            tasks.create_task(self._watch_limits(StorageWatch(disks))),
            tasks.create_task(self._guard_data()),
            *(tasks.create_task(work) for work in self._events.works(started)),
        ]
        await started.wait()
        self._room.deployments.on_names = self._invoker.declare
        self._invoker.declare(self._dispatcher.names())
        return background

    async def _set_up_aws(self) -> None:
        """Other AWS services for functions: emulated beside us, or the caller's own."""
        if self._aws_mode == "real":
            self._publisher.aws = real_variables(self._environ)
        if self._aws_mode != "local":
            return
        server = self.settings.server
        if server.key is not None or not config.is_loopback(server.host):
            raise StartError("--aws is for development on this machine: it goes with no server.key and with loopback")
        emulator = await Emulator.start(
            environ=self._environ, children=self._spawner.children, lost=self._emulator_lost
        )
        self._closing.callback(emulator.stop)
        self._aws_endpoint = emulator.url
        self._publisher.aws = local_variables(self.url, server.access_keys)
        self._tables.aws = self._stores.aws = emulator.access
        self._aws_proxy = proxy(
            emulator,
            Surroundings(
                accept=self._accept,
                exists=self._dispatcher.entry,
                owns=lambda path: path.lstrip("/").partition("/")[0] in self.settings.buckets,
            ),
        )

    def _emulator_lost(self) -> None:
        if not self._stop.is_set():
            complain("thawd: the emulator of --aws has ended; start thawd anew")

    def _may_loop(self, function: str) -> bool:
        return self._room.may_loop(function)

    async def _accept(self, invocation: Invocation) -> None:
        await self._invoker.accept(invocation)

    async def _watch_limits(self, storage: StorageWatch) -> None:
        self._node.storage = storage
        async with asyncio.TaskGroup() as watches:
            watches.create_task(self._node.watch_memory())
            watches.create_task(storage.run())

    def _needed(self, program: Path | None) -> list[Path] | None:
        """What functions' processes read besides code and interpreter; None: they share the machine's /tmp."""
        if not self.settings.server.private_tmp:
            return None
        own = [Path(__file__).parent, *([program] if program is not None else [])]
        return [*own, *(bucket.path for bucket in self.settings.buckets.values())]

    def _find_limiter(self) -> memory.MemoryLimiter:
        limiter = memory.find_limiter()
        if not self.settings.server.cpu_limits:
            return limiter
        with_cpu = cpu.with_cpu_limits(limiter)
        if with_cpu is None:
            complain(
                "thawd: cpu_limits: environments are not held to a CPU share, as no cgroup with the cpu controller may "
                "be written here; run thawd as root, or in a service with Delegate=yes"
            )
        return with_cpu or limiter

    def _set_up_snapshots(self, engine: Engine | str) -> None:
        """Freeze and thaw from now on; `engine`: it, or why there is none."""
        server = self.settings.server
        if server.snapshots == "off":
            return
        if isinstance(engine, str):
            self._spawner.refuse_snapshots(engine)
            return
        store = SnapshotStore(
            server.data / "snapshots",
            max_bytes=server.snapshots_max_mb << 20,
            max_age_s=server.snapshots_max_age_s,
            report=complain,
        )
        self._spawner.use_snapshots(engine, store)

    def _parts(self) -> Parts:
        settings = self.settings
        wait_s = settings.server.queue_timeout_s
        self._urls.declare(settings.urls)
        return Parts(
            invoke=InvokeApi(
                self._dispatcher, accept=self._invoker.accept, queue_timeout_s=wait_s, budget=self._budget
            ),
            invoke_stream=InvokeStreamApi(self._dispatcher, queue_timeout_s=wait_s, budget=self._budget),
            routes=RoutesApi(
                settings.routes,
                self._dispatcher,
                queue_timeout_s=wait_s,
                budget=self._budget,
                http=settings.http,
                accept=self._invoker.accept,
            ),
            objects=ObjectApi(
                settings.buckets,
                self._watchers,
                elsewhere={name: str(bucket.url) for name, bucket in settings.remote_buckets.items()},
            ),
            logs=LogsApi(settings.server.data / "logs", flush=self._spawner.flush_logs),
            status=self._status,
            count_table=self._count_table,
            metrics=self._exposition,
            control=self._room.api,
            queue=QueueApi(self._events.desk),
            aws=self._aws_proxy,
            sources=SourcesApi(self._sources),
            key=settings.server.key,
            gate=Gate(keys, budget=self._budget) if (keys := settings.server.access_keys) else None,
            urls=FunctionUrlApi(
                self._urls,
                self._dispatcher,
                Access(
                    keys=settings.server.access_keys
                    or (LOCAL_KEYS if config.is_loopback(settings.server.host) else {}),
                    is_local=settings.server.key is None,
                ),
                queue_timeout_s=wait_s,
                budget=self._budget,
            ),
        )

    async def _guard_data(self) -> None:
        """Stop when the data folder is taken away: what would be accepted from then on could not be kept."""
        while self._lock.is_held():  # noqa: ASYNC110 - nothing tells when a folder is removed, but looking
            await asyncio.sleep(_GUARD_S)
        complain(f"thawd: the data folder {self.settings.server.data} was removed or replaced; thawd stops")
        self._failed = True
        self._stop.set()

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_stop_signal)
        loop.add_signal_handler(signal.SIGHUP, self._on_reload_signal)

    def _on_stop_signal(self) -> None:
        if self._stop.is_set():
            complain("thawd: stopping at once; what still runs is ended")
            self._spawner.children.kill_all()
        self._stop.set()

    def _on_reload_signal(self) -> None:
        self._spawn_task(self.reload())

    async def reload(self) -> None:
        """Read the configuration anew and publish what has changed; a mistake in it changes nothing. Never raises."""
        self._told = None
        self._publisher.distrust()
        if await self.catch_up():
            say("configuration reloaded")

    async def catch_up(self) -> bool:
        """The same, silent when there is nothing new to tell; whether the configuration is in force."""
        try:
            settings = await asyncio.to_thread(config.load, self.settings.path, environ=self._environ)
            await self._take_over(settings)
        except ConfigurationError as error:
            self._complain_once(f"thawd: the configuration was not reloaded:\n{error}")
            return False
        except Exception as error:  # a reload that fails must leave the server serving
            self._complain_once(f"thawd: the configuration was not reloaded: {error!r}")
            return False
        return True

    def _complain_once(self, text: str) -> None:
        if text != self._told:
            self._told = text
            complain(text)

    async def _take_over(self, settings: Settings) -> None:
        fixed = [
            what
            for what, old, new in (
                ("server", self.settings.server, settings.server),
                ("buckets", self.settings.buckets, settings.buckets),
                ("buckets elsewhere", self.settings.remote_buckets, settings.remote_buckets),
                ("tables", self.settings.tables, settings.tables),
            )
            if old != new
        ]
        if fixed:
            self._complain_once(f"thawd: changes of {', '.join(fixed)} take effect at the next start")
        self.settings = msgspec.structs.replace(
            settings,
            server=self.settings.server,
            buckets=self.settings.buckets,
            remote_buckets=self.settings.remote_buckets,
            tables=self.settings.tables,
        )
        self._publisher.runtimes = self.settings.runtimes
        self._room.configured.declare(self.settings.functions)
        self._application.parts = self._parts()
        await self._publications.publish_all(self.settings.functions)
        await self._sources.declare()

    def _announce(self, ready_file: Path | None) -> None:
        settings = self.settings
        for line in missing_extras(settings.functions.values()):
            complain(f"thawd: {line}")
        say(f"thawd serves {self.url}")
        handlers = {name: self._dispatcher.entry(name).function.handler for name in self._dispatcher.names()}
        for line in (
            *greeting.functions(self._dispatcher.status(), handlers, declared=settings.functions),
            *greeting.surroundings(settings, [(url.function, self._address_of(url.identifier)) for url in self._urls]),
        ):
            say(f"  {line}")
        say(
            f"at most {self._node.max_environments} environments and {self._node.memory_mb} MB; memory limits by "
            f"{self._limiter_kind}; Ctrl-C stops"
        )
        if self._aws_proxy is not None:
            say(f"  aws       emulated at the same address; functions have AWS_ENDPOINT_URL={self.url}")
        if self._disks.shared_tmp:
            say(f"functions see the machine's /tmp: {self._disks.shared_tmp}")
        if ready_file is not None:
            staged = ready_file.with_name(ready_file.name + ".new")
            staged.write_bytes(msgspec.json.encode({"url": self.url, "pid": os.getpid()}))
            staged.replace(ready_file)

    def _address_of(self, identifier: str) -> str:
        return f"{self.url}{PATH_PREFIX}{identifier}/"

    async def _shut_down(
        self, web: uvicorn.Server, serving: asyncio.Task[None], background: list[asyncio.Task[Any]]
    ) -> None:
        say("stopping")
        self._events.stop()
        self._sources.stop()
        web.should_exit = True
        background[_BEGINNING].cancel()
        left = await self._dispatcher.drain(self.settings.server.grace_s)
        if left:
            complain(f"thawd: {left} invocations did not end within {self.settings.server.grace_s} s and are ended")
        await self._events.settled()
        await self._sources.settled(_SETTLE_S)
        for task in background[_BEGINNING:]:
            task.cancel()
        self._dispatcher.stopping = True
        self._dispatcher.declare({})
        self._spawner.children.kill_all()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_KILL_WAIT_S):
                await self._spawner.children.all_ended()
        await self._spawner.sweep_out()
        await self._events.close()
        for task in background[:_BEGINNING]:
            task.cancel()
        web.force_exit = True
        await serving
        self._spawner.flush_logs()
        say("stopped")
        if self._failed:
            raise StartError("it stopped because its data folder was removed or replaced")

    async def _status(self) -> dict[str, Any]:
        functions = self._dispatcher.status()
        await self._events.add_status(functions)
        return {
            "url": self.url,
            "pid": os.getpid(),
            "max_environments": self._node.max_environments,
            "memory_mb": self._node.memory_mb,
            "memory_limit": self._limiter_kind,
            "functions": functions,
        }

    async def _count_table(self, name: str) -> int:
        return await (await self._tables.get(name)).count()

    async def _exposition(self) -> bytes:
        for name, entry in self._dispatcher.status().items():
            for state, count in entry["environments"].items():
                self._metrics.set_gauge("environments", function=name, state=state, value=count)
            self._metrics.set_gauge("waiting", function=name, value=entry["waiting"])
        await self._events.measure(self._metrics)
        self._sources.measure(self._metrics)
        return self._metrics.exposition()


def run(settings: Settings, *, environ: Mapping[str, str], watch: bool, ready_file: Path | None, aws: str) -> None:
    """Serve until a signal; blocks.

    Args:
        settings: the configuration.
        environ: the platform's environment variables.
        watch: publish a function anew when its code changes.
        ready_file: written once everything is served.
        aws: other AWS services for functions: ``none``, ``local`` (emulated) or ``real`` (the caller's account).

    Raises:
        ThawdError: the server could not start.
    """
    import uvloop

    sys.setswitchinterval(_SWITCH_S)
    _adopt_orphans()
    quieten_uvicorn()
    server = Server(settings, environ=environ, aws=aws)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(server.run(watch=watch, ready_file=ready_file))


async def _guarded(work: Coroutine[None, None, None]) -> None:
    """A mistake of ours in one piece of work must not take the server down."""
    try:
        await work
    except Exception as error:
        complain(f"thawd: something failed inside thawd: {error!r}")


def _adopt_orphans() -> None:
    """Become the parent of what functions leave behind, so that it can be ended with its environment."""
    try:
        from thawd import _native

        _native.set_child_subreaper()
    except ImportError:
        complain("thawd: its native module is not built; processes that functions detach may outlive them")
    except OSError:
        return  # not Linux


def _find_engine() -> Engine | str:
    try:
        return Engine.find()
    except NoEngineError as error:
        return str(error)
