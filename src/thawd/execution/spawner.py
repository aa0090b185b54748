"""Starting execution environments the fastest way that is possible: a fork of the version's template, else cold.

Nothing here decides whether one may be started; that is `node` and `pool`.
"""

from __future__ import annotations

import asyncio
import subprocess
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from thawd.errors import ServiceException
from thawd.execution.children import Child, Children
from thawd.execution.ends import Ends
from thawd.execution.environment import Environment, InitError, ServiceHandler
from thawd.execution.memory import MemoryLimit, MemoryLimiter
from thawd.execution.template import ForkRefusedError, Template, TemplateLostError
from thawd.execution.version import Version, variables_of_environment
from thawd.invocation import StartKind
from thawd.telemetry.console import complain
from thawd.telemetry.logs import FunctionLog, LogStream, log_path
from thawd.telemetry.metrics import Metrics

# A template that dies so often, each time within a minute, is left alone for as long: environments start cold.
_TEMPLATE_DEATHS = 3
_TEMPLATE_CALM_S = 60.0
# Tries of a start whose process somebody else killed, for example the kernel for want of memory.
_START_TRIES = 3
# After strays were killed: look again, to reap them and to find what they had started meanwhile.
_SWEEP_AGAIN_S = 1.0
_WATCH_INIT_S = 0.1


class Origin:
    """Where a version's environments come from: its template, or why there is none.

    Attributes:
        refused: why this version starts cold, None while it is forked.
        deaths: how often in a row its template ended soon after its start.
        calm_until_s: no template is started before, ``time.monotonic()`` seconds.
    """

    def __init__(self, version: Version) -> None:
        self.version = version
        self.refused: str | None = None if version.function.snapshot else "snapshot = false"
        self.template: Template | None = None
        self.starting: asyncio.Task[Template] | None = None
        self.deaths = 0
        self.started_s = 0.0
        self.calm_until_s = 0.0


class Spawner:
    """Starts environments of any version on this machine.

    Attributes:
        children: the processes of functions that are alive.
        has_helpers: whether processes of the platform's own may be running, such as pip; they are not strays.
    """

    def __init__(
        self,
        *,
        limiter: MemoryLimiter,
        services: ServiceHandler,
        metrics: Metrics,
        log_folder: Path,
        log_max_bytes: int,
        report: Callable[[str], None] = complain,
    ) -> None:
        self.children = Children()
        self._limiter = limiter
        self._services = services
        self._metrics = metrics
        self._log_folder = log_folder
        self._log_max_bytes = log_max_bytes
        self._report = report
        self._logs: dict[str, FunctionLog] = {}
        self._origins: dict[tuple[str, int], Origin] = {}
        self.has_helpers = False
        self._sweeping = False
        self._retired: set[tuple[str, int]] = set()
        self._alive: set[str] = set()

    def log(self, function: str) -> FunctionLog:
        """The log of `function`."""
        if function not in self._logs:
            path = log_path(self._log_folder, function)
            self._logs[function] = FunctionLog(path, max_bytes=self._log_max_bytes)
        return self._logs[function]

    def flush_logs(self) -> None:
        """Write out what the logs hold back."""
        for log in self._logs.values():
            log.flush()

    def origin(self, version: Version) -> Origin:
        """Where environments of `version` come from."""
        key = (version.function.name, version.generation)
        if key in self._retired:
            retired = Origin(version)
            retired.refused = "the version is retired"
            return retired
        return self._origins.setdefault(key, Origin(version))

    async def prepare(self, version: Version) -> None:
        """Run the function's init once, so that environments can be forked from there, if the version allows it.

        Raises:
            InitError: init failed.
            ServiceException: the machine could not start a process.
        """
        try:
            await self._template(self.origin(version))
        except OSError as error:
            raise ServiceException(f"the template could not be started: {error}") from error

    def retire(self, version: Version) -> None:
        """End the version's template; its environments live on."""
        key = (version.function.name, version.generation)
        origin = self._origins.pop(key, None)
        self._retired.add(key)
        if origin is not None:
            origin.refused = "the version is retired"
            if origin.starting is not None:
                origin.starting.cancel()
            if origin.template is not None:
                origin.template.kill()

    async def start(self, version: Version, *, provisioned: bool = False) -> Environment:
        """Start one environment and wait until it can serve.

        Raises:
            InitError: the function's init failed.
            ServiceException: the machine could not start a process.
        """
        started_s = time.monotonic()
        for left in reversed(range(_START_TRIES)):
            try:
                return await self._start(version, provisioned=provisioned, started_s=started_s)
            except InitError as error:
                if not error.from_outside or not left:
                    self._metrics.function(version.function.name).init_failures += 1
                    raise
            except OSError as error:
                raise ServiceException(f"an execution environment could not be started: {error}") from error
        raise AssertionError("the last try returns or raises")

    async def _start(self, version: Version, *, provisioned: bool, started_s: float) -> Environment:
        template = await self._template(self.origin(version))
        if template is not None:
            try:
                return await self._fork(version, template, provisioned=provisioned, started_s=started_s)
            except TemplateLostError as error:
                self._fall_back(version, str(error))
        return await self._start_cold(version, provisioned=provisioned, started_s=started_s)

    def _fall_back(self, version: Version, why: str) -> None:
        self._metrics.function(version.function.name).fallbacks += 1
        self._report(f"thawd: {version.function.name}: started cold: {why}")

    async def _template(self, origin: Origin) -> Template | None:
        """The version's template, started when it must be; None when the version is not to be forked."""
        if origin.refused is not None:
            return None
        if origin.template is not None and not origin.template.ended.is_set():
            return origin.template
        if origin.starting is None:
            if not self._may_start_template(origin):
                return None
            origin.starting = asyncio.get_running_loop().create_task(self._start_template(origin.version))
            origin.starting.add_done_callback(lambda task: self._template_started(origin, task))
        try:
            return await asyncio.shield(origin.starting)
        except ForkRefusedError as error:
            self._refuse(origin, str(error))
            return None

    def _may_start_template(self, origin: Origin) -> bool:
        """Whether to start a template again after the last one has ended."""
        now_s = time.monotonic()
        if origin.template is not None:
            origin.deaths = origin.deaths + 1 if now_s - origin.started_s < _TEMPLATE_CALM_S else 1
            origin.template = None
            if origin.deaths >= _TEMPLATE_DEATHS:
                origin.deaths = 0
                origin.calm_until_s = now_s + _TEMPLATE_CALM_S
                self._fall_back(origin.version, f"its template ended {_TEMPLATE_DEATHS} times within a minute")
        origin.started_s = now_s
        return now_s >= origin.calm_until_s

    def _template_started(self, origin: Origin, task: asyncio.Task[Template]) -> None:
        origin.starting = None
        if task.cancelled() or task.exception() is not None:
            return
        origin.template = task.result()
        if origin.refused is not None:  # retired in the meantime
            origin.template.kill()

    def _refuse(self, origin: Origin, why: str) -> None:
        if origin.refused is None:
            origin.refused = why
            self._fall_back(origin.version, why)

    async def _start_template(self, version: Version) -> Template:
        identifier = uuid.uuid4().hex
        stream = self._stream(version, identifier)
        ends = Ends.open()
        child = self._spawn(version, "template", ends, identifier=identifier, stream=stream)
        template = Template(version, identifier=identifier, stream=stream, ends=ends, children=self.children)
        try:
            await template.connect()
            template.adopt(child)
            # Watched, and in no cgroup: environments forked from it would begin in it and be charged there.
            limit = MemoryLimit(child.pid, limit_mib=version.function.memory_mb)
            await _init_ends(template.ready, version, child, limit)
            template.check_forkable()
        except BaseException:
            child.kill()
            raise
        return template

    async def _start_cold(self, version: Version, *, provisioned: bool, started_s: float) -> Environment:
        identifier = uuid.uuid4().hex
        stream = self._stream(version, identifier)
        ends = Ends.open()
        child = self._spawn(version, "environment", ends, identifier=identifier, stream=stream, provisioned=provisioned)
        environment = Environment(version, identifier=identifier, kind=StartKind.COLD, stream=stream, ends=ends)
        return await self._ready(environment, child, started_s=started_s)

    async def _fork(self, version: Version, template: Template, *, provisioned: bool, started_s: float) -> Environment:
        identifier = uuid.uuid4().hex
        stream = self._stream(version, identifier)
        variables = variables_of_environment(log_stream=stream.name, provisioned=provisioned, identifier=identifier)
        ends = Ends.open()
        try:
            child = self._watch(await template.fork(ends, variables), identifier)
        except BaseException:
            ends.close()
            raise
        environment = Environment(version, identifier=identifier, kind=StartKind.FORK, stream=stream, ends=ends)
        return await self._ready(environment, child, started_s=started_s)

    def _watch(self, pid: int, identifier: str) -> Child:
        """Follow the process; when it ends, what it left behind outside its process group ends too."""
        child = self.children.watch(pid)
        self._alive.add(identifier)

        def forget(_: object) -> None:
            self._alive.discard(identifier)
            asyncio.get_running_loop().call_soon(self.sweep)

        child.ended.add_done_callback(forget)
        return child

    async def _ready(self, environment: Environment, child: Child, *, started_s: float) -> Environment:
        """Adopt the process and wait for its word that it can serve."""
        function = environment.version.function
        try:
            await environment.connect(self._services)
            environment.adopt(child)
            limit = self._limiter.limit(child.pid, identifier=environment.identifier, limit_mib=function.memory_mb)
            environment.memory_limit = limit
            await _init_ends(environment.ready, environment.version, child, limit)
        except BaseException:
            environment.dying = True
            child.kill()
            raise
        environment.init_ms = (time.monotonic() - started_s) * 1000
        self._metrics.function(function.name).starts[environment.kind].record(environment.init_ms)
        return environment

    def _stream(self, version: Version, identifier: str) -> LogStream:
        return LogStream(self.log(version.function.name), version=version.qualifier, identifier=identifier)

    def _spawn(
        self,
        version: Version,
        mode: str,
        ends: Ends,
        *,
        identifier: str,
        stream: LogStream,
        provisioned: bool = False,
    ) -> Child:
        """Execute the runtime and follow the process. Closes `ends` when it fails.

        Raises:
            OSError: the interpreter is gone, or there is no memory or process left.
        """
        stream.line(f"INIT_START Runtime Version: python:{version.python_version}")
        control, services, lifeline, output = ends.theirs
        variables = variables_of_environment(log_stream=stream.name, provisioned=provisioned, identifier=identifier)
        try:
            process = subprocess.Popen(
                version.argv(mode, (control, services, lifeline)),
                env={**version.variables, **variables},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(control, services, lifeline),
                cwd=version.task_root,
                start_new_session=True,
            )
        except OSError:
            ends.close()
            raise
        process.returncode = 0  # `Children` reaps it, not Popen
        ends.close_theirs()
        # At once: a process that nobody has registered passes for a stray.
        return self._watch(process.pid, identifier)

    def sweep(self) -> None:
        """Kill what functions left behind outside their process groups."""
        again = self.children.kill_strays(lambda identifier: identifier in self._alive, spare_unknown=self.has_helpers)
        if again and not self._sweeping:
            self._sweeping = True
            asyncio.get_running_loop().call_later(_SWEEP_AGAIN_S, self._sweep_again)

    def _sweep_again(self) -> None:
        self._sweeping = False
        self.sweep()


async def _init_ends(ready: asyncio.Future[Any], version: Version, child: Child, limit: MemoryLimit) -> None:
    """Wait until the init phase has ended well, within its limits of time and memory.

    Raises:
        InitError: it has not.
    """
    until_s = time.monotonic() + version.function.init_timeout_s
    while not ready.done():
        await asyncio.wait({ready}, timeout=_WATCH_INIT_S)
        if ready.done():
            break
        if time.monotonic() >= until_s:
            child.kill()
            raise _init_timed_out(version)
        if not limit.check():
            child.kill()
    ready.result()


def _init_timed_out(version: Version) -> InitError:
    message = f"Init timed out after {version.function.init_timeout_s} seconds"
    document = f'{{"errorType":"Sandbox.Timedout","errorMessage":"{message}"}}'
    return InitError(message, document.encode())
