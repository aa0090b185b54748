"""`thawd.system.inline`: coroutines that run without a task, until they wait for something else."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from thawd.system.inline import InlineFuture, in_task, run_inline


class Runs:
    """Runs coroutines inline, and keeps the tasks that they continue in."""

    def __init__(self) -> None:
        self.tasks: list[asyncio.Task[None]] = []

    def __call__(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` in a callback of the event loop."""
        run_inline(work, self.spawn)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(work))


def in_callbacks(scenario: Any) -> None:
    """Run an async test whose steps are callbacks of the event loop, and not parts of a task.

    `scenario` yields after each step that the event loop's next turns are to follow.
    """

    async def main() -> None:
        steps = scenario(Runs())
        over = asyncio.get_running_loop().create_future()

        def step() -> None:
            try:
                next(steps)
            except StopIteration:
                over.set_result(None)
            except BaseException as error:
                over.set_exception(error)
            else:
                loop.call_later(0, step)

        loop = asyncio.get_running_loop()
        loop.call_soon(step)
        await over

    asyncio.run(main())


def future() -> InlineFuture[int]:
    return InlineFuture(asyncio.get_running_loop())


async def note(found: list[Any], awaited: Any) -> None:
    try:
        found.append(await awaited)
    except Exception as error:
        found.append(error)


def test_a_coroutine_continues_within_the_call_that_sets_the_result() -> None:
    def scenario(run: Runs) -> Any:
        found: list[Any] = []
        answer = future()
        run(note(found, answer))
        assert not answer.done()
        answer.set_result_now(1)
        assert found == [1]
        assert answer.done()
        assert run.tasks == []
        yield

    in_callbacks(scenario)


def test_a_result_that_is_there_is_not_waited_for() -> None:
    def scenario(run: Runs) -> Any:
        found: list[Any] = []
        answer = future()
        answer.set_result(1)
        run(note(found, answer))
        assert found == [1]
        yield

    in_callbacks(scenario)


def test_a_result_or_an_error_that_is_not_set_now_continues_a_coroutine_in_the_next_turn() -> None:
    def scenario(run: Runs) -> Any:
        found: list[Any] = []
        answers = [future(), future(), future()]
        for answer in answers:
            run(note(found, answer))
        answers[0].set_result(1)
        answers[1].set_result_soon(2)
        answers[2].set_exception(ValueError("three"))
        assert found == []
        yield
        assert found[:2] == [1, 2]
        assert str(found[2]) == "three"

    in_callbacks(scenario)


def test_a_coroutine_that_runs_inline_continues_others_within_its_own_call() -> None:
    def scenario(run: Runs) -> Any:
        found: list[Any] = []
        first, second = future(), future()

        async def work() -> None:
            found.append(await first)
            second.set_result(2)
            found.append(3)

        run(note(found, second))
        run(work())
        first.set_result_now(1)
        assert found == [1, 2, 3]
        yield

    in_callbacks(scenario)


def test_a_long_chain_of_coroutines_is_not_nested_without_end() -> None:
    def scenario(run: Runs) -> Any:
        links = [future() for _ in range(5_000)]
        found: list[int] = []

        async def link(number: int) -> None:
            found.append(await links[number])
            if number + 1 < len(links):
                links[number + 1].set_result(number + 1)

        for number in range(len(links)):
            run(link(number))
        links[0].set_result_now(0)
        while len(found) < len(links):
            yield
        assert found == list(range(len(links)))

    in_callbacks(scenario)


def test_whatever_else_a_coroutine_waits_for_it_goes_on_in_a_task() -> None:
    def scenario(run: Runs) -> Any:
        found: list[Any] = []
        answers = [future(), future()]
        other = asyncio.get_running_loop().create_future()

        async def work() -> None:
            found.append(asyncio.current_task())
            found.append(await answers[0])
            found.append(await other)
            async with asyncio.timeout(10):
                found.append(await answers[1])
            with pytest.raises(RuntimeError, match="failed"):
                await failing
            found.append("end")

        failing = asyncio.get_running_loop().create_future()
        run(work())
        answers[0].set_result_now(1)
        assert found == [None, 1]
        [task] = run.tasks
        yield
        other.set_result(2)
        yield
        yield
        answers[1].set_result_now(3)
        assert found == [None, 1, 2], "a task continues in a later turn"
        yield
        failing.set_exception(RuntimeError("failed"))
        while not task.done():
            yield
        assert found == [None, 1, 2, 3, "end"]
        assert task.exception() is None

    in_callbacks(scenario)


def test_a_coroutine_can_ask_to_go_on_in_a_task() -> None:
    def scenario(run: Runs) -> Any:
        found: list[Any] = []

        async def work() -> None:
            await in_task()
            found.append(asyncio.current_task())
            await in_task()
            found.append(asyncio.current_task())

        run(work())
        while len(found) < 2:
            yield
        assert found == run.tasks * 2

    in_callbacks(scenario)


def test_what_needs_a_task_is_refused_without_one() -> None:
    def scenario(run: Runs) -> Any:
        found: list[Any] = []

        async def hasty() -> None:
            async with asyncio.timeout(1):
                await asyncio.sleep(0)

        run(note(found, hasty()))
        assert isinstance(found[0], RuntimeError)
        yield

    in_callbacks(scenario)


def test_a_task_waits_for_an_inline_future_as_for_any_other_and_can_be_cancelled() -> None:
    async def scenario() -> None:
        found: list[Any] = []
        answers = [future() for _ in range(3)]
        tasks = [asyncio.create_task(note(found, answer)) for answer in answers]
        await asyncio.sleep(0)
        answers[0].set_result(1)
        answers[1].set_exception(ValueError())
        tasks[2].cancel()
        assert answers[2].done()
        assert answers[2].cancelled()
        with pytest.raises(asyncio.InvalidStateError):
            answers[2].set_result(3)
        await asyncio.wait(tasks)
        assert found[0] == 1
        assert isinstance(found[1], ValueError)
        assert tasks[2].cancelled()
        for answer in answers[:2]:
            with pytest.raises(asyncio.InvalidStateError):
                answer.set_result(1)

    asyncio.run(scenario())


def test_an_exception_that_a_coroutine_does_not_handle_is_reported_and_hits_nobody_else() -> None:
    def scenario(run: Runs) -> Any:
        reports: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, report: reports.append(report["exception"]))
        answer = future()

        async def broken() -> None:
            raise ValueError(await answer)

        run(broken())
        answer.set_result_now(1)
        assert [str(error) for error in reports] == ["1"]
        yield

    in_callbacks(scenario)


def test_a_coroutine_that_runs_inline_in_one_thread_leaves_a_task_of_another_thread_alone() -> None:
    inside, over = threading.Event(), threading.Event()

    def of_the_thread() -> None:
        def scenario(run: Runs) -> Any:
            async def holds() -> None:
                inside.set()
                assert over.wait(60)

            run(holds())
            yield

        in_callbacks(scenario)

    async def waits() -> int:
        answer = future()
        asyncio.get_running_loop().call_later(0, answer.set_result, 5)
        return await answer

    with ThreadPoolExecutor() as threads:
        thread = threads.submit(of_the_thread)
        assert inside.wait(60)
        try:
            assert asyncio.run(waits()) == 5
        finally:
            over.set()
        thread.result()


def test_if_no_task_can_be_made_the_coroutine_ends_and_results_of_others_are_set() -> None:
    def scenario(run: Runs) -> Any:
        found: list[Any] = []
        answers = [future(), future()]

        async def needs_task() -> None:
            try:
                found.append(await answers[0])
                await in_task()
                found.append("in a task")
            finally:
                found.append("ended")
                raise OSError

        def ending(work: Coroutine[Any, Any, None]) -> None:
            raise RuntimeError("TaskGroup is shutting down")

        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, report: found.append(type(report["exception"])))
        run_inline(needs_task(), ending)
        run(note(found, answers[1]))
        for answer in answers:
            answer.set_result_now(7)
        assert found == [7, "ended", OSError, 7]
        yield

    in_callbacks(scenario)
