"""`thawd.snapshot.store`: snapshots that are found are complete and trusted; used ones stay, old ones are removed."""

from __future__ import annotations

import json
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import pytest

from tests.unit.snapshot_images import whole
from thawd.errors import (
    InvalidParameterValueException,
    ResourceConflictException,
    ResourceNotFoundException,
    StoreError,
    StoreFullError,
)
from thawd.snapshot.store.images import ImageOrigin, Snapshot, SnapshotStore

DAY_S = 86400.0
NOBODY = 65534


def origin(key: str = "key", function: str = "classify", version: str = "1") -> ImageOrigin:
    return ImageOrigin(
        function=function,
        version=version,
        key=key,
        python="3.12.1",
        init_ms=2900.5,
        freeze_ms=210.25,
        data_bytes=1 << 20,
        self_test="passed",
        self_test_ms=23.5,
    )


class Clock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.now_unix_s = 1_790_000_000.0

    def __call__(self) -> float:
        return self.now_unix_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def told() -> list[str]:
    """A list of what the store reported."""
    return []


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that other users may enter, unlike pytest's own."""
    path = Path(tempfile.mkdtemp(prefix="thawd-snapshots-"))
    path.chmod(0o777)
    yield path / "snapshots"
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def store(folder: Path, clock: Clock, told: list[str]) -> SnapshotStore:
    return SnapshotStore(folder, now=clock, report=told.append)


def add(store: SnapshotStore, content: bytes = b"image", of: ImageOrigin | None = None) -> Snapshot:
    with store.begin() as draft:
        draft.image.write_bytes(content)
        return store.adopt(draft, of or origin())


@contextmanager
def as_nobody() -> Iterator[None]:
    """Drop root's rights for a while, so that file permissions take effect."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_an_adopted_image_lies_under_its_digest_and_is_its_owners_alone(store: SnapshotStore, folder: Path) -> None:
    before = os.umask(0)
    try:
        snapshot = add(store, b"image")
    finally:
        os.umask(before)
    digest = sha256(b"image").hexdigest()
    assert snapshot.path == folder / f"{digest}.img"
    assert snapshot.path.read_bytes() == b"image"
    assert names(folder) == {f"{digest}.img", f"{digest}.json"}
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder, *sorted(folder.iterdir()))] == [0o700, 0o600, 0o600]


def test_what_is_told_of_an_image_is_found_again_by_a_later_store(folder: Path, clock: Clock) -> None:
    add(SnapshotStore(folder, now=clock), of=origin("a"))
    found = SnapshotStore(folder).find("a")
    assert found is not None
    assert found.sidecar is not None
    assert found.sidecar.origin == origin("a")
    assert found.sidecar.created_unix_s == found.last_used_unix_s == clock.now_unix_s
    assert found.sidecar.image_bytes == 5
    assert found.name == "classify:1"
    assert (found.in_use, found.problem, found.disk) == (False, None, None)
    assert SnapshotStore(folder).find("b") is None


def test_the_newest_of_the_same_key_is_found(store: SnapshotStore, clock: Clock) -> None:
    add(store, b"old")
    clock.now_unix_s += 1
    newest = add(store, b"new")
    clock.now_unix_s += 1
    store.touch(store.resolve(sha256(b"old").hexdigest()))
    found = store.find("key")
    assert found is not None
    assert found.sha256 == newest.sha256


def test_the_same_content_twice_is_one_snapshot_and_its_file_stays(store: SnapshotStore) -> None:
    first = add(store, of=origin("a"))
    inode = first.path.stat().st_ino
    with store.use(first):
        second = add(store, of=origin("b"))
    assert second.sha256 == first.sha256
    assert second.path.stat().st_ino == inode
    assert store.find("a") is None
    assert store.find("b") is not None
    assert len(store.snapshots()) == 1


def test_a_damaged_image_is_mended_by_adopting_its_content_again(store: SnapshotStore) -> None:
    snapshot = add(store, b"image")
    snapshot.path.write_bytes(b"imagE")
    add(store, b"image")
    assert snapshot.path.read_bytes() == b"image"


def test_a_disk_snapshot_comes_and_goes_with_the_image(store: SnapshotStore, folder: Path) -> None:
    with store.begin() as draft:
        draft.image.write_bytes(b"image")
        (draft.disk / "deep").mkdir(parents=True)
        (draft.disk / "deep" / "model.bin").write_bytes(b"m" * 1_000_000)
        (draft.disk / "deep").chmod(0o500)
        snapshot = store.adopt(draft, origin())
    assert snapshot.disk is not None
    assert (snapshot.disk / "deep" / "model.bin").stat().st_size == 1_000_000
    assert snapshot.stored_bytes > 1_000_000
    store.remove(snapshot)
    assert names(folder) == set()


def test_a_draft_that_is_not_adopted_leaves_nothing(store: SnapshotStore, folder: Path) -> None:
    with pytest.raises(ZeroDivisionError), store.begin() as draft:
        draft.image.write_bytes(b"half")
        Path(f"{draft.image}.partial").write_bytes(b"quarter")
        raise ZeroDivisionError
    assert names(folder) == set()
    draft.discard()


@pytest.mark.parametrize("what", ["nothing", "a folder", "a link", "a pipe"])
def test_a_draft_without_an_image_file_is_not_adopted(store: SnapshotStore, folder: Path, what: str) -> None:
    with store.begin() as draft:
        if what == "a folder":
            draft.image.mkdir()
        elif what == "a link":
            draft.image.symlink_to("/etc/passwd")
        elif what == "a pipe":
            os.mkfifo(draft.image)
        with pytest.raises(StoreError, match=r"left no image|not a regular file|symbolic links"):
            store.adopt(draft, origin())
    assert store.snapshots() == []


def test_a_draft_that_the_disk_has_no_room_for_is_refused(store: SnapshotStore, folder: Path) -> None:
    with pytest.raises(StoreFullError, match=r"may need 1,099,511,627,776 MiB.*thawd snapshot rm --unused"):
        store.begin(room_bytes=1 << 60)
    assert names(folder) == set()


def _loosen(snapshot: Snapshot) -> None:
    snapshot.path.chmod(0o640)


def _give_away(snapshot: Snapshot) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    os.chown(snapshot.path, NOBODY, NOBODY)


def _give_sidecar_away(snapshot: Snapshot) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    os.chown(snapshot.path.with_suffix(".json"), NOBODY, NOBODY)


def _cut(snapshot: Snapshot) -> None:
    os.truncate(snapshot.path, 3)


def _link(snapshot: Snapshot) -> None:
    moved = snapshot.path.rename(snapshot.path.parent.parent / "moved")
    snapshot.path.symlink_to(moved)


def _edit(change: Callable[[dict[str, object]], object]) -> Callable[[Snapshot], None]:
    def spoil(snapshot: Snapshot) -> None:
        path = snapshot.path.with_suffix(".json")
        document = json.loads(path.read_text())
        change(document)
        path.write_text(json.dumps(document))

    return spoil


SPOILED = {
    "others may read it": (_loosen, r"the mode 0640, with which other users may access it"),
    "it is another user's": (_give_away, rf"belongs to user {NOBODY}, but thawd runs as user"),
    "its sidecar is another user's": (_give_sidecar_away, rf"\.json belongs to user {NOBODY}"),
    "it is cut off": (_cut, r"has 3 bytes, but had 5 when it was made"),
    "it is a link": (_link, r"is not a regular file"),
    "its sidecar is missing": (lambda s: s.path.with_suffix(".json").unlink(), r"cannot be read: No such file"),
    "its sidecar is empty": (lambda s: s.path.with_suffix(".json").write_text(""), r"is damaged"),
    "its sidecar is binary": (lambda s: s.path.with_suffix(".json").write_bytes(b"\xff\0" * 9), r"is damaged"),
    "its sidecar is loose": (lambda s: s.path.with_suffix(".json").chmod(0o622), r"\.json has the mode 0622"),
    "its sidecar is of another image": (_edit(lambda d: d.update(sha256="0" * 64)), r"another image, 000000000000"),
    "its sidecar is of a newer thawd": (_edit(lambda d: d.update(layout=2, origin=None)), r"has layout 2"),
    "its sidecar lacks a field": (_edit(lambda d: d.pop("boot_id")), r"is damaged: .*boot_id"),
}


@pytest.mark.parametrize("how", SPOILED)
def test_an_image_that_cannot_be_trusted_is_told_of_once_and_never_used(
    store: SnapshotStore, folder: Path, told: list[str], how: str
) -> None:
    spoil, said = SPOILED[how]
    snapshot = add(store)
    spoil(snapshot)
    assert store.find("key") is None
    assert store.find("key") is None
    assert len(told) == 1
    with pytest.raises(StoreError, match=said) as caught:
        store.use(snapshot)
    assert str(caught.value) == told[0]
    assert f"remove it: thawd snapshot rm {snapshot.id}" in told[0]
    assert [s.problem for s in store.snapshots()] == told
    store.remove(store.resolve(snapshot.id))
    assert names(folder) == set()


def test_a_folder_that_others_may_write_to_is_not_used(store: SnapshotStore, folder: Path, told: list[str]) -> None:
    snapshot = add(store)
    folder.chmod(0o770)
    assert store.find("key") is None
    assert "with which other users may write to it" in told[0]
    with pytest.raises(StoreError, match="chmod 700"):
        store.use(snapshot)
    with pytest.raises(StoreError, match="chmod 700"):
        store.begin()
    folder.chmod(0o700)
    assert store.find("key") is not None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_folder_of_another_user_is_not_used(store: SnapshotStore, folder: Path, told: list[str]) -> None:
    add(store)
    os.chown(folder, NOBODY, NOBODY)
    assert store.find("key") is None
    assert f"belongs to user {NOBODY}" in told[0]
    with pytest.raises(StoreError, match=f"belongs to user {NOBODY}"):
        store.begin()


def test_a_missing_folder_holds_nothing_and_is_not_made_by_looking(store: SnapshotStore, folder: Path) -> None:
    assert store.find("key") is None
    assert store.snapshots() == []
    assert store.evict() == []
    assert store.tidy() == 0
    with pytest.raises(ResourceNotFoundException):
        store.resolve("classify")
    assert not folder.exists()


def test_a_file_in_the_folders_place_is_told(store: SnapshotStore, folder: Path) -> None:
    folder.write_text("")
    for method in (store.begin, store.snapshots, store.evict):
        with pytest.raises(StoreError, match="name another data folder"):
            method()


def test_the_folder_may_be_a_link_to_another_disk(store: SnapshotStore, folder: Path) -> None:
    (folder.parent / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to("elsewhere")
    with store.use(add(store)):
        assert store.find("key") is not None
    assert folder.is_symlink()


def test_a_read_only_folder_can_be_used_but_not_changed(folder: Path) -> None:
    with as_nobody():
        store = SnapshotStore(folder)
        snapshot = add(store)
        folder.chmod(0o500)
        found = store.find("key")
        assert found is not None
        with store.use(found) as lease:
            assert os.pread(lease.fd, 5, 0) == b"image"
            assert store.snapshots()[0].in_use
        with pytest.raises(StoreError, match=r"Permission denied.*name another data folder"):
            store.begin()
        with pytest.raises(StoreError, match="Permission denied"):
            store.remove(snapshot)
        folder.chmod(0o700)


def test_a_snapshot_in_use_is_neither_removed_nor_evicted(store: SnapshotStore, clock: Clock, folder: Path) -> None:
    snapshot = add(store)
    first, second = store.use(snapshot), store.use(snapshot)
    clock.now_unix_s += 365 * DAY_S
    for lease in (first, second):
        assert store.snapshots()[0].in_use
        with pytest.raises(ResourceConflictException, match=rf"classify:1\) is in use by process {os.getpid()}; stop"):
            store.remove(snapshot)
        assert store.evict() == []
        lease.release()
        lease.release()
    assert not store.snapshots()[0].in_use
    store.remove(snapshot)
    assert names(folder) == set()


def test_a_lease_that_nobody_keeps_ends(store: SnapshotStore) -> None:
    snapshot = add(store)
    store.use(snapshot)
    assert not store.snapshots()[0].in_use


def test_the_end_of_a_use_counts_as_the_last_use(store: SnapshotStore, clock: Clock) -> None:
    with store.use(add(store)):
        clock.now_unix_s += 20 * DAY_S
    assert store.snapshots()[0].last_used_unix_s == clock.now_unix_s
    assert store.evict() == []


def test_what_was_removed_since_it_was_found_is_told(store: SnapshotStore) -> None:
    snapshot = add(store)
    store.remove(snapshot)
    for method in (store.use, store.remove, store.verify):
        with pytest.raises(ResourceNotFoundException, match=rf"{snapshot.id} \(classify:1\) has been removed"):
            method(snapshot)
    store.touch(snapshot)


def test_what_was_not_used_for_too_long_is_evicted(folder: Path, clock: Clock) -> None:
    store = SnapshotStore(folder, now=clock, max_age_s=14 * DAY_S)
    old, kept = add(store, b"old"), add(store, b"kept")
    clock.now_unix_s += 13 * DAY_S
    store.touch(kept)
    assert store.evict() == []
    clock.now_unix_s += 1.1 * DAY_S
    assert [snapshot.sha256 for snapshot in store.evict()] == [old.sha256]
    assert [snapshot.sha256 for snapshot in store.snapshots()] == [kept.sha256]


def test_of_too_many_those_used_longest_ago_are_evicted(folder: Path, clock: Clock) -> None:
    store = SnapshotStore(folder, now=clock, max_bytes=2_500_000)
    snapshots = []
    for number in range(4):
        snapshots.append(add(store, bytes([number + 1]) * 1_000_000))
        clock.now_unix_s += 1
    store.touch(snapshots[0])
    with store.use(snapshots[1]):
        clock.now_unix_s += 1
        assert [snapshot.sha256 for snapshot in store.evict()] == [snapshots[2].sha256, snapshots[3].sha256]
    assert {snapshot.sha256 for snapshot in store.snapshots()} == {snapshots[0].sha256, snapshots[1].sha256}


def test_the_holes_of_an_image_count_nothing(folder: Path) -> None:
    store = SnapshotStore(folder, max_bytes=1_000_000)
    with store.begin() as draft:
        draft.image.write_bytes(b"head")
        os.truncate(draft.image, 200_000_000)
        snapshot = store.adopt(draft, origin())
    assert snapshot.stored_bytes < 100_000
    assert store.evict() == []


def test_an_image_of_an_earlier_start_of_the_machine_is_found_and_kept(store: SnapshotStore) -> None:
    snapshot = add(store)
    _edit(lambda document: document.update(boot_id="another", kernel="5.10.0"))(snapshot)
    found = store.find("key")
    assert found is not None
    assert found.sha256 == snapshot.sha256
    assert store.evict() == []


def test_leftovers_go_and_what_lives_or_is_foreign_stays(store: SnapshotStore, folder: Path) -> None:
    kept = add(store)
    digest = "ab" * 32
    (folder / f"{digest}.json").write_text("{}")
    (folder / f"{digest}.disk").mkdir()
    (folder / ".new-dead").mkdir()
    (folder / ".new-dead" / "image.partial").write_text("half")
    (folder / ".old-dead").mkdir()
    (folder / "notes.txt").write_text("mine")
    (folder / "not-a-digest.img").write_text("mine")
    foreign = {"notes.txt", "not-a-digest.img"}
    with store.begin() as draft:
        assert store.tidy() == 3
        assert names(folder) == {draft.folder.name, f"{kept.sha256}.img", f"{kept.sha256}.json", *foreign}
    assert store.evict() == []
    assert store.tidy() == 0
    assert [snapshot.sha256 for snapshot in store.snapshots()] == [kept.sha256]
    assert foreign < names(folder)


def test_a_snapshot_is_found_by_id_and_by_name_where_only_one_fits(store: SnapshotStore) -> None:
    first = add(store, b"1", origin(function="classify", version="1"))
    second = add(store, b"2", origin(function="classify", version="2"))
    third = add(store, b"3", origin(function="cafe", version="7"))
    for text in (first.sha256, first.id, first.id[:4], first.id.upper(), "classify:1"):
        assert store.resolve(text).sha256 == first.sha256
    for text in ("cafe", "cafe:7"):
        assert store.resolve(text).sha256 == third.sha256
    with pytest.raises(InvalidParameterValueException, match="matches several snapshots") as caught:
        store.resolve("classify")
    assert first.id in str(caught.value)
    assert f"{second.id} (classify:2)" in str(caught.value)
    with pytest.raises(InvalidParameterValueException, match=f"too short.*{first.id}"):
        store.resolve(first.id[:2])
    for text in ("", "0000", "classif", "nobody", "classify:3", f"{first.sha256}0"):
        with pytest.raises(ResourceNotFoundException, match="thawd snapshot list"):
            store.resolve(text)


def test_digits_that_also_are_a_functions_name_are_ambiguous(store: SnapshotStore) -> None:
    first = add(store, b"1")
    second = add(store, b"2", origin(function=first.id[:4]))
    with pytest.raises(InvalidParameterValueException, match="matches several snapshots"):
        store.resolve(first.id[:4])
    assert store.resolve(f"{first.id[:4]}:1").sha256 == second.sha256


def test_a_whole_image_is_sound_and_its_reading_is_told(store: SnapshotStore) -> None:
    content = whole().image()
    done: list[int] = []
    assert store.verify(add(store, content), progress=done.append) == ()
    assert done[-1] == len(content)
    assert not store.snapshots()[0].in_use


def test_a_changed_byte_among_the_pages_is_found(store: SnapshotStore) -> None:
    snapshot = add(store, whole().image())
    with snapshot.path.open("r+b") as file:
        file.seek(-10, os.SEEK_END)
        file.write(b"\xff")
    (problem,) = store.verify(snapshot)
    assert "is damaged: its SHA-256 is" in problem
    assert snapshot.sha256 in problem


def test_a_file_that_is_no_image_is_not_sound_though_its_digest_fits(store: SnapshotStore) -> None:
    (problem,) = store.verify(add(store, b"image"))
    assert "is not an image" in problem


def test_everything_that_is_wrong_is_told(store: SnapshotStore) -> None:
    snapshot = add(store, whole().image())
    os.truncate(snapshot.path, 9000)
    problems = store.verify(snapshot)
    assert len(problems) == 3
    for problem, said in zip(problems, ("has 9,000 bytes", "its SHA-256 is", "cut off"), strict=True):
        assert said in problem
