"""Claims about `thawd.control.publication_line`: the order of publications, and how many run at the same time."""

from __future__ import annotations

import asyncio

from tests.unit.execution_fakes import turns
from thawd.control.publication_line import REQUESTED_AT_A_TIME, PublicationLine


class Publications:
    """Publications that end when the test says so."""

    def __init__(self, *, at_a_time: int) -> None:
        self.line = PublicationLine(self._publish, at_a_time=at_a_time)
        self.begun: list[str] = []
        self.gates: dict[str, asyncio.Event] = {}

    async def _publish(self, name: str) -> None:
        self.begun.append(name)
        await self.gates.setdefault(name, asyncio.Event()).wait()

    async def end(self, name: str) -> None:
        self.gates[name].set()
        await turns()

    async def end_all(self) -> None:
        drained = asyncio.ensure_future(self.line.drained())
        while not drained.done():
            for gate in self.gates.values():
                gate.set()
            await turns()


async def test_as_many_functions_are_published_at_a_time_as_there_may_be_and_in_order() -> None:
    made = Publications(at_a_time=2)
    made.line.put("abcd")
    await turns()
    assert made.begun == ["a", "b"]

    await made.end("b")

    assert made.begun == ["a", "b", "c"]
    await made.end_all()
    assert made.begun == ["a", "b", "c", "d"]
    assert made.line.is_empty


async def test_a_requested_function_does_not_wait_for_those_before_it_and_is_published_once() -> None:
    made = Publications(at_a_time=1)
    made.line.put("abcd")
    await turns()

    made.line.request("c")
    made.line.request("c")
    made.line.request("a")  # is being published already
    made.line.request("x")  # is not in the line
    await turns()

    assert made.begun == ["a", "c"]
    await made.end_all()
    assert made.begun == ["a", "c", "b", "d"]


async def test_requests_for_many_functions_publish_a_few_at_a_time() -> None:
    made = Publications(at_a_time=1)
    names = [str(number) for number in range(REQUESTED_AT_A_TIME + 3)]
    made.line.put(names)
    await turns()

    for name in names:
        made.line.request(name)
    await turns()

    assert len(made.begun) == 1 + REQUESTED_AT_A_TIME
    await made.end_all()
    assert sorted(made.begun) == sorted(names)


async def test_functions_that_are_put_again_wait_once_and_do_not_wait_for_a_publication_that_hangs() -> None:
    made = Publications(at_a_time=2)
    made.line.put("ab")
    await turns()
    await made.end("a")

    made.line.put("cba")
    await turns()

    assert made.begun == ["a", "b", "c"]
    await made.end_all()
    assert made.begun == ["a", "b", "c", "b", "a"]


async def test_a_stop_begins_no_more_publications_and_waits_for_none() -> None:
    made = Publications(at_a_time=1)
    made.line.put("ab")
    await turns()

    made.line.stop()
    await asyncio.wait_for(made.line.drained(), 5)

    assert made.begun == ["a"]


async def test_what_is_put_into_the_line_after_a_stop_is_not_published_and_nobody_waits_for_it() -> None:
    made = Publications(at_a_time=2)
    made.line.stop()

    made.line.put("ab")  # a reload that began before the stop
    await asyncio.wait_for(made.line.drained(), 60)

    assert not made.begun


def test_after_a_stop_the_end_of_publications_that_clean_up_is_waited_for() -> None:
    async def work() -> None:
        begun, may_end, ended = asyncio.Event(), asyncio.Event(), []

        async def publish(name: str) -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                await may_end.wait()
                ended.append(name)

        line = PublicationLine(publish, at_a_time=1)
        line.put(["f"])
        await begun.wait()
        line.stop()
        waiting = asyncio.create_task(line.ended(60))
        await asyncio.sleep(0)
        assert not waiting.done()
        may_end.set()
        await waiting
        assert ended == ["f"]

    asyncio.run(work())
