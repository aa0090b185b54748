"""`thawd.sources.buckets.files`: which files have writers, what counts as new, and that looking does no harm."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest

from thawd.sources.buckets.files import (
    REST_S,
    FileState,
    Looker,
    LookResult,
    UnfinishedFile,
    WrittenFile,
    has_writers,
    leases_work,
)
from thawd.stores.objects.catalog import ObjectRecord

SRC = Path(__file__).parents[2] / "src"


def looker(folder: Path, *, leases: bool = True, settle_s: float = 0.1) -> Looker:
    return Looker(os.fsencode(folder), leases=leases, settle_s=settle_s, stop=threading.Event())


def look_rested(folder: Path, key: bytes, known: ObjectRecord | None = None) -> LookResult:
    """Look until the file has been unchanged for long enough."""
    deadline = time.monotonic() + 120
    while True:
        finding = looker(folder).look(key, known=known)
        if finding.state is not FileState.UNFINISHED or time.monotonic() > deadline:
            return finding


@pytest.fixture
def record(tmp_path: Path) -> ObjectRecord:
    """The record of a file ``k`` that was just written."""
    (tmp_path / "k").write_bytes(b"content")
    finding = look_rested(tmp_path, b"k")
    assert finding.record is not None
    return finding.record


def test_a_new_object_is_announced_with_its_stat_and_md5(tmp_path: Path, record: ObjectRecord) -> None:
    found = (tmp_path / "k").stat()
    assert record == ObjectRecord(
        key=b"k",
        inode=found.st_ino,
        size=7,
        mtime_ns=found.st_mtime_ns,
        ctime_ns=found.st_ctime_ns,
        etag=hashlib.md5(b"content").hexdigest(),
    )
    assert look_rested(tmp_path, b"k").announce
    assert looker(tmp_path).look(b"k", known=record).state is FileState.SAME


def test_a_file_written_a_moment_ago_is_left_to_rest(tmp_path: Path) -> None:
    (tmp_path / "k").write_bytes(b"1")
    finding = looker(tmp_path).look(b"k")
    rested = time.time_ns() - (tmp_path / "k").stat().st_ctime_ns
    # Unless this machine took longer than that to get here
    assert finding.state is FileState.UNFINISHED or rested > REST_S * 1e9
    assert finding.state is FileState.CHANGED or finding.wait_s == REST_S


@pytest.mark.parametrize(
    ("difference", "announced"),
    [
        ({"inode": 1}, True),
        ({"size": 8}, True),
        ({"etag": "0" * 32, "ctime_ns": 1}, True),
        # Rewritten with the same content, or touched: the time moved forward to the moment of the change
        ({"mtime_ns": -1, "ctime_ns": -1}, True),
        # The same, but the time moved back: a copying tool set it after it had closed the file
        ({"mtime_ns": +1, "ctime_ns": -1}, False),
        # Only the mode or the names changed
        ({"ctime_ns": -1}, False),
    ],
)
def test_what_counts_as_written_anew(
    tmp_path: Path, record: ObjectRecord, difference: dict[str, object], announced: bool
) -> None:
    changed = {
        name: getattr(record, name) + value * 1_000_000 if name.endswith("_ns") and isinstance(value, int) else value
        for name, value in difference.items()
    }
    known = msgspec.structs.replace(record, **changed)
    finding = looker(tmp_path).look(b"k", known=known)
    assert (finding.state, finding.record, finding.announce) == (FileState.CHANGED, record, announced)


def test_a_time_set_far_from_now_is_not_a_write(tmp_path: Path, record: ObjectRecord) -> None:
    os.utime(tmp_path / "k", (2e9, 2e9))
    finding = look_rested(tmp_path, b"k", record)
    assert (finding.state, finding.announce) == (FileState.CHANGED, False)


def test_a_file_of_the_platform_is_believed_and_announced_once(tmp_path: Path, record: ObjectRecord) -> None:
    found = (tmp_path / "k").stat()
    written = WrittenFile(found, "e" * 32)
    finding = looker(tmp_path).look(b"k", written=written)
    assert finding.state is FileState.CHANGED
    assert finding.record is not None
    assert (finding.record.etag, finding.announce) == ("e" * 32, True)
    # The watcher saw it between two changes of its names, so it is announced already
    known = msgspec.structs.replace(record, ctime_ns=record.ctime_ns - 1)
    assert not looker(tmp_path).look(b"k", known=known, written=written).announce
    # A different file by now, so the record does not apply
    (tmp_path / "k").write_bytes(b"other content")
    finding = looker(tmp_path).look(b"k", written=written)
    assert finding.record is None or finding.record.etag == hashlib.md5(b"other content").hexdigest()


def test_writers_are_told_from_readers(tmp_path: Path) -> None:
    path = tmp_path / "k"
    with path.open("wb") as writer, path.open("rb") as reader, path.open("rb"):
        assert has_writers(reader.fileno()) is True
        writer.close()
        assert has_writers(reader.fileno()) is False
    assert leases_work(os.fsencode(tmp_path))
    assert [p.name for p in tmp_path.iterdir()] == ["k"]


def test_leases_that_cannot_be_tried_are_taken_for_working(tmp_path: Path) -> None:
    assert leases_work(os.fsencode(tmp_path / "nowhere"))


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EAGAIN])
def test_a_file_system_without_leases_or_with_false_ones_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    original = fcntl.fcntl

    def refusing(descriptor: int, operation: int, argument: int = 0) -> int:
        if operation == fcntl.F_SETLEASE:
            raise OSError(number, "no leases")
        return original(descriptor, operation, argument)

    monkeypatch.setattr(fcntl, "fcntl", refusing)
    assert not leases_work(os.fsencode(tmp_path))


def test_without_leases_a_file_that_is_still_long_enough_is_complete(tmp_path: Path) -> None:
    (tmp_path / "k").write_bytes(b"1")
    without = looker(tmp_path, leases=False, settle_s=0.2)
    unfinished = UnfinishedFile()
    begun = time.monotonic()
    while (finding := without.look(b"k", unfinished=unfinished)).state is FileState.UNFINISHED:
        assert time.monotonic() - begun < 120
    assert finding.state is FileState.CHANGED
    assert time.monotonic() - begun >= 0.2


def test_a_file_larger_than_allowed_is_not_read(tmp_path: Path, record: ObjectRecord) -> None:
    assert looker(tmp_path).look(b"k", largest_bytes=6).state is FileState.LARGE
    assert looker(tmp_path).look(b"k", largest_bytes=7).state is FileState.CHANGED
    assert looker(tmp_path).look(b"k", known=record, largest_bytes=6).state is FileState.SAME


def test_reading_stops_when_the_watcher_does(tmp_path: Path, record: ObjectRecord) -> None:
    stopped = Looker(os.fsencode(tmp_path), leases=True, settle_s=1, stop=threading.Event())
    stopped._stop.set()
    assert stopped.look(b"k").state is FileState.UNFINISHED


@pytest.mark.parametrize(
    "belt",
    ["", "object_file.install_lease_signal_handler(); refused = True"],
    ids=["the signal is one that is ignored", "SIGIO has a handler"],
)
def test_a_writer_that_comes_while_we_look_neither_kills_us_nor_waits_long(tmp_path: Path, belt: str) -> None:
    # Given a process that is delayed between taking the lease and releasing it
    path = tmp_path / "k"
    path.write_bytes(b"1")
    script = (
        "import fcntl, os, select, subprocess, sys, time; from thawd.sources.buckets import files as object_file\n"
        f"refused = False; path = {str(path)!r}; original = fcntl.fcntl\n"
        f"{belt}\n"
        "def held_up(fd, operation, argument=0):\n"
        "    global writer\n"
        "    if operation == fcntl.F_SETSIG and refused: raise OSError(1, 'refused')\n"
        "    result = original(fd, operation, argument)\n"
        "    if operation == fcntl.F_SETLEASE and argument == fcntl.F_RDLCK:\n"
        '        code = f\'print(1, flush=True); open({path!r}, "ab").write(b"2"); print(2, flush=True)\'\n'
        "        writer = subprocess.Popen([sys.executable, '-c', code], stdout=subprocess.PIPE)\n"
        "        writer.stdout.readline()\n"
        "        assert not select.select([writer.stdout], [], [], 0.3)[0], 'the writer was not held up'\n"
        "    return result\n"
        "fcntl.fcntl = held_up\n"
        "fd = os.open(path, os.O_RDONLY)\n"
        "print(object_file.has_writers(fd), writer.communicate(), flush=True)"
    )
    # When another process opens the file for writing
    done = subprocess.run(
        [sys.executable, "-c", script], env={"PYTHONPATH": str(SRC)}, capture_output=True, text=True, timeout=300
    )
    # Then the process lives, and the writer continues as soon as the lease is released
    assert done.stdout == "False (b'2\\n', None)\n", done.stderr
    assert path.read_bytes() == b"12"
