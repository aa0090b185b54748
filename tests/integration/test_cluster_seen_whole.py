"""One look at a whole cluster from any of its machines: pages and commands. Three machines serve all tests."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.integration.cables import Cable
from tests.integration.clusters import machine, registered
from tests.integration.conftest import Project, Running, eventually
from tests.integration.postgresql import DEFAULT_PORT, Postgresql
from tests.ports import quiet_port

CONFIG = """
[functions.app]
handler = "app.handler"
maximum_retry_attempts = 0
provisioned_concurrency = 3
"""
SECRET = "secret-of-every-server-1"


@dataclass
class Three:
    """Three machines, of which b reaches the database over a cable."""

    running: dict[str, Running]
    cable: Cable

    def page(self, machine: str, path: str = "/_thawd/") -> str:
        return fetched(f"{self.running[machine].url}{path}", key=SECRET)


def invoke(running: Running, event: Any, *, kind: str = "RequestResponse") -> bytes:
    url = f"{running.url}/2015-03-31/functions/app/invocations"
    headers = {"x-api-key": SECRET, "x-amz-invocation-type": kind}
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(event).encode(), headers), timeout=60) as answer:
        found: bytes = answer.read()
    return found


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
    """Whether all machines serve, and each has an environment, so that requests run where they enter."""
    shown = rows(fetched(f"{running.url}/_thawd/", key=SECRET))
    are_ready = all(re.fullmatch(r"[1-9] .*; 0 busy", row[5]) for row in shown.values())
    return are_ready and [row[1].removesuffix(", leads") for row in shown.values()] == ["serving"] * 3


def test_the_first_page_of_each_machine_shows_all_machines(three: Three) -> None:
    running = three.running
    for _ in range(2):
        assert running["b"].project.command("invoke", "app", "-p", '{"fail": "no such flower"}').returncode == 3
    for name in "abc":
        eventually(lambda name=name: errors(rows(three.page(name))) == 2, what="both errors, wherever they were")
        page = three.page(name)
        shown = rows(page)
        assert [*shown] == ["a", "b", "c"]
        assert shown[name][0] == f"{name} (this machine)" and f"thawd on {name}" in page
        assert sorted(row[1] for row in shown.values()) == ["serving", "serving", "serving, leads"]
        assert {row[2] for row in shown.values()} == {"0.1.0"}
        assert all(re.match(r"(512|1,024|1,536) of ", row[4]) for row in shown.values())
        assert all(re.fullmatch(r"[1-3] (thawed|forked|cold); 0 busy", row[5]) for row in shown.values())
        assert SECRET not in page
        others = [each for each in "abc" if each != name]
        for other in others:
            assert f'href="{running[other].url}/_thawd/"' in page


def test_commands_show_all_machines_or_one(three: Three) -> None:
    project = three.running["a"].project

    def shown(*arguments: str) -> str:
        done = project.command(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    status = shown("status")
    assert [line.split()[0] for line in status.splitlines()[1:4]] == ["a", "b", "c"] and "a (this one)" in status
    functions = [line.split()[:3] for line in status.splitlines()[6:]]
    assert functions == [["app", name, "Active"] for name in "abc"]
    document = json.loads(shown("status", "--json"))
    assert [*document["status"]] == ["a", "b", "c"] and document["away"] == {}
    one = shown("status", "--machine", "b")
    assert one.startswith(three.running["b"].url) and "app: Active" in one
    assert "did you mean" in project.command("status", "--machine", "B").stderr
    invoke(three.running["c"], {}, kind="Event")
    eventually(lambda: queues(shown("queue", "--json")) == {"c": 1}, what="the event of c")
    assert [line.split()[:2] for line in shown("queue").splitlines()[1:]] == [["app", "c"]]
    assert "no asynchronous events" in shown("queue", "--machine", "a")
    # Somebody without the key learns nothing.
    with pytest.raises(urllib.error.HTTPError) as refused:
        fetched(f"{three.running['a'].url}/_thawd/machines?ask=logs&group=/aws/lambda/app&last=1", key="wrong")
    with refused.value as answer:
        assert answer.code == 403


def test_with_access_keys_machines_answer_signed_requests_only(tmp_path: Path) -> None:
    project = machine(tmp_path, "a", {"a": f"127.0.0.1:{quiet_port()}"}, CONFIG)
    keys = {"THAWD_ACCESS_KEYS": "AKIALOCAL:not-to-be-logged/+"}
    with project.up(environ=keys) as running:
        for question in ("", "?ask=logs&group=/aws/lambda/app&last=1", "?ask=record&request_id=1"):
            with pytest.raises(urllib.error.HTTPError) as refused:
                fetched(f"{running.url}/_thawd/machines{question}", key="wrong")
            with refused.value as answer:
                assert answer.code == 403
        signed = project.command("status", env={**os.environ, **keys})
        assert "a (this one)  serving, leads" in signed.stdout, signed.stderr
        # A server that does not answer hides no log of its own machine.
        shown = project.command(
            "logs", "app", "--raw", env={**os.environ, "THAWD_URL": f"http://127.0.0.1:{quiet_port()}"}
        )
        assert "only this machine is shown: no thawd server answers" in shown.stderr and "INIT_START" in shown.stdout


def queues(document: str) -> dict[str, int]:
    """Accepted events by machine, without the machines that have accepted none."""
    counts = {name: each["functions"] for name, each in json.loads(document)["machines"].items()}
    return {name: each["app"]["done"] for name, each in counts.items() if "app" in each}


def test_logs_of_all_machines_are_merged_and_followed(three: Three) -> None:
    running = three.running
    project = running["b"].project

    def logged(*options: str) -> list[dict[str, Any]]:
        done = project.command("logs", "app", "--json", "--since", "1h", *options)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    ran = {name: ran_on(running, name) for name in "abc"}
    for name, request_id in ran.items():
        lines = logged("--request", request_id)
        assert {line["machine"] for line in lines} == {name}
        assert [line["message"] for line in lines if line["message"].startswith("on ")] == [f"on {name}"]
        assert lines[-1]["message"].startswith("REPORT")
    everything = logged()
    assert {line["machine"] for line in everything} == {*"abc"}
    assert [line["time"] for line in everything] == sorted(line["time"] for line in everything)
    assert {line["machine"] for line in logged("--grep", "^on c$")} == {"c"}
    assert {line["machine"] for line in logged("--machine", "c")} == {"c"}
    last = project.command("logs", "app", "-n", "3").stdout.splitlines()
    assert len(last) == 3 and last == project.command("logs", "app", "-n", "9").stdout.splitlines()[-3:]
    assert "no function 'nothing'" in project.command("logs", "nothing").stderr

    with following(project, "logs", "app", "-f", "-n", "1", "--json", "--grep", "^on ") as lines:
        for name in "cab":
            ran_on(running, name)
            line = json.loads(next(lines))
            assert (line["machine"], line["message"]) == (name, f"on {name}")


def test_records_of_other_machines_are_found_replayed_and_never_mistaken(three: Three) -> None:
    running = three.running
    number = {"data": "only this one"}
    request_id = ran_on(running, "c", number)
    replayed = running["a"].project.command("invoke", "--replay", request_id)
    assert replayed.returncode == 0, replayed.stderr
    assert json.loads(replayed.stdout)["bytes"] == len(number["data"])
    assert f"app gets the event of {request_id}" in replayed.stderr
    # The replay is the latest invocation of the cluster now, wherever it ran.
    last = json.loads(replayed.stdout)["request_id"]
    assert f"gets the event of {last}" in running["b"].project.command("invoke", "--last").stderr
    # On another machine, its page leads to the machine that has recorded it, and shows nothing else.
    there = f"{running['c'].url}/_thawd/window/invocations/{request_id}"
    page = three.page("a", f"/_thawd/window/invocations/{request_id}")
    assert f'href="{there}"' in page and "only this one" not in page and "Replay it there" in page
    assert "only this one" in fetched(there, key=SECRET) and "Other machines" not in fetched(there, key=SECRET)
    assert f'href="{there}"' in three.page("b", f"/_thawd/window/invocations?request={request_id[:8]}")
    # An id that differs in the last digit is another one.
    other = request_id[:-1] + ("0" if request_id[-1] != "0" else "1")
    unknown = running["a"].project.command("invoke", "--replay", other)
    assert unknown.returncode == 1 and "is recorded on these machines: a, b, c" in unknown.stderr
    with pytest.raises(urllib.error.HTTPError) as missing:
        three.page("a", f"/_thawd/window/invocations/{other}")
    with missing.value as answer:
        assert answer.code == 404 and "neither have the machines b, c" in answer.read().decode()


def ran_on(running: dict[str, Running], name: str, event: Any = None) -> str:
    """Run the function on a machine; returns the request id."""

    def run() -> str | None:
        answer = json.loads(invoke(running[name], event or {}))
        return str(answer["request_id"]) if answer["machine"] == name else None

    return str(eventually(run, what=f"a run on {name}"))


@contextlib.contextmanager
def following(project: Project, *arguments: str) -> Iterator[Iterator[str]]:
    """Run a command that prints one line and then follows a log; yields its further lines."""
    command = [sys.executable, "-m", "thawd", *arguments]
    with subprocess.Popen(command, cwd=project.root, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline()
            yield iter(process.stdout)
        finally:
            process.kill()


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
    # A drained machine continues to answer.
    assert running["b"].project.command("cluster", "drain").returncode == 0
    eventually(lambda: rows(three.page("a"))["b"][1].startswith("drained: "), what="that b is drained")
    assert running["b"].project.command("cluster", "drain", "--end").returncode == 0
    eventually(lambda: all_serve(running["a"]), what="three machines that serve")
    running["c"].process.kill()
    eventually(lambda: rows(three.page("a"))["c"][1].startswith("gone: "), what="that c is gone")
    for command in (("status",), ("queue",), ("logs", "app")):
        done = running["a"].project.command(*command)
        assert done.returncode == 0 and "c: gone: " in done.stderr, command
        assert "b " in done.stdout or command == ("queue",)
    assert rows(three.page("b"))["a"][1].startswith("serving")
