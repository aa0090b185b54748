"""`thawd.environments.runtime_api.http_server`: odd, large and many requests harm nothing else."""

from __future__ import annotations

import asyncio

import pytest

from thawd.environments.runtime_api.http_server import MAX_CONNECTIONS, MAX_HEAD_BYTES

from .runtime_api_house import ID, NEXT, RUNTIME, House, invoked, play, ready

CHUNKED = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"


def test_a_client_that_expects_100_is_told_to_continue() -> None:
    async def scene(house: House) -> None:
        client = await invoked(house)
        client.send("POST", f"{RUNTIME}invocation/{ID}/response", Content_Length="1", Expect="100-continue")
        assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.writer.write(b"1")
        assert (await client.answer()).status == 202

    play(scene)


def test_an_upgrade_is_not_followed_and_the_request_answered() -> None:
    async def scene(house: House) -> None:
        client = await house.client()
        client.send("GET", NEXT, Connection="Upgrade, HTTP2-Settings", Upgrade="h2c", HTTP2_Settings="AAMAAABk")
        await house.until(lambda: house.told)
        house.invoke(b"[1]")
        assert (await client.answer()).body == b"[1]"
        client.send("POST", f"{RUNTIME}invocation/{ID}/response", b"1", Connection="Upgrade", Upgrade="h2c")
        assert (await client.answer()).status == 202

    play(scene)


def test_pipelined_requests_are_answered_in_order() -> None:
    async def scene(house: House) -> None:
        client = await ready(house)
        for _ in range(2000):
            client.send("GET", "/nowhere")
        client.send("POST", RUNTIME + "init/error", b"{}")
        house.invoke(b"[1]")
        statuses = [(await client.answer()).status for _ in range(2002)]
        assert statuses == [200, *[404] * 2000, 403]

    play(scene)


def test_http_1_0_and_connection_close_end_the_connection_after_the_answer() -> None:
    async def scene(house: House) -> None:
        for request in (b"GET /x HTTP/1.0\r\n\r\n", b"GET /x HTTP/1.1\r\nConnection: close\r\n\r\n"):
            said = await (await house.client()).raw(request)
            assert said.startswith(b"HTTP/1.1 404 ")
            assert b"Connection: close" in said

    play(scene)


@pytest.mark.parametrize(
    "nonsense",
    [
        b"\x00\x01\x02\x03\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_what_is_no_http_is_400_and_ends_that_connection_alone(nonsense: bytes) -> None:
    async def scene(house: House) -> None:
        good = await ready(house)
        said = await (await house.client()).raw(nonsense)
        assert said.startswith(b"HTTP/1.1 400 ")
        house.invoke(b"[1]")
        assert (await good.answer()).body == b"[1]"

    play(scene)


def test_a_failure_of_the_platforms_own_is_500_and_told(capsys: pytest.CaptureFixture[str]) -> None:
    async def scene(house: House) -> None:
        def fail(request: object, operation: str) -> None:
            raise RuntimeError("a bug")

        house.api.extensions.handle = fail  # type: ignore[assignment]
        said = await (await house.client()).raw(b"GET /2020-01-01/extension/event/next HTTP/1.1\r\n\r\n")
        assert said.startswith(b"HTTP/1.1 500 ")

    play(scene)
    assert "a request to the Runtime API failed: RuntimeError('a bug')" in capsys.readouterr().err


@pytest.mark.parametrize(
    "begin", [b"GET / HTTP/1.1\r\nX: ", CHUNKED + b"0\r\nX: ", CHUNKED + b"1\r\nx\r\n0\r\nX: ", CHUNKED + b"5;x="]
)
def test_headers_without_end_are_431(begin: bytes) -> None:
    async def scene(house: House) -> None:
        client = await house.client()
        client.writer.write(begin)
        line = b"x" * (1 << 16)
        for _ in range(MAX_HEAD_BYTES // len(line) + 2):
            client.writer.write(line)
        try:
            said = await client.reader.read()
        except ConnectionResetError:
            return  # unread bytes caused a reset, which discarded the answer
        assert said.startswith(b"HTTP/1.1 431 ")

    play(scene)


def test_a_large_header_passes() -> None:
    async def scene(house: House) -> None:
        client = await invoked(house)
        cause = {"Lambda_Runtime_Function_XRay_Error_Cause": "x" * (1 << 20)}
        assert (await client.ask("POST", f"{RUNTIME}invocation/{ID}/error", b"{}", **cause)).status == 202

    play(scene)


def test_a_request_in_pieces_of_a_byte_is_a_request() -> None:
    async def scene(house: House) -> None:
        client = await invoked(house)
        request = f"POST {RUNTIME}invocation/{ID}/response HTTP/1.1\r\nContent-Length: 3\r\n\r\n[1]".encode()
        for at in range(len(request)):
            client.writer.write(request[at : at + 1])
            await client.writer.drain()
            await asyncio.sleep(0)
        assert (await client.answer()).status == 202

    play(scene)


def test_connections_beyond_the_limit_are_refused_and_others_go_on() -> None:
    async def scene(house: House) -> None:
        clients = [await house.client() for _ in range(MAX_CONNECTIONS)]
        assert (await clients[-1].ask("GET", "/x")).status == 404
        surplus = await house.client()
        try:
            assert await surplus.raw(b"GET /x HTTP/1.1\r\n\r\n") == b""
        except ConnectionResetError:
            pass
        assert (await clients[0].ask("GET", "/x")).status == 404

    play(scene)


def test_a_page_in_a_browser_gets_nothing() -> None:
    async def scene(house: House) -> None:
        answer = await (await house.client()).ask("GET", NEXT, Origin="http://example.com")
        assert (answer.status, answer.error) == (403, "Runtime.ForeignOrigin")
        assert not house.told

    play(scene)
