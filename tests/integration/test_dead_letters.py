"""`thawd dead` and `thawd queue`, with a running server and without one."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.ports import quiet_port

from .conftest import DEADLINE_S, Project, Running, eventually
from .receiving import receiving

CODE = """
import os
import time
def handler(event, context):
    if not os.path.exists(os.environ["MENDED"]):
        raise ValueError("broken as asked: " + str(event.get("n")))
    return {"n": event["n"]}
def waits(event, context):
    while not os.path.exists(os.environ["MENDED"]):
        time.sleep(0.01)
"""


@pytest.fixture
def failing(project: Project) -> Project:
    project.code(CODE)
    project.config(
        f"""
        [functions.f]
        handler = "app.handler"
        maximum_retry_attempts = 0
        environment = {{ MENDED = "{project.root}/mended" }}
        on_success = "table:out"
        [functions.g]
        handler = "app.handler"
        maximum_retry_attempts = 0
        environment = {{ MENDED = "{project.root}/mended" }}
        [functions.waits]
        handler = "app.waits"
        timeout_s = 900
        environment = {{ MENDED = "{project.root}/released" }}
        [tables.out]
        """
    )
    return project


def send(running: Running, name: str, event: Any) -> str:
    answer = running.client().invoke(FunctionName=name, InvocationType="Event", Payload=json.dumps(event))
    return str(answer["ResponseMetadata"]["RequestId"])


def letters(project: Project, *arguments: str) -> list[dict[str, Any]]:
    done = project.command("dead", "list", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def give_up(running: Running, **counts: int) -> None:
    """Send so many events to each function that fails, and wait until all are dead letters."""
    for name, count in counts.items():
        for number in range(count):
            send(running, name, {"n": number, "secret": "hidden"})
    for name, count in counts.items():
        eventually(lambda name=name, count=count: running.function(name)["dead"] == count, what="the dead letters")


def rows(project: Project) -> list[int]:
    return sorted(row["n"] for row in project.rows("out").values())


def test_dead_letters_are_listed_without_their_payloads_and_shown_with_them(failing: Project) -> None:
    with failing.up() as running:
        assert failing.command("dead", "list").stdout == "no dead letters\n"
        request_id = send(running, "f", {"n": 1, "secret": "hidden"})
        give_up(running, g=2)
        eventually(lambda: running.function("f")["dead"] == 1, what="the dead letter")
        (letter,) = letters(failing, "f")
        assert (letter["function"], letter["request_id"], letter["attempts"]) == ("f", request_id, 1)
        assert letter["condition"] == "RetriesExhausted"
        assert "broken as asked: 1" in letter["error"]
        assert len(letters(failing)) == 3
        assert [one["id"] for one in letters(failing, "-n", "2")] == [one["id"] for one in letters(failing)][:2]
        listed = failing.command("dead", "list")
        assert len(listed.stdout.splitlines()) == 4
        assert " ValueError: broken as asked: 1\n" in listed.stdout
        shown = failing.command("dead", "show", str(letter["id"]))
        assert json.loads(shown.stdout)["payload"] == {"n": 1, "secret": "hidden"}
        assert "hidden" not in listed.stdout + json.dumps(letters(failing))
        assert failing.command("dead", "list", "nobody").stdout == "no dead letters of nobody\n"
        missing = failing.command("dead", "show", "999")
        assert (missing.returncode, missing.stderr) == (1, "thawd: there is no dead letter 999\n")


def test_redriven_letters_run_again_with_their_request_ids(failing: Project) -> None:
    with failing.up() as running:
        give_up(running, f=4, g=1)
        ids = [str(letter["id"]) for letter in letters(failing, "f")]
        (failing.root / "mended").touch()
        done = failing.command("dead", "redrive", ids[0], ids[1], "999")
        assert (done.returncode, done.stdout) == (1, "2 dead letters queued again\n")
        assert done.stderr == "thawd: there is no dead letter 999\n"
        eventually(lambda: rows(failing) == [0, 1], what="the rows")
        assert failing.command("dead", "redrive", "--function", "f").stdout == "2 dead letters queued again\n"
        eventually(lambda: rows(failing) == [0, 1, 2, 3], what="all rows")
        assert failing.command("dead", "redrive", "--all").stdout == "1 dead letter queued again\n"
        eventually(lambda: letters(failing) == [], what="no dead letters")


def test_removed_letters_are_gone(failing: Project) -> None:
    with failing.up() as running:
        give_up(running, f=3, g=2)
        first = letters(failing)[0]
        assert failing.command("dead", "rm", str(first["id"])).stdout == "1 dead letter removed\n"
        assert failing.command("dead", "rm", "--function", "g").stdout == "2 dead letters removed\n"
        left = [letter["function"] for letter in letters(failing)]
        assert left == ["f"] * (3 - (first["function"] == "f"))
        failing.command("dead", "rm", "--all")
        assert letters(failing) == []
        assert running.function("f")["dead"] == running.function("g")["dead"] == 0


def test_a_removal_is_undone_with_a_server_without_one_and_after_a_kill(failing: Project) -> None:
    with failing.up() as running:
        give_up(running, f=3)
        before = letters(failing)
        first = failing.command("dead", "rm", str(before[0]["id"]))
        assert first.stderr.startswith("`thawd dead undo 1` restores it until ")
        assert "`thawd dead undo 2` restores them until" in failing.command("dead", "rm", "--all").stderr
        running.process.kill()
        running.process.wait()
    # Without a server, the last removal is undone first.
    assert failing.command("dead", "undo").stdout == "2 dead letters restored\n"
    assert letters(failing) == before[1:]
    with failing.up() as running:
        assert failing.command("dead", "undo", "1").stdout == "1 dead letter restored\n"
        assert letters(failing) == before
        assert running.function("f")["dead"] == 3
        again = failing.command("dead", "undo", "1")
        assert (again.returncode, again.stdout) == (1, "")
        assert "was undone before, or is older than 10 minutes" in again.stderr
        assert "no removal that can be undone" in failing.command("dead", "undo").stderr
        assert ask(f"{running.url}/_thawd/dead/removals")[1] == {"removals": []}
        # What comes back can be redriven.
        (failing.root / "mended").touch()
        assert failing.command("dead", "redrive", "--all").stdout == "3 dead letters queued again\n"
        eventually(lambda: rows(failing) == [0, 1, 2], what="all rows")


def test_without_a_server_the_same_verbs_work_on_its_state_file(failing: Project) -> None:
    none = failing.command("dead", "list")
    assert none.returncode == 1
    assert "no data folder" in none.stderr
    with failing.up() as running:
        give_up(running, f=3, g=2)
    assert [letter["function"] for letter in letters(failing, "f")] == ["f"] * 3
    first, *rest = letters(failing)
    shown = json.loads(failing.command("dead", "show", str(first["id"])).stdout)
    assert shown["payload"]["secret"] == "hidden"
    assert failing.command("dead", "show", "999").returncode == 1
    assert failing.command("dead", "rm", str(first["id"])).stdout == "1 dead letter removed\n"
    assert failing.command("dead", "redrive", "--all").stdout == f"{len(rest)} dead letters queued again\n"
    overview = json.loads(failing.command("queue", "--json").stdout)["functions"]
    assert sum(entry["queued"] for entry in overview.values()) == len(rest)
    assert sum(entry["dead"] for entry in overview.values()) == 0
    (failing.root / "mended").touch()
    with failing.up() as running:
        eventually(lambda: sum(running.function(n)["queued"] for n in "fg") == 0, what="an empty queue")
        eventually(lambda: len(rows(failing)) == 3 - (first["function"] == "f"), what="the rows")


def test_more_letters_than_a_page_has_are_all_listed(failing: Project) -> None:
    with failing.up() as running:
        give_up(running, f=230)
        found = letters(failing)
        assert len({letter["id"] for letter in found}) == len(found) == 230
        assert len(letters(failing, "-n", "150")) == 150


def test_an_outcome_whose_destination_refused_it_later_shows_that_it_was_kept_and_why(project: Project) -> None:
    project.code("def handler(event, context):\n    return event\n")
    port = quiet_port()
    project.config(f'[functions.f]\nhandler = "app.handler"\non_success = "http://127.0.0.1:{port}"\n')
    with project.up() as running:
        send(running, "f", {"n": 1})
        eventually(lambda: delivering(project) == 1, what="the waiting outcome")
        with receiving(port) as receiver:
            receiver.statuses = [410]
            (letter,) = eventually(lambda: letters(project), what="the dead letter")
        assert letter["condition"] == "DestinationRefused"
        assert "answered 410" in letter["error"]
        assert sum(kind["count"] for kind in running.function("f")["invocations"].values()) == 1


def delivering(project: Project) -> int:
    done = project.command("queue", "--json")
    assert done.returncode == 0, done.stderr
    return int(json.loads(done.stdout)["functions"]["f"]["delivering"])


def test_the_queue_shows_depth_age_rates_and_what_has_become_of_events(failing: Project) -> None:
    with failing.up() as running:
        assert failing.command("queue").stdout == "no asynchronous events so far\n"
        give_up(running, f=3)
        (failing.root / "mended").touch()
        for number in range(5):
            send(running, "f", {"n": number})
        eventually(lambda: len(rows(failing)) == 5, what="the rows")
        send(running, "waits", {"n": 1})

        def entry(name: str) -> dict[str, Any]:
            overview: dict[str, Any] = json.loads(failing.command("queue", "--json").stdout)
            return dict(overview["functions"][name])

        eventually(lambda: entry("f")["done"] == 5, what="five events dealt with")
        f = entry("f")
        assert (f["accepted"], f["buried"], f["dead"], f["queued"], f["oldest_age_s"]) == (8, 3, 3, 0, None)
        assert f["accepted_per_s"] > 0
        assert f["done_per_s"] > 0
        eventually(lambda: (entry("waits")["oldest_age_s"] or 0) > 0.1, what="an event that waits")
        assert entry("waits")["queued"] + entry("waits")["running"] == 1
        header, *lines = failing.command("queue").stdout.splitlines()
        assert header.split()[:6] == ["function", "queued", "running", "delivering", "dead", "oldest"]
        assert [line.split()[0] for line in lines] == ["f", "waits"]
        (failing.root / "released").touch()


def test_the_queue_counts_as_running_only_events_that_have_an_environment(failing: Project) -> None:
    config = failing.root / "thawd.toml"
    config.write_text(config.read_text().replace("timeout_s = 900", "timeout_s = 900\nreserved_concurrency = 1"))
    with failing.up() as running:
        for number in range(9):
            send(running, "waits", {"n": number})

        def counts() -> tuple[int, int]:
            entry = json.loads(failing.command("queue", "--json").stdout)["functions"]["waits"]
            return entry["running"], entry["queued"]

        eventually(lambda: counts() == (1, 8), what="one event that runs, and eight that wait")
        (failing.root / "released").touch()
        eventually(lambda: counts() == (0, 0), what="the end of all events")


def test_watching_the_queue_goes_on_until_interrupted(failing: Project) -> None:
    with failing.up() as running:
        give_up(running, f=1)
        watching = subprocess.Popen(
            [sys.executable, "-m", "thawd", "queue", "--watch", "--json"],
            cwd=failing.root,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert watching.stdout is not None
        for _ in range(2):
            assert json.loads(watching.stdout.readline())["functions"]["f"]["dead"] == 1
        watching.send_signal(signal.SIGINT)
        assert watching.wait(DEADLINE_S) == 0
        watching.stdout.close()


@pytest.mark.parametrize("verb", ["redrive", "rm"])
@pytest.mark.parametrize("arguments", [[], ["1", "--all"], ["--all", "--function", "f"], ["1", "--function", "f"]])
def test_which_letters_are_meant_is_said_once(failing: Project, verb: str, arguments: list[str]) -> None:
    done = failing.command("dead", verb, *arguments)
    assert done.returncode == 2
    assert "one of the three" in done.stderr


def ask(url: str, body: bytes | None = None, **headers: str) -> tuple[int, dict[str, Any]]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_the_operations_say_what_is_wrong_with_a_request(failing: Project) -> None:
    with failing.up() as running:
        dead = f"{running.url}/_thawd/dead"
        assert ask(dead)[1] == {"dead_letters": [], "next": None}
        cases = [
            (f"{dead}/x", None, 400, "whole number"),
            (f"{dead}/7", None, 404, "no dead letter 7"),
            (f"{dead}?after=-1", None, 400, "after must be a whole number"),
            (f"{dead}/redrive", None, 405, "accepts POST"),
            (dead, b"{}", 405, "accepts GET"),
            (f"{dead}/redrive", b"{", 400, "does not select dead letters"),
            (f"{dead}/redrive", b"{}", 400, "one of the three"),
            (f"{dead}/remove", b'{"all": true, "ids": [1]}', 400, "one of the three"),
            (f"{dead}/remove", b'{"every": true}', 400, "does not select dead letters"),
            (f"{dead}/undo", None, 405, "accepts POST"),
            (f"{dead}/undo", b'{"removal": 7}', 404, "removal 7 cannot be undone"),
            (f"{dead}/undo", b'{"removal": "7"}', 400, "does not name a removal"),
            (f"{dead}/undo", b'{"removal": 99999999999999999999}', 400, "does not name a removal"),
            (f"{dead}/removals", b"{}", 405, "accepts GET"),
            (f"{running.url}/_thawd/queue", b"{}", 405, "accepts GET"),
        ]
        for url, body, status, words in cases:
            got, document = ask(url, body)
            assert got == status, url
            assert re.search(words, json.dumps(document)), (url, document)
        foreign = ask(f"{dead}/remove", b'{"all": true}', Origin="http://evil.example")
        assert foreign[0] == 403


def test_dead_letters_need_the_key_or_a_signature_where_there_is_one(failing: Project) -> None:
    with failing.up(environ={"THAWD_ACCESS_KEYS": "AKIALOCAL:a-long-secret"}) as running:
        assert ask(f"{running.url}/_thawd/dead")[0] == 403
        done = failing.command("dead", "list", "f", env={**os.environ, "THAWD_ACCESS_KEYS": "AKIALOCAL:a-long-secret"})
        assert (done.returncode, done.stdout) == (0, "no dead letters of f\n"), done.stderr
        done = failing.command(
            "dead", "rm", "--all", env={**os.environ, "THAWD_ACCESS_KEYS": "AKIALOCAL:a-long-secret"}
        )
        assert done.returncode == 0, done.stderr
    with failing.up(environ={"THAWD_KEY": "k" * 12}) as running:
        assert ask(f"{running.url}/_thawd/dead")[0] == 403
        assert ask(f"{running.url}/_thawd/dead", **{"X-Api-Key": "k" * 12})[0] == 200


def test_a_state_file_that_is_broken_is_told_without_a_traceback(failing: Project) -> None:
    with failing.up():
        pass
    file: Path = failing.data / "thawd.db"
    for path in failing.data.glob("thawd.db*"):
        path.unlink()
    file.write_bytes(b"not a database, whatever one does" * 100)
    for arguments in (("dead", "list"), ("queue",), ("dead", "redrive", "--all")):
        done = failing.command(*arguments)
        assert done.returncode == 1
        assert "thawd.db" in done.stderr
        assert "Traceback" not in done.stderr
