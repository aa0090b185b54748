"""`thawd.telemetry.logs`: lines arrive whole however their bytes are split; files are bounded; a full disk does no
harm."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.execution_fakes import until
from thawd.telemetry.logs import writer
from thawd.telemetry.logs.writer import FunctionLog, LogStream, read_lines, rotated

T = TypeVar("T")
LINE = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z\t(?P<stream>[^\t]+)\t(?P<message>.*)\n", re.DOTALL)


def on_loop(work: Callable[[], T]) -> T:
    async def run() -> T:
        return work()

    return asyncio.run(run())


def messages(path: Path) -> list[bytes]:
    found = []
    for line in read_lines(path):
        match = LINE.fullmatch(line)
        assert match is not None, line
        found.append(match["message"])
    return found


def made(path: Path, *, max_bytes: int = 1 << 20) -> tuple[FunctionLog, LogStream]:
    log = FunctionLog(path, max_bytes=max_bytes)
    return log, LogStream(log, version="$LATEST", identifier="abc")


def test_the_stream_is_named_as_on_lambda(tmp_path: Path) -> None:
    _, stream = made(tmp_path / "f.log")
    assert re.fullmatch(r"\d{4}/\d\d/\d\d/\[\$LATEST\]abc", stream.name)


@given(st.lists(st.binary(max_size=30).map(lambda b: b.replace(b"\n", b"")), max_size=8), st.data())
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_lines_come_out_whole_however_the_output_was_cut(
    tmp_path: Path, lines: list[bytes], data: st.DataObject
) -> None:
    path = tmp_path / "f.log"
    path.unlink(missing_ok=True)
    text = b"".join(line + b"\n" for line in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))

    def work() -> None:
        log, stream = made(path)
        for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
            stream.output(text[start:end])
        log.flush()

    on_loop(work)
    assert messages(path) == lines


def test_an_unfinished_line_is_finished_before_a_line_of_the_platform(tmp_path: Path) -> None:
    def work() -> bytes:
        log, stream = made(tmp_path / "f.log")
        tail = stream.begin_tail(4096)
        stream.output(b"no newl")
        stream.output(b"ine")
        stream.line("END RequestId: 1")
        log.flush()
        return tail.end()

    assert on_loop(work) == b"no newline\nEND RequestId: 1\n"
    assert messages(tmp_path / "f.log") == [b"no newline", b"END RequestId: 1"]


def test_a_tail_holds_nothing_of_what_was_before_it(tmp_path: Path) -> None:
    def work() -> bytes:
        _, stream = made(tmp_path / "f.log")
        stream.output(b"left over from before")
        tail = stream.begin_tail(4096)
        stream.line("START RequestId: 2")
        return tail.end()

    assert on_loop(work) == b"START RequestId: 2\n"


@pytest.mark.parametrize("piece", [1, 7, 100, 5000, 100_000])
def test_the_tail_is_the_last_bytes_and_no_more(tmp_path: Path, piece: int) -> None:
    text = b"".join(b"%06d\n" % number for number in range(3000))

    def work() -> bytes:
        _, stream = made(tmp_path / "f.log")
        tail = stream.begin_tail(4096)
        for at in range(0, len(text), piece):
            stream.output(text[at : at + piece])
        return tail.end()

    assert on_loop(work) == text[-4096:]


def test_a_tail_ends_alone_and_has_nothing_that_was_written_before_or_after_it(tmp_path: Path) -> None:
    def work() -> tuple[bytes, bytes, bytes]:
        _, stream = made(tmp_path / "f.log")
        stream.output(b"a\n")
        first, tail = stream.begin_tail(10), stream.begin_tail(10)
        stream.output(b"b\n")
        first_ended = first.end()
        stream.output(b"c\n")
        return first_ended, first.end(), tail.end()

    assert on_loop(work) == (b"b\n", b"b\n", b"b\nc\n")


def test_no_line_is_longer_than_cloudwatchs_limit(tmp_path: Path) -> None:
    def work() -> None:
        log, stream = made(tmp_path / "f.log", max_bytes=1 << 30)
        stream.output(b"x" * writer.MAX_LINE_BYTES)
        stream.output(b"y" * 60_000 + b"\n")
        stream.output(b"z" * (3 * writer.MAX_LINE_BYTES))
        stream.line("END")
        log.flush()

    on_loop(work)
    found = messages(tmp_path / "f.log")
    assert max(map(len, found)) <= writer.MAX_LINE_BYTES
    assert b"".join(found[:-1]) == (b"x" * writer.MAX_LINE_BYTES + b"y" * 60_000 + b"z" * (3 * writer.MAX_LINE_BYTES))


def test_what_is_gathered_is_written_by_itself_soon(tmp_path: Path) -> None:
    path = tmp_path / "f.log"

    async def work() -> None:
        _, stream = made(path)
        stream.output(b"soon\n")
        await until(path.exists)

    asyncio.run(work())
    assert messages(path) == [b"soon"]


def test_rotation_bounds_the_disk_and_keeps_the_newest_lines_in_order(tmp_path: Path) -> None:
    path = tmp_path / "f.log"

    def work() -> None:
        log, stream = made(path, max_bytes=2000)
        for number in range(500):
            stream.output(b"%04d\n" % number)
            log.flush()

    on_loop(work)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["f.log", "f.log.1", "f.log.2", "f.log.3"]
    assert sum(p.stat().st_size for p in tmp_path.iterdir()) <= 2100 * (writer.KEPT_FILES + 1)
    found = [int(message) for message in messages(path)]
    assert found == list(range(found[0], 500))
    assert rotated(path, 1).exists()


@pytest.mark.parametrize("trouble", ["a folder in its place", "a full disk"])
def test_a_write_that_fails_is_dropped_and_told_once(
    tmp_path: Path, trouble: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "f.log"
    if trouble == "a full disk":
        path.symlink_to("/dev/full")
    else:
        path.mkdir()

    def work() -> None:
        log, stream = made(path)
        for _ in range(5):
            stream.line("lost")
            log.flush()
        if trouble == "a full disk":
            path.unlink()
        else:
            path.rmdir()
        stream.line("kept")
        log.flush()
        path.unlink()
        path.mkdir()
        stream.line("lost again")
        log.flush()

    on_loop(work)
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 2
    assert all("log lines of f are lost" in line for line in told)


def test_a_failed_write_keeps_nothing_in_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "f.log").mkdir()

    def work() -> int:
        log, stream = made(tmp_path / "f.log")
        stream.line("x" * 1000)
        log.flush()
        return len(log._pending)

    assert on_loop(work) == 0
    assert "lost" in capsys.readouterr().err


def test_a_log_without_a_file_has_no_lines(tmp_path: Path) -> None:
    assert list(read_lines(tmp_path / "none.log")) == []


def test_output_is_read_on_although_what_looks_at_stored_lines_has_failed(tmp_path: Path) -> None:
    def fail(lines: bytes) -> None:
        raise RuntimeError("a bug")

    def work() -> None:
        log = FunctionLog(tmp_path / "f.log", max_bytes=1 << 20, on_stored=fail)
        log.write(b"s", b"line")
        went_on: list[bool] = []
        log.when_flushed(lambda: went_on.append(True))
        with pytest.raises(RuntimeError):
            log.flush()
        assert went_on == [True]

    on_loop(work)
