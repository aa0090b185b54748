"""`thawd.publishing.publisher`: the order of publications, what is remembered, and the effect of an error."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from thawd.environments.init_phase import InitError
from thawd.environments.version import Version
from thawd.errors import EnvironmentBuildError, ResourceNotFoundException
from thawd.publishing import publisher
from thawd.publishing.build import BuildContext
from thawd.publishing.publisher import Candidate, Ending, Outcome, Publisher
from thawd.resources import LATEST, Function
from thawd.scheduling.dispatcher import Dispatcher
from thawd.telemetry.metrics import Metrics

from .execution_fakes import House, turns, version_of, within


def claim(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(within(work()))


class Builder:
    """Builds at once. Returns the last version again while `code` has not changed."""

    def __init__(self) -> None:
        self.code = "a"
        self.failure: Exception | None = None
        self.built = 0

    async def build(self, function: Function, release: Any, *, last: Version | None, **_: Any) -> Version:
        if self.failure is not None:
            raise self.failure
        if last is not None and last.task_root == Path(self.code):
            return last
        self.built += 1
        version = version_of(function.name, generation=self.built)
        return Version(function, version.generation, version.python, "3.11.7", self.code, {}, release.number)


class Publishing(House):
    """A publisher with a real dispatcher. Each init waits for `gate` and may fail."""

    def __init__(self) -> None:
        super().__init__(immediate=True)
        self.gate = asyncio.Event()
        self.gate.set()
        self.init_error: InitError | None = None
        self.order: list[str] = []
        self.spawner.prepare = self._prepare  # type: ignore[method-assign]
        self.dispatcher = Dispatcher(self.room, self.spawner, Metrics(), max_waiting=10, spawn_task=self.spawn_task)
        self.builder: Any = Builder()
        self.publisher = Publisher(
            self.builder,
            self.dispatcher,
            code=None,  # type: ignore[arg-type]
            context=lambda: BuildContext(Path("/"), {}, ()),
            say=print,
        )
        self.function = version_of("f").function
        self.dispatcher.declare({"f": self.function})

    async def _prepare(self, version: Version) -> None:
        self.order.append(str(version.task_root))
        await self.gate.wait()
        if self.init_error is not None:
            raise self.init_error

    def publish(self, source: object = None, **candidate: Any) -> asyncio.Task[Outcome]:
        return asyncio.get_running_loop().create_task(
            self.publisher.publish(Candidate(self.function, source=source or object(), **candidate))
        )

    @property
    def entry(self) -> Any:
        return self.dispatcher.entry("f")


def test_what_has_not_changed_is_not_published_twice() -> None:
    async def work() -> None:
        house = Publishing()
        first = await house.publish()
        assert (first.ending, first.replaces) == (Ending.SERVES, False)
        again = await house.publish(retries=True)
        assert (again.ending, again.version) == (Ending.UNCHANGED, first.version)
        house.builder.code = "b"
        second = await house.publish()
        assert (second.ending, second.replaces, house.order) == (Ending.SERVES, True, ["a", "b"])

    claim(work)


def test_a_request_for_the_same_source_waits_for_the_outcome_and_a_newer_one_comes_after_it() -> None:
    async def work() -> None:
        house = Publishing()
        house.gate.clear()
        source = object()
        first, same = house.publish(source), house.publish(source)
        await turns()
        house.builder.code = "b"
        newer = house.publish()
        await turns()
        assert (house.order, house.publisher.is_publishing("f", LATEST)) == (["a"], True)
        first.cancel()  # the caller is cancelled; the publication continues
        house.gate.set()
        assert (await same).ending is Ending.SERVES
        assert (await newer).ending is Ending.SERVES
        assert house.order == ["a", "b"]
        assert house.entry.pool.version.task_root == Path("b")
        await turns()
        assert not house.publisher.is_publishing("f", LATEST)

    claim(work)


@pytest.mark.parametrize("waits", [False, True])
def test_a_slow_publication_says_whether_it_waits_for_a_debugged_invocation(
    waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "is_terminal", lambda: True)
    monkeypatch.setattr(publisher, "_TELL_AFTER_S", 0.001)

    async def work() -> None:
        house = Publishing()
        house.gate.clear()
        lines: asyncio.Queue[str] = asyncio.Queue()
        monkeypatch.setattr(house.publisher, "_say", lines.put_nowait)
        old = replace(version_of("f"), debugged=waits)  # its one environment runs an invocation
        monkeypatch.setattr(house.dispatcher, "versions", lambda: [old])
        publication = house.publish()
        said = "waits for the running invocation, which a debugger may have stopped" if waits else "init runs"
        assert said in await lines.get()
        house.gate.set()
        assert (await publication).ending is Ending.SERVES

    claim(work)


@pytest.mark.parametrize("from_outside", [False, True])
def test_a_version_whose_init_was_killed_from_outside_is_published_again(from_outside: bool) -> None:
    async def work() -> None:
        house = Publishing()
        house.init_error = InitError("no", b"{}", from_outside=from_outside)
        failed = await house.publish()
        assert (failed.ending, failed.reason, house.entry.state) == (Ending.INIT_FAILED, "no", "Failed")
        house.init_error = None
        again = await house.publish()
        assert again.ending is (Ending.SERVES if from_outside else Ending.UNCHANGED)
        house.init_error = None
        retried = await house.publish(retries=True)
        assert retried.ending is (Ending.UNCHANGED if from_outside else Ending.SERVES)
        assert house.entry.state == "Active"

    claim(work)


@pytest.mark.parametrize("keeps_old", [False, True])
def test_the_old_version_goes_on_serving_where_that_is_asked_for(keeps_old: bool) -> None:
    async def work() -> None:
        house = Publishing()
        await house.publish()
        house.builder.code, house.init_error = "b", InitError("no", b"{}")
        failed = await house.publish(keeps_old=keeps_old)
        assert (failed.ending, failed.replaces) == (Ending.INIT_FAILED, True)
        assert house.entry.pool.version.task_root == Path("a" if keeps_old else "b")
        assert house.entry.state == ("Active" if keeps_old else "Failed")

    claim(work)


@pytest.mark.parametrize("error", [EnvironmentBuildError("no pip"), KeyError("odd")])
def test_an_error_is_the_outcome_and_what_serves_is_confirmed_once_it_is_wanted_again(error: Exception) -> None:
    async def work() -> None:
        house = Publishing()
        await house.publish()
        house.builder.failure = error
        failed = await house.publish()
        assert failed.ending is Ending.FAILED and str(error) in failed.reason
        assert (house.entry.state, house.entry.reason) == ("Active", failed.reason)
        house.builder.failure = None
        assert (await house.publish()).ending is Ending.RESTORED
        assert house.entry.reason is None
        assert (await house.publish()).ending is Ending.UNCHANGED

    claim(work)


def test_what_is_deleted_or_not_wanted_any_more_is_gone() -> None:
    async def work() -> None:
        house = Publishing()
        assert (await house.publish(begin=lambda version: False)).ending is Ending.GONE
        assert house.order == []
        house.gate.clear()
        running = house.publish()
        await turns()
        house.dispatcher.declare({})
        house.gate.set()
        assert (await running).ending is Ending.GONE
        house.builder.failure = ResourceNotFoundException("no")
        assert (await house.publish()).ending is Ending.GONE
        house.builder.failure = KeyError("odd")
        assert (await house.publish()).ending is Ending.GONE

    claim(work)
