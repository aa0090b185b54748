"""Claims about `thawd.server.exclusive_resources`: what a start says if it cannot listen."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator

import pytest

from thawd.server.exclusive_resources import StartError, bind

LOOPBACK = "127.0.0.1"


@pytest.fixture
def taken() -> Iterator[int]:
    """A port on which another program listens."""
    with socket.socket() as listener:
        listener.bind((LOOPBACK, 0))
        listener.listen()
        yield listener.getsockname()[1]


def refusal(host: str, port: int) -> str:
    with pytest.raises(StartError) as refused:
        bind(host, port).close()
    return refused.value.message


def test_a_port_in_use_is_answered_with_advice_about_the_port(taken: int) -> None:
    assert "stop the program that uses the port" in refusal(LOOPBACK, taken)
    assert "server.port" in refusal(LOOPBACK, taken)


# 192.0.2.0/24 is reserved for documentation: no machine has such an address. Source: RFC 5737.
@pytest.mark.parametrize("host", ["192.0.2.7", "name.invalid", "2001:db8::7"])
@pytest.mark.parametrize("port", [0, 7070])
def test_an_address_of_another_machine_is_answered_with_advice_about_the_host(host: str, port: int) -> None:
    message = refusal(host, port)
    assert "server.host" in message
    assert "port" not in message


def _raising(number: int) -> type:
    class Refusing(socket.socket):
        def bind(self, address: object) -> None:
            raise OSError(number, os.strerror(number))

    return Refusing


def test_a_privileged_port_is_answered_with_advice_about_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "socket", _raising(errno.EACCES))
    message = refusal(LOOPBACK, 80)
    assert "1024 or higher" in message
    assert "stop the program" not in message


def test_a_machine_without_ipv6_is_answered_with_advice_about_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(family: int, kind: int) -> socket.socket:
        raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))

    monkeypatch.setattr(socket, "socket", unsupported)
    assert "server.host" in refusal("::1", 7070)
