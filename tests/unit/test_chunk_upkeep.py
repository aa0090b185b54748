"""A store of chunks is verified and cleaned, and no snapshot is ever left without its chunks."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from tests.unit.chunk_stores import KEY, Machine, MemoryPlace
from thawd.errors import InvalidParameterValueException, StoreError
from thawd.stores.chunk_places import FolderPlace, PlacedObject
from thawd.transfer import receiving, sending, store_keys, upkeep
from thawd.transfer.chunk_format import ChunkError
from thawd.transfer.store_keys import FunctionKey, StoreKey

DAY_S = 86400.0


def send(machine: Machine, place: MemoryPlace, version: str) -> str:
    """Send a version with memory of its own, and return the record's key."""
    snapshot = machine.freeze(version=version, text=version.encode())
    return sending.send(machine.store, snapshot, place, KEY).key


def sound(place: MemoryPlace) -> bool:
    return upkeep.verify(place, KEY) == 0


def test_unused_chunks_are_removed_a_day_after_they_were_found(machine: Machine, place: MemoryPlace) -> None:
    first = send(machine, place, "1")
    send(machine, place, "2")
    before = len(place.chunks())
    place.remove(first)
    place.now_s += 1
    assert (upkeep.clean_up(place).removed, len(place.chunks())) == (0, before)
    place.now_s += DAY_S - 1
    soon = upkeep.clean_up(place)
    assert (soon.removed, soon.noted, soon.wait_s, len(place.chunks())) == (0, 1, 1.0, before)
    place.now_s += 2
    done = upkeep.clean_up(place)
    assert (done.removed, done.noted, len(place.chunks())) == (1, 0, before - 1)
    assert done.removed_bytes > 0
    assert sound(place)


def test_a_chunk_that_is_sent_again_meanwhile_stays(machine: Machine, place: MemoryPlace) -> None:
    place.remove(send(machine, place, "1"))
    upkeep.clean_up(place)
    place.now_s += DAY_S / 2
    send(machine, place, "1")
    place.now_s += DAY_S
    assert upkeep.clean_up(place).removed == 0
    assert sound(place)


def test_a_noted_chunk_is_uploaded_again_and_so_survives_until_its_record_is_written(
    machine: Machine, place: MemoryPlace
) -> None:
    """A clean-up runs after the last chunk was sent, and before the record is written."""
    place.remove(send(machine, place, "1"))
    upkeep.clean_up(place)
    place.now_s += DAY_S + 1

    class Interrupted(MemoryPlace):
        def put(self, key: str, data: bytes) -> None:
            if key.startswith("snapshots/"):
                upkeep.clean_up(place)
            super().put(key, data)

    sending.send(
        machine.store, machine.store.resolve("classify:1"), Interrupted(objects=place.objects, now_s=place.now_s), KEY
    )
    assert sound(place)


@pytest.mark.parametrize("noted", ["noted", "noted long ago", "not noted"])
def test_a_clean_up_between_any_two_steps_of_a_sender_takes_nothing_that_it_needs(
    noted: str, machine: Machine, tmp_path: Path
) -> None:
    """The chunks are there before, and no record needs them."""

    class Interrupted(MemoryPlace):
        steps = 0
        at = 0
        inside = False

        def step(self) -> None:
            self.steps += 1
            if self.steps == self.at and not self.inside:
                self.inside = True
                upkeep.clean_up(self)
                self.now_s += 1
                upkeep.clean_up(self)
                self.inside = False

        def put(self, key: str, data: bytes) -> None:
            self.step()
            super().put(key, data)

        def get(self, key: str, *, limit_bytes: int) -> bytes:
            self.step()
            return super().get(key, limit_bytes=limit_bytes)

        def find(self, key: str) -> PlacedObject | None:
            if not self.inside:
                self.step()
            return super().find(key)

    snapshot = machine.freeze()
    for at in range(1, 40):  # until there is no step of that number
        place = Interrupted()
        place.remove(sending.send(machine.store, snapshot, place, KEY).key)
        place.now_s += 1
        if noted != "not noted":
            upkeep.clean_up(place)
        place.now_s += DAY_S + 1 if noted == "noted long ago" else 1
        place.steps, place.at = 0, at
        sending.send(machine.store, snapshot, place, KEY)
        steps, place.at = place.steps, 0
        assert sound(place), at
        for _ in range(2):
            place.now_s += DAY_S + 1
            upkeep.clean_up(place)
        assert sound(place), at
        if steps < at:
            break
    else:
        raise AssertionError("the sender takes more steps")


def test_records_that_are_too_old_are_removed_first(machine: Machine, place: MemoryPlace) -> None:
    send(machine, place, "1")
    place.now_s += 10 * DAY_S
    second = send(machine, place, "2")
    done = upkeep.clean_up(place, max_age_s=5 * DAY_S)
    assert (done.records, done.noted) == (1, 1)
    assert [key for key in place.objects if key.startswith("snapshots/")] == [second]


def test_old_records_are_removed_from_a_store_that_shows_whole_seconds_of_one_object(
    machine: Machine, place: MemoryPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.now_s = int(place.now_s) + 0.75
    send(machine, place, "1")
    place.now_s += 10 * DAY_S
    find = place.find

    def in_whole_seconds(key: str) -> PlacedObject | None:
        found = find(key)
        return found and found._replace(modified_unix_s=float(int(found.modified_unix_s)))

    def listed_exactly(prefix: str) -> list[PlacedObject]:
        return [found for key in list(place.objects) if key.startswith(prefix + "/") and (found := find(key))]

    monkeypatch.setattr(place, "find", in_whole_seconds)
    monkeypatch.setattr(place, "listed", listed_exactly)
    assert upkeep.clean_up(place, max_age_s=5 * DAY_S).records == 1
    assert not [key for key in place.objects if key.startswith("snapshots/")]


def test_an_old_record_that_is_sent_again_meanwhile_stays(
    machine: Machine, place: MemoryPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = send(machine, place, "1")
    place.now_s += 10 * DAY_S
    find = place.find

    def sent_again(key: str) -> object:
        if key == record:
            place.objects[key] = (place.objects[key][0], place.now_s)
        return find(key)

    monkeypatch.setattr(place, "find", sent_again)
    assert upkeep.clean_up(place, max_age_s=5 * DAY_S).records == 0
    assert record in place.objects


@pytest.mark.parametrize("error", [PermissionError(errno.EACCES, "no"), OSError(errno.EIO, "disk")])
def test_if_records_cannot_be_listed_no_chunk_is_removed(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    place = FolderPlace(tmp_path / "shared")
    sending.send(machine.store, machine.freeze(), place, KEY)
    chunks = sorted(one.key for one in place.listed("chunks"))
    scandir = os.scandir

    def fail(path: os.PathLike[str]) -> Any:
        if Path(path).name == "classify":
            raise error
        return scandir(path)

    with monkeypatch.context() as broken:
        broken.setattr(os, "scandir", fail)
        for grace_s in (86400.0, 0.0, 0.0):
            with pytest.raises(StoreError, match="classify"):
                upkeep.clean_up(place, grace_s=grace_s)

    assert sorted(one.key for one in place.listed("chunks")) == chunks
    assert not upkeep.verify(place, KEY)


def test_folders_that_contain_no_objects_are_passed_over(machine: Machine, tmp_path: Path) -> None:
    place = FolderPlace(tmp_path / "shared")
    sending.send(machine.store, machine.freeze(), place, KEY)
    (tmp_path / "shared" / "lost+found").mkdir(mode=0o000)
    (tmp_path / "shared" / "chunks" / "lost+found").mkdir(mode=0o000)

    assert upkeep.clean_up(place).removed == 0
    assert not list(place.listed("nothing"))


def test_all_folders_of_a_new_store_belong_to_their_owner_alone(tmp_path: Path) -> None:
    mask = os.umask(0)
    try:
        FolderPlace(tmp_path / "shared" / "store").put("snapshots/f/abc", b"x")
    finally:
        os.umask(mask)
    made = [tmp_path / "shared" / name for name in (".", "store", "store/snapshots", "store/snapshots/f")]

    assert [path.stat().st_mode & 0o777 for path in made] == [0o700] * 4


def test_with_a_damaged_record_nothing_is_removed(machine: Machine, place: MemoryPlace) -> None:
    place.remove(send(machine, place, "1"))
    second = send(machine, place, "2")
    upkeep.clean_up(place)
    place.now_s += DAY_S + 1
    place.objects[second] = (b"damaged", place.now_s)
    before = place.chunks()
    with pytest.raises(ChunkError, match="none was removed"):
        upkeep.clean_up(place)
    assert place.chunks() == before


@pytest.mark.parametrize(
    "key", [KEY, None, FunctionKey("classify", KEY.function_key("classify"))], ids=["main", "none", "function"]
)
def test_a_missing_chunk_is_found_by_a_verification(
    key: StoreKey | FunctionKey | None, machine: Machine, place: MemoryPlace
) -> None:
    record = send(machine, place, "1")
    place.remove(place.chunks()[0])
    found: dict[str, list[str]] = {}
    assert upkeep.verify(place, key, on_record=found.__setitem__) == 1
    assert "is missing" in found[record][0]


def test_a_changed_chunk_is_found_with_the_key_and_an_exchanged_one_without(
    machine: Machine, place: MemoryPlace
) -> None:
    send(machine, place, "1")
    one, other = place.chunks()[:2]
    data, at_s = place.objects[one]
    place.objects[one] = (data[:-1] + bytes([data[-1] ^ 1]), at_s)
    assert (upkeep.verify(place, None), upkeep.verify(place, KEY)) == (0, 1)
    place.objects[one] = place.objects[other]
    assert upkeep.verify(place, None) == 1


def test_a_damaged_chunk_is_replaced_by_sending_all(machine: Machine, place: MemoryPlace) -> None:
    send(machine, place, "1")
    place.objects[place.chunks()[0]] = (b"", 0.0)
    snapshot = machine.store.resolve("classify:1")
    sending.send(machine.store, snapshot, place, KEY)
    assert not sound(place)
    sending.send(machine.store, snapshot, place, KEY, anew=True)
    assert sound(place)


def test_a_folder_is_a_place(machine: Machine, tmp_path: Path) -> None:
    place = FolderPlace(tmp_path / "shared")
    snapshot = machine.freeze()
    sent = sending.send(machine.store, snapshot, place, KEY)
    assert receiving.find(place, KEY, "classify").body.sha256 == snapshot.sha256
    assert upkeep.verify(place, KEY) == 0
    place.remove(sent.key)
    place.remove(sent.key)
    assert place.find(sent.key) is None
    assert upkeep.clean_up(place, grace_s=0.0).noted == sent.chunks
    assert upkeep.clean_up(place, grace_s=0.0).removed == sent.chunks
    assert [path for path in (tmp_path / "shared" / "chunks").rglob("*") if path.is_file()] == []
    for key in ("../x", "/etc/x", "a/../b", "", "a//b", "chunks/\n"):
        with pytest.raises(StoreError, match="cannot be a key"):
            place.put(key, b"")


def test_a_key_is_made_once_and_belongs_to_its_user_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, synced = tmp_path / "key", list[Path]()
    monkeypatch.setattr(store_keys.folders, "sync", synced.append)
    made = store_keys.main_key(path)
    assert synced == [tmp_path], "a power cut does not remove a key with which something was sent"
    assert (store_keys.main_key(path), store_keys.read_key(path)) == (made, made)
    assert path.stat().st_mode & 0o777 == 0o600
    assert [one.name for one in tmp_path.iterdir()] == ["key"]
    path.chmod(0o640)
    with pytest.raises(StoreError, match="chmod 600"):
        store_keys.read_key(path)


def test_the_key_of_a_function_is_written_and_read(tmp_path: Path) -> None:
    path, own = tmp_path / "key", FunctionKey("classify", KEY.function_key("classify"))
    path.write_text(own.text())
    path.chmod(0o600)
    assert store_keys.read_key(path) == own
    with pytest.raises(StoreError, match="which only receives"):
        store_keys.main_key(path)
    assert own.secret.hex() not in repr(own)
    assert KEY.secret.hex() not in repr(KEY)


@pytest.mark.parametrize("text", ["", "thawd-store-key", "thawd-store-key AAAA", "other AAAA", "\xff" * 100])
def test_a_file_without_a_key_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(InvalidParameterValueException, match="contains no key"):
        store_keys.read_key(path)
