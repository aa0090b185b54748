"""Responses that a program streams to the Runtime API: collected or passed on part by part, limited, broken."""

from __future__ import annotations

import asyncio
import base64
import json

import pytest

from thawd.wire import frames

from .runtime_api_house import ID, NEXT, RUNTIME, Client, House, invoked, play, ready


def test_a_streamed_response_is_gathered() -> None:
    async def scene(house: House) -> None:
        client = await invoked(house)
        client.send(
            "POST",
            f"{RUNTIME}invocation/{ID}/response",
            Transfer_Encoding="chunked",
            Lambda_Runtime_Function_Response_Mode="streaming",
        )
        for chunk in (b"one ", b"two ", b"three"):
            client.writer.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
            await client.writer.drain()
        client.writer.write(b"0\r\n\r\n")
        assert (await client.answer()).status == 202
        client.send("GET", NEXT)
        await house.until(lambda: house.answers)
        assert house.answers[0][1] == b"one two three"

    play(scene)


def test_a_streamed_response_that_breaks_off_is_an_error_by_its_trailers() -> None:
    async def scene(house: House) -> None:
        client = await invoked(house)
        client.send(
            "POST",
            f"{RUNTIME}invocation/{ID}/response",
            Transfer_Encoding="chunked",
            Lambda_Runtime_Function_Response_Mode="streaming",
            Trailer="Lambda-Runtime-Function-Error-Type, Lambda-Runtime-Function-Error-Body",
        )
        document = b'{"errorType":"Broken","errorMessage":"half"}'
        client.writer.write(b"4\r\nhalf\r\n0\r\nLambda-Runtime-Function-Error-Type: Broken\r\n")
        client.writer.write(b"Lambda-Runtime-Function-Error-Body: " + base64.b64encode(document) + b"\r\n\r\n")
        assert (await client.answer()).status == 202
        client.send("GET", NEXT)
        await house.until(lambda: house.answers)
        assert house.answers[0][0]["failed"]
        assert house.answers[0][1] == document

    play(scene)


STREAMING = {"Lambda_Runtime_Function_Response_Mode": "streaming", "Transfer_Encoding": "chunked"}


async def streaming(house: House, *, limit_bytes: int = 1000, content_type: str = "text/plain") -> Client:
    """Return a program that has begun to stream its answer to an invocation that wants it part by part."""
    client = await ready(house)
    house.invoke(stream=limit_bytes)
    await client.answer()
    client.send("POST", f"{RUNTIME}invocation/{ID}/response", Content_Type=content_type, **STREAMING)
    return client


def parts(house: House) -> list[tuple[str, bytes]]:
    return [(head["type"], body) for kind, head, body in house.told if kind == frames.PART]


def test_parts_of_a_streamed_response_are_passed_on_as_they_come_where_they_are_wanted() -> None:
    async def scene(house: House) -> None:
        client = await streaming(house)
        for number in range(3):
            client.writer.write(b"1\r\n%d\r\n" % number)
            await house.until(lambda number=number: len(parts(house)) == number + 1)  # type: ignore[misc]
        client.writer.write(b"0\r\n\r\n")
        assert (await client.answer()).status == 202
        client.send("GET", NEXT)
        await house.until(lambda: house.answers)
        assert parts(house) == [("text/plain", b"0"), ("text/plain", b"1"), ("text/plain", b"2")]
        head, body = house.answers[0]
        assert (body, head["failed"], head["type"]) == (b"", False, "text/plain")

    play(scene)


def test_a_sender_that_is_paused_waits() -> None:
    async def scene(house: House) -> None:
        client = await streaming(house, limit_bytes=1 << 30)
        client.writer.write(b"1\r\nx\r\n")
        await house.until(lambda: parts(house))
        house.api.pause()
        before = len(parts(house))
        chunk = b"x" * (1 << 20)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                for _ in range(64):
                    client.writer.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
                    await client.writer.drain()
        assert len(parts(house)) <= before + 1
        house.api.resume()
        await client.writer.drain()
        await house.until(lambda: sum(len(body) for _, body in parts(house)) > 1 << 20)

    play(scene)


def test_a_sender_that_is_paused_by_its_last_part_is_heard_again() -> None:
    async def scene(house: House) -> None:
        client = await streaming(house)
        house.on_part = house.api.pause  # as a stream does when its client reads too slowly
        client.writer.write(b"1\r\nx\r\n0\r\n\r\n")
        assert (await client.answer()).status == 202
        client.send("GET", NEXT)
        await house.until(lambda: house.answers)

    play(scene)


def test_a_streamed_response_over_its_limit_is_cut_and_an_error() -> None:
    async def scene(house: House) -> None:
        client = await streaming(house, limit_bytes=10)
        for _ in range(4):
            client.writer.write(b"4\r\nfour\r\n")
            await client.writer.drain()
        client.writer.write(b"0\r\n\r\n")
        assert (await client.answer()).status == 413
        client.send("GET", NEXT)
        await house.until(lambda: house.answers)
        assert house.answers[0][0]["failed"]
        assert json.loads(house.answers[0][1])["errorType"] == "Function.ResponseSizeTooLarge"
        assert len(b"".join(body for _, body in parts(house))) <= 10

    play(scene)


def test_a_streamed_response_that_fails_after_its_first_part_is_an_error() -> None:
    async def scene(house: House) -> None:
        client = await streaming(house)
        client.writer.write(b"4\r\nhalf\r\n0\r\nLambda-Runtime-Function-Error-Type: Broken\r\n\r\n")
        assert (await client.answer()).status == 202
        client.send("GET", NEXT)
        await house.until(lambda: house.answers)
        assert parts(house) == [("text/plain", b"half")]
        assert house.answers[0][0]["failed"]
        assert json.loads(house.answers[0][1])["errorType"] == "Broken"

    play(scene)


def test_a_connection_lost_in_the_middle_of_a_streamed_response_is_an_error() -> None:
    async def scene(house: House) -> None:
        client = await streaming(house)
        client.writer.write(b"4\r\nhalf\r\n")
        await house.until(lambda: parts(house))
        client.writer.close()
        (await house.client()).send("GET", NEXT)
        await house.until(lambda: house.answers)
        assert house.answers[0][0]["failed"]
        assert json.loads(house.answers[0][1])["errorType"] == "Runtime.TruncatedResponse"

    play(scene)


def test_what_follows_a_response_that_was_cut_counts() -> None:
    async def scene(house: House) -> None:
        client = await streaming(house)
        client.writer.close()
        again = await house.client()
        again.send("GET", NEXT)
        await house.until(lambda: house.answers)
        house.invoke(b"2", id="second")
        await again.answer()
        await again.ask("POST", f"{RUNTIME}invocation/second/response", b"[2]")
        house.api.runtime_ended()
        assert [body for _, body in house.answers[1:]] == [b"[2]"]

    play(scene)


@pytest.mark.parametrize(("method", "headers"), [("GET", {}), ("POST", {"Origin": "http://example.com"})])
def test_a_streamed_request_that_is_refused_changes_nothing(method: str, headers: dict[str, str]) -> None:
    async def scene(house: House) -> None:
        client = await ready(house)
        house.invoke(stream=1000)
        await client.answer()
        client.send(method, f"{RUNTIME}invocation/{ID}/response", **STREAMING, **headers)
        client.writer.write(b"4\r\nhalf\r\n0\r\n\r\n")
        assert (await client.answer()).status in (403, 405)
        assert not parts(house)
        assert (await client.ask("POST", f"{RUNTIME}invocation/{ID}/response", b"1")).status == 202

    play(scene)


def test_while_a_response_is_streamed_another_answer_is_403() -> None:
    async def scene(house: House) -> None:
        client = await streaming(house)
        client.writer.write(b"4\r\nhalf\r\n")
        await house.until(lambda: parts(house))
        other = await house.client()
        for operation in ("response", "error"):
            answer = await other.ask("POST", f"{RUNTIME}invocation/{ID}/{operation}", b"1")
            assert (answer.status, answer.error) == (403, "InvalidStateTransition")
        client.writer.write(b"0\r\n\r\n")
        assert (await client.answer()).status == 202

    play(scene)


@pytest.mark.parametrize("content_type", ["", "text/plain\tx", "x" * 300])
def test_a_content_type_that_cannot_be_a_header_is_bytes(content_type: str) -> None:
    async def scene(house: House) -> None:
        client = await streaming(house, content_type=content_type)
        client.writer.write(b"4\r\nhalf\r\n0\r\n\r\n")
        await client.answer()
        assert parts(house) == [("application/octet-stream", b"half")]

    play(scene)


def test_an_unknown_response_mode_is_400() -> None:
    async def scene(house: House) -> None:
        client = await invoked(house)
        path = f"{RUNTIME}invocation/{ID}/response"
        answer = await client.ask("POST", path, b"1", Lambda_Runtime_Function_Response_Mode="sometimes")
        assert (answer.status, answer.error) == (400, "InvalidFunctionResponseMode")
        assert (await client.ask("POST", path, b"1")).status == 202

    play(scene)
