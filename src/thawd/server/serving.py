"""Runs a server: starts the platform, serves requests, drains and stops.

To start, it locks the data folder, opens the port and opens the stores, so that a conflict or a damaged store is
reported before any function runs. From then on it answers requests. Meanwhile it publishes the functions, starts the
sources, and prints what it serves. To stop, it serves on for ``server.drain_s``, then accepts no new work, waits at
most the grace period for invocations in flight, ends the environments, stores the outcomes that no destination has
accepted yet, and closes the stores.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import traceback
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thawd.config import Settings
from thawd.destinations.delivery import missing_extras
from thawd.environments.child_processes import kill_left_over
from thawd.errors import NoThreadError, StoreError, ThawdError
from thawd.gateway.thawd_api.probes import READINESS
from thawd.server import process_settings, service_manager
from thawd.server.assembly.platform import Platform
from thawd.server.code_watch import CodeWatcher
from thawd.server.debugged_functions import held_up, stale_code_watcher
from thawd.server.drain_time import serve_on
from thawd.server.emulator.spawning import EmulatorProcess
from thawd.server.port_and_folder_locks import Lock, StartError, announced, bind, lock, raise_descriptor_limit
from thawd.server.ready_file import ReadyFile
from thawd.server.reload import Reloader
from thawd.server.request_lines import show_requests
from thawd.server.service_manager import ServiceManager
from thawd.server.switch_user import become
from thawd.server.tls.certificates import Certificate
from thawd.server.web import Uvicorn, configured, quieten_uvicorn
from thawd.sources.buckets.files import install_lease_signal_handler
from thawd.stores.backup import RESCUED, rescue, rescued
from thawd.system import decoded_types, threads
from thawd.telemetry.console import complain, end_sharing, in_background, is_quiet, redact_with, say

if TYPE_CHECKING:
    from thawd.deploy.projects.stack_updates import ServedProject
    from thawd.environments.debugging import Debugging

_KILL_WAIT_S = 10.0
_GUARD_S = 1.0
# How long a stop waits until the outcomes of asynchronous events are stored: `_SETTLE_S` after the invocations have
# ended or the grace period is over, and `_KEEP_S` after the environments have ended. Storing takes one commit, unless
# the disk hangs.
_SETTLE_S = 2.0
_KEEP_S = 10.0
# If publications take longer, a line says how many functions are left.
_NOTE_AFTER_S = 2.0

Tasks = list[asyncio.Task[Any]]


class Server:
    """A running server.

    Args:
        settings: the configuration at the start.
        environ: the platform's environment variables.
        aws: which other AWS services functions use; see `Platform.open`.
        project: a project of another tool, whose stacks the server has; None: only what the configuration declares.
        emulator: the process of the emulator, if it was started before.
        debugging: the functions that a debugger can stop; None: there are none.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        environ: Mapping[str, str],
        aws: str = "none",
        project: ServedProject | None = None,
        emulator: EmulatorProcess | None = None,
        debugging: Debugging | None = None,
    ) -> None:
        self._debugging = debugging
        self._show_rest: Callable[[], None] = lambda: None
        self._project = project
        self._emulator = emulator
        self._settings = settings
        self._environ = environ
        self._aws = aws
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._lost: str | None = None
        self._has_ended = False
        self._manager = ServiceManager()
        self._certificate: Certificate | None = None
        self._lock: Lock
        self._platform: Platform
        self._reloader: Reloader

    async def run(self, *, watch: bool = False, ready: ReadyFile | None = None) -> None:
        """Serve until SIGTERM or SIGINT.

        Args:
            watch: republish a function when a file of its code changes.
            ready: the file that is written when the server is ready; None: no file is written.

        Raises:
            StartError: the server cannot start, or stopped because its data folder or state file was removed or
                replaced; the message says why.
            StoreError: a store cannot be used.
            NoThreadError: the system allows no more threads.
        """
        server = self._settings.server
        raise_descriptor_limit()
        asyncio.get_running_loop().set_default_executor(threads.pool(_threads(), name="thawd"))
        with lock(server.data) as self._lock, contextlib.ExitStack() as closing:
            for note in self._lock.notes:
                complain(f"thawd: {note}")
            left_over = kill_left_over(server.data)
            if left_over:
                processes = "1 process" if left_over == 1 else f"{left_over} processes"
                complain(f"thawd: ended {processes} that functions of an earlier server had left behind")
            listener = service_manager.listener(server)
            closing.callback(listener.close)
            if server.tls is not None:
                self._certificate = Certificate(server.tls)
            # With TLS, thawd's own commands use another port, without TLS, that only this machine can reach.
            local = listener if self._certificate is None else bind("127.0.0.1", 0)
            closing.callback(local.close)
            url = _url_of(listener, "http" if self._certificate is None else "https")
            with announced(server.data, local.getsockname()[:2]):
                async with asyncio.TaskGroup() as tasks:
                    if self._project is not None:
                        self._project.connect(_url_of(local, "http"), server.access_keys)
                        tasks.create_task(_guarded(self._project.prepare()))
                    self._platform = Platform(
                        self._settings,
                        url,
                        environ=self._environ,
                        spawn_task=lambda work: _spawned(tasks, work),
                        closing=closing,
                    )
                    self._platform.execution.builder.debugging = self._debugging
                    for saved in rescued(self._platform.stores.state.path):
                        complain(f"thawd: {saved} contains the data of a removed state file; {_way_back(saved)}")
                    self._reloader = Reloader(self._platform, environ=self._environ)
                    await self._serve(tasks, listener, local, watch=watch, ready=ready)
                self._has_ended = True
                say("stopped")  # now that no task is left that could print something
                if self._lost is not None:
                    raise StartError(f"the server stopped because {self._lost}")

    async def _serve(
        self,
        tasks: asyncio.TaskGroup,
        listener: socket.socket,
        local: socket.socket,
        *,
        watch: bool,
        ready: ReadyFile | None,
    ) -> None:
        platform = self._platform
        decoded_types.examine()  # before the first thread decodes a document
        await platform.open(aws=self._aws, emulator=self._emulator, stopping=self._stop)
        redact_with(platform.recording.redactor.text)
        if not is_quiet():
            self._show_rest = show_requests(platform)
        lasting = await self._start_lasting(tasks)
        web = configured(platform.application)
        if self._certificate is not None:
            web.encrypt(listener, self._certificate)
        serving = tasks.create_task(web.serve(sockets=[local]))
        self._handle_signals()
        feeding: Tasks = []
        beginning = tasks.create_task(self._begin(tasks, feeding, watch=watch, ready=ready))
        await self._stop.wait()
        was_ready, platform.phase = platform.phase == READINESS, "stopping"
        self._manager.stopping()
        end_sharing()
        if was_ready and self._lost is None:
            await serve_on(web, platform.settings.server.drain_s, hurry=self._hurry)
        say("stopping")
        for line in held_up(platform.execution.dispatcher, platform.settings.server.grace_s):
            complain(f"thawd: {line}")
        platform.events.stop()
        platform.sources.stop()
        platform.cloudwatch.stop()
        platform.recording.live.close()
        web.stop()
        if platform.cluster is not None:
            platform.cluster.stop()
        beginning.cancel()
        platform.control.stop_publishing()
        await self._drain()
        for task in (beginning, *feeding):
            task.cancel()
        platform.events.break_off()
        # This also ends the invocations that did not end within the grace period.
        await platform.execution.end(_KILL_WAIT_S)
        await platform.control.publications_ended(_KILL_WAIT_S)
        await platform.execution.spawner.at_rest(_KILL_WAIT_S)
        await platform.stop_aws()  # only now, because running functions could call the emulator
        await platform.events.settled(_KEEP_S)
        await platform.events.close()
        await platform.cloudwatch.close()
        await platform.recording.close()
        for task in lasting:
            task.cancel()
        await self._close(web, serving)

    async def _start_lasting(self, tasks: asyncio.TaskGroup) -> Tasks:
        """Start the tasks that run until the last invocation has ended. Returns when events can be accepted."""
        platform = self._platform
        started = asyncio.Event()
        works = (platform.execution.watch_limits(), self._guard_data(), *platform.events.works(started))
        works = (*works, *platform.cloudwatch.works(), *platform.recording.works())
        if platform.cluster is not None:
            works = (*works, platform.cluster.run())
        if self._certificate is not None:
            works = (*works, self._certificate.watch())
        lasting: Tasks = [tasks.create_task(work) for work in works]
        await started.wait()
        platform.control.deployments.on_names = platform.events.invoker.declare
        platform.events.invoker.declare(platform.execution.dispatcher.names())
        return lasting

    async def _begin(self, tasks: asyncio.TaskGroup, feeding: Tasks, *, watch: bool, ready: ReadyFile | None) -> None:
        """Announce the server, publish all functions, then start event sources and bucket watchers.

        A stop of the server cancels the task that runs this method.

        Args:
            tasks: group that runs the tasks of sources and watchers.
            feeding: list to which these tasks are appended.
            watch: republish functions when their code changes.
            ready: the file that is written when the server is ready.
        """
        platform = self._platform
        for line in missing_extras(platform.settings.functions.values()):
            complain(f"thawd: {line}")
        say(f"thawd serves {platform.url}", url=platform.url)
        if self._certificate is not None:
            say(f"  certificate  {self._certificate.validity.describe()}")
        self._manager.ready(platform.url)
        if ready is not None and not ready.after_publication:
            ready.write(platform.url)
        note = asyncio.get_running_loop().call_later(_NOTE_AFTER_S, self._say_what_waits)
        try:
            await platform.control.publish()
        finally:
            note.cancel()
        install_lease_signal_handler()
        works: list[Coroutine[None, None, None]] = [platform.run_sources()]
        works += [watcher.run() for watcher in platform.watchers.values()]
        if watch and self._project is None:
            works.append(CodeWatcher(lambda: platform.settings, self._reloader.catch_up).run())
        elif self._debugging is not None and self._project is None:
            works.append(stale_code_watcher(lambda: platform.settings, self._debugging).run())
        feeding += [tasks.create_task(work) for work in works]
        if self._project is not None:
            self._project.spare_own_programs = platform.execution.launcher.spare_own_programs
            self._project.begin_unpacking = platform.control.begin_unpacking
            await self._project.deploy()
            if watch:
                feeding.append(tasks.create_task(self._project.watch()))
        platform.phase = READINESS
        self._announce()
        if ready is not None and ready.after_publication:
            ready.write(platform.url)

    def _say_what_waits(self) -> None:
        """Report how many functions are not yet published."""
        count = self._platform.execution.dispatcher.pending()
        if count:
            left = "1 function is" if count == 1 else f"{count} functions are"
            say(
                f"  {left} not yet published. thawd publishes first those for which requests arrive. "
                "Event sources start when all functions are published"
            )

    async def _drain(self) -> None:
        """Wait until invocations have ended, outcomes are stored, and handled messages are deleted from their queues.

        Each of these waits has a time limit."""
        platform = self._platform
        grace_s = platform.settings.server.grace_s
        left = await platform.execution.dispatcher.drain(grace_s)
        if left:
            complain(f"thawd: {left} invocations did not end within {grace_s} s; thawd ends them now")
        await asyncio.gather(platform.events.settled(_SETTLE_S), platform.sources.settled(_SETTLE_S))

    async def _close(self, web: Uvicorn, serving: asyncio.Task[None]) -> None:
        """Close the connections that are still open, and wait until the HTTP server has ended."""
        web.stop_waiting()
        await serving
        if self._platform.emulated is not None:
            await self._platform.emulated.close()
        self._platform.execution.launcher.flush_logs()
        self._show_rest()

    async def _guard_data(self) -> None:
        """Stop the server if its data folder or state file is removed or replaced: events could no longer be stored."""
        state = self._platform.stores.state
        while (lost := self._missing()) is None:  # noqa: ASYNC110 - no event reports the removal of a file
            await asyncio.sleep(_GUARD_S)
        complain(f"thawd: {lost}; thawd stops")
        self._lost = lost
        try:
            if state.is_elsewhere and self._settings.server.data.is_dir():
                saved = await rescue(state)
                complain(f"thawd: the data of the state file is saved in {saved}; {_way_back(saved)}")
        except StoreError as error:
            complain(f"thawd: the data of the state file cannot be saved: {error.message}")
        self._stop.set()
        self._hurry.set()

    def _missing(self) -> str | None:
        """Describe what was removed or replaced: the data folder or the state file. None while both are in place."""
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
        if self._has_ended:
            return
        if self._stop.is_set():
            complain("thawd: stopping immediately; invocations in flight are ended")
            self._platform.execution.launcher.children.kill_all()
            self._platform.events.break_off()
            self._platform.stores.patience_s = 0.0
            self._hurry.set()
        self._stop.set()

    def _on_reload_signal(self) -> None:
        if not self._stop.is_set():
            self._platform.execution.spawn_task(self._reload())

    async def _reload(self) -> None:
        self._manager.reloading()
        if self._certificate is not None:
            self._certificate.reload()
        try:
            await (self._reloader.reload() if self._project is None else self._project.deploy())
        finally:
            self._manager.ready(self._platform.url)
        self._reloader.announce()

    def _announce(self) -> None:
        """Print what the server serves."""
        platform = self._platform
        self._reloader.announce()
        say(f"  pages     {platform.url}/_thawd/")
        limits = platform.execution.limits
        say(
            f"at most {limits['max_environments']} environments and {limits['memory_mb']} MB; memory limits by "
            f"{limits['memory_limit']}; Ctrl-C stops"
        )
        if platform.emulated is not None:
            say(f"  aws       emulated at the same address; functions have AWS_ENDPOINT_URL={platform.url}")
        if platform.execution.shared_tmp:
            say(f"functions see the machine's /tmp: {platform.execution.shared_tmp}")


def run(  # noqa: PLR0913 - what the command has prepared
    settings: Settings,
    *,
    environ: Mapping[str, str],
    watch: bool,
    ready: ReadyFile | None,
    aws: str,
    project: ServedProject | None = None,
    emulator: EmulatorProcess | None = None,
    debugging: Debugging | None = None,
) -> None:
    """Serve until a signal stops the server.

    Args:
        settings: the configuration.
        environ: the platform's environment variables.
        watch: republish a function when its code changes.
        ready: the file that is written when the server is ready; None: no file is written.
        aws: which other AWS services functions use; see `Platform.open`.
        project: a project of another tool, whose stacks the server has; None: only what the configuration declares.
        emulator: the process of the emulator, if it was started before.
        debugging: the functions that a debugger can stop; None: there are none.

    Raises:
        ThawdError: the server could not start, or stopped for a reason outside of thawd.
        ScarcityError: the server could not start, or stopped, because the system has too little memory or too few
            threads.
        OSError: the server could not start, or stopped, because of an error of the operating system.
    """
    if settings.server.user is not None:
        become(settings.server.user, data=settings.server.data)
    process_settings.apply()
    quieten_uvicorn()
    server = Server(settings, environ=environ, aws=aws, project=project, emulator=emulator, debugging=debugging)
    has_ended = False
    try:
        import uvloop

        with in_background(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(server.run(watch=watch, ready=ready))
            has_ended = True
    except Exception as error:
        expected = _expected(error)
        if has_ended and isinstance(expected, NoThreadError):
            # The server has ended, and asyncio could not start the thread in which it waits for the end of worker
            # threads. That is no failure: Python itself waits for them when it exits.
            return
        if expected is None:
            raise
        raise expected from error


def _expected(error: Exception) -> Exception | None:
    """The error to report if all errors that ended the server are expected; None if one of them is a bug in thawd."""
    if isinstance(error, ExceptionGroup):
        expected = [_expected(part) for part in error.exceptions]
        return None if None in expected else expected[0]
    return error if isinstance(error, ThawdError | OSError) else threads.scarcity(error)


def _url_of(listener: socket.socket, scheme: str) -> str:
    host, port = listener.getsockname()[:2]
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def _way_back(saved: Path) -> str:
    """Instructions for using a saved state file, or for continuing without it."""
    state = saved.with_name(saved.name.partition(RESCUED)[0])
    return (
        f"to use it, stop thawd, run `rm -f {state}-wal {state}-shm; mv {saved} {state}`, and start thawd; if you do "
        "not need it, remove it"
    )


def _threads() -> int:
    """Number of threads for blocking calls: the default of `concurrent.futures.ThreadPoolExecutor`."""
    return min(32, (os.cpu_count() or 1) + 4)


def _spawned(tasks: asyncio.TaskGroup, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
    """Run a background task.

    Raises:
        RuntimeError: the server has stopped.
    """
    guarded = _guarded(work)
    try:
        return tasks.create_task(guarded)
    except RuntimeError:
        guarded.close()
        work.close()
        raise


async def _guarded(work: Coroutine[None, None, None]) -> None:
    """Run one background task. A bug in it is reported, and does not end the server."""
    try:
        await work
    except Exception as error:
        complain(
            f"thawd: something failed inside thawd: {error!r}",
            level="error",
            traceback="".join(traceback.format_exception(error)).rstrip(),
        )
