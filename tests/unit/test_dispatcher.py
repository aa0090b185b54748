"""`thawd.scheduling.dispatcher`: which version an invocation goes to, and what publishing does."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.execution_fakes import FakeEnvironment, Machine, invocation, turns, until, version_of, within
from thawd.environments.init_phase import InitError
from thawd.environments.starts.origin import Reason
from thawd.environments.version import Version
from thawd.errors import ResourceNotFoundException, ServiceException
from thawd.invocation import Result, StartKind
from thawd.resources import Destination
from thawd.wire import frames

ARN = "arn:aws:lambda:us-east-1:000000000000:function"


def origin(**attributes: Any) -> Any:
    """Return a fake for what a version is started from."""
    nothing = {
        "start": StartKind.COLD,
        "obstacles": (),
        "why": None,
        "init_ms": None,
        "why_no_image": None,
        "spare_refused": None,
    }
    return SimpleNamespace(**{**nothing, "describe": dict, **attributes})


class Desk(Machine):
    """A `Machine` whose spawner says how versions start, and which can be made to fail to prepare a version."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"immediate": True, **options})
        self.origin: Any = origin()
        self.preparing: list[Exception] = []
        self.retired: list[tuple[int, bool]] = []
        self.spawner.origin = lambda version: self.origin  # type: ignore[method-assign]
        self.spawner.prepare = self.prepare  # type: ignore[method-assign]
        self.spawner.retire = self.note_retired  # type: ignore[method-assign]

    async def prepare(self, version: Version) -> None:
        if self.preparing:
            raise self.preparing.pop(0)

    def note_retired(self, version: Version, *, for_good: bool = False) -> None:
        self.retired.append((version.generation, for_good))

    async def publish(self, name: str = "f", *, number: str = "$LATEST", generation: int = 1, **function: Any) -> None:
        version = replace(version_of(name, generation=generation, **function), number=number)
        await self.dispatcher.publish(version)

    def invoke(self, name: str = "f", qualifier: str | None = None, **rest: Any) -> asyncio.Task[Result]:
        asked = replace(invocation(name, **rest), qualifier=qualifier)
        return asyncio.get_running_loop().create_task(self.dispatcher.invoke(asked))

    async def answer(self, result: Result, qualifier: str | None = None) -> FakeEnvironment:
        """Run one invocation to its end and return the environment that served it."""
        task = self.invoke(qualifier=qualifier)
        await until(self.busy)
        (environment,) = self.busy()
        environment.answer.set_result(result)  # type: ignore[union-attr]
        assert await within(task) is result
        return environment


async def with_versions(*numbers: str) -> Desk:
    """Make a function with ``$LATEST`` and these published versions, each with its own generation."""
    desk = Desk()
    await desk.serve("f")
    for number in numbers:
        desk.dispatcher.declare_version(version_of().function, number)
        await desk.publish(number=number, generation=10 + int(number))
    return desk


# Which version an invocation goes to


async def test_an_invocation_goes_to_the_version_or_alias_it_names() -> None:
    desk = await with_versions("1", "2")
    desk.dispatcher.set_aliases("f", {"live": {"2": 1.0}, "newest": {"$LATEST": 1.0}})
    expected = {None: 1, "$LATEST": 1, "1": 11, "2": 12, "live": 12, "newest": 1}
    for qualifier, generation in expected.items():
        environment = await desk.answer(Result(b"1"), qualifier)
        assert environment.version.generation == generation, qualifier


async def test_a_weighted_alias_goes_to_its_versions_by_their_shares() -> None:
    desk = await with_versions("1", "2")
    desk.dispatcher.set_aliases("f", {"canary": {"1": 0.9, "2": 0.1}})
    numbers = [desk.dispatcher.entry("f", "canary").number for _ in range(2000)]
    assert 1600 < numbers.count("1") < 1990  # equal shares would give 1000, with a deviation of about 22
    assert set(numbers) == {"1", "2"}


async def test_what_is_not_there_is_not_found_by_the_name_it_was_asked_by() -> None:
    desk = await with_versions("1")
    desk.dispatcher.set_aliases("f", {"old": {"7": 1.0}})
    for name, qualifier, shown in (
        ("g", None, "g:$LATEST"),
        ("g", "live", "g:live"),
        ("f", "2", "f:2"),
        ("f", "live", "f:live"),
        ("f", "old", "f:old"),
    ):
        with pytest.raises(ResourceNotFoundException) as caught:
            await desk.invoke(name, qualifier)
        assert caught.value.message == f"Function not found: {ARN}:{shown}"


async def test_a_version_that_is_removed_is_gone_and_what_runs_in_it_runs_to_its_end() -> None:
    desk = await with_versions("1")
    task = desk.invoke(qualifier="1")
    await until(desk.busy)
    desk.dispatcher.remove_version("f", "1")
    desk.dispatcher.remove_version("f", "1")  # it is removed already
    with pytest.raises(ResourceNotFoundException):
        await desk.invoke(qualifier="1")
    (environment,) = desk.busy()
    environment.answer.set_result(Result(b"1"))  # type: ignore[union-attr]
    assert (await within(task)).payload == b"1"
    assert (11, True) in desk.retired


async def test_a_version_that_is_declared_twice_stays_as_it_was() -> None:
    desk = await with_versions("1")
    entry = desk.dispatcher.entry("f", "1")
    assert desk.dispatcher.declare_version(version_of().function, "1") is entry
    assert entry.state == "Active"
    with pytest.raises(ResourceNotFoundException):
        desk.dispatcher.declare_version(version_of("g").function, "1")


async def test_asynchronous_invocations_see_what_their_qualifier_changes_and_what_is_latests_own() -> None:
    desk = Desk()
    queue = Destination("sqs", "arn:aws:sqs:us-east-1:000000000000:dead")
    await desk.serve("f", dead_letter=queue, reserved_concurrency=5)
    desk.dispatcher.declare_version(version_of(reserved_concurrency=1, memory_mb=256).function, "1")
    family = desk.dispatcher.family("f")
    family.asynchronous = {"$LATEST": {"maximum_retry_attempts": 0}, "1": {"maximum_retry_attempts": 1}}
    latest, published = desk.dispatcher.asynchronous("f", None), desk.dispatcher.asynchronous("f", "1")
    assert (latest.maximum_retry_attempts, latest.dead_letter, latest.reserved_concurrency) == (0, queue, 5)
    assert (published.maximum_retry_attempts, published.dead_letter, published.reserved_concurrency) == (1, queue, 5)
    assert published.memory_mb == 256
    family.asynchronous = {}
    assert desk.dispatcher.asynchronous("f", "1").maximum_retry_attempts == 2
    for name, qualifier, shown in (("g", "x", "g:x"), ("f", "2", "f:2")):
        with pytest.raises(ResourceNotFoundException, match=shown):
            desk.dispatcher.asynchronous(name, qualifier)


# Publishing


async def test_a_first_publication_that_fails_serves_its_error_until_a_start_goes_well() -> None:
    desk = Desk()
    active: list[tuple[str, str]] = []
    desk.dispatcher.on_active = lambda name, number: active.append((name, number))
    desk.preparing = [InitError("broken", b'{"errorType":"Broken"}')]
    with pytest.raises(InitError):
        await desk.serve("f")
    entry = desk.dispatcher.entry("f")
    assert (entry.state, entry.reason) == ("Failed", "broken")
    # The first request makes init run again, and it succeeds.
    await desk.answer(Result(b"1"))
    assert (entry.state, entry.reason) == ("Active", None)
    assert active == [("f", "$LATEST")]
    await desk.answer(Result(b"1"))
    assert active == [("f", "$LATEST")]


async def test_an_active_function_is_not_reported_active_again_at_each_start() -> None:
    desk = Desk()
    active: list[tuple[str, str]] = []
    desk.dispatcher.on_active = lambda name, number: active.append((name, number))
    await desk.serve("f")
    await desk.answer(Result(b"1"))
    assert active == []


async def test_while_a_new_version_fails_the_old_one_serves_and_says_why() -> None:
    desk = Desk()
    await desk.serve("f")
    desk.preparing = [InitError("broken", b"{}")]
    with pytest.raises(InitError):
        await desk.publish(generation=2)
    entry = desk.dispatcher.entry("f")
    assert entry.state == "Active"
    assert entry.reason is not None
    assert entry.reason.endswith(": broken")
    assert (await desk.answer(Result(b"1"))).version.generation == 1
    assert desk.retired == [(2, True)]
    await desk.publish(generation=3)
    assert (entry.state, entry.reason) == ("Active", None)
    assert (await desk.answer(Result(b"1"))).version.generation == 3


async def test_where_the_old_version_is_not_to_stay_callers_get_the_new_ones_error() -> None:
    desk = Desk()
    await desk.serve("f")
    desk.preparing = [InitError("broken", b"{}")]
    with pytest.raises(InitError):
        await desk.dispatcher.publish(version_of(generation=2), keeps_old=False)
    assert desk.dispatcher.entry("f").state == "Failed"
    assert desk.retired == [(1, True)]


async def test_a_version_that_failed_itself_does_not_stay_for_another_that_fails() -> None:
    desk = Desk()
    desk.preparing = [InitError("first", b"{}"), InitError("second", b"{}")]
    for generation in (1, 2):
        with pytest.raises(InitError):
            await (desk.serve("f") if generation == 1 else desk.publish(generation=2))
    entry = desk.dispatcher.entry("f")
    assert (entry.state, entry.reason) == ("Failed", "second")
    assert entry.pool is not None
    assert entry.pool.version.generation == 2


@pytest.mark.parametrize("stopping", [False, True])
@pytest.mark.parametrize("fails", [False, True])
async def test_a_function_that_is_deleted_while_it_is_published_is_not_served(stopping: bool, fails: bool) -> None:
    desk = Desk()
    await desk.serve("f")

    async def deleted(version: Version) -> None:
        desk.dispatcher.stopping = stopping
        desk.dispatcher.declare({})
        if fails:
            raise InitError("broken", b"{}")

    desk.spawner.prepare = deleted  # type: ignore[method-assign]
    expected = ServiceException if stopping else ResourceNotFoundException
    with pytest.raises(expected) as caught:
        await desk.publish(generation=2)
    assert ("stopping" if stopping else f"{ARN}:f:$LATEST") in caught.value.message
    assert desk.retired == [(1, not stopping), (2, not stopping)]


async def test_a_publication_that_is_broken_off_leaves_nothing_behind() -> None:
    desk = Desk()
    await desk.serve("f")
    desk.preparing = [RuntimeError("a bug")]
    with pytest.raises(RuntimeError):
        await desk.publish(generation=2)
    await turns()
    assert desk.retired == [(2, True)]
    assert [version.generation for version in desk.dispatcher.versions()] == [1]


async def test_provisioned_environments_are_as_many_as_were_asked_for_at_each_publication() -> None:
    desk = Desk()
    desk.dispatcher.declare({"f": version_of(provisioned_concurrency=1).function})
    desk.dispatcher.provision("f", "$LATEST", 3)
    await desk.publish(provisioned_concurrency=1)
    assert desk.dispatcher.status()["f"]["environments"]["idle"] == 3
    desk.dispatcher.provision("f", "$LATEST", None)
    pool = desk.dispatcher.entry("f").pool
    assert pool is not None
    assert pool.provisioned_ready() == 1
    desk.dispatcher.provision("f", "$LATEST", 2)
    await until(lambda: pool.provisioned_ready() == 2)
    await desk.publish(generation=2, provisioned_concurrency=1)
    pool = desk.dispatcher.entry("f").pool
    assert pool is not None
    assert (pool.provisioned, pool.provisioned_ready()) == (2, 2)


@pytest.mark.parametrize(("count", "published"), [(2, 1), (0, 0), (None, 0)])
async def test_a_version_that_nobody_invoked_is_published_once_environments_are_to_be_ready(
    count: int | None, published: int
) -> None:
    desk = Desk()
    await desk.serve("f")
    wanted: list[str] = []
    desk.dispatcher.declare_version(version_of().function, "1", publish=lambda: wanted.append("1"))
    desk.dispatcher.provision("f", "1", count)
    assert len(wanted) == published
    assert desk.dispatcher.entry("f", "1").provisioned == count


async def test_what_was_learnt_of_idle_times_is_kept_over_publications_until_the_words_change() -> None:
    desk = Desk()
    await desk.serve("f", keep_alive="histogram")
    entry = desk.dispatcher.entry("f")
    learnt = entry.policy(version_of(keep_alive="histogram").function)
    await desk.publish(generation=2, keep_alive="histogram")
    assert entry.pool is not None
    assert entry.pool._keeper.policy is learnt
    await desk.publish(generation=3, keep_alive="histogram", idle_timeout_s=7.0)
    assert entry.pool._keeper.policy is not learnt


# When publishing again may help


async def test_publishing_again_may_help_where_init_or_the_priming_event_failed() -> None:
    desk = Desk()
    version = version_of()
    desk.dispatcher.declare({"f": version.function})
    assert desk.dispatcher.may_fare_better(version)  # it is not serving yet
    await desk.dispatcher.publish(version)
    assert not desk.dispatcher.may_fare_better(version)
    assert desk.dispatcher.may_fare_better(version_of())  # a different version from the one that serves
    desk.origin = origin(why_no_image=Reason("a thread runs"))
    assert not desk.dispatcher.may_fare_better(version)
    desk.origin = origin(why_no_image=Reason(f"{frames.PRIMING_FAILED}: no such object"))
    assert desk.dispatcher.may_fare_better(version)
    desk.origin = origin()
    desk.dispatcher.entry("f").state = "Failed"
    assert desk.dispatcher.may_fare_better(version)


async def test_of_a_published_version_it_is_that_one_that_may_fare_better() -> None:
    desk = Desk()
    await desk.serve("f")
    published = replace(version_of(generation=11), number="1")
    desk.dispatcher.declare_version(published.function, "1")
    await desk.dispatcher.publish(published)
    assert not desk.dispatcher.may_fare_better(published)
    desk.dispatcher.entry("f", "1").state = "Failed"
    assert desk.dispatcher.may_fare_better(published)
