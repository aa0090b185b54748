"""Claims about `thawd.system.folders`: a file is replaced in one step, and what a killed process left is removed."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from thawd.cli import table_export
from thawd.runtime.services import Bucket
from thawd.server.emulator.state import EmulatedState
from thawd.sources.buckets import scan
from thawd.system import folders

LEFT = f".thawd-{'0123456789abcdef' * 2}"

# Writes half of a file and is then killed, as a process is by a power cut.
KILLED = """
import os, pathlib, signal, sys
from thawd.system import folders
with folders.replacing(pathlib.Path(sys.argv[1])) as file:
    file.write(b"half")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def replace(path: Path, content: bytes) -> None:
    with folders.replacing(path) as file:
        file.write(content)


def write_object(path: Path, content: bytes) -> None:
    Bucket("b", str(path.parent)).write(path.name, content)


WRITERS = pytest.mark.parametrize("write", [replace, write_object])


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "file")], check=False)
    (left,) = names(tmp_path)
    assert folders.is_unfinished(left.encode())
    folders.remove_unfinished(tmp_path)
    assert names(tmp_path) == []


@WRITERS
def test_a_file_that_is_being_written_is_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path, bytes], None]
) -> None:
    real = os.replace

    def cleaned(source: str, target: str) -> None:
        folders.remove_unfinished(tmp_path)
        real(source, target)

    monkeypatch.setattr(os, "replace", cleaned)  # `Path.replace` calls it
    write(tmp_path / "file", b"whole")
    assert names(tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() == b"whole"


@WRITERS
def test_a_file_that_is_removed_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path, bytes], None]
) -> None:
    real_flock, real_open = fcntl.flock, os.open
    removals = ["before the lock", "before the second open"]

    def remove() -> None:
        removals.pop()
        for path in tmp_path.iterdir():
            path.unlink()

    def flock(fd: int, operation: int) -> None:
        if len(removals) == 1:
            remove()
        real_flock(fd, operation)

    def open_(path: Path | str, flags: int, mode: int = 0o777) -> int:
        if not flags & os.O_CREAT and len(removals) == 2:
            remove()
        return real_open(path, flags, mode)

    monkeypatch.setattr(fcntl, "flock", flock)
    monkeypatch.setattr(os, "open", open_)
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    write(tmp_path / "file", b"whole")
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors
    assert not removals
    assert names(tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() == b"whole"


@WRITERS
def test_without_locks_files_are_written_and_none_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path, bytes], None]
) -> None:
    def flock(fd: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    write(tmp_path / "file", b"whole")
    (tmp_path / LEFT).touch()
    folders.remove_unfinished(tmp_path)
    assert names(tmp_path) == [LEFT, "file"]


def test_nothing_else_is_removed(tmp_path: Path) -> None:
    other = [".thawd-complete", ".thawd-lease-7", ".thawd-restore-tables", LEFT.upper(), LEFT + "0", LEFT[:-1], "file"]
    for name in other:
        (tmp_path / name).touch()
    (tmp_path / LEFT).mkdir()
    (tmp_path / LEFT.replace("0", "1")).symlink_to(tmp_path / "file")
    os.mkfifo(tmp_path / LEFT.replace("0", "2"))
    before = names(tmp_path)
    folders.remove_unfinished(tmp_path)
    assert names(tmp_path) == before
    folders.remove_unfinished(tmp_path / "missing")


def test_a_block_that_raises_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), folders.replacing(tmp_path / "file"):
        raise RuntimeError
    assert names(tmp_path) == []


def test_the_scan_of_a_bucket_removes_what_is_left_at_every_depth(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    for folder in (tmp_path, tmp_path / "a", tmp_path / "a" / "b"):
        (folder / LEFT).touch()
        (folder / "object").touch()
    found = list(scan.walk(os.fsencode(tmp_path), b"", enter=lambda folder: None, report=lambda key, error: None))
    assert sorted(found[0]) == [b"a/b/object", b"a/object", b"object"]
    assert not list(tmp_path.rglob(".thawd-*"))


def test_the_emulator_and_an_export_remove_what_is_left_in_their_folders(tmp_path: Path) -> None:
    (tmp_path / LEFT).touch()
    EmulatedState(tmp_path)
    assert names(tmp_path) == ["lock", "objects"]
    (tmp_path / LEFT).touch()
    table_export.export([{"key": "a"}], tmp_path / "rows.jsonl", kind="jsonl", key_name="key")
    assert names(tmp_path) == ["lock", "objects", "rows.jsonl"]
