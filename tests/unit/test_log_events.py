"""`thawd.telemetry.logs.events` and related modules: positions stay valid after rotation; reading uses little
memory."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from thawd.telemetry.logs import events as log_events
from thawd.telemetry.logs.events import LogEvents, LogPosition
from thawd.telemetry.logs.groups import group_names, path_of_group
from thawd.telemetry.logs.streams import streams_by_name, streams_by_time
from thawd.telemetry.logs.writer import FunctionLog, rotated

BEGIN_MS = 1_790_000_000_000


def line(number: int, stream: str = "s", *, step_ms: int = 1000, width: int = 0) -> bytes:
    at = datetime.fromtimestamp((BEGIN_MS + number * step_ms) / 1000, UTC)
    text = at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at.microsecond // 1000:03d}Z"
    return f"{text}\t{stream}\tline {number}{'x' * width}\n".encode()


def write(path: Path, numbers: range, *, stream: Callable[[int], str] = lambda number: "s", width: int = 0) -> None:
    with path.open("ab") as file:
        file.writelines(line(number, stream(number), width=width) for number in numbers)


def made(folder: Path, *, width: int = 0) -> Path:
    """A log of three files, oldest first, with lines 0 to 29."""
    path = folder / "f.log"
    write(rotated(path, 2), range(10), width=width)
    write(rotated(path, 1), range(10, 20), width=width)
    write(path, range(20, 30), width=width)
    return path


def numbers(
    events: LogEvents, *, place: LogPosition | None = None, backward: bool = False, start_ms: int = 0
) -> list[int]:
    found = events.backward(place) if backward else events.forward(place, start_ms=start_ms)
    return [int(event.message.split()[1].rstrip(b"x")) for event in found]


@pytest.mark.parametrize("width", [0, 3000, 200_000])
@pytest.mark.parametrize("block", [7, 64, 4096, 256 * 1024])
def test_all_events_are_found_in_both_directions_however_blocks_cut_them(
    tmp_path: Path, block: int, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if block * 1000 < width:
        pytest.skip("a line of so many blocks says nothing more")
    monkeypatch.setattr(log_events, "_BLOCK_BYTES", block)
    with LogEvents(made(tmp_path, width=width)) as events:
        assert numbers(events) == list(range(30))
        assert numbers(events, backward=True) == list(range(29, -1, -1))


@pytest.mark.parametrize("block", [64, 256 * 1024])
def test_reading_goes_on_from_any_place_in_both_directions(
    tmp_path: Path, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_events, "_BLOCK_BYTES", block)
    with LogEvents(made(tmp_path)) as events:
        for number, event in enumerate(list(events.forward())):
            assert numbers(events, place=event.begin) == list(range(number, 30))
            assert numbers(events, place=event.end) == list(range(number + 1, 30))
            assert numbers(events, place=event.begin, backward=True) == list(range(number - 1, -1, -1))
            assert numbers(events, place=event.end, backward=True) == list(range(number, -1, -1))


def test_places_and_identifiers_outlive_a_rotation(tmp_path: Path) -> None:
    path = made(tmp_path)
    with LogEvents(path) as events:
        before = list(events.forward())
    assert [event.id for event in before] == sorted({event.id for event in before})
    rotated(path, 2).replace(rotated(path, 3))
    rotated(path, 1).replace(rotated(path, 2))
    path.replace(rotated(path, 1))
    write(path, range(30, 33))
    with LogEvents(path) as events:
        assert [event.id for event in events.forward()][:30] == [event.id for event in before]
        assert numbers(events, place=before[25].begin) == list(range(25, 33))
        assert numbers(events, place=before[25].begin, backward=True) == list(range(24, -1, -1))


def test_a_place_that_was_rotated_away_stands_for_the_beginning(tmp_path: Path) -> None:
    path = made(tmp_path)
    with LogEvents(path) as events:
        first = next(iter(events.forward()))
    rotated(path, 2).unlink()
    with LogEvents(path) as events:
        assert numbers(events, place=first.begin) == list(range(10, 30))
        assert numbers(events, place=first.begin, backward=True) == []


def test_a_start_time_skips_what_is_long_before_it_without_reading_it(tmp_path: Path) -> None:
    path = tmp_path / "f.log"
    write(path, range(40_000), width=50)
    with LogEvents(path) as events:
        found = numbers(events, start_ms=BEGIN_MS + 39_000_000)
        assert found[-1000:] == list(range(39_000, 40_000))
        assert events.read_bytes < events.stored_bytes / 2


def test_torn_and_foreign_lines_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "f.log"
    rotated(path, 1).write_bytes(line(0) + b"nonsense\n" + b"\n" + line(1)[:10] + b"\n" + line(2)[:-1])
    path.write_bytes(line(3) + b"2026-13-45T00:00:00.000Z\ts\tx\n" + line(4)[:-3])
    with LogEvents(path) as events:
        # The last line of the newest file is still being written. That of an older file will not get longer.
        assert numbers(events) == [0, 2, 3]
        assert numbers(events, backward=True) == [3, 2, 0]


def test_what_a_function_log_writes_is_read_while_it_rotates(tmp_path: Path) -> None:
    path = tmp_path / "f.log"

    async def work() -> None:
        log = FunctionLog(path, max_bytes=2000)
        for number in range(100):
            log.write(b"stream", b"line %d" % number)
            if number % 10 == 9:
                log.flush()

    asyncio.run(work())
    with LogEvents(path) as events:
        found = numbers(events)
        assert found == list(range(found[0], 100))
        assert numbers(events, backward=True) == found[::-1]


def test_reading_holds_no_more_of_a_large_log_than_of_a_small_one(tmp_path: Path) -> None:
    def peak(lines: int) -> int:
        path = tmp_path / f"{lines}.log"
        write(path, range(lines), stream=lambda number: f"s{number:07d}", width=200)
        tracemalloc.start()
        try:
            with LogEvents(path) as events:
                assert sum(1 for _ in events.forward()) == lines
                assert sum(1 for _ in events.backward()) == lines
            assert len(streams_by_name(path, limit=50)) == 50
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak(5_000) < 1.3 * peak(2_500)


def interleaved(folder: Path) -> Path:
    """Streams a to e with ten lines each. Their last lines come in the order c, a, e, b, d."""
    path = folder / "f.log"
    write(rotated(path, 1), range(25), stream=lambda number: "abcde"[number % 5])
    write(path, range(25, 45), stream=lambda number: "abcde"[number % 5])
    write(path, range(45, 50), stream=lambda number: "caebd"[number - 45])
    return path


@pytest.mark.parametrize(("descending", "order"), [(False, "abcde"), (True, "edcba")])
@pytest.mark.parametrize("limit", [1, 2, 4, 5, 9])
def test_streams_by_name_come_page_by_page(tmp_path: Path, limit: int, descending: bool, order: str) -> None:
    path = interleaved(tmp_path)
    names = ""
    while page := streams_by_name(path, limit=limit, after=names[-1:] or None, descending=descending):
        assert len(page) <= limit
        names += "".join(stream.name for stream in page)
    assert names == order
    (b,) = streams_by_name(path, limit=3, prefix="b")
    assert (b.first_ms, b.last_ms) == (BEGIN_MS + 1000, BEGIN_MS + 48_000)


@pytest.mark.parametrize(("descending", "order"), [(False, "caebd"), (True, "dbeac")])
@pytest.mark.parametrize("limit", [1, 2, 4, 5, 9])
def test_streams_by_time_come_page_by_page(tmp_path: Path, limit: int, descending: bool, order: str) -> None:
    path = interleaved(tmp_path)
    names, after = "", None
    while page := streams_by_time(path, limit=limit, after=after, descending=descending):
        names += "".join(stream.name for stream in page)
        after = (page[-1].last_ms, page[-1].name)
    assert names == order


def test_groups_are_found_again_by_their_files(tmp_path: Path) -> None:
    groups = ["/aws/lambda/f", "/aws/lambda/a.b", "team/shared_1#x", "/aws/lambda/" + "x" * 65, "/"]
    for group in groups:
        path_of_group(tmp_path, group).touch()
    rotated(path_of_group(tmp_path, "/only/rotated"), 2).touch()
    (tmp_path / "other.txt").touch()
    assert group_names(tmp_path) == sorted([*groups, "/only/rotated"])
    assert path_of_group(tmp_path, "/aws/lambda/f").name == "f.log"
