"""One look at a whole cluster from any of its machines: pages and commands. Three machines serve all tests."""

from __future__ import annotations

import contextlib
import re
import signal
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.integration.cables import Cable
from tests.integration.clusters import registered
from tests.integration.conftest import Running, eventually
from tests.integration.postgresql import DEFAULT_PORT, Postgresql

CONFIG = """
[functions.app]
handler = "app.handler"
maximum_retry_attempts = 0
"""
SECRET = "secret-of-every-server-1"


@dataclass
class Three:
    """Three machines, of which b reaches the database over a cable."""

    running: dict[str, Running]
    cable: Cable

    def page(self, machine: str, path: str = "/_thawd/") -> str:
        return fetched(f"{self.running[machine].url}{path}", key=SECRET)


def fetched(url: str, *, key: str) -> str:
    request = urllib.request.Request(url, headers={"accept": "text/html", "x-api-key": key})
    with urllib.request.urlopen(request, timeout=60) as answer:
        text: str = answer.read().decode()
    return text


def rows(page: str) -> dict[str, list[str]]:
    """The cells of the table of machines, by machine."""
    table = page.partition("<caption>Machines of the cluster")[2].partition("</table>")[0]
    cells = [re.findall(r"<t[hd].*?>(.*?)</t[hd]>", row) for row in table.partition("<tbody>")[2].split("</tr>")]
    plain = [[re.sub(r"<.*?>", "", cell) for cell in row] for row in cells if row]
    return {row[0].partition(" ")[0]: row for row in plain}


def errors(shown: dict[str, list[str]]) -> int:
    """The errors of all machines; -1: one has not answered."""
    counts = [row[10] for row in shown.values()]
    return -1 if "-" in counts else sum(map(int, counts))


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Three]:
    root = tmp_path_factory.mktemp("cluster")
    with (
        Postgresql() as server,
        Cable(server.folder / f".s.PGSQL.{DEFAULT_PORT}") as cable,
        contextlib.ExitStack() as up,
    ):
        running = {}
        for name in "abc":
            state = server.url(host=str(cable.folder) if name == "b" else None, schema="whole")
            project = registered(root, name, state, CONFIG, server=f'key = "{SECRET}"\nrecord_per_s = 1000\n')
            running[name] = up.enter_context(project.up())
        for each in running.values():
            eventually(lambda each=each: all_serve(each), what="three machines that serve")
        yield Three(running, cable)


def all_serve(running: Running) -> bool:
    shown = rows(fetched(f"{running.url}/_thawd/", key=SECRET))
    return [row[1].removesuffix(", leads") for row in shown.values()] == ["serving"] * 3


def test_the_first_page_of_each_machine_shows_all_machines(three: Three) -> None:
    running = three.running
    for _ in range(2):
        assert running["b"].project.command("invoke", "app", "-p", '{"fail": "no such flower"}').returncode == 3
    for name in "abc":
        eventually(lambda name=name: errors(rows(three.page(name))) == 2, what="both errors, wherever they were")
        page = three.page(name)
        shown = rows(page)
        assert [*shown] == ["a", "b", "c"]
        assert shown[name][0] == f"{name} (this machine)"
        assert sorted(row[1] for row in shown.values()) == ["serving", "serving", "serving, leads"]
        assert {row[2] for row in shown.values()} == {"0.1.0"}
        assert any(row[4].startswith("512 of ") for row in shown.values())
        assert any(re.fullmatch(r"1 (thawed|forked|cold); 0 busy", row[5]) for row in shown.values())
        assert SECRET not in page
        others = [each for each in "abc" if each != name]
        for other in others:
            assert f'href="{running[other].url}/_thawd/"' in page


def test_a_machine_that_is_cut_off_paused_or_killed_is_shown_as_such_and_delays_no_page(three: Three) -> None:
    running = three.running
    three.cable.cut()
    eventually(lambda: rows(three.page("a"))["b"][1].startswith("cut off: "), what="that b is cut off")
    eventually(lambda: rows(three.page("b"))["b"][1].startswith("cut off: "), what="that b knows it")
    assert rows(three.page("a"))["c"][1].startswith("serving")
    running["c"].process.send_signal(signal.SIGSTOP)
    eventually(
        lambda: rows(three.page("a"))["c"][1] not in ("serving", "serving, leads"), what="that c does not answer"
    )
    assert rows(three.page("a"))["a"][1].startswith("serving")
    running["c"].process.send_signal(signal.SIGCONT)
    three.cable.mend()
    for name in "ac":
        until = running[name]
        eventually(lambda until=until: all_serve(until), what="three machines that serve")
    running["c"].process.kill()
    eventually(lambda: rows(three.page("a"))["c"][1].startswith("gone: "), what="that c is gone")
    assert rows(three.page("b"))["a"][1].startswith("serving")
