"""The one way from a declared function to a version that serves, for thawd.toml and for the API.

Build it, hand it to the dispatcher, which has its init run and its snapshot taken, and remember it.
What is recorded of a publication, and who hears of it, is for the caller to do with its `Outcome`.

Guarantees:
- `Publisher.publish` does not raise: any error of one publication is in its outcome, and ends nothing else;
- a version has one publication at a time: a second request for one source waits for the outcome of the first, and a
  newer source is published after it;
- what served before serves until the new version is ready; it goes on serving when the new one cannot be published,
  and with `Candidate.keeps_old` also when the init of the new one fails;
- a version is published once. It is published again where its init was killed from outside, and with
  `Candidate.retries` where another try may succeed (`Dispatcher.may_fare_better`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from thawd.environments.init_phase import InitError
from thawd.environments.version import Version
from thawd.errors import ResourceNotFoundException, ThawdError, unexpected
from thawd.publishing.build import BuildContext, Builder, Release
from thawd.resources import LATEST, Function
from thawd.scheduling.dispatcher import Dispatcher
from thawd.stores.code import CodeStore


@dataclass(frozen=True, slots=True)
class Candidate:
    """A version to be published.

    Attributes:
        function: as declared.
        source: the object that declares it; a candidate with the source of one that is being published waits for it.
        number: of the version.
        packages: names of the uploaded code and of its layers, in order; empty: the code lies in the function's folder.
        keeps_old: whether what serves goes on serving when the init of this version fails; else callers get its error.
        retries: whether an unchanged version is published again where another try may succeed.
        begin: called with the version when it is built, before it is started; False: it is not wanted any more.
    """

    function: Function
    source: object
    number: str = LATEST
    packages: tuple[str, ...] = ()
    keeps_old: bool = False
    retries: bool = False
    begin: Callable[[Version], bool] = lambda version: True


class Ending(Enum):
    """How a publication ended."""

    SERVES = "the version serves"
    UNCHANGED = "it was published before, and nothing has changed"
    RESTORED = "it serves as before; a later one that could not replace it is not declared any more"
    INIT_FAILED = "its init failed"
    FAILED = "it could not be published"
    GONE = "it was deleted or replaced before it was ready"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a publication.

    Attributes:
        ending: how it ended.
        version: as it was built; None where the ending is `FAILED` or `GONE`.
        reason: why its init failed, or why it could not be published; else empty.
        replaces: whether another version served when this one was ready to be started.
    """

    ending: Ending
    version: Version | None = None
    reason: str = ""
    replaces: bool = False


class Publisher:
    """Publishes versions, and remembers them, so that no version is published twice.

    Args:
        builder: builds versions.
        dispatcher: starts and serves versions.
        code: uploaded code.
        context: returns what the configuration in force says for builds.
        say: gets lines about steps that take long, for the operator.
    """

    def __init__(
        self,
        builder: Builder,
        dispatcher: Dispatcher,
        code: CodeStore,
        *,
        context: Callable[[], BuildContext],
        say: Callable[[str], None],
    ) -> None:
        self._builder = builder
        self._dispatcher = dispatcher
        self._code = code
        self._context = context
        self._say = say
        self._published: dict[tuple[str, str], Version] = {}
        self._running: dict[tuple[str, str], tuple[object, asyncio.Task[Outcome]]] = {}

    async def publish(self, candidate: Candidate) -> Outcome:
        """Have the candidate serve. Its publication goes on when the caller is cancelled."""
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

    def is_publishing(self, name: str, number: str) -> bool:
        """Whether a publication of the version is running."""
        return (name, number) in self._running

    async def _publish(self, candidate: Candidate) -> Outcome:
        """Publish, and turn any error into an outcome."""
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
        """Have the candidate serve, unless it does already.

        Raises:
            ResourceNotFoundException: the version was deleted meanwhile.
            ThawdError: it cannot be built, or no process can be started.
        """
        name, number = candidate.function.name, candidate.number
        version = await self._build(candidate)
        if self._published.get((name, number)) is version:
            if not (candidate.retries and self._dispatcher.may_fare_better(version)):
                restored = self._dispatcher.confirm(version)
                return Outcome(Ending.RESTORED if restored else Ending.UNCHANGED, version)
            self.forget(name, number)
            version = await self._build(candidate)  # the dispatcher takes a version once: the next try is another one
        if not candidate.begin(version):
            return Outcome(Ending.GONE)
        replaces = self._dispatcher.entry(name, number).pool is not None
        outcome = Outcome(Ending.SERVES, version, replaces=replaces)
        try:
            await self._dispatcher.publish(version, keeps_old=candidate.keeps_old)
        except InitError as error:
            outcome = Outcome(Ending.INIT_FAILED, version, str(error), replaces)
            if error.from_outside:
                return outcome
        self.remember(version)
        return outcome

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
            progress=lambda line: self._say(f"  {function.name}: {line}"),
        )

    def remember(self, version: Version) -> None:
        """Note that `version` is published, so that it is not published again."""
        self._published[version.function.name, version.number] = version

    def forget(self, name: str, number: str) -> None:
        """Note that a version exists no more, or is to be published again; its package may be removed."""
        self._published.pop((name, number), None)

    async def check_runtime(self, function: Function) -> None:
        """Check that the interpreter of a function is on this machine; a program in its code is not looked for.

        Raises:
            EnvironmentBuildError: the interpreter is not here, or does not work.
        """
        await self._builder.check_runtime(function, folder=self._context().folder)

    async def clean(self, *, keep: Callable[[], set[str]]) -> None:
        """Remove packages that no version uses, and environments of requirements that none has used for a week.

        Args:
            keep: names of other packages that stay; called again for each package, in a thread.

        Raises:
            StoreError: something cannot be removed.
        """
        in_use = [*self._published.values(), *self._dispatcher.versions()]
        await asyncio.to_thread(self._builder.clean, in_use, keep=keep)
