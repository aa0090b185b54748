"""Claims about `thawd.server.port_and_folder_locks`: what a start says if it cannot listen, and whose a lock is."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from thawd.server.port_and_folder_locks import StartError, _runs, bind, lock

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


@pytest.mark.parametrize("holder", ["a process that has ended", "this process's id, as in a container"])
def test_a_lock_that_a_killed_server_left_to_a_process_it_was_starting_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, holder: str
) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    (tmp_path / "lock").write_text(str(ended.pid if holder == "a process that has ended" else os.getpid()))
    with (tmp_path / "lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        waits: list[float] = []

        def sleep(seconds: float) -> None:
            waits.append(seconds)
            if len(waits) == 3:
                fcntl.flock(held, fcntl.LOCK_UN)

        monkeypatch.setattr("thawd.server.port_and_folder_locks.time.sleep", sleep)
        with lock(tmp_path) as locked:
            assert locked.is_held()
            assert (tmp_path / "lock").read_text() == str(os.getpid())
    assert len(waits) == 3


def test_a_start_waits_for_a_command_that_has_the_folder_briefly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    with contextlib.ExitStack() as command:

        def sleep(seconds: float) -> None:
            waits.append(seconds)
            if len(waits) == 3:
                command.close()

        monkeypatch.setattr("thawd.server.port_and_folder_locks.time.sleep", sleep)
        command.enter_context(lock(tmp_path, briefly=True))
        with lock(tmp_path):
            assert (tmp_path / "lock").read_text() == str(os.getpid())
    assert len(waits) == 3


@pytest.mark.parametrize("state", ["runs", "has ended and is not waited for"])
def test_a_start_is_refused_without_a_wait_only_while_the_holder_runs(tmp_path: Path, state: str) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        if state != "runs":
            process.kill()
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert _runs(process.pid) is (state == "runs")
        if state == "runs":
            (tmp_path / "lock").write_text(str(process.pid))
            with (tmp_path / "lock").open() as held:
                fcntl.flock(held, fcntl.LOCK_EX)
                with pytest.raises(StartError, match=f"another thawd .process {process.pid}. uses"), lock(tmp_path):
                    pass
        process.kill()
