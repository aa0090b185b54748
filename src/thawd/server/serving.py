"""The life of a server: starts the platform, serves, drains and stops.

Order of a start: stores (a broken one is told before anything runs), the port (taken: told at once), functions,
buckets, then the word that all is served. A stop goes the other way: no new work, wait for what runs at most the grace
period, end the environments, keep the outcomes that have not got to their destinations, close the stores.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import sys
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any

import msgspec
import uvicorn

from thawd.config import Settings
from thawd.destinations.delivery import missing_extras
from thawd.environments.children import kill_left_over
from thawd.errors import NoThreadError, StoreError, ThawdError
from thawd.gateway.function_urls.table import PATH_PREFIX
from thawd.server import greeting
from thawd.server.claims import Lock, StartError, announced, bind, lock, raise_descriptor_limit
from thawd.server.code_watch import CodeWatcher
from thawd.server.compose.platform import Platform
from thawd.server.reload import Reloads
from thawd.server.users import become
from thawd.server.web import configured, quieten_uvicorn
from thawd.sources.buckets.files import install_lease_signal_handler
from thawd.stores.backup import RESCUED, rescue, rescued
from thawd.system import threads
from thawd.telemetry.console import complain, say

_KILL_WAIT_S = 10.0
_GUARD_S = 1.0
# How long a stop waits for the outcomes of events to be taken to their destinations, once nothing runs any more, and
# then for those that were not to be stored: a commit, unless the disk stands still.
_SETTLE_S = 2.0
_KEEP_S = 10.0
# How long the loop may keep the store's threads from going on after each step of SQLite; Python's own 5 ms would halve
# the rate of durable events.
_SWITCH_S = 0.0001
# Source: malloc.h of glibc, and its own default.
_M_MMAP_THRESHOLD = -3
_RETURNED_BYTES = 128 << 10

Tasks = list[asyncio.Task[Any]]


class Server:
    """A running thawd.

    Args:
        settings: the configuration it starts with.
        environ: the platform's environment variables.
        aws: other AWS services for functions: ``none``, ``local`` (emulated) or ``real`` (the caller's account).
    """

    def __init__(self, settings: Settings, *, environ: Mapping[str, str], aws: str = "none") -> None:
        self._settings = settings
        self._environ = environ
        self._aws = aws
        self._stop = asyncio.Event()
        self._lost: str | None = None
        self._lock: Lock
        self._platform: Platform
        self._reloads: Reloads

    async def run(self, *, watch: bool = False, ready_file: Path | None = None) -> None:
        """Serve until SIGTERM or SIGINT.

        Args:
            watch: publish a function anew when a file of its code changes.
            ready_file: gets a JSON document with ``url`` and ``pid`` once everything is served.

        Raises:
            StartError: something is in the way of the start.
            StoreError: a store cannot be used.
            NoThreadError: the machine gives too few threads.
        """
        server = self._settings.server
        raise_descriptor_limit()
        asyncio.get_running_loop().set_default_executor(threads.pool(_threads(), name="thawd"))
        with lock(server.data) as self._lock, contextlib.ExitStack() as closing:
            for note in self._lock.notes:
                complain(f"thawd: {note}")
            left_over = kill_left_over(server.data / "packages")
            if left_over:
                complain(f"thawd: ended {left_over} processes that functions of an earlier server had left behind")
            listener = bind(server.host, server.port)
            host, port = listener.getsockname()[:2]
            url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
            with contextlib.closing(listener), announced(server.data, (host, port)):
                async with asyncio.TaskGroup() as tasks:
                    self._platform = Platform(
                        self._settings,
                        url,
                        environ=self._environ,
                        spawn_task=lambda work: tasks.create_task(_guarded(work)),
                        closing=closing,
                    )
                    for saved in rescued(self._platform.stores.state.path):
                        complain(f"thawd: {saved} holds what a state file held that was taken away; {_way_back(saved)}")
                    self._reloads = Reloads(self._platform, environ=self._environ)
                    await self._serve(tasks, listener, watch=watch, ready_file=ready_file)

    async def _serve(
        self, tasks: asyncio.TaskGroup, listener: socket.socket, *, watch: bool, ready_file: Path | None
    ) -> None:
        platform = self._platform
        await platform.open(aws=self._aws, stopping=self._stop)
        lasting = await self._start_lasting(tasks)
        web = configured(platform.application)
        serving = tasks.create_task(web.serve(sockets=[listener]))
        self._handle_signals()
        feeding: Tasks = []
        beginning = tasks.create_task(self._begin(tasks, feeding, watch=watch, ready_file=ready_file))
        await self._stop.wait()
        say("stopping")
        platform.events.stop()
        platform.sources.stop()
        web.should_exit = True
        beginning.cancel()
        await self._drain()
        for task in (beginning, *feeding):
            task.cancel()
        platform.events.break_off()
        # With the invocations that the time for them to end was too short for.
        await platform.execution.end(_KILL_WAIT_S)
        await platform.stop_aws()  # once no function asks it for anything more
        await platform.events.settled(_KEEP_S)
        await platform.events.close()
        for task in lasting:
            task.cancel()
        await self._close(web, serving)

    async def _start_lasting(self, tasks: asyncio.TaskGroup) -> Tasks:
        """What goes on until nothing runs any more; returns once asynchronous events may be taken."""
        platform = self._platform
        started = asyncio.Event()
        works = (platform.execution.watch_limits(), self._guard_data(), *platform.events.works(started))
        lasting: Tasks = [tasks.create_task(work) for work in works]
        await started.wait()
        platform.control.deployments.on_names = platform.events.invoker.declare
        platform.events.invoker.declare(platform.execution.dispatcher.names())
        return lasting

    async def _begin(self, tasks: asyncio.TaskGroup, feeding: Tasks, *, watch: bool, ready_file: Path | None) -> None:
        """Publish everything, then let the buckets in, then say so; cancelled by a stop that comes meanwhile.

        Args:
            tasks: where what makes work goes on.
            feeding: gets what was started so.
            watch: publish anew when code changes.
            ready_file: written at the end.
        """
        platform = self._platform
        await platform.control.publish()
        install_lease_signal_handler()
        works: list[Coroutine[None, None, None]] = [platform.sources.run()]
        works += [watcher.run() for watcher in platform.watchers.values()]
        if watch:
            works.append(CodeWatcher(lambda: platform.settings, self._reloads.catch_up).run())
        feeding += [tasks.create_task(work) for work in works]
        self._announce(ready_file)

    async def _drain(self) -> None:
        """Wait for what runs, and for what came of it to be stored, but not for ever."""
        platform = self._platform
        grace_s = platform.settings.server.grace_s
        left = await platform.execution.dispatcher.drain(grace_s)
        if left:
            complain(f"thawd: {left} invocations did not end within {grace_s} s and are ended")
        await asyncio.gather(platform.events.settled(_SETTLE_S), platform.sources.settled(_SETTLE_S))

    async def _close(self, web: uvicorn.Server, serving: asyncio.Task[None]) -> None:
        """Give up those who are still connected.

        Raises:
            StartError: the stop was for want of the data folder.
        """
        web.force_exit = True
        await serving
        if self._platform.emulated is not None:
            await self._platform.emulated.close()
        self._platform.execution.launcher.flush_logs()
        say("stopped")
        if self._lost is not None:
            raise StartError(f"it stopped because {self._lost}")

    async def _guard_data(self) -> None:
        """Stop when the data folder or the state file is taken away: nothing could be accepted from then on."""
        state = self._platform.stores.state
        while (lost := self._missing()) is None:  # noqa: ASYNC110 - nothing tells when a file is removed, but looking
            await asyncio.sleep(_GUARD_S)
        complain(f"thawd: {lost}; thawd stops")
        self._lost = lost
        try:
            if state.is_elsewhere and self._settings.server.data.is_dir():
                saved = await rescue(state)
                complain(f"thawd: what the state file held is saved in {saved}; {_way_back(saved)}")
        except StoreError as error:
            complain(f"thawd: what the state file held cannot be saved: {error.message}")
        self._stop.set()

    def _missing(self) -> str | None:
        """What of the data folder is not where it was; None: all is."""
        if not self._lock.is_held():
            return f"the data folder {self._settings.server.data} was removed or replaced"
        misplaced = self._platform.stores.state.misplaced()
        return None if misplaced is None else f"the state file cannot be used: {misplaced}"

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_stop_signal)
        loop.add_signal_handler(signal.SIGHUP, self._on_reload_signal)

    def _on_stop_signal(self) -> None:
        if self._stop.is_set():
            complain("thawd: stopping at once; what still runs is ended")
            self._platform.execution.launcher.children.kill_all()
            self._platform.events.break_off()
            self._platform.stores.patience_s = 0.0
        self._stop.set()

    def _on_reload_signal(self) -> None:
        self._platform.execution.spawn_task(self._reloads.reload())

    def _announce(self, ready_file: Path | None) -> None:
        platform = self._platform
        settings, dispatcher = platform.settings, platform.execution.dispatcher
        for line in missing_extras(settings.functions.values()):
            complain(f"thawd: {line}")
        say(f"thawd serves {platform.url}")
        handlers = {name: dispatcher.entry(name).function.handler for name in dispatcher.names()}
        urls = [(url.function, f"{platform.url}{PATH_PREFIX}{url.identifier}/") for url in platform.urls]
        for line in (
            *greeting.functions(dispatcher.status(), handlers, declared=settings.functions),
            *greeting.surroundings(settings, urls),
        ):
            say(f"  {line}")
        limits = platform.execution.limits
        say(
            f"at most {limits['max_environments']} environments and {limits['memory_mb']} MB; memory limits by "
            f"{limits['memory_limit']}; Ctrl-C stops"
        )
        if platform.emulated is not None:
            say(f"  aws       emulated at the same address; functions have AWS_ENDPOINT_URL={platform.url}")
        if platform.execution.shared_tmp:
            say(f"functions see the machine's /tmp: {platform.execution.shared_tmp}")
        if ready_file is not None:
            staged = ready_file.with_name(ready_file.name + ".new")
            staged.write_bytes(msgspec.json.encode({"url": platform.url, "pid": os.getpid()}))
            staged.replace(ready_file)


def run(settings: Settings, *, environ: Mapping[str, str], watch: bool, ready_file: Path | None, aws: str) -> None:
    """Serve until a signal; blocks.

    Args:
        settings: the configuration.
        environ: the platform's environment variables.
        watch: publish a function anew when its code changes.
        ready_file: written once everything is served.
        aws: other AWS services for functions: ``none``, ``local`` (emulated) or ``real`` (the caller's account).

    Raises:
        ThawdError: the server could not start, or stopped for a trouble that is not its own.
        ScarcityError: the same, for want of memory or threads.
        OSError: the same, as the system tells it.
    """
    if settings.server.user is not None:
        become(settings.server.user, data=settings.server.data)
    sys.setswitchinterval(_SWITCH_S)
    threads.spare_address_space()
    _give_memory_back()
    _adopt_orphans()
    quieten_uvicorn()
    server = Server(settings, environ=environ, aws=aws)
    has_ended = False
    try:
        import uvloop

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(server.run(watch=watch, ready_file=ready_file))
            has_ended = True
    except Exception as error:
        expected = _expected(error)
        if has_ended and isinstance(expected, NoThreadError):
            return  # asyncio wants a thread to wait for the others with; Python waits for them without, at its end
        if expected is None:
            raise
        raise expected from error


def _expected(error: Exception) -> Exception | None:
    """The error to tell, when nothing but the world's troubles ended the server; None: there is a mistake of ours."""
    if isinstance(error, ExceptionGroup):
        told = [_expected(part) for part in error.exceptions]
        return None if None in told else told[0]
    return error if isinstance(error, ThawdError | OSError) else threads.scarcity(error)


def _way_back(saved: Path) -> str:
    """How to go on with a state file that was saved, or without."""
    state = saved.with_name(saved.name.partition(RESCUED)[0])
    return (
        f"to go on with it, stop thawd, `rm -f {state}-wal {state}-shm; mv {saved} {state}`, start it; else remove it"
    )


def _threads() -> int:
    """Threads for what blocks: as many as Python's own pool has at most (`concurrent.futures`, ThreadPoolExecutor)."""
    return min(32, (os.cpu_count() or 1) + 4)


async def _guarded(work: Coroutine[None, None, None]) -> None:
    """A mistake of ours in one piece of work must not take the server down."""
    try:
        await work
    except Exception as error:
        complain(f"thawd: something failed inside thawd: {error!r}")


def _give_memory_back() -> None:
    """Have glibc keep to the size from which memory goes back to the system as soon as it is freed.

    It raises that size up to 32 MiB as blocks of the size are freed, and the bodies of a hundred slow requests, once
    given up, would stay in the server for ever. Source: mallopt(3), M_MMAP_THRESHOLD.
    """
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _RETURNED_BYTES)


def _adopt_orphans() -> None:
    """Become the parent of what functions leave behind, so that it can be ended with its environment."""
    try:
        from thawd import _native

        _native.set_child_subreaper()
    except ImportError:
        complain("thawd: its native module is not built; processes that functions detach may outlive them")
    except OSError:
        return  # not Linux
