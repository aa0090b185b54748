"""Publishes versions: every version that serves, from thawd.toml or from the API, has been published by this module.

The publisher builds a version and passes it to the dispatcher, which runs its init phase and takes its snapshot. Then
the publisher remembers the version. Recording and reporting a publication is left to the caller, which gets its
`Outcome`.

Guarantees:
- `Publisher.publish` does not raise: an error during one publication is in its outcome, and affects nothing else;
- a version has one publication at a time: a second request with the same source (the object that declares the function)
  gets the outcome of the first, and a request with another source is carried out after it;
- the previous version serves until the new one is ready. It continues to serve if the new one cannot be published,
  and with `Candidate.keeps_old` also if the init phase of the new one fails;
- if a caller publishes an unchanged version again, nothing happens, with two exceptions. The version is published again
  if something outside thawd had killed its process during the init phase, and with `Candidate.retries` if another
  attempt may succeed (`Dispatcher.may_fare_better`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from enum import Enum

import msgspec

from thawd.environments import debugging
from thawd.environments.init_phase import InitError
from thawd.environments.user_paths import as_user_knows
from thawd.environments.version import Version
from thawd.errors import ResourceNotFoundException, ThawdError, unexpected
from thawd.invocation import StartKind
from thawd.publishing.build import BuildContext, Builder, Release
from thawd.resources import LATEST, Function
from thawd.scheduling.dispatcher import Dispatcher
from thawd.stores.uploaded_code import CodeStore
from thawd.telemetry.console import is_terminal


@dataclass(frozen=True, slots=True)
class Candidate:
    """A version to publish.

    Attributes:
        function: the function as declared.
        source: the object that declares the function. If a candidate with the same source is being published, this one
            is not published again: its request waits for the first one's outcome.
        number: the version's number.
        packages: names of the uploaded code and of its layers, in order; empty: the code is in the function's folder.
        keeps_old: whether the previous version continues to serve if the init phase of this one fails. If false,
            invocations get the init error.
        retries: whether an unchanged version is published again if another attempt may succeed.
        begin: called with the version after it is built and before it is started. If it returns False, the version is
            no longer wanted and is not started.
    """

    function: Function
    source: object
    number: str = LATEST
    packages: tuple[str, ...] = ()
    keeps_old: bool = False
    retries: bool = False
    begin: Callable[[Version], bool] = lambda version: True


# An init that takes longer than this, seconds, is reported while it runs; then again, ever more seldom.
_TELL_AFTER_S = 3.0
_TELL_AT_LEAST_S = 30.0


@dataclass(frozen=True, slots=True)
class InitRun:
    """How the init phase of a version ran.

    Attributes:
        init_ms: how long it took, milliseconds; None: unknown.
        start: how environments start.
        snapshot_reused: whether it did not run now, because there was a snapshot of the same version.
    """

    init_ms: float | None = None
    start: StartKind = StartKind.COLD
    snapshot_reused: bool = False


def steps_text(steps: Mapping[str, float]) -> str:
    """Return steps with their durations, for people: ``built 12 ms, init 1.2 s, frozen 80 ms``."""
    return ", ".join(f"{name} {_duration(taken_s)}" for name, taken_s in steps.items())


def _duration(taken_s: float) -> str:
    return f"{taken_s * 1000:.0f} ms" if taken_s < 1 else f"{taken_s:.1f} s"


def _trace(error: InitError, version: Version) -> str:
    """The traceback in an init error, without the last line, which is the error; empty if there is none."""
    try:
        frames = msgspec.json.decode(error.document, type=_ErrorDocument).stackTrace
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""
    lines = as_user_knows("".join(frames), version).rstrip("\n").splitlines()
    return "".join(f"\n{line}" for line in lines)


class _ErrorDocument(msgspec.Struct):
    stackTrace: list[str] = []  # noqa: N815 - Lambda's name


class Ending(Enum):
    """How a publication ended."""

    SERVES = "the version serves"
    UNCHANGED = "it was published before, and nothing has changed"
    RESTORED = "it serves as before; a later version that could not replace it is no longer declared"
    INIT_FAILED = "its init failed"
    FAILED = "it could not be published"
    GONE = "it was deleted or replaced before it was ready"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a publication.

    Attributes:
        ending: how the publication ended.
        version: the version that was built; None if the ending is `FAILED` or `GONE`.
        reason: why the init phase failed, or why the version could not be published; otherwise empty.
        replaces: whether another version served when this one was about to be started.
        steps: how long each step took, seconds, by name, in order.
        trace: if init failed, the lines of the traceback in the function's own files, each with a line break before it.
    """

    ending: Ending
    version: Version | None = None
    reason: str = ""
    replaces: bool = False
    steps: Mapping[str, float] = field(default_factory=dict)
    trace: str = ""


class Publisher:
    """Publishes versions, and remembers them, so that an unchanged version is not published again.

    Args:
        builder: builds versions.
        dispatcher: starts and serves versions.
        code: stores uploaded code.
        context: returns what builds need from the current configuration.
        say: called with lines for the operator about steps that take long.
        init_of: returns how the init phase of a version ran that has been started.
    """

    def __init__(
        self,
        builder: Builder,
        dispatcher: Dispatcher,
        code: CodeStore,
        *,
        context: Callable[[], BuildContext],
        say: Callable[[str], None],
        init_of: Callable[[Version], InitRun] = lambda version: InitRun(),
    ) -> None:
        self._init_of = init_of
        self._builder = builder
        self._dispatcher = dispatcher
        self._code = code
        self._context = context
        self._say = say
        self._published: dict[tuple[str, str], Version] = {}
        self._running: dict[tuple[str, str], tuple[object, asyncio.Task[Outcome]]] = {}

    async def publish(self, candidate: Candidate) -> Outcome:
        """Publish a candidate, so that it serves. If the caller is cancelled, the publication continues."""
        key = candidate.function.name, candidate.number
        while (running := self._running.get(key)) is not None:
            source, task = running
            if source is candidate.source:
                return await asyncio.shield(task)
            await asyncio.wait([task])
        task = asyncio.get_running_loop().create_task(self._publish(candidate))
        self._running[key] = candidate.source, task
        task.add_done_callback(lambda _: self._running.pop(key))
        return await asyncio.shield(task)

    async def ended(self, patience_s: float) -> None:
        """Wait until the publications that run now have ended, at most `patience_s` seconds."""
        if self._running:
            await asyncio.wait([task for _, task in self._running.values()], timeout=patience_s)

    def is_publishing(self, name: str, number: str) -> bool:
        """Return whether the version is being published."""
        return (name, number) in self._running

    async def _publish(self, candidate: Candidate) -> Outcome:
        """Publish a candidate, and turn any error into an outcome."""
        try:
            return await self._build_and_serve(candidate)
        except ResourceNotFoundException:
            return Outcome(Ending.GONE)
        except Exception as error:
            reason = error.message if isinstance(error, ThawdError) else unexpected(error)
            try:
                self._dispatcher.fail(candidate.function.name, reason, number=candidate.number)
            except ResourceNotFoundException:
                return Outcome(Ending.GONE)
            return Outcome(Ending.FAILED, reason=reason)

    async def _build_and_serve(self, candidate: Candidate) -> Outcome:
        """Publish a candidate, unless it serves already.

        Raises:
            ResourceNotFoundException: the version was deleted in the meantime.
            ThawdError: the version cannot be built, or no process can be started.
        """
        name, number = candidate.function.name, candidate.number
        begun_s = time.monotonic()
        version = await self._build(candidate)
        built_s = time.monotonic()
        if self._published.get((name, number)) is version:
            if not (candidate.retries and self._dispatcher.may_fare_better(version)):
                restored = self._dispatcher.confirm(version)
                return Outcome(Ending.RESTORED if restored else Ending.UNCHANGED, version)
            self.forget(name, number)
            # The dispatcher accepts a `Version` object only once, so each further attempt needs a new one.
            version = await self._build(candidate)
        if not candidate.begin(version):
            return Outcome(Ending.GONE)
        replaces = self._dispatcher.entry(name, number).pool is not None
        outcome = Outcome(Ending.SERVES, version, replaces=replaces)
        try:
            async with self._telling_of_slow_init(version), debugging.announced(version, self._progress(name)):
                await self._dispatcher.publish(version, keeps_old=candidate.keeps_old)
            steps = {"built": built_s - begun_s, **self._started_by(version, time.monotonic() - built_s)}
            outcome = replace(outcome, steps=steps)
        except InitError as error:
            outcome = Outcome(Ending.INIT_FAILED, version, str(error), replaces, trace=_trace(error, version))
            if error.from_outside:
                return outcome
        self.remember(version)
        return outcome

    @asynccontextmanager
    async def _telling_of_slow_init(self, version: Version) -> AsyncIterator[None]:
        """Say, while the ``with`` block runs, that a function is being initialised, if that takes long."""
        name = version.function.name
        loop, begun_s = asyncio.get_running_loop(), time.monotonic()
        timer: asyncio.TimerHandle

        def tell(wait_s: float) -> None:
            nonlocal timer
            if is_terminal():
                self._say(f"  {name}: {self._awaited(version)}; {time.monotonic() - begun_s:.0f} s so far")
            timer = loop.call_later(wait_s, tell, min(wait_s * 2, _TELL_AT_LEAST_S))

        timer = loop.call_later(_TELL_AFTER_S, tell, _TELL_AFTER_S * 2)
        try:
            yield
        finally:
            timer.cancel()

    def _awaited(self, version: Version) -> str:
        """Describe what a publication waits for."""
        name, others = version.function.name, (each for each in self._dispatcher.versions() if each is not version)
        if any(each.debugged and each.function.name == name for each in others):
            return "the new code waits for the running invocation, which a debugger may have stopped"
        return "init runs"

    def _progress(self, name: str) -> Callable[[str], None]:
        return lambda line: self._say(f"  {name}: {line}")

    def _started_by(self, version: Version, taken_s: float) -> dict[str, float]:
        """Divide the time from the start of a version until it served into its steps."""
        run = self._init_of(version)
        if run.snapshot_reused:
            return {"earlier snapshot reused": taken_s}
        if run.init_ms is None:
            return {"started": taken_s}
        init_s = min(run.init_ms / 1000, taken_s)
        return {"init": init_s, "frozen" if run.start == StartKind.THAW else "started": taken_s - init_s}

    async def _build(self, candidate: Candidate) -> Version:
        function, number = candidate.function, candidate.number
        release = Release(number)
        if candidate.packages:
            code, *layers = [await asyncio.to_thread(self._code.ensure, name) for name in candidate.packages]
            release = Release(number, code, tuple(layers))
        return await self._builder.build(
            function,
            release,
            context=self._context(),
            last=self._published.get((function.name, number)),
            progress=self._progress(function.name),
        )

    def remember(self, version: Version) -> None:
        """Remember that `version` is published, so that it is not published again."""
        self._published[version.function.name, version.number] = version

    def forget(self, name: str, number: str) -> None:
        """Forget a version that no longer exists or must be published again. Its package may then be removed."""
        self._published.pop((name, number), None)

    async def check_runtime(self, function: Function) -> None:
        """Check that a function's interpreter is installed and works. A program in the function's code is not checked.

        Raises:
            EnvironmentBuildError: the interpreter is not installed, or does not work.
        """
        await self._builder.check_runtime(function, folder=self._context().folder)

    async def resolve_image(self, reference: str) -> str:
        """Return the digest of a container image, which is then in the store of images, and kept until `clean`.

        Raises:
            ImageError: there is no such image (HTTP 400).
        """
        return await self._builder.resolve_image(reference, folder=self._context().folder)

    async def clean(self, *, keep: Callable[[], set[str]]) -> None:
        """Remove packages that no version uses, and virtual environments that no version has used for a week.

        Args:
            keep: returns the names of other packages to keep; called again for each package, in a thread.

        Raises:
            StoreError: a package cannot be removed.
        """
        in_use = [*self._published.values(), *self._dispatcher.versions()]
        await asyncio.to_thread(self._builder.clean, in_use, keep=keep)
