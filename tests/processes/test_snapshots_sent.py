"""Snapshots that travel: what arrives is what was sent and fits the machine's files, or is refused."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tests.unit.chunk_stores import KEY, WEIGHTS, Machine, MemoryPlace, elsewhere, origin, pull
from thawd.errors import ResourceNotFoundException, StoreError, ThawdError
from thawd.runtime.changed_files import changed, stamps_here
from thawd.snapshot.inspect import reader
from thawd.snapshot.store import file_lists
from thawd.snapshot.store.images import SnapshotStore
from thawd.stores.chunk_places import FolderPlace
from thawd.transfer import receiving, record_body, sending
from thawd.transfer.chunk_downloads import ChunkSource
from thawd.transfer.chunk_format import ChunkError, decode_record, encode_chunk, encode_record
from thawd.transfer.store_keys import FunctionKey, StoreKey


def the_record(place: MemoryPlace) -> str:
    (name,) = (key for key in place.objects if key.startswith("snapshots/"))
    return name


def test_a_snapshot_arrives_bound_to_the_files_of_the_other_machine(machine: Machine, place: MemoryPlace) -> None:
    sent = machine.freeze()
    content = sent.path.read_bytes()
    sending.send(machine.store, sent, place, KEY)
    there = elsewhere(machine)
    got = pull(there, place).snapshot
    assert got.sidecar is not None
    assert sent.sidecar is not None
    assert (got.sidecar.sent_as, got.sidecar.origin) == (sent.sha256, sent.sidecar.origin)
    assert there.store.find("key") is not None
    assert there.store.verify(got) == ()
    image, status = reader.read(got.path), there.shared_object.stat()
    (library,) = (one for one in image.files if one.path == str(there.shared_object))
    assert (library.inode, library.modified_ns, library.device) == (status.st_ino, status.st_mtime_ns, 0)
    arrived = got.path.read_bytes()
    assert arrived[image.data_offset :] == content[image.data_offset :]
    assert WEIGHTS in arrived
    assert got.path.stat().st_mode & 0o777 == 0o600
    assert (there.module.read_text(), (there.module.parent / "bin/python").readlink()) == (
        "x = 1\n",
        Path("/usr/bin/python3"),
    )


def test_a_probe_recognises_the_files_that_init_read_elsewhere(machine: Machine, place: MemoryPlace) -> None:
    status = machine.module.stat()
    stamp = (str(machine.module), status.st_size, status.st_mtime_ns, status.st_ino)
    sending.send(machine.store, machine.freeze(), place, KEY)
    there = elsewhere(machine)
    files = pull(there, place).snapshot.files
    os.utime(there.module, ns=(1, 1))
    assert changed([[stamp]]) == stamp[0]
    assert files is not None
    assert changed([[stamp]], stamps_here(str(files))) == stamp[0], "changed since it arrived"
    status = there.module.stat()
    document = json.loads(files.read_bytes())
    for one in document["files"]:
        if one["path"] == stamp[0]:
            one |= {"modified_ns": status.st_mtime_ns, "inode": status.st_ino}
    files.write_text(json.dumps(document))
    assert changed([[stamp]], stamps_here(str(files))) is None


def test_a_snapshot_travels_on_from_the_machine_where_it_arrived(machine: Machine, place: MemoryPlace) -> None:
    sending.send(machine.store, machine.freeze(), place, KEY)
    second = elsewhere(machine)
    sending.send(second.store, pull(second, place).snapshot, place, KEY)
    third = elsewhere(second)
    got = pull(third, place).snapshot
    (library,) = (one for one in reader.read(got.path).files if one.path == str(third.shared_object))
    assert library.inode == third.shared_object.stat().st_ino
    assert got.files is not None
    records = {one.path: one for one in file_lists.decode(got.files.read_bytes(), where=got.files).files}
    assert records[str(third.module)].frozen is not None


def test_what_the_store_has_is_not_sent_again(machine: Machine, place: MemoryPlace) -> None:
    first = sending.send(machine.store, machine.freeze(), place, KEY)
    assert (first.new_chunks, first.chunks) == (len(place.chunks()), len(place.chunks()))
    place.puts.clear()
    second = sending.send(machine.store, machine.freeze(version="2", text=b"other"), place, KEY)
    assert second.new_chunks == 1, "the weights and the packages are those of the first version"
    assert second.new_bytes < len(WEIGHTS) // 10
    again = sending.send(machine.store, machine.store.resolve("classify:2"), place, KEY, anew=True)
    assert again.new_chunks == again.chunks


def test_a_base_arrives_with_the_snapshot_that_refers_to_it(machine: Machine, place: MemoryPlace) -> None:
    base = machine.freeze(version="base", text=b"base")
    sending.send(machine.store, machine.freeze(base=base.sha256), place, KEY)
    there = elsewhere(machine)
    got = pull(there, place).snapshot
    assert got.base == base.sha256
    assert {one.sha256 for one in there.store.snapshots()} == {got.sha256, base.sha256}
    found = there.store.find("key")
    assert found is not None
    assert found.sha256 == got.sha256, "a base of another machine is not found for versions that are published here"
    assert pull(there, place).was_there


def test_the_files_of_the_temporary_folder_arrive(machine: Machine, place: MemoryPlace) -> None:
    with machine.store.begin() as draft:
        machine.image().write(draft.image)
        files = draft.disk / "files"
        (files / "sub").mkdir(parents=True)
        (files / "sub" / "one").write_bytes(b"one" * 100)
        os.link(files / "sub" / "one", files / "two")
        (files / "link").symlink_to("sub/one")
        (files / "sub" / "one").chmod(0o640)
        os.utime(files / "two", ns=(5, 123_456_789))
        (files / "sub").chmod(0o555)
        listed = file_lists.listed(
            [("/tmp/sub/one", 300, 123_456_789, (files / "two").stat().st_ino)],
            reader.read(draft.image),
            find=lambda path: "disk:sub/one" if path == "/tmp/sub/one" else "",
        )
        draft.files.write_bytes(file_lists.encode(listed))
        sent = machine.store.adopt(draft, origin())
    sending.send(machine.store, sent, place, KEY)
    got = pull(elsewhere(machine), place).snapshot
    assert got.disk is not None
    one, two = got.disk / "files" / "sub" / "one", got.disk / "files" / "two"
    assert (one.read_bytes(), one.stat().st_ino, one.stat().st_mode & 0o777) == (b"one" * 100, two.stat().st_ino, 0o640)
    assert (one.stat().st_mtime_ns, one.parent.stat().st_mode & 0o777) == (123_456_789, 0o555)
    assert (got.disk / "files" / "link").readlink() == Path("sub/one")
    assert got.files is not None
    stamps = stamps_here(str(got.files))
    assert ("/tmp/sub/one", 300, 123_456_789, one.stat().st_ino) in stamps.values()


def remove_the_library(there: Machine) -> str:
    there.shared_object.unlink()
    return f"{there.shared_object} cannot be opened"


def change_the_library(there: Machine) -> str:
    content = bytearray(there.shared_object.read_bytes())
    content[0] ^= 1
    there.shared_object.write_bytes(content)
    return f"{there.shared_object} has another content"


def have_other_packages(there: Machine) -> str:
    there.module.parent.mkdir(parents=True)
    there.module.write_text("x = 2\n")
    return "contains other packages"


@pytest.mark.parametrize("change", [remove_the_library, change_the_library, have_other_packages])
def test_a_machine_with_other_files_refuses_the_snapshot_with_the_reason(
    change: Callable[[Machine], str], machine: Machine, place: MemoryPlace
) -> None:
    sending.send(machine.store, machine.freeze(), place, KEY)
    there = elsewhere(machine)
    why = change(there)
    with pytest.raises(StoreError) as caught:
        pull(there, place)
    assert why in caught.value.message
    assert there.store.snapshots() == []
    assert there.store.tidy() == 0, "nothing is left"


@pytest.mark.parametrize(
    ("said", "status", "is_refused"),
    [
        ("a feature that this one lacks: CPUID 7 EBX bit 16", 120, True),
        ("fewer seccomp filters", 120, False),
        ("", 0, False),
    ],
)
def test_a_machine_that_could_not_continue_the_process_refuses_the_snapshot(
    said: str, status: int, is_refused: bool, machine: Machine, place: MemoryPlace, tmp_path: Path
) -> None:
    program = tmp_path / "thaw"
    program.write_text(f'#!/bin/sh\ntest "$*" = "--clocks-back --try check $4" || exit 2\n'
                       f'echo "thawd: cannot thaw here: {said}" >&2\nexit {status}\n')  # fmt: skip
    program.chmod(0o700)
    sending.send(machine.store, machine.freeze(), place, KEY)
    there = elsewhere(machine)
    record = receiving.find(place, KEY, "classify")
    if not is_refused:
        assert not receiving.receive(there.store, ChunkSource(place), record, program=program).was_there
        return
    with pytest.raises(
        StoreError, match="does not fit this machine: a feature that this one lacks: CPUID 7 EBX bit 16"
    ):
        receiving.receive(there.store, ChunkSource(place), record, program=program)
    assert there.store.snapshots() == []


def test_a_machine_with_the_same_packages_keeps_them(machine: Machine, place: MemoryPlace) -> None:
    sending.send(machine.store, machine.freeze(), place, KEY)
    there = elsewhere(machine)
    there.install()
    compiled = there.module.parent / "__pycache__" / "module.cpython-311.pyc"
    compiled.parent.mkdir()
    compiled.write_bytes(b"byte code")
    before = there.module.stat()
    pull(there, place)
    after = there.module.stat()
    assert (after.st_ino, after.st_mtime_ns, after.st_ctime_ns) == (
        before.st_ino,
        before.st_mtime_ns,
        before.st_ctime_ns,
    )
    assert compiled.exists()


def test_another_data_folder_refuses_the_snapshot(machine: Machine, place: MemoryPlace, tmp_path: Path) -> None:
    sending.send(machine.store, machine.freeze(), place, KEY)
    other = SnapshotStore(tmp_path / "other" / "snapshots")
    with pytest.raises(StoreError, match="was made in the data folder"):
        receiving.receive(other, ChunkSource(place), receiving.find(place, KEY, "classify"), program=None)


def test_a_file_that_changed_since_the_freeze_keeps_the_snapshot_from_being_sent(
    machine: Machine, place: MemoryPlace
) -> None:
    sent = machine.freeze()
    os.utime(machine.module, ns=(1, 1))
    with pytest.raises(StoreError, match=r"module.py has changed since the freeze"):
        sending.send(machine.store, sent, place, KEY)
    assert not [key for key in place.objects if key.startswith("snapshots/")]


def test_a_file_that_changed_during_init_keeps_the_snapshot_from_being_sent(
    machine: Machine, place: MemoryPlace
) -> None:
    sent = machine.freeze()
    assert sent.files is not None
    files = file_lists.decode(sent.files.read_bytes(), where=sent.files)
    doubtful = [msgspec.structs.replace(one, modified_ns=-1) for one in files.files if one.path == str(machine.module)]
    sent.files.write_bytes(file_lists.encode(file_lists.FileList(files=doubtful)))
    with pytest.raises(StoreError, match="has changed during init, or a moment before"):
        sending.send(machine.store, sent, place, KEY)


def test_a_snapshot_without_a_list_of_files_cannot_be_sent(machine: Machine, place: MemoryPlace) -> None:
    sent = machine.freeze()
    assert sent.files is not None
    sent.files.unlink()
    with pytest.raises(StoreError, match="no list of the files"):
        sending.send(machine.store, sent, place, KEY)


def flip(place: MemoryPlace, key: str) -> None:
    data, at_s = place.objects[key]
    place.objects[key] = (data[:-20] + bytes([data[-20] ^ 1]) + data[-19:], at_s)


def cut(place: MemoryPlace, key: str) -> None:
    data, at_s = place.objects[key]
    place.objects[key] = (data[: len(data) // 2], at_s)


def exchange(place: MemoryPlace, key: str) -> None:
    other = next(one for one in place.chunks() if one != key)
    place.objects[key], place.objects[other] = place.objects[other], place.objects[key]


def lose(place: MemoryPlace, key: str) -> None:
    del place.objects[key]


def use_one_of_another_store(place: MemoryPlace, key: str) -> None:
    foreign = StoreKey(b"f" * 32).chunk(b"foreign")
    place.objects[key] = (encode_chunk(b"foreign", foreign), 0.0)


@pytest.mark.parametrize("harm", [flip, cut, exchange, lose, use_one_of_another_store])
def test_a_harmed_chunk_is_refused_and_nothing_is_stored(
    harm: Callable[[MemoryPlace, str], None], machine: Machine, place: MemoryPlace
) -> None:
    sending.send(machine.store, machine.freeze(), place, KEY)
    there, whole = elsewhere(machine), dict(place.objects)
    for key in place.chunks():
        place.objects = dict(whole)
        harm(place, key)
        with pytest.raises(ChunkError):
            pull(there, place)
        assert there.store.snapshots() == []
        shutil.rmtree(there.folder / "data", ignore_errors=True)
    place.objects = dict(whole)
    assert not pull(there, place).was_there


def test_a_chunk_that_was_damaged_on_its_way_is_fetched_once_more(machine: Machine, place: MemoryPlace) -> None:
    failed: set[str] = set()

    class Unsteady(MemoryPlace):
        def get(self, key: str, *, limit_bytes: int) -> bytes:
            data = super().get(key, limit_bytes=limit_bytes)
            if key.startswith("chunks/") and key not in failed:
                failed.add(key)
                return data[:-1]
            return data

    sending.send(machine.store, machine.freeze(), place, KEY)
    there = elsewhere(machine)
    assert pull(there, Unsteady(objects=place.objects)).snapshot.problem is None


def test_the_record_of_another_snapshot_under_its_name_is_refused(machine: Machine, place: MemoryPlace) -> None:
    old = sending.send(machine.store, machine.freeze(), place, KEY)
    new = sending.send(machine.store, machine.freeze(version="2", text=b"new"), place, KEY)
    place.objects[new.key] = place.objects[old.key]  # replayed
    with pytest.raises(ChunkError, match="that of another snapshot"):
        pull(elsewhere(machine), place, "classify:2")


def test_the_snapshot_that_was_sent_last_is_received(machine: Machine, place: MemoryPlace) -> None:
    sending.send(machine.store, machine.freeze(version="2"), place, KEY)
    sending.send(machine.store, machine.freeze(version="1", text=b"again"), place, KEY)
    there = elsewhere(machine)
    assert pull(there, place).snapshot.name == "classify:1"
    assert pull(there, place, "classify:2").snapshot.name == "classify:2"
    digits = the_digits(place, "classify:1")
    assert pull(there, place, f"classify/{digits}").was_there
    with pytest.raises(ResourceNotFoundException):
        pull(there, place, "classify:3")


def the_digits(place: MemoryPlace, name: str) -> str:
    return receiving.find(place, KEY, name).body.sha256[:10]


def test_the_key_of_a_function_reads_its_snapshots_and_no_others(machine: Machine, place: MemoryPlace) -> None:
    sending.send(machine.store, machine.freeze(), place, KEY)
    there = elsewhere(machine)
    with pytest.raises(StoreError, match="key is that of the function other"):
        pull(there, place, key=FunctionKey("other", KEY.function_key("other")))
    with pytest.raises(ChunkError, match="another key"):
        pull(there, place, key=FunctionKey("classify", KEY.function_key("other")))
    assert pull(there, place, key=FunctionKey("classify", KEY.function_key("classify"))).snapshot.problem is None


def rewritten(place: MemoryPlace, change: Callable[[dict[str, object]], object]) -> None:
    """Have somebody with the function's key write another record."""
    name, key = the_record(place), KEY.function_key("classify")
    text, ids = decode_record(place.objects[name][0], key=key)
    document = json.loads(text)
    change(document)
    place.objects[name] = (encode_record(json.dumps(document).encode(), ids, key=key), 0.0)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda d: d["trees"][0].update(at="../../etc"), "no folder that a snapshot may bring"),
        (lambda d: d["trees"][0].update(at=f"snapshots/{'0' * 64}"), "no folder that a snapshot may bring"),
        (lambda d: d["trees"][0]["entries"][1].update(path="../x"), "path or the mode"),
        (lambda d: d["trees"][0]["entries"][1].update(path="/etc/x"), "path or the mode"),
        (lambda d: d["trees"][0]["entries"][-1].update(path="bin/python/x"), "is in no folder"),
        (lambda d: d["trees"][0]["entries"][-1].update(mode=0o4755), "path or the mode"),
        (lambda d: d["snapshots"][0]["extents"][0].__setitem__(1, 99), "chunk that it does not list"),
        (lambda d: d["snapshots"][0]["extents"][0].__setitem__(0, 1 << 40), "outside the file"),
        (lambda d: d["snapshots"][0]["extents"][0].__setitem__(2, -1), "outside the file"),
        (lambda d: d["snapshots"][0]["extents"].pop(), "is damaged"),
        (lambda d: d["snapshots"][0]["sidecar"].update(image_bytes=-1), "size is not valid"),
        (lambda d: d["snapshots"][0]["sidecar"]["origin"].update(base="ab" * 32), "a base is missing"),
        (lambda d: d["chunks"].pop(), "as many chunks|does not list"),
        (lambda d: d["chunks"][0].__setitem__(0, "0" * 64), "another SHA-256"),
        (lambda d: d.update(layout=2), "layout 2"),
        (lambda d: d.update(function="other"), "another snapshot"),
        (lambda d: d.pop("trees"), "record is damaged"),
        (lambda d: d["snapshots"][0]["sidecar"]["origin"].update(function="other"), "of another function"),
        (lambda d: d["snapshots"].insert(0, d["snapshots"][0]), "a second snapshot that is no base"),
        (lambda d: d["snapshots"][0].update(files=None), "of another function"),
    ],
)
def test_not_even_a_record_of_a_holder_of_the_key_leads_out_of_its_folders(
    change: Callable[[dict[str, object]], object], why: str, machine: Machine, place: MemoryPlace
) -> None:
    sending.send(machine.store, machine.freeze(), place, KEY)
    there = elsewhere(machine)
    rewritten(place, change)
    with pytest.raises(ThawdError, match=why):
        pull(there, place)
    assert there.store.snapshots() == []


KILLED = """
import sys
from pathlib import Path
from tests.unit.chunk_stores import KEY, Machine
from thawd.stores.chunk_places import FolderPlace
from thawd.transfer import receiving
from thawd.transfer.chunk_downloads import ChunkSource

class Halting(FolderPlace):
    left = int(sys.argv[2])

    def get(self, key, *, limit_bytes):
        self.left -= 1
        if self.left == 0:
            print("halted", flush=True)
            sys.stdin.read()
        return super().get(key, limit_bytes=limit_bytes)

folder = Path(sys.argv[1])
place = Halting(folder / "shared")
receiving.receive(Machine(folder).store, ChunkSource(place), receiving.find(place, KEY, "classify"), program=None)
print("received", flush=True)
"""


def test_a_receiver_that_is_killed_leaves_nothing_that_is_used(machine: Machine, tmp_path: Path) -> None:
    sending.send(machine.store, machine.freeze(), FolderPlace(tmp_path / "shared"), KEY)
    there = elsewhere(machine)
    for gets in (1, 2, 3, 5, 100):
        command = [sys.executable, "-c", KILLED, str(tmp_path), str(gets)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            said = process.stdout.readline()
            process.kill()
        assert said == ("halted\n" if gets < 100 else "received\n")
        assert len(there.store.snapshots()) == (gets == 100)
    (found,) = there.store.snapshots()
    assert there.store.verify(found) == ()
    there.store.tidy()
    assert {path.name for path in (tmp_path / "data" / "environments").iterdir()} == {"ab" * 32, f"{'ab' * 32}.lock"}
    assert not [path for path in there.store.folder.iterdir() if path.name.startswith(".")]


def test_equal_memory_at_another_place_of_an_image_is_the_same_chunk(machine: Machine, place: MemoryPlace) -> None:
    sending.send(machine.store, machine.freeze(), place, KEY)
    draft = machine.image()
    draft.data_offset += 64 * 4096
    moved = Machine(machine.folder)
    moved.image = lambda *, text=b"heap": draft  # type: ignore[method-assign]
    for one in draft.records["operations"]:
        if one["kind"] in (4, 5):
            one["offset"] += 64 * 4096
    draft.records["objects"][0]["offset"] += 64 * 4096
    for one in draft.records["descriptors"]:
        if "data_offset" in one:
            one["data_offset"] += 64 * 4096
    weights = {hashlib.sha256(WEIGHTS[: 512 << 10]).hexdigest(), hashlib.sha256(WEIGHTS[512 << 10 :]).hexdigest()}
    before = set(place.chunks())
    sent = sending.send(moved.store, moved.freeze(version="2"), place, KEY)
    record = receiving.read_record(place, KEY, "classify", sent.key.rpartition("/")[2])
    of_weights = {f"chunks/{one.id.hex()[:2]}/{one.id.hex()}" for one in record.chunks if one.sha256.hex() in weights}
    assert len(of_weights) == 2
    assert of_weights <= before


def test_a_body_survives_its_text(machine: Machine, place: MemoryPlace) -> None:
    sent = machine.freeze()
    sending.send(machine.store, sent, place, KEY)
    record = receiving.find(place, KEY, "classify")
    text = msgspec.json.encode(record.body)
    assert record_body.decode(text, function="classify", sha256=sent.sha256) == record.body
