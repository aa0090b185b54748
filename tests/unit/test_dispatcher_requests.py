"""The dispatcher: what happens to requests whose function is removed, changed, broken or full."""

from __future__ import annotations

import asyncio
import signal

import pytest

from tests.unit.execution_fakes import Machine, turns, until, version_of, within
from thawd.environments.init_phase import InitError
from thawd.errors import ResourceNotFoundException, ThawdError, TooManyRequestsException
from thawd.invocation import Result


class FrozenLoopError(BaseException):
    """The event loop ran nothing else for a minute."""


def raise_frozen(*_: object) -> None:
    raise FrozenLoopError


def test_removing_a_function_whose_requests_wait_answers_them_and_does_not_freeze_the_loop() -> None:
    """This happens after a reload that no longer has the function, and at the end of the grace period of a stop."""

    async def claim() -> None:
        machine = Machine(max_environments=1, immediate=True)
        await machine.serve("f")
        first = machine.ask()
        await until(machine.busy)
        waiting = machine.ask()
        await turns()
        machine.dispatcher.declare({})
        with pytest.raises(ThawdError):
            await within(waiting)
        machine.busy()[0].answer.set_result(Result(b"1"))  # type: ignore[union-attr]
        assert (await within(first)).payload == b"1"

    before = signal.signal(signal.SIGALRM, raise_frozen)
    signal.setitimer(signal.ITIMER_REAL, 60.0)
    try:
        asyncio.run(claim())
    except FrozenLoopError:
        pytest.fail("the event loop spins: a request keeps asking a retired pool")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


async def test_a_function_that_is_declared_anew_serves_those_who_waited_for_the_one_before() -> None:
    """This happens when a reload removes a function from the configuration and so returns it to the Lambda API that
    made it."""
    machine = Machine(max_environments=3)
    await machine.serve("f")
    waiting_for_a_start = machine.ask()
    await turns()
    declared = {"f": version_of("f").function}
    machine.dispatcher.declare({})
    machine.dispatcher.declare(declared)
    await turns()
    # And again before it has been published
    waiting_for_publication = machine.ask()
    await turns()
    machine.dispatcher.declare({})
    machine.dispatcher.declare(declared)
    await turns()
    assert not waiting_for_a_start.done()
    assert not waiting_for_publication.done()
    machine.spawner.immediate = True
    await machine.dispatcher.publish(version_of("f", generation=2))
    await until(lambda: len(machine.busy()) == 2)
    for environment in machine.busy():
        assert environment.version.generation == 2
        environment.answer.set_result(Result(b"anew"))  # type: ignore[union-attr]
    for waiting in (waiting_for_a_start, waiting_for_publication):
        assert (await within(waiting)).payload == b"anew"


async def test_a_new_version_serves_those_who_waited_for_the_old_one() -> None:
    machine = Machine(max_environments=3, immediate=True)
    await machine.serve("f")
    first = machine.ask()
    await until(machine.busy)
    (old,) = machine.busy()
    machine.spawner.immediate = False
    waiting = machine.ask()
    await turns()
    machine.spawner.immediate = True
    await machine.dispatcher.publish(version_of("f", generation=2))
    await until(lambda: len(machine.busy()) == 2)
    new = next(e for e in machine.busy() if e is not old)
    assert new.version.generation == 2
    new.answer.set_result(Result(b"new"))  # type: ignore[union-attr]
    assert (await within(waiting)).payload == b"new"
    old.answer.set_result(Result(b"old"))  # type: ignore[union-attr]
    assert (await within(first)).payload == b"old"
    await within(old.ended.wait())


async def test_reserved_concurrency_throttles_what_comes_beyond_with_its_own_reason() -> None:
    machine = Machine(immediate=True)
    await machine.serve("f", reserved_concurrency=1)
    first = machine.ask()
    await until(machine.busy)
    with pytest.raises(TooManyRequestsException) as caught:
        await machine.ask()
    assert caught.value.reason == "ReservedFunctionConcurrentInvocationLimitExceeded"
    assert machine.metrics.function("f").throttles == 1
    machine.busy()[0].answer.set_result(Result(b"1"))  # type: ignore[union-attr]
    await within(first)


async def test_zero_reserved_concurrency_throttles_everything() -> None:
    machine = Machine(immediate=True)
    await machine.serve("f", reserved_concurrency=0)
    with pytest.raises(TooManyRequestsException):
        await machine.ask()
    assert machine.spawner.begun == []


async def test_an_unknown_function_is_not_found() -> None:
    machine = Machine()
    with pytest.raises(ResourceNotFoundException, match=r"Function not found: arn:aws:lambda:.*:function:g:\$LATEST"):
        await machine.ask("g")


async def test_a_failed_init_is_an_answer_with_its_error_document() -> None:
    machine = Machine()
    await machine.serve("f")
    task = machine.ask()
    await turns()
    machine.spawner.fail(InitError("broken", b'{"errorType":"Broken"}'))
    result = await within(task)
    assert (result.payload, result.function_error) == (b'{"errorType":"Broken"}', "Unhandled")


async def test_an_invocation_that_is_cancelled_harms_no_other() -> None:
    machine = Machine(max_environments=1, immediate=True)
    machine.spawner.slow_to_die = True
    await machine.serve("f")
    first = machine.ask()
    await until(machine.busy)
    (environment,) = machine.busy()
    waiting = machine.ask()
    await turns()
    first.cancel()
    await turns()
    assert environment.was_killed.is_set()
    assert environment.served == 1, "the next request was sent into a process that is being killed"
    environment.die()
    await until(lambda: len(machine.spawner.environments) == 2)
    await until(lambda: machine.spawner.environments[1].answer)
    machine.spawner.environments[1].answer.set_result(Result(b"1"))  # type: ignore[union-attr]
    assert (await within(waiting)).payload == b"1"
    assert await machine.dispatcher.drain(0.1) == 0


async def test_everything_declared_away_ends_and_is_buried() -> None:
    machine = Machine(immediate=True)
    await machine.serve("a", "b")
    tasks = [machine.ask("a"), machine.ask("b")]
    await until(lambda: len(machine.busy()) == 2)
    machine.dispatcher.declare({})
    for environment in machine.busy():
        environment.answer.set_result(Result(b"1"))  # type: ignore[union-attr]
    await within(asyncio.gather(*tasks))
    await until(lambda: not machine.tasks)
    assert machine.dispatcher._retiring == set()
    machine.assert_nothing_leaked()
