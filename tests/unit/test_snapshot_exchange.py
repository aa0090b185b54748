"""`thawd.transfer.exchange`: servers share snapshots, and none of their failures keeps a function from starting."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from tests.unit.chunk_stores import KEY, Machine, MemoryPlace, elsewhere, pull
from thawd.errors import ResourceNotFoundException, StoreError
from thawd.snapshot.inspect import reader
from thawd.snapshot.store.images import Snapshot
from thawd.stores.chunk_places import FolderPlace
from thawd.transfer import arriving_snapshots, exchange, receiving, sending, upkeep
from thawd.transfer.arriving_snapshots import ArrivingSnapshot
from thawd.transfer.exchange import SnapshotExchange
from thawd.transfer.sender_process import Task, send_apart
from thawd.transfer.store_keys import FunctionKey
from thawd.transfer.store_layout import key_pointer


def exchange_of(machine: Machine, place: MemoryPlace, key_file: Path, said: list[str]) -> SnapshotExchange:
    """Return the exchange of a machine's server. It sends in this process."""

    def send(snapshot: Snapshot) -> None:
        sending.send(machine.store, snapshot, place, KEY)

    return SnapshotExchange(machine.store, place, key=key_file, program=None, send=send, report=said.append)


def receive(server: SnapshotExchange, function: str, key: str) -> bool | ArrivingSnapshot:
    return asyncio.run(server.receive(function, key))


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "snapshots.key"
    path.write_text(KEY.text())
    path.chmod(0o600)
    return path


def test_a_server_sends_a_new_snapshot_and_another_receives_it_by_its_key(
    machine: Machine, place: MemoryPlace, key_file: Path
) -> None:
    said: list[str] = []
    first = exchange_of(machine, place, key_file, said)
    assert not receive(first, "classify", "key"), "nobody has sent one"
    first.send(machine.freeze())
    first.wait()
    there = elsewhere(machine)
    second = exchange_of(there, place, key_file, said)
    assert not receive(second, "classify", "another key")
    assert not receive(second, "other", "key")
    assert receive(second, "classify", "key")
    assert there.store.find("key") is not None
    assert said == []
    names = [key for key in place.objects if key.startswith("keys/")]
    assert len(names) == 1
    place.remove(next(key for key in place.objects if key.startswith("snapshots/")))
    assert not receive(second, "classify", "key")
    upkeep.clean_up(place)
    assert not [key for key in place.objects if key.startswith("keys/")]


def test_what_keeps_a_server_from_receiving_is_said_once(machine: Machine, place: MemoryPlace, key_file: Path) -> None:
    sending.send(machine.store, machine.freeze(), place, KEY)
    there = elsewhere(machine)
    there.shared_object.write_bytes(b"another")
    said: list[str] = []
    server = exchange_of(there, place, key_file, said)
    assert (receive(server, "classify", "key"), receive(server, "classify", "key")) == (False, False)
    assert len(said) == 1
    assert "has another content" in said[0]
    key_file.unlink()
    assert not receive(server, "classify", "another key")
    assert "cannot be read" in said[-1]


def test_a_name_of_a_key_that_leads_to_another_snapshot_is_not_followed(
    machine: Machine, place: MemoryPlace, key_file: Path
) -> None:
    sending.send(machine.store, machine.freeze(), place, KEY)
    (name,) = (key for key in place.objects if key.startswith("keys/"))
    other = key_pointer(KEY.function_key("classify"), "classify", "wanted")
    there, said = elsewhere(machine), list[str]()
    for content in (place.objects[name][0], b"0" * 64, b"../" * 20, b"\xff" * 64):
        place.objects[other] = (content, 0.0)
        assert not receive(exchange_of(there, place, key_file, said), "classify", "wanted")
    assert (there.store.snapshots(), said) == ([], [])


def test_the_key_of_one_function_receives_its_snapshots_and_sends_none(
    machine: Machine, place: MemoryPlace, key_file: Path
) -> None:
    sending.send(machine.store, machine.freeze(), place, KEY)
    key_file.write_text(FunctionKey("classify", KEY.function_key("classify")).text())
    there, said = elsewhere(machine), list[str]()
    server = exchange_of(there, place, key_file, said)
    assert receive(server, "classify", "key")
    assert not receive(server, "other", "key")
    before = dict(place.objects)
    server.send(there.store.snapshots()[0])
    server.wait()
    assert (place.objects, said) == (before, [])


def test_a_snapshot_whose_files_were_installed_again_is_received_again(machine: Machine, place: MemoryPlace) -> None:
    sending.send(machine.store, machine.freeze(), place, KEY)
    assert pull(machine, place).was_there
    kept = machine.shared_object.with_suffix(".kept")
    machine.shared_object.rename(kept)
    shutil.copyfile(kept, machine.shared_object)
    got = pull(machine, place)
    assert not got.was_there
    (library,) = (one for one in reader.read(got.snapshot.path).files if one.path == str(machine.shared_object))
    assert library.inode == machine.shared_object.stat().st_ino
    found = machine.store.find("key")
    assert found is not None
    assert found.sha256 == got.snapshot.sha256, "the newest is used"


def test_a_store_that_cannot_be_reached_is_left_alone_for_a_while(
    machine: Machine, key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Unreachable(MemoryPlace):
        def get(self, key: str, *, limit_bytes: int) -> bytes:
            tried.append(key)
            raise StoreError("no answer")

    tried, said, now_s = list[str](), list[str](), 1000.0
    monkeypatch.setattr(exchange.time, "monotonic", lambda: now_s)
    server = exchange_of(machine, Unreachable(), key_file, said)
    assert [receive(server, "classify", key) for key in ("one", "two", "three")] == [False] * 3
    assert len(tried) == len(said) == 1
    assert "no answer" in said[0]
    now_s += 61
    assert not receive(server, "classify", "one")
    assert len(tried) == 2, "it is asked again, because it did not answer"


def test_a_process_sends_a_snapshot_or_says_why_it_cannot(
    machine: Machine, tmp_path: Path, key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("queue", "tempfile", "msgspec"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a file of the user')")
    monkeypatch.chdir(tmp_path)  # as in a project with such files
    snapshot = machine.freeze()
    store = tmp_path / "shared"
    task = Task(str(machine.store.folder), snapshot.sha256, str(store), None, str(key_file))
    send_apart(task)
    assert receiving.find(FolderPlace(store), KEY, "classify").body.sha256 == snapshot.sha256
    machine.shared_object.write_bytes(b"changed")
    with pytest.raises(StoreError, match="has changed since the freeze"):
        send_apart(task)
    machine.store.remove(snapshot)
    with pytest.raises(ResourceNotFoundException):
        send_apart(task)


def test_a_machine_with_the_key_of_a_function_says_that_no_snapshot_fits(
    machine: Machine, place: MemoryPlace, key_file: Path
) -> None:
    sending.send(machine.store, machine.freeze(), place, KEY)
    said: list[str] = []
    receive(exchange_of(elsewhere(machine), place, key_file, said), "classify", "key of other settings")
    assert said == [], "a machine that sends makes a snapshot of its own"
    key_file.write_text(FunctionKey("classify", KEY.function_key("classify")).text())
    server = exchange_of(machine, place, key_file, said)
    for key in ("key of other settings", "another"):
        assert not receive(server, "classify", key)
    assert said == [
        "thawd: classify: memory has snapshots of it, but none of this code, these settings and this version of thawd; "
        "it is initialised here"
    ]


def test_without_fuse_an_image_is_received_whole_and_that_is_said_once(
    machine: Machine, place: MemoryPlace, key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arriving_snapshots, "LEAST_BYTES", 0)
    monkeypatch.setattr(exchange, "why_not_detached", lambda: "/dev/fuse cannot be opened")
    sending.send(machine.store, machine.freeze(), place, KEY)
    there, said = elsewhere(machine), list[str]()
    server = exchange_of(there, place, key_file, said)
    server.lazy = True
    for _ in range(2):
        assert receive(server, "classify", "key") is True
        server._asked.clear()
        there.store.remove(there.store.snapshots()[0])
    assert said == ["thawd: images are received whole before functions start: /dev/fuse cannot be opened"]
