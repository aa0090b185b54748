"""Machines with different versions of thawd: which version of the protocol they speak, and what they ignore."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from typing import Any

import pytest

from tests.unit.test_cluster_links import KEY, pair
from thawd.cluster import channel, handshake
from thawd.cluster.handshake import HandshakeError, Protocols
from thawd.cluster.links import Credentials, Link, Links, NotRunError
from thawd.stores.cluster import machines
from thawd.wire import frames


@pytest.mark.parametrize(
    ("own", "other", "version"),
    [((1, 1), (1, 1), 1), ((1, 3), (2, 5), 3), ((2, 5), (1, 3), 3), ((1, 2), (2, 2), 2), ((1, 4), (1, 1), 1)],
)
def test_machines_choose_the_newest_version_that_both_speak(
    own: tuple[int, int], other: tuple[int, int], version: int
) -> None:
    assert handshake.chosen(Protocols(*own), Protocols(*other), "b") == version


async def test_machines_with_different_versions_work_together_in_both_directions() -> None:
    newer, older = Protocols(1, 4), Protocols(1, 2)
    for opening, accepting in ((newer, older), (older, newer)):
        async with pair(
            opening=Credentials("a", KEY, protocols=opening), accepting=Credentials("b", KEY, protocols=accepting)
        ) as both:
            assert (await both.call("works")).payload == b'"data"'
            assert {link.protocol for link in both.listener.open} == {2}


@pytest.mark.parametrize(
    ("opening", "accepting", "older"),
    [(Protocols(1, 1), Protocols(2, 3), "this machine"), (Protocols(2, 3), Protocols(1, 1), "b")],
)
async def test_machines_without_a_common_version_say_why_and_which_one_is_older(
    opening: Protocols, accepting: Protocols, older: str
) -> None:
    async with pair(
        opening=Credentials("a", KEY, protocols=opening), accepting=Credentials("b", KEY, protocols=accepting)
    ) as both:
        reason = f"b speaks {accepting} of the protocol .*this machine {opening}.* until {older} has a newer thawd"
        with pytest.raises(NotRunError, match=reason):
            await both.call("works")
        assert not both.host.ran


async def test_a_version_that_this_machine_does_not_speak_is_not_accepted_from_a_proof() -> None:
    async with pair(accepting=Credentials("b", KEY, protocols=Protocols(1, 2))) as both:
        head = await proof_of_an_opener(both.port, version=3, named=True)
        assert head is None


def earlier_mac(side: str, nonces: tuple[str, str], names: tuple[str, str], version: int = 1) -> str:
    """The MAC of the first thawd with a cluster, written once more: it must never change for version 1."""
    parts = ("thawd cluster", str(version), side, *nonces, *names)
    message = b"".join(len(part.encode()).to_bytes(4, "big") + part.encode() for part in parts)
    return hmac.new(KEY.encode(), message, hashlib.sha256).hexdigest()


async def proof_of_an_opener(port: int, *, version: int, named: bool) -> Any:
    """Open a connection as an earlier thawd does, and return the head of WELCOME; None: there is none."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    decoder = frames.Decoder()

    async def next_frame() -> frames.Frame | None:
        while (frame := decoder.take()) is None:
            if not (data := await reader.read(65536)):
                return None
            decoder.feed(data)
        return frame

    challenge = await next_frame()
    assert challenge is not None
    assert challenge.head["protocol"] == 1  # an earlier thawd compares with 1
    nonces = (challenge.head["nonce"], "ab" * 32)
    about = {"name": "a", "to": "b", "nonce": nonces[1], "mac": earlier_mac("asks", nonces, ("b", "a"), version)}
    writer.write(frames.encode(channel.PROOF, {**about, "protocol": version} if named else about))
    welcome = await next_frame()
    writer.close()
    if welcome is not None:
        assert welcome.head["mac"] == earlier_mac("answers", nonces, ("b", "a"), version)
    return None if welcome is None else welcome.head


async def test_a_machine_of_the_first_version_is_let_in() -> None:
    async with pair(accepting=Credentials("b", KEY, protocols=Protocols(1, 3))) as both:
        assert await proof_of_an_opener(both.port, version=1, named=False) is not None


async def test_a_machine_of_the_first_version_lets_this_one_in() -> None:
    class Earlier(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            self.transport, self.decoder = transport, frames.Decoder()
            transport.write(frames.encode(channel.CHALLENGE, {"protocol": 1, "nonce": "00"}))

        def data_received(self, data: bytes) -> None:
            self.decoder.feed(data)
            while (frame := self.decoder.take()) is not None:
                nonces = ("00", frame.head["nonce"])
                assert frame.head["mac"] == earlier_mac("asks", nonces, ("b", "a"))
                self.transport.write(
                    frames.encode(channel.WELCOME, {"mac": earlier_mac("answers", nonces, ("b", "a"))})
                )

    server = await asyncio.get_running_loop().create_server(Earlier, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    link = await Links(Credentials("a", KEY, protocols=Protocols(1, 3)), "b", "127.0.0.1", port).open()
    assert link.protocol == 1
    link.close()
    server.close()


async def test_a_field_of_a_later_version_is_ignored() -> None:
    async with pair() as both:
        loop = asyncio.get_running_loop()
        _, link = await loop.create_connection(lambda: Link(Credentials("a", KEY), "b"), "127.0.0.1", both.port)
        await link.welcomed
        link.send(channel.SUMMARY, {"idle": {"v": 2}, "later": [1, {"two": 3}]})
        await both.host.heard_one.wait()
        summary = both.host.summaries["a"]
        assert summary is not None
        assert summary.idle == {"v": 2}
        link.close()


def test_a_machine_of_an_earlier_version_says_nothing_about_itself() -> None:
    assert machines.about(b"") == machines.About(thawd="", schema=3, protocols=(1, 1))
    assert machines.about(b"not of thawd") == machines.About()
    later = machines.about(b'{"thawd":"9.9.9","schema":7,"protocols":[2,4],"later":true}')
    assert later == machines.About(thawd="9.9.9", schema=7, protocols=(2, 4))
    assert machines.about(machines.encoded(later)) == later


def test_a_challenge_that_names_no_version_is_refused() -> None:
    for head in ({}, {"protocol": "new"}, {"protocol": None}):
        with pytest.raises((KeyError, TypeError, ValueError)):
            handshake.offered(head)
    with pytest.raises(HandshakeError):
        handshake.chosen(Protocols(1, 1), handshake.offered({"protocol": 5, "newest": 3}), "b")
