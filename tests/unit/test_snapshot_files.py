"""The list of files that a snapshot depends on: digests are remembered only for files that nobody has changed."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.unit.snapshot_images import read_bytes, whole
from thawd.errors import StoreError
from thawd.runtime.changed_files import changed, write_stamps
from thawd.snapshot.disk.places import Places
from thawd.snapshot.inspect import reader
from thawd.snapshot.store import file_digests, file_lists
from thawd.snapshot.store.binding import bind
from thawd.snapshot.store.file_digests import FileDigests

HELLO = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"


@pytest.fixture
def aged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that was changed long ago, by the clock that the test has."""
    path = tmp_path / "file"
    path.write_bytes(b"hello")
    later_ns = time.time_ns() + 10**12
    monkeypatch.setattr(file_digests.time, "time_ns", lambda: later_ns)
    return path


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that gets an entry for each file that is read."""
    found: list[int] = []
    real = file_digests.digest_of

    def digest_of(fd: int) -> str:
        found.append(fd)
        return real(fd)

    monkeypatch.setattr(file_digests, "digest_of", digest_of)
    return found


def test_a_file_is_read_once_also_by_a_later_process(aged: Path, reads: list[int], tmp_path: Path) -> None:
    kept = tmp_path / "digests.json"
    first = FileDigests(kept)
    assert (first.of(aged)[1], first.of(aged)[1]) == (HELLO, HELLO)
    first.save()
    assert FileDigests(kept).of(aged)[1] == HELLO
    assert len(reads) == 1
    assert kept.stat().st_mode & 0o777 == 0o600


def test_a_changed_file_is_read_again_though_its_size_and_time_are_as_before(aged: Path) -> None:
    digests = FileDigests()
    status, _ = digests.of(aged)
    with open(aged, "r+b") as file:
        file.write(b"HELLO")
    os.utime(aged, ns=(status.st_atime_ns, status.st_mtime_ns))
    now, sha256 = digests.of(aged)
    assert (now.st_ino, now.st_size, now.st_mtime_ns) == (status.st_ino, status.st_size, status.st_mtime_ns)
    assert sha256 != HELLO


def test_a_file_that_has_just_changed_is_read_when_its_next_change_would_have_another_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"hello")
    changed_ns = path.stat().st_ctime_ns
    now_ns = changed_ns + 1_000_000
    slept_s: list[float] = []

    def sleep(duration_s: float) -> None:
        nonlocal now_ns
        slept_s.append(duration_s)
        now_ns += round(duration_s * 1e9)

    monkeypatch.setattr(file_digests.time, "time_ns", lambda: now_ns)
    monkeypatch.setattr(file_digests.time, "sleep", sleep)
    assert FileDigests().of(path)[1] == HELLO
    assert sum(slept_s) == pytest.approx(0.099)


def test_a_file_that_changes_while_it_is_read_has_no_digest(aged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def digest_of(fd: int) -> str:
        aged.write_bytes(b"other")
        return "0" * 64

    monkeypatch.setattr(file_digests, "digest_of", digest_of)
    with pytest.raises(StoreError, match="was changed while it was read"):
        FileDigests().of(aged)


@pytest.mark.parametrize("text", [b"", b"{}", b'{"layout": 9, "digests": []}', b"\xff"])
def test_remembered_digests_that_cannot_be_read_are_forgotten(text: bytes, aged: Path, tmp_path: Path) -> None:
    kept = tmp_path / "digests.json"
    kept.write_bytes(text)
    kept.chmod(0o600)
    assert FileDigests(kept).of(aged)[1] == HELLO


def test_remembered_digests_that_others_can_write_are_not_trusted(aged: Path, tmp_path: Path, reads: list[int]) -> None:
    kept = tmp_path / "digests.json"
    first = FileDigests(kept)
    first.of(aged)
    first.save()
    kept.chmod(0o666)
    FileDigests(kept).of(aged)
    assert len(reads) == 2


def test_what_is_no_file_has_no_digest(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", tmp_path / "nothing"):
        with pytest.raises(StoreError, match=r"not a regular file|cannot be opened"):
            FileDigests().of(path)


def test_the_list_has_mapped_open_and_read_files_but_none_of_the_temporary_folder(tmp_path: Path) -> None:
    image = read_bytes(tmp_path / "image", whole().image())
    stamps = [("/usr/lib/python3/os.py", 5, 6, 7), ("/own/x", 1, 2, 3)]
    found = file_lists.listed(stamps, image, find=lambda path: f"disk:{path[5:]}" if path.startswith("/own/") else "")
    assert {one.path: (one.kind, one.at) for one in found.files} == {
        "/usr/lib/python3/os.py": ("file", ""),
        "/own/x": ("file", "disk:x"),
        "/usr/lib/libthawd_freeze.so": ("file", ""),
        "/var/task": ("file", ""),
        "/dev/null": ("device", ""),
    }
    assert file_lists.decode(file_lists.encode(found), where=tmp_path) == found


def test_binding_changes_only_the_named_files_and_the_checksums(tmp_path: Path) -> None:
    path = whole().write(tmp_path / "image")
    before = reader.read(path)
    bind(path, {"/usr/lib/libthawd_freeze.so": (123, 456), "/nowhere": (1, 2)})
    after = reader.read(path)
    library, *others = after.files
    assert (library.device, library.inode, library.modified_ns, library.bytes) == (0, 456, 123, before.files[0].bytes)
    assert others == list(before.files[1:])
    assert (after.operations, after.words, after.descriptors) == (before.operations, before.words, before.descriptors)
    again = whole()
    again.records["files"][0] |= {"device": 0, "inode": 456, "modified_ns": 123}
    assert path.read_bytes() == again.image(), "as if it had been made with these numbers"


@pytest.mark.parametrize("content", [b"", b"THAWDIMG", bytes(8192)])
def test_what_is_no_image_is_not_bound(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "image"
    path.write_bytes(content)
    with pytest.raises(StoreError, match="not an image"):
        bind(path, {})
    assert path.read_bytes() == content


def test_stamps_are_left_for_the_platform_and_a_failure_is_none(tmp_path: Path) -> None:
    stamps = [[("/a", 1, 2, 3)], [("/b", 4, 5, 6)]]
    write_stamps(str(tmp_path / "stamps"), stamps)
    assert (tmp_path / "stamps").read_text() == '[["/a", 1, 2, 3], ["/b", 4, 5, 6]]'
    write_stamps(str(tmp_path / "stamps"), [])
    write_stamps(str(tmp_path / "no" / "folder"), stamps)
    assert changed([[("/nowhere/at/all", 1, 2, 3)]]) == "/nowhere/at/all"


def test_a_path_that_a_process_sees_leads_to_the_file() -> None:
    places = Places("/data/packages/1", Path("/site/runtime"), Path("/data/layers/2"))
    for path, real in (
        ("/var/task/a/b.so", "/data/packages/1/a/b.so"),
        ("/var/runtime/bootstrap.py", "/site/runtime/bootstrap.py"),
        ("/opt/python/x.py", "/data/layers/2/python/x.py"),
        ("/usr/lib/x.so", "/usr/lib/x.so"),
    ):
        assert places.real(Path(path)) == Path(real)
    assert Places("/code", Path("/r")).real(Path("/opt/x")) == Path("/opt/x")
