"""Schedules and webhooks on a real server, through kills, pauses and reloads."""

from __future__ import annotations

import http.client
import json
import signal
import sqlite3
from collections import defaultdict
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from .conftest import Project, Running, eventually

HANDLER = """
import json
import thawd

def handler(event, context):
    thawd.bucket("seen").write(f"{context.aws_request_id}.json", json.dumps(event).encode())
"""
FUNCTION = '[functions.f]\nhandler = "app.handler"\n[buckets.seen]\n'


def seen(project: Project) -> dict[str, Any]:
    """Return the events that the handler received, by request id."""
    paths = (project.root / "seen").glob("*.json")
    return {path.stem: json.loads(path.read_bytes()) for path in paths}


def shown(project: Project, name: str) -> dict[str, Any]:
    done = project.command("source", "list", "--json")
    assert done.returncode == 0, done.stderr
    return next(one for one in json.loads(done.stdout) if one["name"] == name)


def post(running: Running, path: str, body: bytes, **headers: str) -> tuple[int, dict[str, str], Any]:
    address = urlsplit(running.url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=60)
    try:
        connection.request("POST", path, body=body, headers=headers)
        answer = connection.getresponse()
        told = {name.lower(): value for name, value in answer.getheaders()}
        return answer.status, told, json.loads(answer.read())
    finally:
        connection.close()


def set_back(project: Project, name: str, by_s: float) -> float:
    """Make a schedule older while no server runs. Return when it now begins, seconds since the epoch."""
    with sqlite3.connect(project.data / "thawd.db") as database:
        database.execute(
            "UPDATE schedules SET anchor = anchor - ?, done_until = done_until - ? WHERE name = ?", (by_s, by_s, name)
        )
        (anchor,) = database.execute("SELECT anchor FROM schedules WHERE name = ?", (name,)).fetchone()
    database.close()
    return float(anchor)


def test_a_schedule_runs_once_for_each_time_under_kills(project: Project) -> None:
    project.code(HANDLER)
    every_minute = '[schedules.s]\nfunction = "f"\nschedule = "rate(1 minute)"\nmissed = "all"\n'
    project.config(FUNCTION + every_minute)
    with project.up():
        eventually(lambda: shown(project, "s")["next_run"], what="the schedule")
    anchor = set_back(project, "s", 3600.0 * 5)
    for kills in range(1, 4):
        with project.up() as running:
            eventually(lambda: len(seen(project)) >= 60 * kills, what="some runs")  # noqa: B023
            running.stop(number=signal.SIGKILL)
    with project.up():

        def runs() -> dict[int, set[str]]:
            ids = defaultdict(set)
            for request_id, event in seen(project).items():
                at = datetime.fromisoformat(event["time"]).timestamp()
                ids[round((at - anchor) / 60)].add(request_id)
            return ids

        # Another minute may pass meanwhile, and its run may end before an earlier one.
        eventually(lambda: set(runs()) >= set(range(1, 301)), what="all runs")
        ids = runs()
    assert min(ids) == 1
    assert all(len(of_time) == 1 for of_time in ids.values())


def test_a_schedule_is_paused_reloaded_and_made_up_for(project: Project) -> None:
    project.code(HANDLER)
    hourly = '[schedules.s]\nfunction = "f"\nschedule = "rate(1 hour)"\ninput = { task = "clean" }\n'
    project.config(FUNCTION)
    with project.up() as running:
        project.config(FUNCTION + hourly)
        running.process.send_signal(signal.SIGHUP)
        eventually(lambda: "configuration reloaded" in running.output, what="the reload")
        assert shown(project, "s")["state"] == "Enabled"
        assert project.command("source", "pause", "s").stdout == "s: Disabled\n"
    set_back(project, "s", 3600.0 * 10)
    with project.up() as running:
        assert (shown(project, "s")["state"], shown(project, "s")["next_run"]) == ("Disabled", None)
        assert project.command("source", "resume", "s").stdout == "s: Enabled\n"
        assert shown(project, "s")["runs"] == 0
    set_back(project, "s", 3600.0 * 10)
    with project.up():
        eventually(lambda: list(seen(project).values()) == [{"task": "clean"}], what="the run that was missed")
        told = shown(project, "s")
    assert (told["runs"], told["kind"]) == (1, "schedule")
    assert told["last_late_s"] > 0


def test_a_webhook_that_was_accepted_survives_a_kill(project: Project) -> None:
    project.code(HANDLER)
    project.config(FUNCTION + '[routes]\n"POST /hook/{kind}" = { function = "f", asynchronous = true }\n')
    ids = []
    with project.up() as running:
        for number in range(30):
            status, headers, answer = post(
                running, f"/hook/order?n={number}", b'{"a": 1}', **{"content-type": "application/json"}
            )
            assert (status, headers["x-amzn-requestid"]) == (202, answer["requestId"])
            ids.append(answer["requestId"])
        running.stop(number=signal.SIGKILL)
    with project.up():
        eventually(lambda: set(seen(project)) >= set(ids), what="all requests")
    events = seen(project)
    assert sorted(int(events[one]["queryStringParameters"]["n"]) for one in ids) == list(range(30))
    event = events[ids[0]]
    assert (event["version"], event["routeKey"], event["body"]) == ("2.0", "POST /hook/{kind}", '{"a": 1}')
    assert event["pathParameters"] == {"kind": "order"}
    assert event["requestContext"]["requestId"] == ids[0]


def test_webhooks_have_a_format_and_a_limit_and_are_turned_away_when_too_many_wait(project: Project) -> None:
    gate = project.root / "gate"
    project.code(f"""
        import os, time

        def handler(event, context):
            while not os.path.exists({str(gate)!r}):
                time.sleep(0.01)
    """)
    project.config(
        'max_queued = 3\n[functions.f]\nhandler = "app.handler"\nreserved_concurrency = 1\n[routes]\n'
        '"POST /hook" = { function = "f", asynchronous = true, payload_format = "1.0" }\n'
    )
    with project.up() as running:
        assert post(running, "/hook", b"x" * 1_048_577)[0] == 413
        # The body is within the limit, but not the event that contains it in Base64.
        assert post(running, "/hook", b"\xff" * 900_000)[0] == 413
        answers = [post(running, "/hook", b"x") for _ in range(6)]
        assert [status for status, _, _ in answers[:3]] == [202] * 3
        status, headers, answer = answers[-1]
        assert (status, headers["retry-after"]) == (429, "1")
        assert "max_queued" in answer["message"]
        gate.touch()


def test_listing_names_what_there_is(project: Project) -> None:
    project.code(HANDLER)
    project.config(FUNCTION)
    with project.up() as running:
        assert project.command("source", "list").stdout.startswith("no sources")
        refused = project.command("source", "pause", "absent")
        assert (refused.returncode, "There is no source absent" in refused.stderr) == (1, True)
        assert post(running, "/_thawd/sources/absent/explode", b"")[0] == 404
    project.config(FUNCTION + '[schedules.s]\nfunction = "f"\nschedule = "rate(1 hour)"\nenabled = false\n')
    with project.up() as running:
        assert "schedule  s " in "\n".join(running.output)
        assert project.command("source", "list").stdout.split("\n")[1].split()[:4] == ["s", "schedule", "f", "Disabled"]
        refused = project.command("source", "resume", "s")
        assert (refused.returncode, "enabled = false" in refused.stderr) == (1, True)
        assert shown(project, "s")["next_run"] is None
