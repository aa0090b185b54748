"""`thawd.telemetry.logs.reader`: every line once and in order, however the log rotates meanwhile."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thawd.telemetry.logs.reader import MAX_HELD, LogReader
from thawd.telemetry.logs.writer import KEPT_FILES, FunctionLog, rotated


class Writer:
    """Writes numbered lines as a server does, and rotates on request."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.written = 0

    def write(self, count: int, *, rotate: bool = False) -> None:
        """Write `count` lines at once."""

        async def work() -> None:
            log = FunctionLog(self.path, max_bytes=1 if rotate else 1 << 30)
            for number in range(self.written, self.written + count):
                log.write(b"stream", b"%d" % number)
            log.flush()

        asyncio.run(work())
        self.written += count


class Told(list[str]):
    """Collects what a reader reports."""

    def __call__(self, message: str) -> None:
        self.append(message)


def numbers(lines: list[bytes]) -> list[int]:
    return [int(line.split(b"\t")[2]) for line in lines]


def all_new(reader: LogReader) -> list[int]:
    found: list[bytes] = []
    while lines := reader.read():
        found += lines
    return numbers(found)


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    return Writer(tmp_path / "f.log")


@pytest.fixture
def reader(writer: Writer, told: Told) -> Iterator[LogReader]:
    with LogReader(writer.path, report=told) as reader:
        yield reader


def test_as_many_rotations_as_files_are_kept_lose_nothing(writer: Writer, reader: LogReader, told: Told) -> None:
    writer.write(5)
    assert numbers(reader.start(100)) == [0, 1, 2, 3, 4]
    for _ in range(KEPT_FILES):
        writer.write(10, rotate=True)
    writer.write(10)
    assert all_new(reader) == list(range(5, 45))
    assert told == []


def test_a_log_between_two_files_is_read_on(writer: Writer, reader: LogReader) -> None:
    writer.write(5, rotate=True)
    assert not writer.path.exists()
    assert numbers(reader.start(2)) == [3, 4]
    assert all_new(reader) == []
    writer.write(5)
    assert all_new(reader) == [5, 6, 7, 8, 9]


steps = st.lists(st.tuples(st.sampled_from(["write", "rotate", "read"]), st.integers(1, 4)), max_size=25)


@given(before=steps, after=steps, count=st.integers(0, 12))
@settings(max_examples=80, deadline=None, derandomize=True)
def test_beginning_and_following_meet_without_gap_or_repetition(
    before: list[tuple[str, int]], after: list[tuple[str, int]], count: int
) -> None:
    with TemporaryDirectory() as folder:
        writer, told = Writer(Path(folder, "f.log")), Told()
        with LogReader(writer.path, report=told) as reader:
            for what, lines in before:
                writer.write(lines, rotate=what == "rotate")
            found = numbers(reader.start(count))
            begun = writer.written
            rotations = 0
            for what, lines in after:
                rotations = 0 if what == "read" else rotations + (what == "rotate")
                if what == "read" or rotations == KEPT_FILES:
                    found += all_new(reader)
                    rotations = what == "rotate"
                if what != "read":
                    writer.write(lines, rotate=what == "rotate")
            found += all_new(reader)
        assert told == []
        assert found[len(found) - (writer.written - begun) :] == list(range(begun, writer.written))
        assert found == list(range(writer.written))[len(range(writer.written)) - len(found) :]
        kept = len(found) - (writer.written - begun)
        assert kept <= count


def test_a_reader_beside_a_busy_writer_sees_every_line_once(writer: Writer, reader: LogReader, told: Told) -> None:
    writer.write(50)
    done = threading.Event()
    room = threading.Semaphore(KEPT_FILES - 1)  # number of rotations that the reader may be behind

    def write() -> None:
        for turn in range(400):
            if turn % 2:
                room.acquire(timeout=300)
            writer.write(7, rotate=bool(turn % 2))
        done.set()

    thread = threading.Thread(target=write)
    found = numbers(reader.start(10))
    thread.start()
    ended = False
    while not ended:
        ended = done.wait(0.0005)  # the writer must not wait for the interpreter
        before = found[-1]
        found += numbers(reader.read())
        for _ in range((found[-1] - 49) // 14 - (before - 49) // 14):
            room.release()
    thread.join()
    found += all_new(reader)
    assert told == []
    assert found == list(range(found[0], writer.written))


def test_lines_rotated_away_unread_are_told_and_reading_goes_on(writer: Writer, reader: LogReader, told: Told) -> None:
    writer.write(5)
    reader.start(100)
    for _ in range(KEPT_FILES + 4):
        writer.write(10, rotate=True)
    found = all_new(reader)
    kept = list(range(writer.written - 10 * KEPT_FILES, writer.written))
    assert found == [*range(5, 15), *kept]  # the file that was open, then the files that are left
    assert len(told) == 1
    assert "f.log" in told[0]
    writer.write(3)
    assert all_new(reader) == list(range(writer.written - 3, writer.written))
    assert len(told) == 1


def test_a_slow_reader_keeps_few_files_on_the_disk_and_tells_what_it_left_out(
    writer: Writer, reader: LogReader, told: Told
) -> None:
    # Given a reader that sometimes reads a line while whole files are rotated
    writer.write(1)
    reader.start(0)
    found = []
    for _ in range(MAX_HELD + 5):
        writer.write(2, rotate=True)
        writer.write(2, rotate=True)
        found += numbers(reader.read())
        held = [fd for fd in Path("/proc/self/fd").iterdir() if str(writer.path) in str(fd.resolve())]
        assert len(held) <= MAX_HELD
    found += all_new(reader)
    # Then its lines are in order and end with the newest, and the gap was reported
    assert found == sorted(set(found))
    assert found[-1] == writer.written - 1
    assert told


def test_old_files_are_not_shown_anew_when_the_log_is_removed_by_hand(writer: Writer, reader: LogReader) -> None:
    for _ in range(KEPT_FILES):
        writer.write(5, rotate=True)
    writer.write(5)
    for number in range(1, KEPT_FILES + 1):
        os.utime(rotated(writer.path, number), (1000, 1000))
    assert numbers(reader.start(1)) == [writer.written - 1]
    writer.path.unlink()
    assert all_new(reader) == []
    writer.write(2)
    assert all_new(reader) == [writer.written - 2, writer.written - 1]


def test_a_log_emptied_in_place_is_read_from_its_beginning(writer: Writer, reader: LogReader) -> None:
    writer.write(50)
    reader.start(1)
    writer.path.write_bytes(b"")
    assert all_new(reader) == []
    writer.write(1)
    assert all_new(reader) == [50]


def test_a_line_is_shown_once_it_is_whole(tmp_path: Path, told: Told) -> None:
    path = tmp_path / "f.log"
    path.write_bytes(b"one\ntw")
    with LogReader(path, report=told) as reader:
        assert reader.start(5) == [b"one"]
        assert reader.read() == []
        with path.open("ab") as file:
            file.write(b"o\nthr")
        assert reader.read() == [b"two"]
        assert reader.read() == []
        # An incomplete line, as left by a full disk, is not joined with the first line of the next file.
        path.replace(rotated(path, 1))
        path.write_bytes(b"four\n")
        assert [reader.read(), reader.read(), reader.read()] == [[b"thr"], [b"four"], []]
    with LogReader(path, report=told) as reader:
        assert reader.start(2) == [b"thr", b"four"]
    with LogReader(rotated(path, 1), report=told) as reader:
        assert reader.start(1, unfinished=True) == [b"thr"]


def test_the_last_lines_reach_back_over_files_as_far_as_asked(writer: Writer, told: Told) -> None:
    for _ in range(KEPT_FILES):
        writer.write(10, rotate=True)
    writer.write(5)
    for count in (0, 1, 5, 6, 15, 16, 34, 35, 1000):
        with LogReader(writer.path, report=told) as reader:
            assert numbers(reader.start(count)) == list(range(35))[35 - min(count, 35) :]


def test_the_end_of_a_huge_log_is_read_without_the_rest(tmp_path: Path, told: Told) -> None:
    path = tmp_path / "f.log"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # a sparse file with more bytes than could be read in a day
        file.seek(0, 2)
        file.write(b"\n" + b"".join(b"%d\n" % n for n in range(200)))
    with LogReader(path, report=told) as reader:
        assert reader.start(100) == [b"%d" % n for n in range(100, 200)]


def test_a_log_that_begins_later_is_read_from_its_first_line(writer: Writer, reader: LogReader) -> None:
    assert reader.start(100) == []
    assert not reader.exists
    assert reader.read() == []
    writer.write(3, rotate=True)
    writer.write(3)
    assert all_new(reader) == list(range(6))
