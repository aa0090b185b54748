"""`thawd.snapshot.disk`: what init left is kept unchanged, nothing writes to it, and all of it is removed in the
end."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from thawd.errors import StoreError
from thawd.snapshot.disk import file_trees, temporary_folders
from thawd.snapshot.disk.temporary_folders import DiskRefusedError, Disks, MountKind
from thawd.snapshot.store.trust_and_locks import remove_tree

NOBODY = 65534
MIB = 1 << 20
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to others")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that other users may enter, unlike pytest's own."""
    path = Path(tempfile.mkdtemp(prefix="thawd-disk-"))
    path.chmod(0o755)
    yield path
    remove_tree(path)


@contextlib.contextmanager
def being_nobody() -> Iterator[None]:
    """Act as an unprivileged user, whoever runs the tests."""
    user, group = os.geteuid(), os.getegid()
    if user != 0:
        yield
        return
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(user)
        os.setegid(group)


@pytest.fixture
def program(folder: Path) -> Callable[[str], Path]:
    """A function that makes a fake thawd-thaw, which ends as a shell script says."""

    def make(script: str) -> Path:
        path = folder / "program"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return path

    return make


@pytest.fixture
def disks(folder: Path, program: Callable[[str], Path]) -> Disks:
    """Temporary folders, on a machine that can mount overlays."""
    return Disks(folder / "tmp", program=program("exit 0"))


NO_OVERLAYS = 'case "$*" in *--disk-lower*) echo "thawd: cannot thaw here: no overlays" >&2; exit 120;; esac'
NO_NAMESPACES = 'echo "thawd: cannot thaw here: no namespaces" >&2; exit 120'


def put_all_sorts(into: Path) -> None:
    """Make one of each kind of file that a copy keeps."""
    (into / "file").write_bytes(b"contents")
    (into / "file").chmod(0o4751)
    os.setxattr(into / "file", "user.origin", b"a model hub")
    os.link(into / "file", into / "hard link")
    (into / "link").symlink_to("file")
    (into / "dangling").symlink_to("/nowhere/at all")
    with (into / "sparse").open("wb") as file:
        file.seek(20 * MIB)
        file.write(b"end")
        file.truncate(30 * MIB)
    (into / "closed").mkdir()
    (into / "closed" / "inside").write_text("x")
    (into / "closed" / "inside").chmod(0o400)
    (into / "closed").chmod(0o500)
    (into / "empty").mkdir()
    os.mkfifo(into / "pipe", 0o640)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(os.fspath(into / "socket"))
    Path(os.fsdecode(os.fsencode(into) + b"/\xff\n,:\\")).write_text("name")
    for path in (into / "file", into / "link", into / "empty"):
        os.utime(path, ns=(1_111_111_111_111_111_111, 1_222_222_222_222_222_222), follow_symlinks=False)


def described(folder: Path) -> dict[str, object]:
    """Return, by name, everything in which a copy must equal the original."""
    found: dict[str, object] = {}
    inodes: dict[int, int] = {}
    for path, status in sorted(file_trees.walk(folder)):
        content: object = None
        if stat.S_ISLNK(status.st_mode):
            content = path.readlink()
        elif stat.S_ISREG(status.st_mode):
            content = (path.read_bytes(), status.st_blocks, status.st_mtime_ns)
        found[str(path.relative_to(folder))] = (
            oct(status.st_mode),
            status.st_uid,
            status.st_gid,
            status.st_nlink,
            inodes.setdefault(status.st_ino, len(inodes)),
            {
                name: os.getxattr(path, name, follow_symlinks=False)
                for name in os.listxattr(path, follow_symlinks=False)
            },
            content,
        )
    return found


def test_a_copy_is_as_the_original(folder: Path) -> None:
    source, target = folder / "source", folder / "target"
    source.mkdir(mode=0o711)
    put_all_sorts(source)
    file_trees.copy(source, target)
    assert described(target) == described(source)
    assert target.stat().st_mode == source.stat().st_mode
    assert target.stat().st_mtime_ns == source.stat().st_mtime_ns
    assert (target / "link").lstat().st_mtime_ns == (target / "empty").stat().st_mtime_ns == 1_222_222_222_222_222_222


def test_a_copy_across_file_systems_is_as_the_original(folder: Path) -> None:
    other = Path("/dev/shm")
    if not os.access(other, os.W_OK) or other.stat().st_dev == folder.stat().st_dev:
        pytest.skip("there is no second file system here")
    source, target = folder / "source", Path(tempfile.mkdtemp(dir=other))
    source.mkdir()
    put_all_sorts(source)
    try:
        file_trees.copy(source, target)
        there, here = described(target), described(source)
        # The descriptions contain the disk space of files, which the other file system counts in different units.
        assert there.keys() == here.keys()
        assert (target / "sparse").read_bytes() == (source / "sparse").read_bytes()
        assert (target / "sparse").stat().st_blocks * 512 < MIB
        assert (target / "file").stat().st_ino == (target / "hard link").stat().st_ino
        assert (target / "file").stat().st_mtime_ns == (source / "file").stat().st_mtime_ns
    finally:
        remove_tree(target)


@needs_root
def test_a_copy_by_root_keeps_owners(folder: Path) -> None:
    source, target = folder / "source", folder / "target"
    source.mkdir()
    (source / "theirs").write_text("x")
    os.chown(source / "theirs", 1234, 4321)
    (source / "theirs").chmod(0o4755)
    file_trees.copy(source, target)
    status = (target / "theirs").stat()
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (1234, 4321, 0o4755)


@needs_root
def test_a_copy_that_would_change_an_owner_is_refused(folder: Path) -> None:
    source = folder / "source"
    source.mkdir()
    (source / "root's").write_text("x")
    os.chown(folder, NOBODY, NOBODY)
    with being_nobody(), pytest.raises(DiskRefusedError, match=r"root's belongs to user 0, group 0.*snapshot = false"):
        file_trees.copy(source, folder / "target")


def test_disk_space_counts_hard_links_once_and_holes_not(folder: Path) -> None:
    (folder / "file").write_bytes(b"x" * MIB)
    os.link(folder / "file", folder / "again")
    with (folder / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    found = file_trees.survey(folder)
    assert found.entries == 3
    assert MIB <= found.stored_bytes < MIB + 65536


def test_devices_are_refused(folder: Path) -> None:
    try:
        # The only device that any user may make: overlays mark removed files with it.
        os.mknod(folder / "device", stat.S_IFCHR, os.makedev(0, 0))
    except PermissionError:
        pytest.skip("this kernel lets only root make device files")
    with pytest.raises(DiskRefusedError, match="device is a device"):
        file_trees.survey(folder)


def test_marks_of_overlays_are_refused(folder: Path) -> None:
    (folder / "marked").mkdir()
    os.setxattr(folder / "marked", "user.overlay.opaque", b"y")
    with pytest.raises(DiskRefusedError, match=r"marked has the extended attribute user\.overlay\.opaque"):
        file_trees.survey(folder)


def test_what_may_not_be_entered_is_removed_too_and_links_are_not_followed(folder: Path) -> None:
    kept, gone = folder / "kept", folder / "gone"
    kept.mkdir()
    (kept / "file").write_text("x")
    gone.mkdir()
    if os.geteuid() == 0:
        os.chown(folder, NOBODY, NOBODY)
        os.chown(gone, NOBODY, NOBODY)
    with being_nobody():
        (gone / "work").mkdir()
        (gone / "work" / "deep").mkdir()
        (gone / "work" / "deep" / "file").write_text("x")
        (gone / "link").symlink_to(kept)
        (gone / "work" / "deep").chmod(0)
        (gone / "work").chmod(0)
        gone.chmod(0o500)
        remove_tree(gone)
        remove_tree(gone)
    assert not gone.exists()
    assert (kept / "file").read_text() == "x"


def test_a_folder_nobody_used_needs_nothing(disks: Disks) -> None:
    at = disks.make("a" * 32)
    assert stat.S_IMODE(at.stat().st_mode) == 0o700
    assert at.name == "a" * 12
    assert disks.look("a" * 32) is None
    prepared = disks.prepare(None, "b" * 32)
    assert (prepared.path.name, prepared.options) == ("b" * 12, [])
    assert prepared.path.is_dir()


def test_asking_tempfile_for_the_folder_is_a_use(disks: Disks, monkeypatch: pytest.MonkeyPatch) -> None:
    at = disks.make("template")
    monkeypatch.setenv("TMPDIR", str(at))
    monkeypatch.setattr(tempfile, "tempdir", None)
    assert tempfile.gettempdir() == str(at)
    found = disks.look("template")
    assert found is not None
    assert (found.at, found.files) == (at, None)
    prepared = disks.prepare(found, "copy")
    assert prepared.path == at
    assert prepared.options == ["--disk-at", str(at), "--disk-own", str(at.parent / "copy")]


def test_what_is_written_after_the_freeze_is_refused(disks: Disks) -> None:
    at = disks.make("template")
    (at / "file").write_text("before")
    frozen_unix_ns = time.time_ns()
    assert disks.look("template", frozen_unix_ns=frozen_unix_ns) is not None
    changed_unix_ns = frozen_unix_ns
    while changed_unix_ns <= frozen_unix_ns:  # the clock of file systems is coarse
        (at / "file").write_text("after")
        changed_unix_ns = (at / "file").stat().st_ctime_ns
    with pytest.raises(
        DiskRefusedError, match=r"written to the temporary folder .*template.* thread, before the freeze"
    ):
        disks.look("template", frozen_unix_ns=frozen_unix_ns)


def test_more_than_lambda_allows_is_refused(disks: Disks, monkeypatch: pytest.MonkeyPatch) -> None:
    at = disks.make("template")
    (at / "file").write_bytes(b"x" * 3 * MIB)
    monkeypatch.setattr(temporary_folders, "MAX_BYTES", 2 * MIB)
    with pytest.raises(DiskRefusedError, match=r"init left 3 MiB .* holds 2 MiB at most"):
        disks.look("template")


def test_what_init_left_is_moved_and_found_again(disks: Disks, folder: Path) -> None:
    at = disks.make("template")
    put_all_sorts(at)
    before, inode = described(at), (at / "file").stat().st_ino
    found = disks.look("template", frozen_unix_ns=time.time_ns())
    assert found is not None
    assert found.files == at  # until it is taken, copies begin with the folder itself
    taken = disks.take(found, folder / "draft")
    assert taken.files is not None
    assert described(taken.files) == before
    assert (taken.files / "file").stat().st_ino == inode
    assert list(at.iterdir()) == []
    (folder / "draft").rename(folder / "image.disk")
    again = disks.load(folder / "image.disk")
    assert again is not None
    assert (again.at, again.files, again.found) == (at, folder / "image.disk" / "files", found.found)
    assert disks.load(None) is None


def test_a_process_that_goes_on_keeps_its_folder(disks: Disks, folder: Path) -> None:
    at = disks.make("template")
    put_all_sorts(at)
    before = described(at)
    found = disks.look("template")
    assert found is not None
    taken = disks.take(found, folder / "draft", keep=True)
    assert taken.files is not None
    (at / "file").write_text("written on")
    assert described(taken.files) == before


def test_an_overlay_begins_with_it(disks: Disks, folder: Path) -> None:
    at = disks.make("template")
    (at / "file").write_text("x")
    at.chmod(0o750)
    found = disks.look("template")
    assert found is not None
    taken = disks.take(found, folder / "draft")
    prepared = disks.prepare(taken, "copy")
    own = at.parent / "copy"
    assert prepared.options == [
        *("--disk-at", str(at), "--disk-own", str(own)),
        *("--disk-lower", str(folder / "draft" / "files")),
    ]
    assert stat.S_IMODE((own / "upper").stat().st_mode) == 0o750
    assert list((own / "upper").iterdir()) == list((own / "work").iterdir()) == []


def test_without_overlays_copies_get_a_filled_folder(folder: Path, program: Callable[[str], Path]) -> None:
    disks = Disks(folder / "tmp", program=program(NO_OVERLAYS))
    assert disks.mount_kind() == (MountKind.BIND, "no overlays")
    at = disks.make("template")
    put_all_sorts(at)
    before = described(at)
    found = disks.look("template")
    assert found is not None
    taken = disks.take(found, folder / "draft")
    prepared = disks.prepare(taken, "copy")
    own = at.parent / "copy"
    assert prepared.options == ["--disk-at", str(at), "--disk-own", str(own)]
    assert described(own) == before
    (own / "file").write_text("another")
    assert taken.files is not None
    assert (taken.files / "file").read_text() == "contents"


def test_without_namespaces_files_are_refused(folder: Path, program: Callable[[str], Path]) -> None:
    disks = Disks(folder / "tmp", program=program(NO_NAMESPACES))
    (disks.make("template") / "file").write_text("x")
    with pytest.raises(
        DiskRefusedError, match=r"left files in its temporary folder .*: no namespaces\. .*remove the files"
    ):
        disks.look("template")


def test_without_namespaces_a_folder_that_was_used_is_refused(folder: Path, program: Callable[[str], Path]) -> None:
    disks = Disks(folder / "tmp", program=program(NO_NAMESPACES))
    (disks.make("template") / "file").touch()
    (folder / "tmp" / "template" / "file").unlink()
    with pytest.raises(DiskRefusedError, match="temporary folder in use"):
        disks.look("template")


def test_a_thaw_that_cannot_be_tried_is_no_way(folder: Path) -> None:
    assert Disks(folder / "tmp", program=None).mount_kind()[0] is MountKind.NONE
    way, why = Disks(folder / "tmp", program=folder / "missing").mount_kind()
    assert way is MountKind.NONE
    assert "missing" in why
    assert list((folder / "tmp").iterdir()) == []


def test_a_change_before_it_is_taken_is_refused(disks: Disks, folder: Path) -> None:
    at = disks.make("template")
    (at / "file").write_text("x")
    found = disks.look("template")
    assert found is not None
    (at / "more").write_text("x")
    with pytest.raises(DiskRefusedError, match="written to the temporary folder"):
        disks.take(found, folder / "draft")
    assert (at / "more").read_text() == "x"


def test_a_disk_snapshot_that_is_not_whole_is_refused(disks: Disks, folder: Path) -> None:
    at = disks.make("template")
    (at / "file").write_text("x")
    found = disks.look("template")
    assert found is not None
    disks.take(found, folder / "draft")
    record = (folder / "draft" / "disk.json").read_text()
    for damaged in ("", "{}", "[]", record.replace('"layout": 1', '"layout": 2'), record.replace('"at"', '"art"')):
        (folder / "draft" / "disk.json").write_text(damaged)
        with pytest.raises(DiskRefusedError, match=r"draft is incomplete .*thawd snapshot rm"):
            disks.load(folder / "draft")
    (folder / "draft" / "disk.json").write_text(record)
    shutil.rmtree(folder / "draft" / "files")
    with pytest.raises(DiskRefusedError, match="files is missing"):
        disks.load(folder / "draft")


def test_a_disk_snapshot_of_another_data_folder_is_refused(disks: Disks, folder: Path) -> None:
    at = disks.make("template")
    (at / "file").write_text("x")
    found = disks.look("template")
    assert found is not None
    disks.take(found, folder / "draft")
    moved = Disks(folder / "moved", program=folder / "program")
    with pytest.raises(
        DiskRefusedError, match=r"was made for .*/tmp/template, but temporary folders are in .*/moved now"
    ):
        moved.load(folder / "draft")


def test_a_link_on_the_way_is_resolved(folder: Path, program: Callable[[str], Path]) -> None:
    (folder / "real").mkdir()
    (folder / "link").symlink_to("real")
    disks = Disks(folder / "link" / "tmp", program=program("exit 0"))
    assert disks.make("template") == folder / "real" / "tmp" / "template"


def test_folders_go_with_their_processes(disks: Disks, folder: Path) -> None:
    at = disks.make("template")
    (at / "file").write_text("x")
    found = disks.look("template")
    assert found is not None
    disks.take(found, folder / "draft")
    taken = disks.load(folder / "draft")
    for name in ("first", "second"):
        disks.prepare(taken, name)
    disks.remove("template")
    assert at.is_dir()  # copies mount their folders there; without it they would lose them
    disks.remove("first")
    assert sorted(path.name for path in at.parent.iterdir()) == ["second", "template"]
    disks.remove("second")
    assert list(at.parent.iterdir()) == []
    disks.remove("second")
    disks.prepare(taken, "third")
    assert at.is_dir()


def test_a_fork_template_stays_as_long_as_its_forks(disks: Disks) -> None:
    at = disks.make("template")
    (at / "file").write_text("x")
    found = disks.look("template")
    prepared = disks.prepare(found, "fork")
    assert prepared.lower == prepared.at == at
    disks.remove("template")
    assert (at / "file").read_text() == "x"
    disks.remove("fork")
    assert not at.exists()


def test_folders_of_a_server_that_died_are_removed(disks: Disks, folder: Path) -> None:
    (disks.make("dead") / "file").write_text("x")
    (folder / "tmp" / "dead" / "closed").mkdir(mode=0)
    (folder / "tmp" / "stray").write_text("x")
    assert Disks(folder / "tmp", program=None).clean() == 2
    assert list((folder / "tmp").iterdir()) == []


def test_what_a_process_has_written_is_counted(disks: Disks) -> None:
    at = disks.make("template")
    (at / "file").write_bytes(b"x" * MIB)
    found = disks.look("template")
    prepared = disks.prepare(found, "copy")
    assert prepared.own is not None
    before = disks.used_bytes("copy")
    assert before < MIB
    (prepared.own / "upper" / "more").write_bytes(b"x" * 2 * MIB)
    assert 2 * MIB <= disks.used_bytes("copy") - before < 3 * MIB
    assert disks.used_bytes("nobody") == 0


def test_a_folder_that_cannot_be_made_is_an_error_with_its_path(folder: Path) -> None:
    (folder / "file").write_text("x")
    with pytest.raises(StoreError, match="/file/tmp cannot be used"):
        Disks(folder / "file" / "tmp", program=None)
