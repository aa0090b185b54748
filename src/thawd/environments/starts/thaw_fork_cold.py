"""Carries out each kind of start (cold, fork, thaw, template), from its first step until the process is ready.

`fastest_start` decides which kind to use, and what to do when one fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from thawd.environments import debugging
from thawd.environments.child_processes import Child
from thawd.environments.environment import Environment
from thawd.environments.external_extensions import Extensions
from thawd.environments.init_phase import InitError, init_ends
from thawd.environments.platform_log import platform_log
from thawd.environments.runtime_api.endpoint import RuntimeApi
from thawd.environments.runtime_api.extensions_api import ExtensionsApi
from thawd.environments.sandbox.memory import MemoryLimit, MemoryLimiter
from thawd.environments.starts.launcher import Launcher, Start
from thawd.environments.starts.new_environment import new_environment, reporting_init
from thawd.environments.starts.ready_deadline import ReadyDeadline
from thawd.environments.starts.template import ForkRefusedError, Template, TemplateLostError
from thawd.environments.starts.thawable import CANNOT_THAW, STAGE_FAILED, Thawable, ThawFailedError, thaw_failed
from thawd.environments.store_call_channel import ServiceHandler
from thawd.environments.store_calls import services_of
from thawd.environments.suspension import Suspender
from thawd.environments.version import Version
from thawd.errors import StoreError
from thawd.invocation import StartKind
from thawd.snapshot.disk.temporary_folders import DiskRefusedError

ON_DEMAND = "on-demand"
PROVISIONED = "provisioned-concurrency"
SNAP_START = "snap-start"

# A restore takes milliseconds, or seconds with the image on a slow disk. After this time it counts as failed.
_THAW_S = 10.0
# How long an interpreter may take to start if no function is loaded (to make a base or to compare with one).
_RUNTIME_S = 10.0
_THAW_OUTPUT_BYTES = 4096


class SpareRefusedError(Exception):
    """A version can have no spare, that is, no thawed copy that waits until it is needed. The message says why."""


class Starter:
    """Starts environments and templates of any version on this machine."""

    def __init__(
        self,
        launcher: Launcher,
        *,
        limiter: MemoryLimiter,
        services: ServiceHandler,
        on_spawned: Callable[[Environment], None],
    ) -> None:
        self._launcher = launcher
        self._on_spawned = on_spawned
        self._limiter = limiter
        self._services = services
        self._suspender = Suspender(launcher.children)

    async def cold(self, version: Version, *, provisioned: bool, started_s: float) -> Environment:
        """Start an environment with a new process that runs the function's init.

        Raises:
            InitError: init failed.
            OSError: the machine could not start a process.
        """
        if version.program is not None:
            return await self._program(version, provisioned=provisioned, started_s=started_s)
        start = self._launcher.begin(version, initialization=PROVISIONED if provisioned else ON_DEMAND)
        child = self._launcher.execute(version, "environment", start)
        environment = new_environment(version, start, StartKind.COLD)
        with reporting_init(version, start, drain=environment.drain):
            await self._ready(environment, child, started_s=started_s)
        return environment

    async def _program(self, version: Version, *, provisioned: bool, started_s: float) -> Environment:
        """Start an environment that executes the function's own program, after its extensions have registered.

        Raises:
            InitError: init or an extension failed.
            OSError: the machine could not start a process.
        """
        function, program = version.function, version.program
        assert program is not None
        snap_start = program.snap_start and function.snapshot and not provisioned
        unprovisioned = SNAP_START if snap_start else ON_DEMAND
        start = self._launcher.begin(version, initialization=PROVISIONED if provisioned else unprovisioned)
        self._launcher.expect(start)
        platform_log(version, start.stream).init_start(start.initialization)
        extensions_api = ExtensionsApi(
            function=function.name,
            number=version.number,
            handler=function.handler,
            external=[path.name for path in program.extensions],
        )
        api = RuntimeApi(extensions_api, snap_start=snap_start)
        extensions = Extensions(api, self._launcher)
        environment = new_environment(version, start, StartKind.COLD)
        environment.connect_api(api, extensions)
        deadline = _deadline(environment)
        with reporting_init(version, start, drain=environment.drain):
            try:
                await api.open()
                extensions.start(program.extensions, version, start)
                await extensions.registered(within_s=function.init_timeout_s)
                try:
                    child = self._launcher.execute_program(version, start, api=api.address)
                except OSError as error:
                    raise InitError.of_launch("Runtime.InvalidEntrypoint", error) from error
            except BaseException:
                environment.abandon()
                self._launcher.forget(start)
                raise
            await self._init(environment, child, started_s=started_s, deadline=deadline)
        for extension in extensions_api.all():
            environment.log.extension(extension.name, state=extension.state, events=sorted(extension.events))
        return environment

    async def fork(self, version: Version, template: Template, *, provisioned: bool, started_s: float) -> Environment:
        """Fork an environment from `template`.

        Raises:
            InitError: an after-restore hook failed, or the process ended.
            TemplateLostError: the template died, or hung and was killed, or this machine cannot provide the fork's
                temporary folder.
            OSError: the machine could not start a process.
        """
        unprovisioned = SNAP_START if template.restored else ON_DEMAND
        initialization = PROVISIONED if provisioned else unprovisioned
        try:
            start = self._launcher.begin(version, initialization=initialization, disk=template.disk)
        except DiskRefusedError as error:
            raise TemplateLostError(error.message) from error
        try:
            pid = await template.fork(start, drops=self._launcher.rights.drops)
        except BaseException:
            self._launcher.abandon(start)
            raise
        child = self._launcher.watch(pid, start.identifier)
        environment = new_environment(version, start, StartKind.FORK, disk=template.disk)
        try:
            return await self._ready(environment, child, started_s=started_s, usable_s=template.usable_s)
        except InitError as error:
            # A fork that dies with its template may leave no wait status. The fork's death is not the function's.
            if template.ended.is_set() and child.ended.done() and child.ended.result() is None:
                raise TemplateLostError(f"the template died, and with it a fork that was not ready: {error}") from error
            raise

    async def thaw(
        self, version: Version, thawable: Thawable, *, provisioned: bool = False, started_s: float
    ) -> Environment:
        """Start an environment that is a copy of the process in the image.

        Raises:
            InitError: an after-restore hook failed.
            ThawFailedError: the copy did not start.
            OSError: the machine could not start a process.
        """
        start = self._begin_copy(version, thawable, PROVISIONED if provisioned else SNAP_START)
        platform_log(version, start.stream).restore_start()
        tail = start.stream.begin_tail(_THAW_OUTPUT_BYTES)
        child = self._launch(version, thawable, start, "environment")
        environment = new_environment(version, start, StartKind.THAW, disk=thawable.disk)
        thawable.follow(child, environment)
        try:
            await self._ready(environment, child, started_s=started_s, usable_s=thawable.usable_s)
        except InitError as error:
            if error.by_function:
                raise
            raise thaw_failed(error, child, tail.end()) from error
        finally:
            tail.end()
        thawable.restore_ms = min(thawable.restore_ms, environment.ready.result().restore_ms)
        thawable.touched.expect(environment)
        return environment

    async def park(self, version: Version, thawable: Thawable) -> Environment:
        """Start a spare: a copy that waits until `resume` makes it an environment.

        Raises:
            SpareRefusedError: the copy cannot wait, because threads of the function would run in it meanwhile.
            ThawFailedError: the copy did not start.
            OSError: the machine could not start a process.
        """
        await thawable.touched.learn()
        start = self._begin_copy(version, thawable, SNAP_START)
        child = self._launch(version, thawable, start, "spare")
        spare = new_environment(version, start, StartKind.THAW, disk=thawable.disk)
        thawable.follow(child, spare)
        tail = start.stream.begin_tail(_THAW_OUTPUT_BYTES)
        try:
            spare.adopt(child)  # first, so that its channels are closed, too, if this is cancelled
            await spare.connect(services_of(self._services, version, spare.stream.name))
            async with asyncio.timeout(_THAW_S):
                refused = await spare.parked
        except InitError as error:
            raise thaw_failed(error, child, tail.end()) from error
        except BaseException as error:
            spare.dying = True
            child.kill()
            if isinstance(error, TimeoutError):
                raise ThawFailedError(f"the spare did not begin to wait within {_THAW_S:.0f} s") from error
            raise
        finally:
            tail.end()
        if refused is not None:
            spare.dying = True
            raise SpareRefusedError(refused)
        # Now, because no request waits for it: the threads that move it to a cgroup compete with the event loop.
        self._limit(spare, child)
        spare.touch(thawable.touched.written, thawable.touched.read)
        thawable.touched.expect(spare)
        return spare

    async def resume(self, spare: Environment, *, started_s: float) -> Environment:
        """Make a spare an environment that can serve.

        Raises:
            InitError: an after-restore hook failed, or the process ended.
        """
        assert spare.child is not None
        spare.log.restore_start()
        spare.resume()
        return await self._init(spare, spare.child, started_s=started_s, deadline=_deadline(spare))

    async def template(self, version: Version, *, to_freeze: bool = False, outbox: Path | None = None) -> Template:
        """Start a process that runs init and then forks environments. With `to_freeze`, the caller freezes it first.

        Args:
            version: the version.
            to_freeze: whether the caller freezes the process.
            outbox: folder to which a process with a root of its own writes its image.

        Raises:
            InitError: init failed.
            ForkRefusedError: init succeeded, but forks of the process would not work. Not raised with `to_freeze`.
            OSError: the machine could not start a process.
        """
        initialization = SNAP_START if to_freeze else ON_DEMAND
        start = self._launcher.begin(version, initialization=initialization, is_template=True, outbox=outbox)
        child = self._launcher.execute(version, "snapshot" if to_freeze else "template", start)
        template = await self._template_ready(version, start, child)
        if not to_freeze:
            await self.look_at_disk(template)
            try:
                template.check_forkable()
            except ForkRefusedError:
                template.kill()
                raise
        return template

    async def runtime(self, version: Version, mode: str, *, variables: Mapping[str, str]) -> Template:
        """Start a process of mode ``base`` or ``bare``: thawd's runtime in the version's interpreter, without init.

        Args:
            version: a version that needs the process; the version's log gets what the process prints.
            mode: ``base`` or ``bare``; see `thawd.runtime.bootstrap`.
            variables: the environment variables, except for those that differ between processes.

        Raises:
            InitError: the process ended or took too long.
            OSError: the machine could not start a process.
        """
        start = self._launcher.begin(version, initialization=SNAP_START, is_template=True)
        per_process: dict[str, str] = {"THAWD_ENVIRONMENT": start.identifier}
        if start.tmpdir is not None:
            per_process["TMPDIR"] = start.tmpdir
        child = self._launcher.execute(version, mode, start, variables={**variables, **per_process})
        return await self._template_ready(version, start, child, limit_s=_RUNTIME_S)

    async def over_base(self, version: Version, base: Thawable, *, compare: bool = False) -> Template:
        """Thaw a copy of a base and let it run the version's init. The caller then freezes this process.

        Args:
            version: the version.
            base: the base.
            compare: whether the copy reports its state after init.

        Raises:
            InitError: init failed.
            ThawFailedError: the base could not be thawed.
            OSError: the machine could not start a process.
        """
        start = self._begin_copy(version, base, SNAP_START, is_template=True)
        platform_log(version, start.stream).init_start(start.initialization)
        command = base.command("base", start, *(["compare"] if compare else []))
        return await self._copy_of_base_ready(version, start, command)

    async def packages(self, version: Version, base: Thawable, role: str, request: bytes) -> Template:
        """Thaw a copy of a base and let it import packages.

        Args:
            version: a version with the variables that the copy is to have.
            base: the base.
            role: ``observe`` or ``packages``; see `thawd.runtime.package_base`.
            request: what to import, a JSON document.

        Raises:
            InitError: the process ended or took too long.
            ThawFailedError: the base could not be thawed.
            OSError: the machine could not start a process.
        """
        start = self._begin_copy(version, base, SNAP_START, is_template=True)
        limit_s = float(version.function.init_timeout_s)
        command = base.command(role, start, request.decode())
        return await self._copy_of_base_ready(version, start, command, limit_s=limit_s)

    async def _copy_of_base_ready(
        self, version: Version, start: Start, command: list[str], *, limit_s: float | None = None
    ) -> Template:
        tail = start.stream.begin_tail(_THAW_OUTPUT_BYTES)
        child = self._launcher.thaw(version, command, start)
        try:
            return await self._template_ready(version, start, child, limit_s=limit_s)
        except InitError as error:
            status = child.ended.result() if child.ended.done() else None
            exited = os.WEXITSTATUS(status) if status is not None and os.WIFEXITED(status) else 0
            if exited in (CANNOT_THAW, STAGE_FAILED):
                raise thaw_failed(error, child, tail.end()) from error
            raise
        finally:
            tail.end()

    async def look_at_disk(self, template: Template) -> None:
        """Record the files that init left in the template's temporary folder. Its forks begin with these files."""
        disks = self._launcher.disks
        if disks is None or template.folder is None:
            return
        try:
            template.disk = await asyncio.to_thread(disks.look, template.identifier)
        except StoreError as error:
            template.disk_refused = error.message

    def _launch(self, version: Version, thawable: Thawable, start: Start, role: str, *arguments: str) -> Child:
        command = thawable.command(role, start, *arguments)
        return self._launcher.thaw(version, command, start, image_fd=thawable.image_fd)

    def _begin_copy(
        self,
        version: Version,
        thawable: Thawable,
        initialization: str,
        *,
        is_template: bool = False,
        outbox: Path | None = None,
    ) -> Start:
        try:
            return self._launcher.begin(
                version, initialization=initialization, disk=thawable.disk, is_template=is_template, outbox=outbox
            )
        except DiskRefusedError as error:
            raise ThawFailedError(error.message, cannot=True) from error

    async def thaw_template(
        self,
        version: Version,
        thawable: Thawable,
        *,
        role: str = "template",
        arguments: tuple[str, ...] = (),
        outbox: Path | None = None,
    ) -> Template:
        """Start a copy of the process in the image, as a template: the copy forks environments.

        A copy with role ``probe`` only reports whether files that init read have changed since the freeze, and ends.
        Its argument is the list of files of a snapshot that was made on another machine. If it has a root of its own,
        the list is in the folder `outbox`.

        Raises:
            ThawFailedError: the copy did not start.
            OSError: the machine could not start a process.
        """
        start = self._begin_copy(version, thawable, SNAP_START, is_template=role == "template", outbox=outbox)
        tail = start.stream.begin_tail(_THAW_OUTPUT_BYTES)
        child = self._launch(version, thawable, start, role, *arguments)
        thawable.follow(child)
        try:
            template = await self._template_ready(version, start, child, limit_s=_THAW_S)
        except InitError as error:
            raise thaw_failed(error, child, tail.end()) from error
        finally:
            tail.end()
        template.restored = True
        template.disk = thawable.disk
        template.usable_s = thawable.usable_s
        thawable.restore_ms = min(thawable.restore_ms, template.ready.result().restore_ms)
        return template

    async def _template_ready(
        self, version: Version, start: Start, child: Child, *, limit_s: float | None = None
    ) -> Template:
        template = Template(
            version,
            identifier=start.identifier,
            stream=start.stream,
            channels=start.channels,
            children=self._launcher.children,
        )
        template.folder = start.folder
        started = (
            contextlib.nullcontext() if limit_s is not None else reporting_init(version, start, drain=template.drain)
        )
        limit_s = version.function.init_timeout_s if limit_s is None else limit_s
        until_s = time.monotonic() + limit_s
        with started:
            try:
                template.adopt(child)  # first, so that its channels are closed, too, if this is cancelled
                await template.connect(self._services)
                # Watch memory without a cgroup: forks would start in the template's cgroup, and count there.
                await init_ends(
                    template.ready,
                    child=child,
                    limit=MemoryLimit(child.pid, limit_mib=version.function.memory_mb),
                    until_s=lambda: until_s,
                    timed_out=lambda: InitError.of_time_out(limit_s),
                )
            except BaseException:
                child.kill()
                raise
        template.usable_s = time.monotonic()
        return template

    async def _ready(
        self, environment: Environment, child: Child, *, started_s: float, usable_s: float = 0.0
    ) -> Environment:
        """Connect to the process and wait until it reports that it can serve.

        Args:
            environment: the environment.
            child: its process.
            started_s: when its start was requested, ``time.monotonic()`` seconds.
            usable_s: when the image or template could be used. If that was after the request, then the request has
                waited for an init.
        """
        try:
            version, stream = environment.version, environment.stream.name
            environment.adopt(child)  # first, so that its channels are closed, too, if this is cancelled
            await environment.connect(services_of(self._services, version, stream))
        except BaseException:
            environment.dying = True
            child.kill()
            raise
        begun_s = max(started_s, usable_s)
        await self._init(environment, child, started_s=begun_s, deadline=_deadline(environment))
        if begun_s > started_s:
            environment.include_init(started_s)
        return environment

    async def _init(
        self, environment: Environment, child: Child, *, started_s: float, deadline: ReadyDeadline
    ) -> Environment:
        """Adopt the process and wait until it is ready."""
        function = environment.version.function
        try:
            if environment.child is None:
                environment.adopt(child)
            self._on_spawned(environment)
            watched = environment.memory_limit or MemoryLimit(child.pid, limit_mib=function.memory_mb)
            if environment.kind == StartKind.COLD:
                watched = self._limit(environment, child)
            await init_ends(
                environment.ready, child=child, limit=watched, until_s=deadline.until_s, timed_out=deadline.timed_out
            )
        except BaseException:
            environment.dying = True
            child.kill()
            raise
        if function.freeze_idle:
            environment.suspender = self._suspender
        environment.mark_ready(init_ms=(time.monotonic() - started_s) * 1000)
        if environment.memory_limit is None:
            # Not before it is ready: a process cannot make threads while the kernel moves it to a cgroup (13 ms).
            self._limit(environment, child)
        return environment

    def _limit(self, environment: Environment, child: Child) -> MemoryLimit:
        version = environment.version
        memory_mb = version.function.memory_mb + (debugging.MEMORY_MB if version.debugged else 0)
        limit = self._limiter.limit(child.pid, identifier=environment.identifier, limit_mib=memory_mb)
        for group in environment.extension_groups:
            # Extensions join the environment's cgroup; without cgroups their memory is not watched.
            self._limiter.limit(group, identifier=environment.identifier, limit_mib=memory_mb)
        environment.memory_limit = limit
        return limit


def _deadline(environment: Environment) -> ReadyDeadline:
    is_thawed = environment.kind == StartKind.THAW
    return ReadyDeadline(environment, _THAW_S if is_thawed else float(environment.version.function.init_timeout_s))
