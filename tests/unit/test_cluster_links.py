"""Connections between two machines: who is let in, and what happens to a request when its connection ends."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.certificates import make_certificates
from tests.unit.execution_fakes import until
from thawd.cluster import channel, handshake, links
from thawd.cluster.links import Credentials, Link, Links, MayHaveRunError, NotRunError
from thawd.cluster.listening import Host, Listener, error_of, invocation_head, result_of
from thawd.cluster.machine_index import MachineIndex, Summary
from thawd.cluster.membership import Membership
from thawd.errors import TooManyRequestsException
from thawd.invocation import Invocation, Result
from thawd.wire import frames
from thawd.wire.response_stream import ResponseStream

KEY = "a-key-that-is-only-for-tests"


@dataclass
class FakeHost(Host):
    """A machine that answers each request by its function's name."""

    ran: list[Invocation] = field(default_factory=list)
    cancelled: int = 0
    summaries: dict[str, Summary | None] = field(default_factory=dict)
    began: asyncio.Event = field(default_factory=asyncio.Event)
    heard_one: asyncio.Event = field(default_factory=asyncio.Event)

    def why_refused(self, invocation: Invocation, identity: str, *, may_wait: bool) -> str | None:
        return "it has no room" if invocation.function == "refused" else None

    async def run(self, invocation: Invocation) -> Result:
        self.ran.append(invocation)
        self.began.set()
        if invocation.function == "throttled":
            raise TooManyRequestsException("Rate Exceeded.", reason="ConcurrentInvocationLimitExceeded")
        if invocation.function == "broken":
            raise ZeroDivisionError
        if invocation.function == "hangs":
            try:
                await asyncio.Event().wait()
            finally:
                self.cancelled += 1
        if invocation.stream is not None:
            invocation.stream.put("text/plain", b"one")
            await asyncio.sleep(0)
            invocation.stream.put("text/plain", b"two")
        measured = {"memory_mb": 512, "peak_mib": 90, "is_restored": True, "logged": ("KeyError", "'x'")}
        return Result(b'"' + invocation.payload + b'"', log_tail=b"\xff log", **measured)  # type: ignore[arg-type]

    def heard(self, machine: str, summary: Summary) -> None:
        self.summaries[machine] = summary
        self.heard_one.set()

    def lost(self, machine: str) -> None:
        self.summaries[machine] = None
        self.heard_one.set()


@dataclass
class Pair:
    """A machine ``b`` that listens, and the connections of ``a`` to it."""

    host: FakeHost
    listener: Listener
    links: Links
    port: int

    def invocation(self, function: str, *, stream: ResponseStream | None = None) -> Invocation:
        return Invocation(function, b"data", time.monotonic() + 5, stream=stream)

    async def call(self, function: str, *, stream: ResponseStream | None = None) -> Result:
        invocation = self.invocation(function, stream=stream)
        head = invocation_head(invocation, "identity", now_s=time.monotonic())
        reply = await self.links.call(head, invocation.payload, stream)
        if reply.kind == channel.ERROR:
            raise error_of(reply.head)
        return result_of(reply.head, reply.body)


@contextlib.asynccontextmanager
async def pair(
    *, opening: Credentials | None = None, accepting: Credentials | None = None, peer: str = "b"
) -> AsyncIterator[Pair]:
    host = FakeHost()
    listener = Listener(accepting or Credentials("b", KEY), frozenset({"a"}), host)
    await listener.start(socket.create_server(("127.0.0.1", 0)))
    assert listener._server is not None
    port = listener._server.sockets[0].getsockname()[1]
    found = Links(opening or Credentials("a", KEY), peer, "127.0.0.1", port)
    try:
        yield Pair(host, listener, found, port)
    finally:
        found.close()
        listener.close()
        await asyncio.sleep(0)


async def test_a_request_and_its_answer_arrive_whole_and_a_connection_is_used_again() -> None:
    async with pair() as both:
        for _ in range(3):
            result = await both.call("works")
            assert (result.payload, result.log_tail) == (b'"data"', b"\xff log")
            assert (result.memory_mb, result.peak_mib, result.is_restored) == (512, 90, True)
            assert result.logged == ("KeyError", "'x'")
        assert len(both.listener.open) == 1
        sent = both.host.ran[0]
        assert sent.forwarded
        assert 4 < sent.queue_deadline - time.monotonic() <= 5


def test_an_answer_of_a_machine_of_an_earlier_version_lacks_later_fields() -> None:
    fields = (
        "function_error",
        "executed_version",
        "duration_ms",
        "init_ms",
        "prepare_ms",
        "content_type",
        "batch_size",
    )
    head = dict.fromkeys(fields) | {"log_tail": "", "start_kind": "warm"}
    found = result_of(head, b"1")
    assert (found.peak_mib, found.logged) == (0, None)


async def test_a_refused_request_has_not_run() -> None:
    async with pair() as both:
        with pytest.raises(NotRunError, match="the machine b refused it: it has no room"):
            await both.call("refused")
        assert not both.host.ran
        assert (await both.call("works")).payload == b'"data"'


async def test_an_error_keeps_its_type_and_reason_and_a_bug_is_an_error_of_the_platform() -> None:
    async with pair() as both:
        with pytest.raises(TooManyRequestsException) as caught:
            await both.call("throttled")
        assert caught.value.reason == "ConcurrentInvocationLimitExceeded"
        with pytest.raises(Exception, match="ZeroDivisionError"):
            await both.call("broken")


async def test_the_parts_of_a_stream_arrive_in_order() -> None:
    async with pair() as both:
        stream = ResponseStream()
        running = asyncio.create_task(both.call("works", stream=stream))
        assert await stream.begun()
        assert stream.content_type == "text/plain"
        data = b""
        while len(data) < 6:
            data += await stream.take() or b""
        assert data == b"onetwo"
        await running


async def test_a_caller_that_goes_away_ends_its_request_and_its_connection_alone() -> None:
    async with pair() as both:
        other = asyncio.create_task(both.call("hangs"))
        await both.host.began.wait()
        both.host.began.clear()
        gone = asyncio.create_task(both.call("hangs"))
        await both.host.began.wait()
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        while both.host.cancelled == 0:  # noqa: ASYNC110 - the other end notices it in its own time
            await asyncio.sleep(0.001)
        assert both.host.cancelled == 1
        assert not other.done()
        other.cancel()


async def test_a_connection_that_is_lost_while_a_request_runs_leaves_it_unknown() -> None:
    async with pair() as both:
        running = asyncio.create_task(both.call("hangs"))
        await both.host.began.wait()
        both.listener.close()
        with pytest.raises(MayHaveRunError):
            await running


async def test_a_machine_that_cannot_be_reached_has_not_run_the_request() -> None:
    async with pair() as both:
        await both.call("works")
        both.listener.close()
        for link in both.links._idle:
            await link.ended.wait()
        with pytest.raises(NotRunError, match="the machine b cannot be reached"):
            await both.call("works")


async def test_silence_ends_a_request_and_signs_of_life_do_not() -> None:
    async with pair() as both:
        running = asyncio.create_task(both.call("hangs"))
        await both.host.began.wait()
        for _ in range(2 * links.SILENT_TICKS):
            both.links.tick()
            both.listener.tick()
            await asyncio.sleep(0.005)
        assert not running.done()
        for _ in range(links.SILENT_TICKS):
            both.links.tick()
        with pytest.raises(MayHaveRunError):
            await running


@pytest.mark.parametrize(
    ("opening", "peer"),
    [
        (Credentials("a", "another key of some length"), "b"),
        (Credentials("stranger", KEY), "b"),
        (Credentials("a", KEY), "c"),
    ],
    ids=["another-key", "another-name", "another-machine"],
)
async def test_a_stranger_is_not_let_in(opening: Credentials, peer: str) -> None:
    async with pair(opening=opening, peer=peer) as both:
        with pytest.raises(NotRunError, match="cannot be reached"):
            await both.call("works")
        assert not both.host.ran


async def test_a_machine_that_cannot_prove_the_key_gets_no_request() -> None:
    """It accepts whatever proof it gets, and answers with a proof of its own that is wrong, or that it got."""
    received: list[frames.Frame] = []

    class Impostor(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            self.transport = transport
            self.decoder = frames.Decoder()
            about = {"protocol": 1, "nonce": "00"}
            transport.write(frames.encode(channel.CHALLENGE, about))

        def data_received(self, data: bytes) -> None:
            self.decoder.feed(data)
            while (frame := self.decoder.take()) is not None:
                received.append(frame)
                self.transport.write(frames.encode(channel.WELCOME, {"mac": frame.head["mac"]}))

    server = await asyncio.get_running_loop().create_server(Impostor, "127.0.0.1", 0)
    found = Links(Credentials("a", KEY), "b", "127.0.0.1", server.sockets[0].getsockname()[1])
    with pytest.raises(NotRunError, match="it does not have this cluster's key"):
        await found.call({}, b"secret")
    assert [frame.kind for frame in received] == [channel.PROOF]
    server.close()


async def test_a_proof_is_of_no_use_on_another_connection() -> None:
    async with pair() as both:
        proofs = []

        class Spy(Link):
            def send(self, kind: int, head: object, body: bytes = b"") -> None:
                proofs.append((kind, head))
                super().send(kind, head, body)

        loop = asyncio.get_running_loop()
        _, link = await loop.create_connection(lambda: Spy(Credentials("a", KEY), "b"), "127.0.0.1", both.port)
        await link.welcomed
        reader, writer = await asyncio.open_connection("127.0.0.1", both.port)
        await reader.readexactly(frames.HEADER.size)
        writer.write(frames.encode(*proofs[0]))
        rest = await reader.read()
        assert b"mac" not in rest
        writer.close()
        link.close()


async def test_a_stranger_cannot_make_the_machine_store_data() -> None:
    async with pair() as both:
        reader, writer = await asyncio.open_connection("127.0.0.1", both.port)
        writer.write(frames.HEADER.pack(100, 50 << 20, channel.PROOF) + bytes(8192))
        with contextlib.suppress(ConnectionError):
            await reader.read()
        assert reader.at_eof() or reader.exception() is not None
        writer.close()


async def test_connections_to_a_machine_that_has_left_are_ended_after_its_last_request() -> None:
    async with pair() as both, asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        members = Membership(
            Credentials("a", KEY), {}, MachineIndex(silence_s=5.0), summarise=Summary, report=lambda line: None
        )
        members.set_machines({"b": ("127.0.0.1", both.port)})
        running = tasks.create_task(members.run(lambda: None))

        def head(function: str) -> dict[str, Any]:
            return invocation_head(both.invocation(function), "identity", now_s=time.monotonic())

        asked = tasks.create_task(members.links["b"].call(head("hangs"), b"data"))
        await both.host.began.wait()
        await members.links["b"].call(head("echo"), b"data")
        # When the machine leaves, although it lives and keeps its ends of the connections
        members.set_machines({})
        await asyncio.sleep(1.5 * links.TICK_S)
        assert not asked.done()
        asked.cancel()
        await until(lambda: not both.listener.open)
        running.cancel()


async def test_connections_without_requests_end_with_that_of_the_summaries() -> None:
    # The other machine has perhaps started again. A request over one of the old connections would fail.
    async with pair() as both, asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        members = Membership(
            Credentials("a", KEY), {}, MachineIndex(silence_s=5.0), summarise=Summary, report=lambda line: None
        )
        members.set_machines({"b": ("127.0.0.1", both.port)})
        running = tasks.create_task(members.run(lambda: None))
        await both.host.heard_one.wait()
        invocation = both.invocation("echo")
        await members.links["b"].call(invocation_head(invocation, "i", now_s=time.monotonic()), b"data")
        [idle] = members.links["b"]._idle
        [summaries] = members._summary_links.values()
        summaries.close()
        await idle.ended.wait()
        running.cancel()


async def test_summaries_arrive_and_the_end_of_their_connection_is_noticed() -> None:
    async with pair() as both:
        link = await both.links.open()
        link.send(channel.SUMMARY, {"idle": {"v": 2}, "free_mb": 5, "images": ["v", "w"]})
        await both.host.heard_one.wait()
        assert both.host.summaries["a"] == Summary(idle={"v": 2}, free_mb=5, images=frozenset({"v", "w"}))
        both.host.heard_one.clear()
        link.send(channel.SUMMARY, {"idle": {}})
        await both.host.heard_one.wait()
        assert both.host.summaries["a"] == Summary(images=frozenset({"v", "w"}))
        both.host.heard_one.clear()
        link.close()
        await both.host.heard_one.wait()
        assert both.host.summaries["a"] is None


async def test_only_certificates_of_the_cluster_are_let_in(tmp_path: Path) -> None:
    own = handshake.contexts(*make_certificates(tmp_path, "own"))
    foreign = handshake.contexts(*make_certificates(tmp_path, "foreign"))
    accepting = Credentials("b", KEY, *own)
    async with pair(opening=Credentials("a", KEY, *own), accepting=accepting) as both:
        assert (await both.call("works")).payload == b'"data"'
    for wrong in (Credentials("a", KEY, *foreign), Credentials("a", KEY)):
        async with pair(opening=wrong, accepting=accepting) as both:
            with pytest.raises(NotRunError):
                await both.call("works")
            assert not both.host.ran
