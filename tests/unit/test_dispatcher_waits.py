"""The dispatcher: what callers wait for, what is counted, and what its status shows."""

from __future__ import annotations

import asyncio
import os

import pytest

from tests.unit.execution_fakes import FakeEnvironment, Machine, invocation, turns, until, version_of, within
from tests.unit.test_dispatcher import Desk, origin, with_versions
from thawd.environments.init_phase import InitError
from thawd.environments.starts.origin import Obstacle
from thawd.environments.version import Version
from thawd.errors import (
    ResourceConflictException,
    ResourceNotFoundException,
    ResourceNotReadyException,
    TooManyRequestsException,
)
from thawd.invocation import Invocation, Result, StartKind

# Waiting for a publication


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


async def test_an_invocation_of_what_could_not_be_published_is_told_why() -> None:
    desk = Desk()
    desk.dispatcher.declare({"f": version_of().function})
    desk.dispatcher.fail("f", "no such interpreter")
    assert desk.dispatcher.entry("f").state == "Failed"
    with pytest.raises(ResourceNotReadyException, match=r": no such interpreter$"):
        await within(desk.invoke())


async def test_what_could_not_be_published_again_goes_on_serving() -> None:
    desk = Desk()
    await desk.serve("f")
    desk.dispatcher.fail("f", "no such interpreter")
    entry = desk.dispatcher.entry("f")
    assert (entry.state, entry.reason) == ("Active", "no such interpreter")
    await desk.answer(Result(b"1"))


async def test_a_published_version_is_published_here_when_it_is_invoked_and_again_after_a_failure() -> None:
    desk = Desk()
    await desk.serve("f")
    states: list[tuple[str, str | None]] = []
    entry = desk.dispatcher.declare_version(
        version_of().function, "1", publish=lambda: states.append((entry.state, entry.reason))
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


# What is counted


@pytest.mark.parametrize(
    ("result", "counts"),
    [
        (Result(b"1"), (0, 0, 0)),
        (Result(b'{"errorType":"ValueError"}', function_error="Unhandled"), (1, 0, 0)),
        (Result(b'{"errorType":"Sandbox.Timedout"}', function_error="Unhandled"), (1, 1, 0)),
        (Result(b'{"errorType":"Runtime.ExitError"}', function_error="Unhandled"), (1, 0, 1)),
        (Result(b'{"errorType":"Runtime.ExitError"}'), (0, 0, 0)),  # a handler may return such an answer, too
        (
            Result(b'{"say":"' + b"x" * 100 + b'","errorType":"Sandbox.Timedout"}', function_error="Unhandled"),
            (1, 0, 0),
        ),
    ],
)
async def test_failures_are_counted_by_their_kind(result: Result, counts: tuple[int, int, int]) -> None:
    desk = Desk()
    await desk.serve("f")
    for times in (1, 2):
        await desk.answer(result)
        metrics = desk.metrics.function("f")
        assert (metrics.errors, metrics.timeouts, metrics.exits) == tuple(times * count for count in counts)
        assert metrics.invocations[StartKind.WARM].count == times


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


async def test_a_failed_init_is_counted_as_a_cold_start_and_an_error() -> None:
    desk = Desk(immediate=False)
    await desk.serve("f")
    task = desk.invoke()
    await turns()
    desk.spawner.fail(InitError("broken", b"{}"))
    assert (await within(task)).start_kind is StartKind.COLD
    metrics = desk.metrics.function("f")
    assert (metrics.errors, metrics.invocations[StartKind.COLD].count) == (1, 1)


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


# The end


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


# What is shown


async def test_the_status_shows_each_version_with_how_it_starts_and_who_waits() -> None:
    desk = Desk(max_environments=1)
    await desk.serve("f")
    desk.dispatcher.declare_version(version_of().function, "1")
    obstacle = Obstacle(StartKind.THAW, "a thread runs")
    desk.origin = origin(
        start=StartKind.FORK, obstacles=(obstacle,), why=obstacle.reason, init_ms=12.5, describe=lambda: {"size": 7}
    )
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
            "processes": [],
            "keep_alive": None,
            "waiting": 0,
            "spare": False,
            "spare_refused": None,
            "paths": None,
            "paths_reason": None,
            "tenants": None,
            "cores_each": None,
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
        "processes": [os.getpid()],
        "keep_alive": {"policy": "fixed", "prewarm_s": 0.0, "keep_alive_s": 300.0},
        "waiting": 1,
        "spare": False,
        "spare_refused": None,
        "paths": "real",
        "paths_reason": None,
        "tenants": None,
        "cores_each": None,
    }
    assert shown["throttles"] == 0
    desk.metrics.function("f").record_start(StartKind.THAW, 2.7182818)
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
    # The old version still has an environment with an invocation.
    assert sorted(version.generation for version in desk.dispatcher.versions()) == [1, 2]
    desk.busy()[0].answer.set_result(Result(b"1"))  # type: ignore[union-attr]
    await within(task)
    await until(lambda: len(desk.dispatcher.versions()) == 1)


async def test_an_invocation_reports_its_environment_when_it_has_one_and_not_while_it_waits() -> None:
    machine = Machine()
    await machine.serve("f")
    waiting = invocation()
    leased: list[float] = []
    waiting.on_leased = lambda: leased.append(waiting.leased_s)
    task = asyncio.ensure_future(machine.dispatcher.invoke(waiting))
    await until(lambda: machine.spawner.under_way)
    assert leased == []
    environment = machine.spawner.succeed()
    await until(lambda: environment.answer is not None)
    assert leased == [waiting.leased_s]
    assert environment.answer is not None
    environment.answer.set_result(Result(b"1"))
    await within(task)
