"""`thawd.gateway.routes.streamed_answer`: which messages a client gets for a streamed answer."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.unit.execution_fakes import turns, within
from thawd.gateway.http import Message
from thawd.gateway.routes.streamed_answer import StreamedAnswer
from thawd.invocation import Invocation
from thawd.streaming import HTTP_RESPONSE, SEPARATOR
from thawd.wire.response_stream import HIGH_BYTES


def prelude(status: int, **headers: str) -> bytes:
    """Status and headers as a function's process sends them."""
    return json.dumps({"statusCode": status, "headers": headers}).encode() + SEPARATOR


async def never() -> Message:
    """The client does not go."""
    await asyncio.Event().wait()
    raise AssertionError


async def fail() -> None:
    raise AssertionError("the answer is well-formed")


def sent(method: str, *parts: bytes) -> list[Message]:
    """The messages that the client of a complete answer gets."""
    messages: list[Message] = []

    async def send(message: Message) -> None:
        messages.append(message)

    async def scenario() -> None:
        answer = StreamedAnswer(Invocation("f", b"", 0.0), send, method=method, fail=fail, receive=never)
        for part in parts:
            answer.stream.put(HTTP_RESPONSE, part)
        await answer.end(is_complete=True)

    asyncio.run(within(scenario()))
    return messages


@pytest.mark.parametrize(("method", "status", "length"), [("HEAD", 200, b"5"), ("GET", 304, None)])
def test_an_answer_without_a_body_ends_although_it_announces_a_length(
    method: str, status: int, length: bytes | None
) -> None:
    begin, end = sent(method, prelude(status, **{"content-length": "5"}))
    assert dict(begin["headers"]).get(b"content-length") == length
    assert end == {"type": "http.response.body"}


def test_a_body_that_is_shorter_than_announced_has_no_end() -> None:
    _, body = sent("GET", prelude(200, **{"content-length": "5"}), b"abc")
    assert (body["body"], body["more_body"]) == (b"abc", True)


def test_parts_are_taken_although_they_cannot_be_sent() -> None:
    class Source:
        is_open = True

        def pause(self) -> None:
            self.is_open = False

        def resume(self) -> None:
            self.is_open = True

    async def send(message: Any) -> None:
        raise RuntimeError("a header of the answer is not valid")

    async def scenario() -> None:
        answer, source = (
            StreamedAnswer(Invocation("f", b"", 0.0), send, method="GET", fail=fail, receive=never),
            Source(),
        )
        answer.stream.attach(source)
        for _ in range(3):
            answer.stream.put("text/plain", bytes(HIGH_BYTES))
            await turns()
            assert source.is_open
        with pytest.raises(RuntimeError, match="not valid"):
            await answer.end(is_complete=True)

    asyncio.run(within(scenario()))


@pytest.mark.parametrize(
    ("method", "parts", "is_gone"),
    [
        ("GET", [prelude(200), b"abc"], True),
        ("GET", [prelude(200, **{"content-length": "5"}), b"abc"], True),
        ("GET", [prelude(200, **{"content-length": "3"}), b"abc"], False),
        ("HEAD", [prelude(200, **{"content-length": "3"})], False),
    ],
)
def test_a_client_that_goes_has_gone_unless_it_had_the_whole_answer(
    method: str, parts: list[bytes], is_gone: bool
) -> None:
    async def scenario() -> None:
        leaves = asyncio.Event()

        async def send(message: Message) -> None:
            pass

        async def receive() -> Message:
            await leaves.wait()
            return {"type": "http.disconnect"}

        answer = StreamedAnswer(Invocation("f", b"", 0.0), send, method=method, fail=fail, receive=receive)
        for part in parts:
            answer.stream.put(HTTP_RESPONSE, part)
        await turns()
        assert (answer.stream.answered_s > 0) is not is_gone
        leaves.set()
        await turns()
        assert answer.stream.is_gone is is_gone
        await answer.end(is_complete=True)

    asyncio.run(within(scenario()))
