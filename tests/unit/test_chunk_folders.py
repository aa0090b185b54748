"""A folder of chunks: what cannot be listed is an error, and what was written is durable and private."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest

from thawd.errors import StoreError
from thawd.stores.chunk_places import FolderPlace
from thawd.system import folders
from thawd.transfer import upkeep

CHUNK = f"chunks/ab/{'ab' * 32}"


def fail_to_list(monkeypatch: pytest.MonkeyPatch, folder: Path, number: int) -> None:
    """Let each listing of one folder fail with an error number."""
    scandir = os.scandir

    def failing(path: str | Path) -> object:
        if Path(path) == folder:
            raise OSError(number, os.strerror(number), str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", failing)


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.ESTALE])
def test_a_clean_up_that_cannot_list_records_removes_no_chunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    place = FolderPlace(tmp_path)
    place.put("snapshots/f/one", b"a record")
    place.put(CHUNK, b"a chunk")
    fail_to_list(monkeypatch, tmp_path / "snapshots/f", number)
    for _ in range(2):
        with pytest.raises(StoreError, match="snapshots/f"):
            upkeep.clean_up(place, grace_s=0.0)
    assert place.find(CHUNK) is not None


def test_unfinished_files_that_cannot_be_listed_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = FolderPlace(tmp_path)
    place.put(CHUNK, b"a chunk")
    fail_to_list(monkeypatch, tmp_path / "chunks/ab", errno.EIO)
    with pytest.raises(StoreError, match="chunks/ab"):
        place.remove_unfinished(before_unix_s=time.time())


def test_a_folder_that_is_removed_while_it_is_listed_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = FolderPlace(tmp_path)
    place.put("snapshots/f/one", b"1")
    place.put("snapshots/g/two", b"2")
    fail_to_list(monkeypatch, tmp_path / "snapshots/f", errno.ENOENT)
    assert [found.key for found in place.listed("snapshots")] == ["snapshots/g/two"]
    assert list(place.listed("other")) == []


def test_new_folders_are_private_and_all_names_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(folders, "sync", lambda path: synced.append(Path(path)))
    FolderPlace(tmp_path / "new/store").put("snapshots/f/one", b"1")
    made = [tmp_path / name for name in ("new", "new/store", "new/store/snapshots", "new/store/snapshots/f")]
    assert [folder.stat().st_mode & 0o777 for folder in made] == [0o700] * 4
    assert synced == [tmp_path, *made]


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EACCES])
def test_a_file_system_that_cannot_sync_folders_can_hold_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(path: Path) -> None:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(folders, "sync", refuse)
    place = FolderPlace(tmp_path)
    place.put(CHUNK, b"a chunk")
    assert place.find(CHUNK) is not None


def test_a_disk_that_fails_to_sync_a_folder_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    monkeypatch.setattr(folders, "sync", fail)
    with pytest.raises(StoreError):
        FolderPlace(tmp_path).put(CHUNK, b"a chunk")
