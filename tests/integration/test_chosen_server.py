"""Which server commands talk with: by default the one that uses the configuration's data folder, and no other."""

from __future__ import annotations

import errno
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from thawd.cli.client import address
from thawd.cli.program import main
from thawd.config import load
from thawd.server.port_and_folder_locks import address_in, announced, is_locked, lock

from .conftest import ECHO, Project, Running

KEY = "a-key-that-no-other-server-may-see"


@pytest.fixture
def served(project: Project) -> Iterator[Running]:
    project.code(ECHO)
    project.config('[functions.app]\nhandler = "app.handler"\n')
    with project.up() as running:
        yield running


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0)
        yield listening


def configured(folder: Path, server: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "thawd.toml"
    path.write_text(f'[server]\n{server}\n[functions.app]\nhandler = "app.handler"\n')
    return path


def run(*arguments: str | Path, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments], env=env)


def received(listening: socket.socket) -> bytes:
    """Everything that clients have sent to a socket that accepted none of them yet."""
    found = b""
    while True:
        try:
            connection, _ = listening.accept()
        except BlockingIOError:
            return found
        with connection:
            connection.settimeout(10)
            found += connection.recv(65536)


@pytest.mark.parametrize("left_over", [False, True], ids=["configured", "left over"])
def test_a_server_with_another_data_folder_is_not_used(served: Running, tmp_path: Path, left_over: bool) -> None:
    port = int(served.url.rpartition(":")[2])
    path = configured(tmp_path / "other", f"port = {port}")
    if left_over:  # a server that was killed leaves these files behind
        (path.parent / ".thawd").mkdir()
        (path.parent / ".thawd" / "lock").write_text("1")
        (path.parent / ".thawd" / "address.json").write_text(json.dumps(["127.0.0.1", port]))
    for arguments in (("status",), ("invoke", "app", "-p", "{}"), ("source", "list")):
        done = run(*arguments, "-c", path)
        assert done.exit_code == 1, done.output
        assert f"no thawd server runs for {path}" in done.output
        assert f"`thawd up -c {path}`" in done.output
        assert f"set THAWD_URL={served.url}" in done.output
    assert served.function("app")["invocations"] == {}

    done = run("status", "-c", path, env={"THAWD_URL": served.url})
    assert done.output.startswith(f"{served.url}  process {served.process.pid};"), done.output
    done = run("status", "-c", served.project.root / "thawd.toml")
    assert done.output.startswith(f"{served.url}  process {served.process.pid};"), done.output


def test_the_key_is_sent_to_no_other_program(tmp_path: Path, listener: socket.socket) -> None:
    path = configured(tmp_path, f'port = {listener.getsockname()[1]}\nkey = "{KEY}"')
    assert "no thawd server runs" in run("status", "-c", path).output
    assert received(listener) == b""


def test_a_server_on_another_machine_is_used_as_configured(tmp_path: Path) -> None:
    # Source: RFC 5737, 3: the addresses 192.0.2.0/24 belong to no machine.
    path = configured(tmp_path, f'host = "192.0.2.1"\nport = 9\nkey = "{KEY}"')
    assert address(load(path)) == ("192.0.2.1", 9)


def test_a_data_folder_that_cannot_be_read_leaves_the_choice_to_the_user(
    tmp_path: Path, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = configured(tmp_path, f'port = {listener.getsockname()[1]}\nkey = "{KEY}"')

    def refused(_data: Path) -> bool:  # root, which runs the tests in containers, may read everything
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("thawd.cli.client.is_locked", refused)
    done = run("status", "-c", path)
    assert "cannot be read (Permission denied)" in done.output
    assert "THAWD_URL=http://127.0.0.1:" in done.output
    assert received(listener) == b""


@pytest.mark.parametrize("url", ["127.0.0.1:8350", "https://127.0.0.1:8350", "http://127.0.0.1:x", "http://a/b"])
def test_a_url_that_names_no_server_is_refused(tmp_path: Path, url: str) -> None:
    done = run("status", "-c", configured(tmp_path, ""), env={"THAWD_URL": url})
    assert done.exit_code == 1
    assert "write http://HOST:PORT" in done.output


def test_a_new_server_does_not_announce_the_address_of_a_killed_one(tmp_path: Path) -> None:
    assert not is_locked(tmp_path)
    (tmp_path / "address.json").write_text(json.dumps(["127.0.0.1", 1]))
    with lock(tmp_path):
        assert is_locked(tmp_path)
        assert address_in(tmp_path) is None
        with announced(tmp_path, ("127.0.0.1", 2)):
            assert address_in(tmp_path) == ("127.0.0.1", 2)
    assert not is_locked(tmp_path)


def test_commands_on_stored_data_ask_a_named_server(served: Running, tmp_path: Path) -> None:
    path = configured(tmp_path / "other", "")
    done = run("dead", "list", "-c", path, env={**os.environ, "THAWD_URL": served.url})
    assert done.exit_code == 0, done.output
