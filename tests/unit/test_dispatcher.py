"""Claims about `thawd.scheduling.dispatcher`: where an invocation goes, what it waits for, what is counted."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.execution_fakes import FakeEnvironment, invocation, turns, until, version_of, within
from tests.unit.test_node import Machine
from tests.unit.test_pool import scenario
from thawd.environments.init_phase import InitError
from thawd.environments.starts.origin import Obstacle
from thawd.environments.version import Version
from thawd.errors import (
    ResourceConflictException,
    ResourceNotFoundException,
    ResourceNotReadyException,
    ServiceException,
    TooManyRequestsException,
)
from thawd.invocation import Invocation, Result, StartKind
from thawd.resources import Destination
from thawd.scheduling.room import StartMethod
from thawd.wire import frames

ARN = "arn:aws:lambda:us-east-1:000000000000:function"


class Desk(Machine):
    """A machine whose node says how versions start, and that can be told to fail to prepare one."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"immediate": True, **options})
        self.method = StartMethod(StartKind.COLD, (), None, {})
        self.preparing: list[Exception] = []
        self.retired: list[tuple[int, bool]] = []
        self.node.start_method = lambda version: self.method  # type: ignore[method-assign]
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
        """One invocation from its begin to its end; the environment that served it."""
        task = self.invoke(qualifier=qualifier)
        await until(self.busy)
        (environment,) = self.busy()
        environment.answer.set_result(result)  # type: ignore[union-attr]
        assert await within(task) is result
        return environment


async def with_versions(*numbers: str) -> Desk:
    """Given: a function with ``$LATEST`` and these published versions, each of its own generation."""
    desk = Desk()
    await desk.serve("f")
    for number in numbers:
        desk.dispatcher.declare_version(version_of().function, number)
        await desk.publish(number=number, generation=10 + int(number))
    return desk


# Where an invocation goes.


@scenario
async def test_an_invocation_goes_to_the_version_or_alias_it_names() -> None:
    desk = await with_versions("1", "2")
    desk.dispatcher.set_aliases("f", {"live": {"2": 1.0}, "newest": {"$LATEST": 1.0}})
    expected = {None: 1, "$LATEST": 1, "1": 11, "2": 12, "live": 12, "newest": 1}
    for qualifier, generation in expected.items():
        environment = await desk.answer(Result(b"1"), qualifier)
        assert environment.version.generation == generation, qualifier


@scenario
async def test_a_weighted_alias_goes_to_its_versions_by_their_shares() -> None:
    desk = await with_versions("1", "2")
    desk.dispatcher.set_aliases("f", {"canary": {"1": 0.9, "2": 0.1}})
    numbers = [desk.dispatcher.entry("f", "canary").number for _ in range(2000)]
    assert 1600 < numbers.count("1") < 1990  # by fair halves it would be 1000, some 22 give or take
    assert set(numbers) == {"1", "2"}


@scenario
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


@scenario
async def test_a_version_that_is_removed_is_gone_and_what_runs_in_it_runs_to_its_end() -> None:
    desk = await with_versions("1")
    task = desk.invoke(qualifier="1")
    await until(desk.busy)
    desk.dispatcher.remove_version("f", "1")
    desk.dispatcher.remove_version("f", "1")  # it is gone already
    with pytest.raises(ResourceNotFoundException):
        await desk.invoke(qualifier="1")
    (environment,) = desk.busy()
    environment.answer.set_result(Result(b"1"))  # type: ignore[union-attr]
    assert (await within(task)).payload == b"1"
    assert (11, True) in desk.retired


@scenario
async def test_a_version_that_is_declared_twice_stays_as_it_was() -> None:
    desk = await with_versions("1")
    entry = desk.dispatcher.entry("f", "1")
    assert desk.dispatcher.declare_version(version_of().function, "1") is entry
    assert entry.state == "Active"
    with pytest.raises(ResourceNotFoundException):
        desk.dispatcher.declare_version(version_of("g").function, "1")


@scenario
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


# Publishing.


@scenario
async def test_a_first_publication_that_fails_serves_its_error_until_a_start_goes_well() -> None:
    desk = Desk()
    active: list[tuple[str, str]] = []
    desk.dispatcher.on_active = lambda name, number: active.append((name, number))
    desk.preparing = [InitError("broken", b'{"errorType":"Broken"}')]
    with pytest.raises(InitError):
        await desk.serve("f")
    entry = desk.dispatcher.entry("f")
    assert (entry.state, entry.reason) == ("Failed", "broken")
    # The first request has init run again; it succeeds.
    await desk.answer(Result(b"1"))
    assert (entry.state, entry.reason) == ("Active", None)
    assert active == [("f", "$LATEST")]
    await desk.answer(Result(b"1"))
    assert active == [("f", "$LATEST")]


@scenario
async def test_an_active_function_is_not_reported_active_again_at_each_start() -> None:
    desk = Desk()
    active: list[tuple[str, str]] = []
    desk.dispatcher.on_active = lambda name, number: active.append((name, number))
    await desk.serve("f")
    await desk.answer(Result(b"1"))
    assert active == []


@scenario
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


@scenario
async def test_where_the_old_version_is_not_to_stay_callers_get_the_new_ones_error() -> None:
    desk = Desk()
    await desk.serve("f")
    desk.preparing = [InitError("broken", b"{}")]
    with pytest.raises(InitError):
        await desk.dispatcher.publish(version_of(generation=2), keeps_old=False)
    assert desk.dispatcher.entry("f").state == "Failed"
    assert desk.retired == [(1, True)]


@scenario
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
def test_a_function_that_is_deleted_while_it_is_published_is_not_served(stopping: bool, fails: bool) -> None:
    @scenario
    async def claim() -> None:
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

    claim()


@scenario
async def test_a_publication_that_is_broken_off_leaves_nothing_behind() -> None:
    desk = Desk()
    await desk.serve("f")
    desk.preparing = [RuntimeError("a bug")]
    with pytest.raises(RuntimeError):
        await desk.publish(generation=2)
    await turns()
    assert desk.retired == [(2, True)]
    assert [version.generation for version in desk.dispatcher.versions()] == [1]


@scenario
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
def test_a_version_that_nobody_invoked_is_published_once_environments_are_to_be_ready(
    count: int | None, published: int
) -> None:
    @scenario
    async def claim() -> None:
        desk = Desk()
        await desk.serve("f")
        wanted: list[str] = []
        desk.dispatcher.declare_version(version_of().function, "1", wanted=lambda: wanted.append("1"))
        desk.dispatcher.provision("f", "1", count)
        assert len(wanted) == published
        assert desk.dispatcher.entry("f", "1").provisioned == count

    claim()


@scenario
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


# Waiting for a publication.


@scenario
async def test_an_invocation_waits_for_the_first_publication_until_its_deadline() -> None:
    desk = Desk()
    desk.dispatcher.declare({"f": version_of().function})
    with pytest.raises(ResourceConflictException, match="following state: Pending"):
        await within(desk.invoke(wait_s=0.01), deadline_s=30)
    waiting = desk.invoke()
    await turns()
    await desk.publish()
    await until(desk.busy)
    (environment,) = desk.busy()
    environment.answer.set_result(Result(b"1"))  # type: ignore[union-attr]
    await within(waiting)


@scenario
async def test_an_invocation_of_what_could_not_be_published_is_told_why() -> None:
    desk = Desk()
    desk.dispatcher.declare({"f": version_of().function})
    desk.dispatcher.fail("f", "no such interpreter")
    assert desk.dispatcher.entry("f").state == "Failed"
    with pytest.raises(ResourceNotReadyException, match=r": no such interpreter$"):
        await within(desk.invoke())


@scenario
async def test_what_could_not_be_published_again_goes_on_serving() -> None:
    desk = Desk()
    await desk.serve("f")
    desk.dispatcher.fail("f", "no such interpreter")
    entry = desk.dispatcher.entry("f")
    assert (entry.state, entry.reason) == ("Active", "no such interpreter")
    await desk.answer(Result(b"1"))


@scenario
async def test_a_published_version_is_published_here_when_it_is_invoked_and_again_after_a_failure() -> None:
    desk = Desk()
    await desk.serve("f")
    states: list[tuple[str, str | None]] = []
    entry = desk.dispatcher.declare_version(
        version_of().function, "1", wanted=lambda: states.append((entry.state, entry.reason))
    )
    assert states == []
    first = desk.invoke(qualifier="1")
    await turns()
    desk.dispatcher.fail("f", "no such interpreter", number="1")
    with pytest.raises(ResourceNotReadyException):
        await within(first)
    second = desk.invoke(qualifier="1")
    await turns()
    assert [state for state, _ in states] == ["Pending"] * 2
    assert states[0] == states[1]
    assert not second.done()
    await desk.publish(number="1")
    await until(desk.busy)
    desk.busy()[0].answer.set_result(Result(b"1"))  # type: ignore[union-attr]
    await within(second)


@scenario
async def test_who_waits_for_a_version_that_is_deleted_is_told_so() -> None:
    desk = Desk()
    desk.dispatcher.declare({"f": version_of().function})
    waiting = desk.invoke()
    await turns()
    entry = desk.dispatcher.entry("f")
    desk.dispatcher.declare({})
    with pytest.raises(ResourceNotReadyException, match="deleted"):
        await within(waiting)
    assert entry.state == "Failed"


@scenario
async def test_who_waits_for_a_version_that_is_declared_anew_is_served_by_that_and_by_no_other() -> None:
    desk = await with_versions()
    desk.dispatcher.declare_version(version_of().function, "1")
    waiting = desk.invoke(qualifier="1")
    await turns()
    desk.dispatcher.declare({})
    desk.dispatcher.declare({"f": version_of().function})
    desk.dispatcher.declare_version(version_of().function, "1")
    await turns()
    await desk.publish(generation=2)
    await turns()
    assert desk.busy() == []
    await desk.publish(number="1", generation=11)
    await until(desk.busy)
    (environment,) = desk.busy()
    assert environment.version.generation == 11
    environment.answer.set_result(Result(b"1"))  # type: ignore[union-attr]
    await within(waiting)


@scenario
async def test_a_version_that_is_removed_while_it_is_published_is_named_by_its_number() -> None:
    desk = await with_versions()
    desk.dispatcher.declare_version(version_of().function, "1")

    async def removed(version: Version) -> None:
        desk.dispatcher.remove_version("f", "1")

    desk.spawner.prepare = removed  # type: ignore[method-assign]
    with pytest.raises(ResourceNotFoundException, match=r":function:f:1$"):
        await desk.publish(number="1")
    with pytest.raises(ResourceNotFoundException, match=r":function:g:live$"):
        desk.dispatcher.entry("g", "live")


# What may be worth another publication.


@scenario
async def test_publishing_again_may_help_where_init_or_the_priming_event_failed() -> None:
    desk = Desk()
    version = version_of()
    desk.dispatcher.declare({"f": version.function})
    assert desk.dispatcher.may_fare_better(version)  # it does not serve yet
    await desk.dispatcher.publish(version)
    assert not desk.dispatcher.may_fare_better(version)
    assert desk.dispatcher.may_fare_better(version_of())  # another than the one that serves
    desk.method = StartMethod(StartKind.COLD, (), None, {"refused": "a thread runs"})
    assert not desk.dispatcher.may_fare_better(version)
    desk.method = StartMethod(StartKind.COLD, (), None, {"refused": f"{frames.PRIMING_FAILED}: no such object"})
    assert desk.dispatcher.may_fare_better(version)
    desk.method = StartMethod(StartKind.COLD, (), None, {})
    desk.dispatcher.entry("f").state = "Failed"
    assert desk.dispatcher.may_fare_better(version)


@scenario
async def test_of_a_published_version_it_is_that_one_that_may_fare_better() -> None:
    desk = Desk()
    await desk.serve("f")
    published = replace(version_of(generation=11), number="1")
    desk.dispatcher.declare_version(published.function, "1")
    await desk.dispatcher.publish(published)
    assert not desk.dispatcher.may_fare_better(published)
    desk.dispatcher.entry("f", "1").state = "Failed"
    assert desk.dispatcher.may_fare_better(published)


# What is counted.


@pytest.mark.parametrize(
    ("result", "counts"),
    [
        (Result(b"1"), (0, 0, 0)),
        (Result(b'{"errorType":"ValueError"}', function_error="Unhandled"), (1, 0, 0)),
        (Result(b'{"errorType":"Sandbox.Timedout"}', function_error="Unhandled"), (1, 1, 0)),
        (Result(b'{"errorType":"Runtime.ExitError"}', function_error="Unhandled"), (1, 0, 1)),
        (Result(b'{"errorType":"Runtime.ExitError"}'), (0, 0, 0)),  # a handler may return what it likes
        (
            Result(b'{"say":"' + b"x" * 100 + b'","errorType":"Sandbox.Timedout"}', function_error="Unhandled"),
            (1, 0, 0),
        ),
    ],
)
def test_failures_are_counted_by_their_kind(result: Result, counts: tuple[int, int, int]) -> None:
    @scenario
    async def claim() -> None:
        desk = Desk()
        await desk.serve("f")
        for times in (1, 2):
            await desk.answer(result)
            metrics = desk.metrics.function("f")
            assert (metrics.errors, metrics.timeouts, metrics.exits) == tuple(times * count for count in counts)
            assert metrics.invocations[StartKind.WARM].count == times

    claim()


@scenario
async def test_an_invocation_takes_from_its_asking_to_its_answer() -> None:
    desk = Desk()
    await desk.serve("f")
    task = desk.invoke()
    await until(desk.busy)
    await asyncio.sleep(0.02)
    desk.busy()[0].answer.set_result(Result(b"1"))  # type: ignore[union-attr]
    await within(task)
    took = desk.metrics.function("f").invocations[StartKind.WARM]
    assert 20 <= took.max_ms < 60_000


@scenario
async def test_a_failed_init_is_counted_as_a_cold_start_and_an_error() -> None:
    desk = Desk(immediate=False)
    await desk.serve("f")
    task = desk.invoke()
    await turns()
    desk.spawner.fail(InitError("broken", b"{}"))
    assert (await within(task)).start_kind is StartKind.COLD
    metrics = desk.metrics.function("f")
    assert (metrics.errors, metrics.invocations[StartKind.COLD].count) == (1, 1)


@scenario
async def test_the_reserved_concurrency_is_of_all_versions_together_and_ends_with_each_answer() -> None:
    desk = Desk()
    await desk.serve("f", reserved_concurrency=2)
    desk.dispatcher.declare_version(version_of(reserved_concurrency=2).function, "1")
    await desk.publish(number="1", reserved_concurrency=2)
    family = desk.dispatcher.family("f")
    for _ in range(2):
        tasks = [desk.invoke(), desk.invoke(qualifier="1")]
        await until(lambda: len(desk.busy()) == 2)
        assert family.in_flight == 2
        throttles = desk.metrics.function("f").throttles
        for qualifier in (None, "1"):
            with pytest.raises(TooManyRequestsException):
                await desk.invoke(qualifier=qualifier)
        assert desk.metrics.function("f").throttles == throttles + 2
        for environment in desk.busy():
            environment.answer.set_result(Result(b"1"))  # type: ignore[union-attr]
        await within(asyncio.gather(*tasks))
        assert family.in_flight == 0


@scenario
async def test_a_full_queue_is_counted_as_a_throttle() -> None:
    desk = Desk(max_environments=1)
    desk.dispatcher._max_waiting = 1
    await desk.serve("f")
    tasks = [desk.invoke()]
    await until(desk.busy)
    tasks.append(desk.invoke())
    await turns()
    for throttles in (1, 2):
        with pytest.raises(TooManyRequestsException):
            await desk.invoke()
        assert desk.metrics.function("f").throttles == throttles
    for _ in tasks:
        await until(desk.busy)
        desk.busy()[0].answer.set_result(Result(b"1"))  # type: ignore[union-attr]
        await turns()
    await within(asyncio.gather(*tasks))


@scenario
async def test_only_the_invocation_that_waited_for_a_start_is_told_its_time() -> None:
    desk = Desk()
    await desk.serve("f")
    told: list[float | None] = []

    async def invoke(self: FakeEnvironment, invocation: Invocation, *, init_ms: float | None) -> Result:
        told.append(init_ms)
        return Result(b"1")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(FakeEnvironment, "invoke", invoke)
        for _ in range(2):
            await within(desk.invoke())
    assert told == [5.0, None]


# The end.


@scenario
async def test_the_drain_waits_for_what_runs_at_most_its_grace() -> None:
    desk = Desk()
    await desk.serve("f")
    assert await within(desk.dispatcher.drain(3600)) == 0
    tasks = [desk.invoke(), desk.invoke()]
    await until(lambda: len(desk.busy()) == 2)
    assert await within(desk.dispatcher.drain(0.01)) == 2
    draining = asyncio.get_running_loop().create_task(desk.dispatcher.drain(3600))
    for left in (1, 0):
        desk.busy()[0].answer.set_result(Result(b"1"))  # type: ignore[union-attr]
        await turns()
        assert draining.done() is (left == 0)
    assert await within(draining) == 0
    await within(asyncio.gather(*tasks))


# What is shown.


@scenario
async def test_the_status_shows_each_version_with_how_it_starts_and_who_waits() -> None:
    desk = Desk(max_environments=1)
    await desk.serve("f")
    desk.dispatcher.declare_version(version_of().function, "1")
    desk.method = StartMethod(StartKind.FORK, (Obstacle(StartKind.THAW, "a thread runs"),), 12.5, {"size": 7})
    running, waiting = desk.invoke(), desk.invoke()
    await until(desk.busy)
    shown = desk.dispatcher.status()["f"]
    assert shown["versions"] == {
        "1": {
            "state": "Pending",
            "reason": desk.dispatcher.entry("f", "1").reason,
            "start": None,
            "start_reason": None,
            "start_reasons": [],
            "template_init_ms": None,
            "snapshot": None,
            "environments": {"idle": 0, "busy": 0, "starting": 0},
            "keep_alive": None,
            "waiting": 0,
        }
    }
    assert {name: shown[name] for name in shown["versions"]["1"]} == {
        "state": "Active",
        "reason": None,
        "start": "fork",
        "start_reason": "a thread runs",
        "start_reasons": [{"start": "thaw", "reason": "a thread runs"}],
        "template_init_ms": 12.5,
        "snapshot": {"size": 7, "restore_p50_ms": None},
        "environments": {"idle": 0, "busy": 1, "starting": 0},
        "keep_alive": {"policy": "fixed", "prewarm_s": 0.0, "keep_alive_s": 300.0},
        "waiting": 1,
    }
    assert shown["throttles"] == 0
    desk.metrics.function("f").starts[StartKind.THAW].record(2.7182818)
    assert desk.dispatcher.status()["f"]["snapshot"] == {"size": 7, "restore_p50_ms": 2.718}
    desk.dispatcher.declare({"f": version_of().function, "g": version_of("g").function})
    assert list(desk.dispatcher.load()) == [
        ("f", {"idle": 0, "busy": 1, "starting": 0}, 1),
        ("g", {"idle": 0, "busy": 0, "starting": 0}, 0),
    ]
    assert "versions" not in desk.dispatcher.status()["g"]
    for task in (running, waiting):
        task.cancel()
    await turns()


@scenario
async def test_names_versions_and_most_environments_are_those_of_what_is_declared() -> None:
    desk = Desk(max_environments=8)
    await desk.serve("f", reserved_concurrency=3)
    desk.dispatcher.declare({"f": version_of(reserved_concurrency=3).function, "g": version_of("g").function})
    assert desk.dispatcher.names() == ["f", "g"]
    assert (desk.dispatcher.most_at_once("f"), desk.dispatcher.most_at_once("g")) == (3, 5)
    assert desk.dispatcher.family("f").latest is desk.dispatcher.entry("f")
    with pytest.raises(ResourceNotFoundException, match="h"):
        desk.dispatcher.family("h")
    task = desk.invoke()
    await until(desk.busy)
    await desk.publish(generation=2, reserved_concurrency=3)
    # The old one still has an environment that works.
    assert sorted(version.generation for version in desk.dispatcher.versions()) == [1, 2]
    desk.busy()[0].answer.set_result(Result(b"1"))  # type: ignore[union-attr]
    await within(task)
    await until(lambda: len(desk.dispatcher.versions()) == 1)
