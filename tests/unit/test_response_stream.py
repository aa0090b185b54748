"""`thawd.wire.response_stream`: the order of parts, how many may wait, and how a stream ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.unit.execution_fakes import turns, within
from thawd.wire.response_stream import HIGH_BYTES, ResponseStream


class Tap:
    """A source that can be paused and resumed."""

    def __init__(self) -> None:
        self.is_open = True

    def pause(self) -> None:
        assert self.is_open
        self.is_open = False

    def resume(self) -> None:
        assert not self.is_open
        self.is_open = True


def run(scenario: Callable[[], Awaitable[Any]]) -> None:
    asyncio.run(within(scenario()))


def test_a_content_type_cannot_end_its_line() -> None:
    with pytest.raises(ValueError, match="printable"):
        ResponseStream().put("text/plain\n", b"a")


def test_parts_are_taken_in_order_and_together_where_several_wait() -> None:
    async def scenario() -> None:
        stream = ResponseStream()
        taker = asyncio.create_task(stream.take())
        await turns()
        assert not taker.done()
        assert stream.put("text/plain", b"a")
        assert await taker == b"a"
        stream.put("text/plain", b"b")
        stream.put("text/plain", b"")
        stream.put("text/plain", b"c")
        stream.end()
        assert (await stream.take(), await stream.take(), await stream.take()) == (b"bc", None, None)
        assert (stream.content_type, stream.total_bytes, stream.waiting_bytes) == ("text/plain", 3, 0)

    run(scenario)


def test_the_source_is_paused_beyond_the_bound_and_resumed_when_all_is_taken() -> None:
    async def scenario() -> None:
        stream, tap = ResponseStream(), Tap()
        stream.attach(tap)
        stream.put("a/b", b"x" * HIGH_BYTES)
        assert tap.is_open
        stream.put("a/b", b"x")
        stream.put("a/b", b"x")  # a part that was read before the pause still arrives
        assert (tap.is_open, stream.waiting_bytes) == (False, HIGH_BYTES + 2)
        assert len(await stream.take() or b"") == HIGH_BYTES + 2
        assert tap.is_open

    run(scenario)


def test_a_source_that_is_done_is_free_whatever_waits() -> None:
    async def scenario() -> None:
        stream, tap = ResponseStream(), Tap()
        stream.attach(tap)
        stream.put("a/b", b"x" * (HIGH_BYTES + 1))
        stream.detach()
        assert tap.is_open
        stream.end()
        assert len(await stream.take() or b"") == HIGH_BYTES + 1
        assert await stream.take() is None
        assert tap.is_open

    run(scenario)


def test_an_answer_has_begun_with_its_first_part_or_ended_without() -> None:
    async def scenario() -> None:
        stream = ResponseStream()
        waiting = asyncio.create_task(stream.begun())
        await turns()
        stream.put("a/b", b"")
        assert await waiting is True
        other = ResponseStream()
        waiting = asyncio.create_task(other.begun())
        await turns()
        other.end()
        assert (await waiting, await other.take()) == (False, None)

    run(scenario)


def test_what_is_over_the_limit_is_not_taken() -> None:
    async def scenario() -> None:
        stream = ResponseStream(limit_bytes=10)
        assert stream.put("a/b", b"x" * 10)
        assert not stream.put("a/b", b"x")
        assert await stream.take() == b"x" * 10

    run(scenario)


def test_after_a_part_that_was_refused_no_smaller_one_leaves_a_gap_in_the_answer() -> None:
    async def scenario() -> None:
        stream = ResponseStream(limit_bytes=10)
        assert stream.put("a/b", b"x" * 8)
        assert not stream.put("a/b", b"y" * 3)
        assert not stream.put("a/b", b"z")
        assert not stream.put("a/b", b"")
        assert stream.total_bytes == 8
        stream.end()
        assert (await stream.take(), await stream.take()) == (b"x" * 8, None)

    run(scenario)


def test_a_part_with_a_content_type_that_is_refused_is_not_counted() -> None:
    stream = ResponseStream()
    with pytest.raises(ValueError, match="content type"):
        stream.put("", b"x")
    assert stream.total_bytes == 0


@pytest.mark.parametrize("content_type", ["", "a\r\nb", "ü", "x" * 257])
def test_a_content_type_that_cannot_be_a_header_is_refused(content_type: str) -> None:
    with pytest.raises(ValueError, match="content type"):
        ResponseStream().put(content_type, b"")


def test_a_taker_that_gives_up_harms_nobody() -> None:
    async def scenario() -> None:
        stream = ResponseStream()
        taker = asyncio.create_task(stream.take())
        await turns()
        taker.cancel()
        await turns()
        stream.put("a/b", b"x")
        assert await stream.take() == b"x"

    run(scenario)


def test_a_source_that_is_too_fast_again_is_paused_again() -> None:
    calls: list[str] = []

    class Source:
        def pause(self) -> None:
            calls.append("pause")

        def resume(self) -> None:
            calls.append("resume")

    async def main() -> None:
        stream = ResponseStream()
        stream.attach(Source())
        for _ in range(2):
            assert stream.put("text/plain", bytes(HIGH_BYTES))
            assert stream.put("text/plain", b"xy")
            assert stream.put("text/plain", b"z")
            assert await stream.take() == bytes(HIGH_BYTES) + b"xyz"
        assert calls == ["pause", "resume"] * 2

    asyncio.run(main())
