"""Dead letters of all machines of a cluster: listed, redriven and removed from any of them."""

from __future__ import annotations

import json
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.clusters import cluster
from tests.integration.conftest import Running, eventually

CONFIG = """
[functions.app]
handler = "app.handler"
maximum_retry_attempts = 0
"""


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Running]]:
    with cluster(tmp_path_factory.mktemp("both"), "ab", CONFIG) as running:
        yield running


def fail_on(running: Running, message: str) -> None:
    """Have an event become a dead letter on a machine."""
    buried = figures(running).get("buried", 0)
    running.client().invoke(FunctionName="app", InvocationType="Event", Payload=json.dumps({"fail": message}))
    eventually(lambda: figures(running).get("buried", 0) > buried, what="a dead letter")


def figures(running: Running) -> dict[str, Any]:
    with urllib.request.urlopen(f"{running.url}/_thawd/queue", timeout=30) as answer:
        found: dict[str, Any] = json.loads(answer.read())["functions"].get("app", {})
    return found


def listed(running: Running, *options: str) -> dict[str, str]:
    """The errors of the dead letters that a machine lists, by id."""
    lines = running.project.command("dead", "list", "--json", *options).stdout.splitlines()
    letters = [json.loads(line) for line in lines]
    return {f"{each['machine']}/{each['id']}": json.loads(each["error"])["errorMessage"] for each in letters}


def test_dead_letters_of_all_machines_are_listed_changed_and_restored_from_any(both: dict[str, Running]) -> None:
    a, b = both["a"], both["b"]
    for machine, message in ((a, "one"), (b, "two"), (a, "three"), (b, "four")):
        fail_on(machine, message)
    # They are listed in the order of acceptance, with ids that name the machine
    assert listed(a) == listed(b) == {"a/1": "one", "b/1": "two", "a/2": "three", "b/2": "four"}
    assert [*listed(a)] == ["a/1", "b/1", "a/2", "b/2"]
    assert listed(a, "-n", "3") == {"a/1": "one", "b/1": "two", "a/2": "three"}
    assert listed(a, "--machine", "b") == {"b/1": "two", "b/2": "four"}
    assert "b/2 " in a.project.command("dead", "list").stdout
    shown = json.loads(a.project.command("dead", "show", "b/1").stdout)
    assert (shown["machine"], shown["payload"]) == ("b", {"fail": "two"})
    # A number alone could hit another dead letter
    assert "several machines have a dead letter 1: a/1, b/1" in a.project.command("dead", "show", "1").stderr
    for verb in ("redrive", "rm"):
        refused = a.project.command("dead", verb, "1")
        assert (refused.returncode, "name the machine with it, such as a/1" in refused.stderr) == (1, True)
    wrong = a.project.command("dead", "redrive", "c/1")
    assert "there is no machine c" in wrong.stderr
    # An id redrives the dead letter wherever it is, and no other
    assert a.project.command("dead", "redrive", "b/1").stdout == "1 dead letter queued again\n"
    eventually(lambda: figures(b)["buried"] == 3, what="the same dead letter once more")
    assert figures(a)["buried"] == 2
    missing = a.project.command("dead", "redrive", "2", "77", "--machine", "b")
    assert (missing.returncode, missing.stdout) == (1, "1 dead letter queued again\n")
    assert "there is no dead letter b/77" in missing.stderr
    eventually(lambda: figures(b)["buried"] == 4, what="the other dead letter once more")
    # What is removed on several machines is restored on each
    removed = b.project.command("dead", "rm", "a/1", "b/1", "a/2")
    assert removed.stdout == "3 dead letters removed\n"
    assert "`thawd dead undo a/1` restores them" in removed.stderr
    assert "`thawd dead undo b/1` restores it" in removed.stderr
    assert "several machines have removed dead letters; name one: a/1, b/1" in b.project.command("dead", "undo").stderr
    assert b.project.command("dead", "undo", "a/1").stdout == "2 dead letters restored\n"
    assert b.project.command("dead", "undo").stdout == "1 dead letter restored\n"
    assert {*listed(b)} == {"a/1", "b/1", "a/2", "b/2"}
    # The page of one machine counts those of the other
    page = urllib.request.Request(f"{a.url}/_thawd/window/queue", headers={"accept": "text/html"})

    def is_counted() -> bool:
        with urllib.request.urlopen(page, timeout=60) as answer:
            return (
                f'Dead letters of the others: <a href="{b.url}/_thawd/window/queue">b</a> 2.' in answer.read().decode()
            )

    eventually(is_counted, what="the other machine's dead letters on the page")


def test_a_machine_that_is_away_is_named_and_the_others_are_served(tmp_path: Path) -> None:
    with cluster(tmp_path, "ab", CONFIG) as running:
        a, b = running["a"], running["b"]
        fail_on(a, "here")
        fail_on(b, "there")
        b.process.send_signal(signal.SIGKILL)
        b.process.wait(300)
        shown = a.project.command("dead", "list", "--json")
        assert [json.loads(line)["machine"] for line in shown.stdout.splitlines()] == ["a"]
        assert "nothing is shown of the machine b: " in shown.stderr
        lost = a.project.command("dead", "redrive", "b/1")
        assert (lost.returncode, lost.stdout) == (1, "0 dead letters queued again\n")
        assert "nothing was done on the machine b, as far as is known: " in lost.stderr
        every = a.project.command("dead", "rm", "--all")
        assert (every.returncode, every.stdout) == (1, "1 dead letter removed\n")


def test_a_request_for_another_machine_is_checked(both: dict[str, Running]) -> None:
    def status_of(path: str, body: bytes) -> int:
        try:
            with urllib.request.urlopen(f"{both['a'].url}{path}", body, timeout=60) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    assert status_of("/_thawd/dead/redrive?machine=b", b'{"ids": []}') == 200
    assert status_of("/_thawd/dead/redrive?machine=b", b'{"ids": [') == 400
    assert status_of("/_thawd/dead/redrive?machine=b", b'{"function": "app", "all": true}') == 400
    assert status_of("/_thawd/dead/undo?machine=b", b'{"removal": 99}') == 404
    assert status_of("/_thawd/dead/redrive?machine=c", b'{"ids": []}') == 404
    # Questions only read: an order is none of them.
    with pytest.raises(urllib.error.HTTPError, match="400"):
        urllib.request.urlopen(
            f"{both['a'].url}/_thawd/machines?ask=order:remove&body=%7B%22all%22:true%7D", timeout=60
        )
