"""Claims about `thawd.bench.connection`: how much of an answer a connection keeps."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from thawd.bench.connection import KEPT_BYTES, Answer, Connection


class Owner:
    """Collects the answers."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []

    def answered(self, connection: Connection, answer: Answer) -> None:
        self.answers.append(answer)

    def lost(self, connection: Connection) -> None:
        raise AssertionError("no connection is lost while it is idle")


class Transport:
    """Takes a request and sends nothing."""

    def write(self, data: bytes) -> None:
        pass

    def abort(self) -> None:
        pass


def answer_in(*pieces: bytes, length: int, whole: bool = False) -> Answer:
    """The answer when the body arrives in `pieces` and then the connection ends."""

    async def receive() -> Answer:
        owner, transport = Owner(), Transport()
        unchecked: Any = transport
        connection = Connection(owner, timeout_s=60, whole=whole)
        connection.connection_made(unchecked)
        connection.send(b"GET / HTTP/1.1\r\n\r\n")
        connection.data_received(f"HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n".encode())
        for piece in pieces:
            connection.data_received(piece)
        if not owner.answers:
            connection.connection_lost(None)
        return owner.answers[0]

    return asyncio.run(receive())


@pytest.mark.parametrize("first", [1, KEPT_BYTES - 1, KEPT_BYTES])
def test_no_more_of_a_body_is_kept_than_the_limit(first: int) -> None:
    answer = answer_in(b"a" * first, b"b" * KEPT_BYTES, b"c", length=first + KEPT_BYTES + 1)
    assert answer.status == 200
    assert answer.body == (b"a" * first + b"b" * KEPT_BYTES)[:KEPT_BYTES]


def test_a_connection_for_whole_bodies_keeps_all() -> None:
    answer = answer_in(b"a" * KEPT_BYTES, b"b" * KEPT_BYTES, length=2 * KEPT_BYTES, whole=True)
    assert answer.body == b"a" * KEPT_BYTES + b"b" * KEPT_BYTES


def test_a_connection_that_ends_early_says_after_how_many_bytes() -> None:
    answer = answer_in(b"a" * KEPT_BYTES, b"b" * 7, length=4 * KEPT_BYTES)
    assert answer.trouble == "connection"
    assert answer.body == b"the connection ended after 65,543 bytes of the body"
