"""A log on several machines: pages, and lines that are merged by time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from thawd.cli import cluster_logs
from thawd.cli.client import NoAnswerError
from thawd.cli.cluster_logs import ClusterLog, Merger
from thawd.cli.log_lines import LogLine
from thawd.cli.machines import Answers
from thawd.errors import InvalidParameterValueException
from thawd.telemetry.logs import pages
from thawd.telemetry.logs.pages import last_page, next_page
from thawd.telemetry.logs.selection import Selection

START_MS = 1_700_000_000_000


def line(number: int, machine: str) -> tuple[int, LogLine]:
    return number, LogLine.at(number, b"s", f"{machine}{number}".encode(), b"", machine)


def texts(lines: Any) -> list[str]:
    return [each.message.decode() for each in lines]


def test_lines_are_merged_once_all_machines_are_complete_until_their_time() -> None:
    merger = Merger()
    merger.add("a", [line(1, "a"), line(4, "a"), line(6, "a")], complete_ms=7, now_s=100.0)
    merger.add("b", [line(2, "b")], complete_ms=5, now_s=100.0)
    assert texts(merger.take(100.0)) == ["a1", "b2", "a4"]
    merger.add("b", [line(5, "b")], complete_ms=9, now_s=100.0)
    merger.add("a", [], complete_ms=9, now_s=100.0)
    assert texts(merger.take(100.0)) == ["b5", "a6"]


def test_a_machine_with_a_late_clock_or_without_an_answer_holds_lines_up_for_a_second_at_most() -> None:
    merger = Merger()
    merger.add("a", [line(50, "a")], complete_ms=60, now_s=100.0)
    merger.add("b", [], complete_ms=10, now_s=100.0)
    assert texts(merger.take(100.9)) == []
    assert texts(merger.take(101.0)) == ["a50"]
    merger.add("a", [line(70, "a")], complete_ms=80, now_s=102.0)
    merger.forget("b")
    assert texts(merger.take(102.0)) == ["a70"]


def test_a_clock_that_is_set_back_does_not_change_the_order_of_a_machine() -> None:
    merger = Merger()
    merger.add("a", [line(5, "a"), line(3, "a"), line(4, "a")], complete_ms=9, now_s=0.0)
    assert texts(merger.rest()) == ["a5", "a3", "a4"]


def written(folder: Path, count: int, *, name: str = "f.log") -> Path:
    path = folder / name
    shown = [LogLine.at(START_MS + number, b"s", b"\xff%d" % number, b"").text for number in range(count)]
    path.write_bytes(b"".join(each + b"\n" for each in shown))
    return path


def test_pages_have_each_line_once_byte_for_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "MOST_LINES", 7)
    path, found, place = written(tmp_path, 50), [], ""
    while True:
        page = next_page(path, place)
        found += [text.encode("latin-1") for _, _, text in page.lines]
        place = page.next
        if page.is_last:
            break
        assert page.read_ms == page.lines[-1][0]
    assert found == [b"\xff%d" % number for number in range(50)]
    with path.open("ab") as file:
        file.write(LogLine.at(START_MS + 99, b"s", b"new", b"").text + b"\n")
    assert [text for _, _, text in next_page(path, place).lines] == ["new"]


def test_the_last_lines_are_a_page_after_which_reading_continues(tmp_path: Path) -> None:
    path = written(tmp_path, 5)
    page = last_page(path, 2)
    assert [text for _, _, text in page.lines] == ["ÿ3", "ÿ4"]
    assert next_page(path, page.next).lines == []
    assert last_page(path, 0).next == page.next
    missing = last_page(tmp_path / "none.log", 5)
    assert (missing.exists, missing.lines, missing.next) == (False, [], "")


@pytest.mark.parametrize("token", ["x", "1", "1.x", "-1.2", "1.2.3", "9" * 30 + ".1"])
def test_a_place_that_no_page_has_named_is_refused(tmp_path: Path, token: str) -> None:
    with pytest.raises(InvalidParameterValueException):
        next_page(written(tmp_path, 1), token)


class FakeCluster:
    """Machines with logs in files of this process."""

    def __init__(self, logs: dict[str, Path]) -> None:
        self.logs = logs
        self.away: dict[str, str] = {}
        self.restarts = 0

    def ask(self, question: str, arguments: dict[str, str], *, only: str | None = None) -> Answers:
        assert question == "logs"
        documents = {}
        for name, path in self.logs.items():
            if name in self.away or only not in (None, name):
                continue
            if "last" in arguments:
                page = last_page(path, int(arguments["last"]))
            else:
                page = next_page(path, arguments.get(f"after.{name}", ""), since_ms=int(arguments["since_ms"]))
            documents[name] = {field: getattr(page, field) for field in page.__struct_fields__}
        return Answers(documents, {name: why for name, why in self.away.items() if only in (None, name)})

    def attempt(self, question: str, arguments: dict[str, str], *, only: str | None = None) -> Answers:
        if self.restarts:
            self.restarts -= 1
            raise NoAnswerError("no server answers")
        return self.ask(question, arguments, only=only)


def cluster_log(cluster: Any, selection: Selection) -> ClusterLog:
    return ClusterLog(cluster, "g", selection)


def test_the_past_of_all_machines_is_read_page_by_page_in_the_order_of_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "MOST_LINES", 3)
    for name in "ab":
        (tmp_path / name).mkdir()
    cluster = FakeCluster({name: written(tmp_path / name, count) for name, count in (("a", 20), ("b", 31))})
    log = cluster_log(cluster, Selection(request=b"\xff"))
    found = list(log.past(None))
    times = [each.time for each in found]
    assert times == sorted(times) and len(found) == 51
    assert [each.machine for each in found].count("a") == 20
    for count, read in ((2, 4), (4, 51)):  # the last of each machine; all, if these do not fit into a page
        newest = [each.message for each in cluster_log(cluster, Selection()).past(count)]
        assert newest[-1] == b"\xff30" and len(newest) == read


def test_a_log_is_followed_on_machines_that_go_and_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cluster_logs, "_FOLLOW_S", 0.0)
    for name in "ab":
        (tmp_path / name).mkdir()
    cluster = FakeCluster({name: written(tmp_path / name, 2) for name in "ab"})
    cluster.away = {"b": "gone"}
    log = cluster_log(cluster, Selection())
    assert [(each.machine, each.message) for each in log.past(100)] == [("a", b"\xff0"), ("a", b"\xff1")]
    following = log.follow()
    now_ms = log._begun_ms

    def write(name: str, text: bytes, after_ms: int) -> None:
        with cluster.logs[name].open("ab") as file:
            file.write(LogLine.at(now_ms + after_ms, b"s", text, b"").text + b"\n")

    write("a", b"one", 1)
    assert texts(next(following)) == ["one"]
    cluster.away, cluster.restarts = {}, 3
    write("b", b"two", 2)
    assert texts(next(following)) == ["two"]  # and not the old lines of b
    shown = capsys.readouterr().err
    assert shown.count("no lines of the machine b: gone") == 1
    assert "the machine b answers again" in shown
    assert shown.count("waiting for the server: no server answers") == 1
