"""Claims about functions whose handlers take lists: requests that wait are joined, and each item is on its own."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import Project, Running, eventually

CODE = """
import os
import sys
import time

def wait(gate):
    while gate and not os.path.exists(gate):
        time.sleep(0.005)

def handler(events, context):
    for event in events:
        wait(event.get("gate"))
    does = {event.get("do") for event in events}
    print("batch of %d" % len(events))
    if "raise" in does:
        raise ValueError("no good batch")
    if "few" in does:
        return [1]
    if "dict" in does:
        return {"answers": len(events)}
    if "die" in does:
        os._exit(3)
    if "sleep" in does:
        time.sleep(600)
    answers = []
    for event, item in zip(events, context.items):
        if event.get("do") == "fail":
            answers.append(KeyError("missing"))
        elif event.get("do") == "object":
            answers.append(object())
        elif event.get("do") == "large":
            answers.append("x" * 6300000)
        else:
            left = item.get_remaining_time_in_millis()
            answers.append({"n": event.get("n"), "of": len(events), "id": item.aws_request_id, "left": left,
                            "ids": context.aws_request_id, "pid": os.getpid()})
    return answers

def one(event, context):
    wait(event.get("gate"))
    return event
"""
CONFIG = """
[functions.f]
handler = "app.handler"
timeout_s = {timeout_s}
reserved_concurrency = 1
batch = {{ size = 8, window_ms = 0 }}
{more}
"""


@contextlib.contextmanager
def served(project: Project, *, timeout_s: int = 60, more: str = "") -> Iterator[Running]:
    project.code(CODE)
    project.config(CONFIG.format(timeout_s=timeout_s, more=more))
    with project.up() as running:
        running.invoke("f", {"n": "first"})
        yield running


class Joined:
    """Requests that wait for the only environment, which a first request occupies until `go`."""

    def __init__(self, running: Running, folder: Path) -> None:
        self.running = running
        self.gate = folder / f"gate{time.monotonic_ns()}"
        self.threads = ThreadPoolExecutor(12)
        self.client = running.client()
        self.first = self.ask({"gate": str(self.gate)})
        eventually(lambda: running.function("f")["environments"]["busy"] == 1, what="the first request")

    def ask(self, event: Any, **options: Any) -> Future[dict[str, Any]]:
        payload = event if isinstance(event, bytes) else json.dumps(event).encode()
        return self.threads.submit(self._call, payload, options)

    def _call(self, payload: bytes, options: dict[str, Any]) -> dict[str, Any]:
        answer = self.client.invoke(FunctionName="f", Payload=payload, **options)
        body = answer["Payload"].read()
        return {
            "id": answer["ResponseMetadata"]["RequestId"],
            "error": answer.get("FunctionError"),
            "tail": base64.b64decode(answer.get("LogResult", "")).decode(),
            "answer": json.loads(body) if body else None,
        }

    def add(self, *events: Any, **options: Any) -> list[Future[dict[str, Any]]]:
        """Requests that join the line, in this order."""
        asked = []
        for event in events:
            waiting = self.waiting() + 1
            asked.append(self.ask(event, **options))
            eventually(lambda waiting=waiting: self.waiting() == waiting, what="a request in line")
        return asked

    def waiting(self) -> int:
        return int(self.running.function("f")["waiting"])

    def go(self, asked: list[Future[dict[str, Any]]]) -> list[dict[str, Any]]:
        self.gate.touch()
        assert self.first.result()["error"] is None
        return [each.result() for each in asked]


def logged(project: Project, text: str) -> str:
    """The function's log, once it contains `text`."""
    path = project.data / "logs" / "f.log"
    return str(eventually(lambda: text in (log := path.read_text()) and log, what=f"{text!r} in the log"))


def test_requests_that_wait_are_joined_and_each_has_its_own_id_log_lines_and_tail(project: Project) -> None:
    with served(project) as running:
        joined = Joined(running, project.root)
        asked = joined.add({"n": 1}, {"n": 2}, {"n": 3}, LogType="Tail")
        answers = joined.go(asked)
        ids = [each["id"] for each in answers]
        for number, each in enumerate(answers):
            assert each["error"] is None
            assert (each["answer"]["n"], each["answer"]["of"], each["answer"]["id"]) == (number + 1, 3, ids[number])
            assert each["answer"]["ids"] == ",".join(ids)
            assert 0 < each["answer"]["left"] <= 60_000
            lines = each["tail"].splitlines()
            assert lines[0] == f"START RequestId: {ids[number]} Version: $LATEST"
            assert lines[1:3] == ["batch of 3", f"END RequestId: {ids[number]}"]
            assert lines[3].startswith(f"REPORT RequestId: {ids[number]}\t")
            assert "\tBatch Size: 3\t" in lines[3]
            assert len(lines) == 4
        log = logged(project, f"REPORT RequestId: {ids[-1]}")
        for request_id in ids:
            assert [log.count(f"{word} RequestId: {request_id}") for word in ("START", "END", "REPORT")] == [1, 1, 1]
        status = running.function("f")
        assert status["batched"] == 3
        assert status["invocations"]["warm"]["count"] == 4
        assert joined.first.result()["answer"]["of"] == 1


def test_items_fail_alone_and_the_others_of_their_batch_are_answered(project: Project) -> None:
    with served(project) as running:
        joined = Joined(running, project.root)
        events = [{"n": 1}, {"do": "fail"}, {"do": "object"}, {"do": "large"}, {"n": 5}]
        good, failed, unencodable, large, last = answers = joined.go(joined.add(*events))
        assert (good["answer"]["n"], last["answer"]["n"], last["answer"]["of"]) == (1, 5, 5)
        assert [each["error"] for each in answers] == [None, *["Unhandled"] * 3, None]
        assert failed["answer"] == {
            "errorMessage": "'missing'",
            "errorType": "KeyError",
            "requestId": failed["id"],
            "stackTrace": [],
        }
        assert unencodable["answer"]["errorType"] == "Runtime.MarshalError"
        assert large["answer"]["errorType"] == "Function.ResponseSizeTooLarge"
        logged(project, f"[ERROR] RequestId: {failed['id']} KeyError: 'missing'")
        assert running.function("f")["errors"] == 3


@pytest.mark.parametrize(
    ("do", "error_type", "message"),
    [
        ("raise", "ValueError", "no good batch"),
        (
            "few",
            "Runtime.InvalidBatchResponse",
            "must return a list of 3 answers, in the same order, but returned a list",
        ),
        ("dict", "Runtime.InvalidBatchResponse", "but returned an object of type dict"),
        ("die", "Runtime.ExitError", "exit status 3"),
    ],
)
def test_what_fails_the_whole_batch_fails_each_item_with_that_error(
    project: Project, do: str, error_type: str, message: str
) -> None:
    with served(project) as running:
        joined = Joined(running, project.root)
        answers = joined.go(joined.add({"n": 1}, {"do": do}, {"n": 3}))
        for each in answers:
            assert each["error"] == "Unhandled"
            assert each["answer"]["errorType"] == error_type
            assert message in each["answer"]["errorMessage"]
            assert each["id"] in json.dumps(each["answer"])
        assert running.invoke("f", {"n": 9})[0]["n"] == 9


def test_a_batch_that_exceeds_the_time_limit_fails_each_item_with_a_time_out(project: Project) -> None:
    with served(project, timeout_s=3) as running, ThreadPoolExecutor(1):
        joined = Joined(running, project.root)
        asked = joined.add({"n": 1}, {"do": "sleep"})
        answers = joined.go(asked)
        assert [each["answer"]["errorType"] for each in answers] == ["Sandbox.Timedout"] * 2
        assert all(each["id"] in each["answer"]["errorMessage"] for each in answers)
        assert running.function("f")["timeouts"] == 2


def test_an_environment_that_is_killed_fails_its_batch_and_no_later_request(project: Project) -> None:
    with served(project) as running:
        pid = running.invoke("f", {})[0]["pid"]
        joined = Joined(running, project.root)
        second = project.root / "second"
        asked = joined.add({"gate": str(second)}, {"n": 2})
        joined.gate.touch()
        joined.first.result()
        eventually(lambda: joined.waiting() == 0, what="the batch")
        later = joined.add({"n": 3}, {"n": 4})
        os.kill(pid, signal.SIGKILL)
        assert [each.result()["answer"]["errorType"] for each in asked] == ["Runtime.ExitError"] * 2
        assert [each.result()["answer"]["n"] for each in later] == [3, 4]


def test_a_caller_that_goes_away_does_not_take_its_batch_along(project: Project) -> None:
    with served(project) as running:
        joined = Joined(running, project.root)
        second = project.root / "second"
        kept = joined.add({"gate": str(second), "n": 1})
        with raw_invoke(running, {"n": 2}):
            eventually(lambda: joined.waiting() == 2, what="the second request in line")
            joined.gate.touch()
            joined.first.result()
            eventually(lambda: joined.waiting() == 0, what="the batch")
        second.touch()
        assert kept[0].result()["answer"]["of"] == 2


def test_a_batch_goes_on_when_all_its_clients_have_disconnected(project: Project) -> None:
    """As on Lambda, where a client that disconnects does not stop the invocation."""
    with served(project) as running:
        pid = running.invoke("f", {})[0]["pid"]
        joined = Joined(running, project.root)
        gate = project.root / "gate of the batch"
        with raw_invoke(running, {"gate": str(gate)}), raw_invoke(running, {}):
            eventually(lambda: joined.waiting() == 2, what="two requests in line")
            joined.gate.touch()
            joined.first.result()
            eventually(lambda: joined.waiting() == 0, what="the batch")
        gate.touch()
        logged(project, "batch of 2")
        answer = running.invoke("f", {"n": 9})[0]
        assert (answer["n"], answer["pid"]) == (9, pid)


@contextlib.contextmanager
def raw_invoke(running: Running, event: Any) -> Iterator[None]:
    """A request whose client closes its connection when the block ends."""
    host, port = running.url.removeprefix("http://").split(":")
    body = json.dumps(event).encode()
    with socket.create_connection((host, int(port))) as connection:
        path = "/2015-03-31/functions/f/invocations"
        head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        yield


def test_asynchronous_events_join_the_same_batches(project: Project) -> None:
    with served(project, more='on_success = "table:done"\n[tables.done]\npath = "done.db"\n') as running:
        joined = Joined(running, project.root)
        for number in range(3):
            joined.ask({"n": number}, InvocationType="Event").result()
        eventually(lambda: joined.waiting() == 3, what="events in line")
        asked = joined.add({"n": "synchronous"})
        (answer,) = joined.go(asked)
        assert answer["answer"]["of"] == 4
        rows = eventually(lambda: len(found := project.rows("done")) == 3 and found, what="the outcomes")
        answers = sorted((row["n"], row["of"]) for row in rows.values())
        assert answers == [(0, 4), (1, 4), (2, 4)]


def test_an_event_that_kills_its_batch_is_retried_alone_so_that_the_others_succeed(project: Project) -> None:
    destinations = 'on_success = "table:done"\non_failure = "table:failed"\n'
    tables = '[tables.done]\npath = "done.db"\n[tables.failed]\npath = "failed.db"\n'
    with served(project, more=destinations + tables) as running:
        joined = Joined(running, project.root)
        for event in ({"n": 1}, {"do": "die"}, {"n": 3}):
            joined.ask(event, InvocationType="Event").result()
        eventually(lambda: joined.waiting() == 3, what="events in line")
        joined.go([])
        eventually(lambda: len(project.rows("failed")) == 1, what="the dead letter")
        rows = eventually(lambda: len(found := project.rows("done")) == 2 and found, what="the other outcomes")
        assert sorted((row["n"], row["of"]) for row in rows.values()) == [(1, 1), (3, 1)]


def test_a_snapshot_with_a_priming_event_serves_batches(project: Project) -> None:
    with served(project, more="prime = { n = 0 }\n") as running:
        assert running.function("f")["start"] == "thaw", running.function("f")
        joined = Joined(running, project.root)
        assert [each["answer"]["of"] for each in joined.go(joined.add({}, {}))] == [2, 2]


def test_a_streaming_handler_cannot_take_batches(project: Project) -> None:
    project.code("from thawd import streaming\n@streaming.handler\ndef handler(event, context):\n    yield 'a'\n")
    project.config(CONFIG.format(timeout_s=3, more=""))
    with project.up() as running:
        answer, error = running.invoke("f", {})
        assert error == "Unhandled"
        assert answer["errorType"] == "Runtime.InvalidBatchHandler"
        assert "remove the option, or make it an ordinary function" in answer["errorMessage"]
